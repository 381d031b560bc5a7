package mount

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// smallDisk mounts a file system of the given MiB, "ext4" or "xfs", and returns where.
func smallDisk(t *testing.T, kind string, mib int64) string {
	t.Helper()
	mkfs := []string{"mkfs.ext4", "-q", "-F", "-m", "0"}
	if kind == "xfs" {
		mkfs = []string{"mkfs.xfs", "-q", "-f"} // it takes 300 MiB and more, 64 of them for its journal
	}
	image, dir := filepath.Join(t.TempDir(), "image"), filepath.Join(t.TempDir(), "disk")
	ok(t, "image", os.WriteFile(image, nil, 0o600))
	ok(t, "image", os.Truncate(image, mib<<20))
	ok(t, "mkdir", os.Mkdir(dir, 0o755))
	for _, args := range [][]string{append(mkfs, image), {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir
}

func freeOf(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	ok(t, "statfs", unix.Statfs(dir, &st))
	return int64(st.Bavail) * st.Bsize
}

// fillDisk writes to a file until it cannot, and returns all that was written to it, and synced says how
// much of that was on the disk at the last fsync that succeeded.
func fillDisk(t *testing.T, path string, max int) (wrote []byte, synced int) {
	t.Helper()
	f, err := os.Create(path)
	ok(t, "create the file that fills the disk", err)
	data := random(99, max)
	n := 0
	for n < max {
		k, err := f.Write(data[n:min(n+256<<10, max)])
		n += k
		if errors.Is(err, syscall.ENOSPC) {
			break
		}
		ok(t, "write until the disk is full", err)
		if n>>20%16 == 0 {
			if err := f.Sync(); err == nil {
				synced = n
			} else if !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("fsync: %v", err)
			}
		}
	}
	if n >= max {
		t.Fatalf("%d bytes were written to a disk that is smaller, and no ENOSPC", n)
	}
	if err := f.Close(); err != nil && !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("close: %v", err)
	}
	return data[:n], synced
}

// TestFullDisk: while the origin takes nothing the disk of the cache fills. Who writes gets ENOSPC, and nothing
// that was written is lost; reads go on, of what is not in the cache, too. Names can be changed and removed, also after
// the worker or the whole mount was killed; and all is published, and makes room, when the origin takes it.
func TestFullDisk(t *testing.T) {
	modes(t, func(t *testing.T, flag string) { fullDisk(t, "ext4", 256, flag) })
	t.Run("xfs", func(t *testing.T) { fullDisk(t, "xfs", 360, "--passthrough=auto") })
}

func fullDisk(t *testing.T, kind string, mib int, flag string) {
	disk := smallDisk(t, kind, int64(mib))
	w := newWorld(t)
	remote, cold := random(1, 3<<20), random(2, 5<<20)
	w.put("remote", remote)
	w.put("cold", cold)
	m := w.mount(flag, "--cache-dir", filepath.Join(disk, "cache"), "--cache-size", fmt.Sprintf("%dMiB", mib*3/4))
	m.expect = append(unpublishable(), "is full of data that is not in the bucket", "no space left", "too little space left", "worker")
	m.same("remote", remote)
	ok(t, "stat", statNamed(m.path("cold"), int64(len(cold))))
	back := w.refuseWrites()

	var removed []string
	small := make(map[string][]byte)
	ok(t, "mkdir", os.Mkdir(m.path("d"), 0o755))
	for i := range 30 {
		name := fmt.Sprintf("d/f%02d", i)
		small[name] = random(uint64(i), 1+i*7001)
		ok(t, "write "+name, writeSynced(m.path(name), small[name]))
	}
	large, _ := fillDisk(t, m.path("large"), (mib+64)<<20)
	if len(large) < mib<<20/4 {
		t.Errorf("ENOSPC after %d bytes only", len(large))
	}
	t.Logf("ENOSPC after %d bytes, %d bytes free", len(large), freeOf(t, disk))
	whole := func(when string) {
		t.Helper()
		for name, want := range small {
			m.same(name, want)
		}
		m.same("large", large)
		m.same("remote", remote)
		if t.Failed() {
			t.Fatal(when)
		}
	}
	full := func(when string) {
		t.Helper()
		fillAgain(t, m.path("large"), &large)
		if t.Failed() {
			t.Fatal(when)
		}
	}
	whole("full")
	full("full")
	m.same("cold", cold) // of which nothing is here

	// What has a name can have another, and can be removed.
	change := func(when string, i int) {
		t.Helper()
		from, to, gone := fmt.Sprintf("d/f%02d", i), fmt.Sprintf("d/g%02d", i), fmt.Sprintf("d/f%02d", i+1)
		ok(t, when+": rename", os.Rename(m.path(from), m.path(to)))
		small[to] = small[from]
		delete(small, from)
		ok(t, when+": stat", statNamed(m.path(to), int64(len(small[to]))))
		ok(t, when+": remove", os.Remove(m.path(gone)))
		delete(small, gone)
		removed = append(removed, gone, from)
		fillAgain(t, m.path("large"), &large)
	}
	change("full", 10)
	for i := range 3 {
		pid := m.status().WorkerPID
		ok(t, "kill the worker", syscall.Kill(pid, syscall.SIGKILL))
		m.eventually("another worker serves", func() error {
			if s := m.status(); s.WorkerPID == pid || s.WorkerPID == 0 {
				return errors.New("it is the old one")
			}
			return nil
		})
		when := fmt.Sprintf("after the worker was killed, %d", i)
		whole(when)
		full(when)
		change(when, 12+2*i)
	}
	whole("changed")

	m.kill()
	m.start()
	whole("after a new mount")
	full("after a new mount")
	change("after a new mount", 18)

	// Removing makes room.
	ok(t, "remove", os.Remove(m.path("large")))
	m.eventually("the space is there again", func() error {
		if n := freeOf(t, disk); n < int64(len(large))/4 {
			return fmt.Errorf("%d bytes free", n)
		}
		return nil
	})
	large = random(7, 20<<20)
	m.eventually("the disk takes files again", func() error { return os.WriteFile(m.path("large"), large, 0o644) })
	whole("after removing")

	// The disk is full once more when the origin takes all.
	more, _ := fillDisk(t, m.path("more"), (mib+64)<<20)
	back()
	m.ends(0, "retry", m.dir)
	m.ends(0, "sync", m.dir)
	for name, want := range small {
		m.published(name, want)
	}
	m.published("large", large)
	m.published("more", more)
	for _, name := range removed {
		if _, err := w.object(name); err == nil {
			t.Errorf("%s, which has gone, is in the bucket", name)
		}
	}
	m.eventually("the status says so", func() error { // which is looked up from time to time only
		if n := m.writes(); n.total() != 0 || n.Conflicts != 0 {
			return fmt.Errorf("%+v", n)
		}
		return nil
	})
	again := random(8, 40<<20) // what is published gives way
	m.eventually("the disk takes what replaces published files", func() error { return os.WriteFile(m.path("again"), again, 0o644) })
	m.same("again", again)
	m.same("more", more)
	m.ends(0, "sync", m.dir)
	m.published("again", again)
}

// fillAgain appends to a file until the disk has no room.
func fillAgain(t *testing.T, path string, have *[]byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	for i := uint64(0); err == nil; i++ {
		b := random(5+i, 256<<10)
		var n int
		n, err = f.Write(b)
		*have = append(*have, b[:n]...)
	}
	if f != nil {
		err = errors.Join(err, f.Close())
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write to the full disk: %v, want ENOSPC", err)
	}
}

func statNamed(path string, size int64) error {
	st, err := os.Stat(path)
	if err == nil && st.Size() != size {
		err = fmt.Errorf("%s has %d bytes, want %d", path, st.Size(), size)
	}
	return err
}

// TestFullDiskAgain: what was on a disk that was full is there at the next mount after somebody has made
// room, and is published.
func TestFullDiskAgain(t *testing.T) {
	disk := smallDisk(t, "ext4", 256)
	room := filepath.Join(disk, "room")
	ok(t, "room", os.WriteFile(room, random(3, 64<<20), 0o600))
	w := newWorld(t)
	m := w.mount("--cache-dir", filepath.Join(disk, "cache"), "--cache-size", "200MiB")
	m.expect = append(unpublishable(), "is full of data that is not in the bucket", "no space left", "too little space left",
		"was being written when the mount ended") // its close could not be noted any more
	back := w.refuseWrites()
	first := random(4, 100_001)
	ok(t, "write first", writeSynced(m.path("first"), first))
	data, synced := fillDisk(t, m.path("f"), 320<<20)
	if synced == 0 {
		t.Error("nothing was synced")
	}
	m.same("first", first)
	m.same("f", data)
	m.kill()
	ok(t, "make room", os.Remove(room))
	m.start()
	m.same("first", first)
	m.same("f", data)
	back()
	m.ends(0, "retry", m.dir)
	m.ends(0, "sync", m.dir)
	m.published("first", first)
	m.published("f", data)
}
