package meta

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// spares are files that hold blocks of the disk for badger's, so that nobody else can take them: a
// spare becomes a log or a table by getting its name. The blocks are never free meanwhile. There are
// large ones, each enough for a log or the table that is made of it, and small ones, for the small tables that
// are made when the index is opened. Who reads a spare reads zeros. A log that badger is about to delete becomes a
// spare again.
type spares struct {
	dir   string
	sizes [len(spareSizes)]int // how many there should be of each size

	mu   sync.Mutex
	next int      // number of the next file
	have []spare  // by size
	old  []string // names of logs beside those that badger knows them by
}

// spareSizes are the sizes of spares, in the order of how much they are needed.
var spareSizes = [...]int64{logBytes, 128 << 10, 512 << 10}

// spare is one of them: a file and its blocks, in bytes.
type spare struct {
	path  string
	bytes int64
}

// oldPrefix begins the names of files in which there may be something else than zeros.
const oldPrefix = "old-"

// openSpares takes over what a process before has left. total is how many bytes there should be.
func openSpares(dir string, total int64) (*spares, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	small := min(total/6, 16<<20)
	s := &spares{dir: dir}
	for i, n := range [...]int64{total - small, small / 4, small - small/4} {
		s.sizes[i] = int(n / spareSizes[i])
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		path := filepath.Join(dir, n.Name())
		old, number := strings.CutPrefix(n.Name(), oldPrefix)
		k, err := strconv.Atoi(old)
		if err != nil {
			continue
		}
		s.next = max(s.next, k+1)
		fi, err := n.Info()
		switch {
		case err != nil:
		case !number:
			s.add(spare{path, allocated(fi)})
		case fi.Sys().(*syscall.Stat_t).Nlink > 1: // badger has it still
			_ = os.Remove(path)
		default:
			_ = s.recycle(path)
		}
	}
	return s, nil
}

// add puts a spare where it belongs by its size. Caller holds mu, or is the only one.
func (s *spares) add(sp spare) {
	at, _ := slices.BinarySearchFunc(s.have, sp.bytes, func(h spare, n int64) int { return int(h.bytes - n) })
	s.have = slices.Insert(s.have, at, sp)
}

func (s *spares) name(prefix string) string {
	s.next++
	return filepath.Join(s.dir, prefix+strconv.Itoa(s.next-1))
}

// count tells how many there are of n bytes and more.
func (s *spares) count(n int64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.countLocked(n)
}

func (s *spares) countLocked(n int64) (count int) {
	for _, sp := range s.have {
		if sp.bytes >= n {
			count++
		}
	}
	return count
}

// take removes the smallest that has n bytes from the list, leaving keep that have the size of a log. Caller holds mu.
func (s *spares) take(n int64, keep int) (sp spare, ok bool) {
	for i, sp := range s.have {
		if sp.bytes < n {
			continue
		}
		if sp.bytes >= logBytes && s.countLocked(logBytes) <= keep {
			return spare{}, false
		}
		s.have = slices.Delete(s.have, i, i+1)
		return sp, true
	}
	return spare{}, false
}

// exchange makes a spare the file that is at path, open as fd, of n bytes; false when there is none with
// need bytes, see take.
func (s *spares) exchange(fd int, path string, n, need int64, keep int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, ok := s.take(need, keep)
	if !ok {
		return false
	}
	f, err := os.OpenFile(sp.path, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	err = f.Truncate(n)
	if err == nil {
		err = os.Rename(sp.path, path)
	}
	if err == nil {
		err = unix.Dup3(int(f.Fd()), fd, unix.O_CLOEXEC)
	}
	return err == nil
}

// replace gives a file that others append to through fds the blocks of a spare: room is how many bytes
// it needs beyond its data.
func (s *spares) replace(path string, data []byte, room int64, fds []int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, at, err := s.copyTo(bytes.NewReader(data), int64(len(data)), room)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := os.Rename(at, path); err != nil {
		return err
	}
	for _, fd := range fds {
		if err := unix.Dup3(int(f.Fd()), fd, unix.O_CLOEXEC); err != nil {
			return err
		}
	}
	return nil
}

// copyTo writes n bytes into a spare that has room bytes more, and returns it under a name for what is not
// zeros. Caller holds mu.
func (s *spares) copyTo(r io.Reader, n, room int64) (f *os.File, path string, err error) {
	sp, ok := s.take(n+room, 1)
	if !ok {
		return nil, "", unix.ENOSPC
	}
	path = s.name(oldPrefix)
	if err := os.Rename(sp.path, path); err != nil {
		return nil, "", err
	}
	if f, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return nil, "", err
	}
	_, err = io.CopyN(f, r, n)
	if fi, serr := f.Stat(); err == nil && serr == nil && fi.Size() > n {
		err = f.Truncate(n)
	}
	if err == nil {
		err = unix.Fdatasync(int(f.Fd()))
	}
	if err != nil {
		f.Close()
		return nil, "", err
	}
	return f, path, nil
}

// recycle makes of a file of the directory, of any content, a spare.
func (s *spares) recycle(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	zeros := make([]byte, 1<<20)
	for at, end := int64(0), min(fi.Size(), allocated(fi)); at < end; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), end-at)], at); err != nil {
			return err
		}
	}
	if err := unix.Fdatasync(int(f.Fd())); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := s.name("")
	if err := os.Rename(path, name); err != nil {
		return err
	}
	s.add(spare{name, allocated(fi)})
	return nil
}

// keep has the blocks of a log stay when badger deletes it, after which reclaim makes it a spare. Badger
// empties a file before it removes it, so its descriptor is made one of something else; it needs it for
// nothing more, as nothing is written to that log any more.
func (s *spares) keep(path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil || st.Nlink > 1 {
		return err
	}
	other, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(other)
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.name(oldPrefix)
	if err := os.Link(path, old); err != nil {
		return err
	}
	for _, fd := range descriptorsOf(path) {
		if err := unix.Dup3(other, fd, unix.O_CLOEXEC); err != nil {
			return errors.Join(err, os.Remove(old))
		}
	}
	s.old = append(s.old, old)
	return nil
}

// reclaim makes spares of the logs that badger has deleted. To be called by one at a time.
func (s *spares) reclaim() error {
	s.mu.Lock()
	old := s.old
	s.old = nil
	s.mu.Unlock()
	var left []string
	var errs error
	for _, path := range old {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			errs = errors.Join(errs, err)
		} else if st.Nlink > 1 {
			left = append(left, path)
		} else {
			errs = errors.Join(errs, s.recycle(path))
		}
	}
	s.mu.Lock()
	s.old = append(s.old, left...)
	s.mu.Unlock()
	return errs
}

// refill makes those that are missing, as far as free bytes of the disk allow it, and lets go of what there is
// too much of.
func (s *spares) refill(free int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, n := range spareSizes {
		for have := s.between(i); have < s.sizes[i]; have++ {
			if free < n {
				return unix.ENOSPC
			}
			if err := s.make(n); err != nil {
				return err
			}
			free -= n
		}
	}
	for have := s.countLocked(logBytes); have > s.sizes[0]; have-- {
		last := len(s.have) - 1
		_ = os.Remove(s.have[last].path)
		s.have = s.have[:last]
	}
	return nil
}

// yield gives the blocks of the largest spare back that is none for a log; false when there is none.
func (s *spares) yield() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := len(s.have) - s.countLocked(logBytes) - 1
	if i < 0 {
		return false
	}
	path := s.have[i].path
	s.have = slices.Delete(s.have, i, i+1)
	// A file that is merely removed may keep its blocks for a while.
	return errors.Join(os.Truncate(path, 0), os.Remove(path)) == nil
}

// between counts the spares of one of the sizes, or more, and less than the next larger one. Caller holds mu.
func (s *spares) between(i int) int {
	next := int64(1 << 62)
	for _, n := range spareSizes {
		if n > spareSizes[i] {
			next = min(next, n)
		}
	}
	return s.countLocked(spareSizes[i]) - s.countLocked(next)
}

// make makes a spare of n bytes. Caller holds mu.
func (s *spares) make(n int64) error {
	path := s.name("")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, n); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	s.add(spare{path, n})
	return nil
}

// trim replaces the logs in a directory, which end in zeros, by copies in small spares without those, and makes the
// logs spares: the next log is as large, and is needed before badger gives these up.
func (s *spares) trim(dir string) error {
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if filepath.Ext(n.Name()) != ".mem" {
			continue
		}
		if err := s.trimLog(filepath.Join(dir, n.Name())); err != nil && !errors.Is(err, unix.ENOSPC) {
			return err
		}
	}
	return nil
}

func (s *spares) trimLog(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || allocated(fi) < logBytes {
		return err
	}
	used, err := usedOf(f, fi.Size())
	if err != nil || used > logBytes/2 {
		return err
	}
	s.mu.Lock()
	c, at, err := s.copyTo(f, used, 0)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	defer c.Close()
	if err := unix.Renameat2(unix.AT_FDCWD, at, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE); err != nil {
		return err
	}
	return s.recycle(at)
}

// usedOf tells how much of a file of n bytes there is before the zeros that it ends in, some of which may
// be the end of an entry.
func usedOf(f *os.File, n int64) (used int64, err error) {
	const block = 64 << 10
	buf := make([]byte, block)
	for end := n; end > 0; {
		at := max(end-block, 0)
		b := buf[:end-at]
		if _, err := f.ReadAt(b, at); err != nil {
			return 0, err
		}
		if k := len(bytes.TrimRight(b, "\x00")); k > 0 {
			const pad = 64
			return min(at+int64(k)+pad, n), nil
		}
		end = at
	}
	return 0, nil
}
