package meta

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	_ "unsafe" // for go:linkname

	"golang.org/x/sys/unix"
)

// Badger writes its files through memory maps, of files that it has only just made as large as they
// will be: files of holes. Where the file system has no block to put in a hole the process dies of SIGBUS.
// Badger has no option for that, and nothing of its own is called between the making of a file and
// the first write to the map. All its maps come from the package unix, though, whose mapper calls the
// kernel through a variable. It is changed here, for the files of indexes only: they get their blocks
// before they are mapped, see space.fill.

// mmapper and mremapMmapper are the types of the same names in the package unix; TestEveryMapHasBlocks fails when
// that changes.
type mmapper struct {
	sync.Mutex
	_    map[*byte][]byte
	mmap func(addr, length uintptr, prot, flags, fd int, offset int64) (uintptr, error)
	_    func(addr, length uintptr) error
}

type mremapMmapper struct {
	mmapper
	_ func(oldaddr, oldlength, newlength uintptr, flags int, newaddr uintptr) (uintptr, error)
}

//go:linkname mapper golang.org/x/sys/unix.mapper
var mapper *mremapMmapper

// mapped are the open indexes by badger's directory. There is one mapper in a process, so there is one of these.
var mapped sync.Map // of string: *space

func init() {
	plain := mapper.mmap
	mapper.mmap = func(addr, length uintptr, prot, flags, fd int, offset int64) (uintptr, error) {
		if prot&unix.PROT_WRITE != 0 && flags&unix.MAP_SHARED != 0 {
			if err := fillMapped(fd, int64(length)); err != nil {
				return 0, err
			}
		}
		return plain(addr, length, prot, flags, fd, offset)
	}
}

// fillMapped gives blocks to a file that is about to be mapped if it is one of an index.
func fillMapped(fd int, n int64) error {
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return nil
	}
	if s, ok := mapped.Load(filepath.Dir(path)); ok {
		return s.(*space).fill(fd, path, n)
	}
	return nil
}

// What is written to, at most, of a log: a memory table, and the largest transaction that still found it not
// full; and of the files for large values, of which there are none: their heads.
const (
	logBytes  = memTableSize + 2<<20
	headBytes = 64 << 10
)

// written is how much of a new file of n bytes may be written to.
func written(path string, n int64) int64 {
	switch filepath.Ext(path) {
	case ".mem":
		return min(n, logBytes)
	case ".vlog", "":
		return min(n, headBytes)
	}
	return n
}

// fill gives a new file of badger's the blocks that it will write to: free ones, or else those of
// a spare, which takes the place of the file. When there are none it waits, since badger does not
// bear an error: it would forget what the table was to hold.
func (s *space) fill(fd int, path string, n int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Blocks != 0 {
		return nil // it is not new
	}
	need, table := written(path, n), strings.HasSuffix(path, ".sst")
	if table {
		s.fillManifest()
		s.keepLog()
	}
	for waits := false; ; time.Sleep(minLook) {
		switch err := unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, need); {
		case err == nil, errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			if waits {
				s.waiting.Add(-1)
			}
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT):
			return err
		}
		keep := 0 // of spares that are large enough for a log: one is for the next
		if table {
			keep = 1
		}
		if s.spares.exchange(fd, path, n, need, keep) {
			if waits {
				s.waiting.Add(-1)
			}
			return nil
		}
		if !waits {
			waits = true
			s.waiting.Add(1)
			s.log.Error("index: the disk is full, and so is what was kept for that; it goes on when there is room",
				"file", path, "bytes", need)
		}
	}
}

// What the manifest, to which badger appends some 40 bytes for each table, has in blocks beyond its end.
const (
	manifestAhead = 64 << 10
	manifestLow   = 8 << 10
)

// extendManifest gives badger's manifest blocks beyond its end if it is to have more: half of an entry, which
// is what a full disk takes, would make all that follows unreadable. False when there are none.
func (s *space) extendManifest() bool {
	path := filepath.Join(s.logs, manifestFile)
	fi, err := os.Stat(path)
	if err != nil || allocated(fi)-fi.Size() >= manifestLow {
		return true
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return true
	}
	defer f.Close()
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, fi.Size()+manifestAhead)
	return !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT)
}

// fillManifest is extendManifest that takes a spare where the disk is full: that takes the place of the
// manifest, under badger's descriptor. It is for who makes a table, and no other table may be finished
// meanwhile: while the disk is full there are no compactions, and memory tables are flushed one by one.
func (s *space) fillManifest() {
	if s.extendManifest() {
		return
	}
	path := filepath.Join(s.logs, manifestFile)
	data, err := os.ReadFile(path)
	if fds := descriptorsOf(path); err == nil && len(fds) > 0 {
		err = s.spares.replace(path, data, manifestAhead, fds)
	}
	if err != nil {
		s.log.Error("index: no room for its list of tables", "file", path, "err", err)
	}
}

// keepLog has the blocks of the log that a table is made of stay with the spares, on a full disk. It is the
// oldest one: memory tables are flushed in their order.
func (s *space) keepLog() {
	logs, _ := filepath.Glob(filepath.Join(s.logs, "*.mem")) // sorted
	if !s.full.Load() || len(logs) < 2 {
		return
	}
	if err := s.spares.keep(logs[0]); err != nil {
		s.log.Debug("index: the space of a log is not kept", "file", logs[0], "err", err)
	}
}

// descriptorsOf are this process's descriptors of a file.
func descriptorsOf(path string) (fds []int) {
	names, _ := os.ReadDir("/proc/self/fd")
	for _, n := range names {
		fd, err := strconv.Atoi(n.Name())
		if err != nil {
			continue
		}
		if at, err := os.Readlink("/proc/self/fd/" + n.Name()); err == nil && at == path {
			fds = append(fds, fd)
		}
	}
	return fds
}
