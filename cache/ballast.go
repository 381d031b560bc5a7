package cache

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ballast is a file of a directory that takes space on the disk for data that is not published
// yet. It is given up step by step when the disk gets full of that, and made again when there
// is room. Data of the cache never gets the space: what is missing of it counts as not free.
// stageWatch alone changes it.
type ballast struct {
	path     string
	want     int64        // bytes it should have; constant after Open
	bytes    atomic.Int64 // that it has
	inMemory bool         // the directory is on tmpfs
	refused  bool         // the file system does not reserve space; stageWatch's alone
}

// ballastStep is by how much the ballast grows at once, at most; it shrinks by multiples.
const ballastStep = 64 << 20

// find learns what a process before has left.
func (b *ballast) find(staging string) {
	b.path = filepath.Join(staging, ballastFile)
	var st unix.Stat_t
	if unix.Lstat(b.path, &st) == nil {
		b.bytes.Store(min(st.Size, st.Blocks*512))
	}
}

// missing is how many bytes are not there that should be.
func (b *ballast) missing() int64 {
	if b.refused {
		return 0
	}
	return max(b.want-b.bytes.Load(), 0)
}

// step is by how much it grows at once.
func (b *ballast) step() int64 { return min(ballastStep, max(b.want/4, 1<<20)) }

// resize makes the ballast n bytes long.
func (b *ballast) resize(n int64) error {
	f, err := os.OpenFile(b.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	old := b.bytes.Load()
	if n > old {
		if err = unix.Fallocate(int(f.Fd()), 0, 0, n); errors.Is(err, unix.EOPNOTSUPP) {
			b.refused = true
		}
	}
	if err != nil {
		n = old // not half of a step
	}
	if terr := f.Truncate(n); err == nil {
		err = terr
	}
	if err == nil || n == old {
		b.bytes.Store(n)
	}
	if err != nil {
		return &os.PathError{Op: "resize", Path: b.path, Err: err}
	}
	return nil
}
