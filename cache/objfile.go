package cache

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// dioAlign is the alignment of O_DIRECT transfers; probe checks that it suffices.
const dioAlign = 4096

// objFile is an object file that is open. It is counted by references: the Object holds one,
// each transfer another; the last closes the descriptors. Methods may be called in parallel.
type objFile struct {
	d    *dir
	id   ID
	size int64
	refs atomic.Int32

	mu       sync.Mutex
	buffered int // descriptor, -1 when not open
	direct   int
}

// createFile makes the file of an object: sparse, of its full size, with its identity.
func createFile(d *dir, id ID, size int64, attr []byte) (*objFile, error) {
	path := d.filePath(id)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.ENOENT) {
		if err = os.Mkdir(filepath.Dir(path), 0o700); err == nil || errors.Is(err, os.ErrExist) {
			fd, err = unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
		}
	}
	if err != nil {
		return nil, &os.PathError{Op: "create", Path: path, Err: err}
	}
	if err = unix.Ftruncate(fd, size); err == nil {
		err = unix.Fsetxattr(fd, xattrName, attr, 0)
	}
	if err != nil {
		unix.Close(fd)
		_ = unix.Unlink(path)
		return nil, &os.PathError{Op: "create", Path: path, Err: err}
	}
	f := &objFile{d: d, id: id, size: size, buffered: fd, direct: -1}
	f.refs.Store(1)
	return f, nil
}

// openFile opens the file of an object that exists and has the right size.
func openFile(d *dir, id ID, size int64) (*objFile, error) {
	f := &objFile{d: d, id: id, size: size, buffered: -1, direct: -1}
	f.refs.Store(1)
	fd, err := f.fd(false)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size != size {
		f.release()
		if err == nil {
			err = fmt.Errorf("size is %d, want %d: %w", st.Size, size, os.ErrNotExist)
		}
		return nil, &os.PathError{Op: "open", Path: d.filePath(id), Err: err}
	}
	return f, nil
}

func (f *objFile) retain() { f.refs.Add(1) }

func (f *objFile) release() {
	if f.refs.Add(-1) > 0 {
		return
	}
	for _, fd := range []int{f.buffered, f.direct} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// fd returns the descriptor for buffered or direct transfers, opening it at first use.
func (f *objFile) fd(direct bool) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, flags := &f.buffered, unix.O_RDWR|unix.O_CLOEXEC
	if direct {
		p, flags = &f.direct, flags|unix.O_DIRECT
	}
	if *p < 0 {
		fd, err := unix.Open(f.d.filePath(f.id), flags, 0)
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: f.d.filePath(f.id), Err: err}
		}
		*p = fd
	}
	return *p, nil
}

// write stores vecs, whole blocks but for the object's last, at off, a multiple of BlockSize.
// With direct, all but the last bytes that make no whole page go past the page cache; the
// file keeps its exact size. vecs is used up.
func (f *objFile) write(vecs [][]byte, off int64, direct bool) error {
	if direct && f.d.direct {
		last := len(vecs) - 1
		n := len(vecs[last]) &^ (dioAlign - 1)
		tail := vecs[last][n:]
		vecs[last] = vecs[last][:n]
		var total int64
		for _, v := range vecs {
			total += int64(len(v))
		}
		if total > 0 {
			if err := f.pwrite(vecs, off, true); err != nil {
				return err
			}
		}
		if len(tail) == 0 {
			return nil
		}
		vecs, off = [][]byte{tail}, off+total
	}
	return f.pwrite(vecs, off, false)
}

func (f *objFile) pwrite(vecs [][]byte, off int64, direct bool) error {
	fd, err := f.fd(direct)
	if err != nil {
		return err
	}
	for len(vecs) > 0 {
		n, err := unix.Pwritev(fd, vecs, off)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return &os.PathError{Op: "write", Path: f.d.filePath(f.id), Err: err}
		}
		off += int64(n)
		vecs = advance(vecs, n)
		if direct && n%dioAlign != 0 && len(vecs) > 0 {
			return &os.PathError{Op: "write", Path: f.d.filePath(f.id), Err: io.ErrShortWrite}
		}
	}
	return nil
}

// advance drops the first n bytes of vecs, and vectors that are empty.
func advance(vecs [][]byte, n int) [][]byte {
	for len(vecs) > 0 && n >= len(vecs[0]) {
		n -= len(vecs[0])
		vecs = vecs[1:]
	}
	if n > 0 {
		vecs[0] = vecs[0][n:]
	}
	return vecs
}

// read fills whole pool buffers with the blocks that begin at off, a multiple of BlockSize,
// to the file's end at most; buffers keep junk beyond it. Fewer bytes in the file than its
// size is io.ErrUnexpectedEOF. vecs is used up.
func (f *objFile) read(vecs [][]byte, off int64, direct bool) error {
	direct = direct && f.d.direct
	fd, err := f.fd(direct)
	if err != nil {
		return err
	}
	want := int64(0)
	for _, v := range vecs {
		want += int64(len(v))
	}
	want = min(want, f.size-off)
	for want > 0 {
		n, err := unix.Preadv(fd, vecs, off)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err == nil && direct && n%dioAlign != 0 && int64(n) < want {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return &os.PathError{Op: "read", Path: f.d.filePath(f.id), Err: err}
		}
		off += int64(n)
		want -= int64(n)
		if want > 0 {
			vecs = advance(vecs, n)
		}
	}
	return nil
}

// punch gives the blocks of [off, off+n) back to the disk. They read as zeros from then on.
func (f *objFile) punch(off, n int64) error {
	fd, err := f.fd(false)
	if err != nil {
		return err
	}
	if off+n >= f.size { // the last page of the file too
		n = (f.size - off + dioAlign - 1) &^ (dioAlign - 1)
	}
	for {
		err = unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return &os.PathError{Op: "punch", Path: f.d.filePath(f.id), Err: err}
	}
	return nil
}

// label replaces the identity and state kept with the file.
func (f *objFile) label(attr []byte) error {
	fd, err := f.fd(false)
	if err != nil {
		return err
	}
	if err := unix.Fsetxattr(fd, xattrName, attr, 0); err != nil {
		return &os.PathError{Op: "setxattr", Path: f.d.filePath(f.id), Err: err}
	}
	return nil
}
