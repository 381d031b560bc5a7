package keeper

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// slim makes the process use little memory from now on.
func slim() {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(25) // of a heap that lives of about 1 MiB
}

// shed gives back the memory that is not needed for waiting: garbage, and the pages of the
// program that were touched while its packages, which are a worker's, were initialised. Those are
// most of the keeper's resident memory; what is needed comes back from the page cache.
func shed() {
	debug.FreeOSMemory()
	if !onLocalDisk("/proc/self/exe") {
		return
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	for _, m := range cleanMappings(string(smaps)) {
		// Not worth a word when it does not work.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m[0], m[1]-m[0], unix.MADV_DONTNEED)
	}
}

// onLocalDisk says that a file can be read again whenever it must. One of a network file system
// may be gone by then, and the process with it: its pages are better kept.
func onLocalDisk(path string) bool {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return false
	}
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC, unix.SQUASHFS_MAGIC:
		return true
	}
	return false
}

// cleanMappings finds, in the text of smaps, the private mappings of files that cannot be written
// and were not (by a linker at the start, say): what is dropped of them comes back the same.
func cleanMappings(smaps string) [][2]uintptr {
	var clean [][2]uintptr
	var cur [2]uintptr
	candidate := false
	for line := range strings.Lines(smaps) {
		f := strings.Fields(line)
		if len(f) >= 5 && !strings.HasSuffix(f[0], ":") { // the first line of a mapping
			a, b, ok := strings.Cut(f[0], "-")
			from, err := strconv.ParseUint(a, 16, 64)
			to, err2 := strconv.ParseUint(b, 16, 64)
			candidate = ok && err == nil && err2 == nil && from < to && len(f) >= 6 &&
				f[4] != "0" && (f[1] == "r-xp" || f[1] == "r--p")
			cur = [2]uintptr{uintptr(from), uintptr(to)}
			continue
		}
		if candidate && len(f) == 3 && f[0] == "Anonymous:" {
			if f[1] == "0" {
				clean = append(clean, cur)
			}
			candidate = false
		}
	}
	return clean
}
