package file

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
)

// copyBuffer is the size of the buffer that data goes through on its way to a file.
const copyBuffer = 1 << 20

// sweepAge is the age at which an unfinished write is nobody's any more.
const sweepAge = 24 * time.Hour

// openTmp opens .leatfs-tmp, made when missing.
func (s *Store) openTmp() (int, error) {
	fd, err := s.openDir(tmpDir+"/", unix.O_RDONLY)
	if errors.Is(err, unix.ENOENT) {
		if err := unix.Mkdirat(int(s.root.Fd()), tmpDir, 0o777); err != nil && err != unix.EEXIST {
			return -1, err
		}
		fd, err = s.openDir(tmpDir+"/", unix.O_RDONLY)
	}
	if err == nil {
		s.sweep.Do(func() { s.sweepTmp(fd) })
	}
	return fd, err
}

// sweepTmp removes the temporary files of writes that a crash ended. Uploads stay: their
// owner's journal names them.
func (s *Store) sweepTmp(fd int) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return
	}
	d := os.NewFile(uintptr(dup), tmpDir)
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	for _, n := range names {
		var st unix.Stat_t
		if strings.HasPrefix(n, "put-") && unix.Fstatat(fd, n, &st, unix.AT_SYMLINK_NOFOLLOW) == nil &&
			time.Since(time.Unix(st.Mtim.Unix())) > sweepAge {
			_ = unix.Unlinkat(fd, n, 0)
		}
	}
}

// tmpFile is a file that is written under a name of its own in dir.
type tmpFile struct {
	*os.File
	dir  int // fd of the directory, owned
	name string
	crc  uint64 // CRC64NVME of what was written
}

// createTmp makes a temporary file in the directory dir, which it then owns.
func createTmp(dir int) (*tmpFile, error) {
	name := "put-" + rand.Text()
	fd, err := unix.Openat(dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o666)
	if err != nil {
		unix.Close(dir)
		return nil, err
	}
	return &tmpFile{File: os.NewFile(uintptr(fd), name), dir: dir, name: name}, nil
}

// drop closes the file and removes its name, if it has not been given another.
func (t *tmpFile) drop() {
	t.Close()
	if t.name != "" {
		_ = unix.Unlinkat(t.dir, t.name, 0)
	}
	unix.Close(t.dir)
}

// fill writes size bytes from r and holds them against want.
func (t *tmpFile) fill(ctx context.Context, op, key string, r io.Reader, size int64, want objstore.Checksum) error {
	crc := crc64nvme.New()
	w := io.Writer(io.MultiWriter(struct{ io.Writer }{t.File}, crc))
	var other hash.Hash32
	switch want.Algorithm {
	case objstore.CRC32C:
		other = crc32.New(crc32.MakeTable(crc32.Castagnoli))
	case objstore.CRC32:
		other = crc32.NewIEEE()
	}
	if other != nil {
		w = io.MultiWriter(w, other)
	}
	buf := make([]byte, min(copyBuffer, max(size, 1)))
	n, err := io.CopyBuffer(w, ctxReader{ctx, r}, buf)
	if cerr := canceled(ctx, op, key); cerr != nil {
		return cerr
	}
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	t.crc = crc.Sum64()
	got := t.crc
	if other != nil {
		got = uint64(other.Sum32())
	}
	if want.Algorithm != objstore.ChecksumNone && got != want.Value {
		return &objstore.Error{Op: op, Key: key, Kind: objstore.Corrupt,
			Err: fmt.Errorf("the %v is %016x, not %016x", want.Algorithm, got, want.Value)}
	}
	return nil
}

// ctxReader ends a copy when ctx is done.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// publish gives the file its key, durably, and describes the object. The file is synced,
// then named; directories are made as needed.
func (s *Store) publish(op, key string, t *tmpFile, opt objstore.PutOptions) (objstore.Object, error) {
	if err := s.writeAttr(t.File, opt, t.crc); err != nil {
		var e *objstore.Error
		if errors.As(err, &e) {
			e.Op, e.Key = op, key
		}
		return objstore.Object{}, wrap(op, key, err)
	}
	if err := t.Sync(); err != nil {
		return objstore.Object{}, wrap(op, key, err)
	}
	var err error
	for range 10 { // a Delete beside may remove the directory that was just made
		if err = s.rename(t, key, opt.IfNoneMatch); !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	if err != nil {
		switch {
		case errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.ENAMETOOLONG):
			return objstore.Object{}, &objstore.Error{Op: op, Key: key, Kind: objstore.BadRequest, Err: err,
				Hint: "a directory cannot hold a file and a directory of one name, nor names over 255 bytes"}
		case errors.Is(err, unix.EXDEV):
			return objstore.Object{}, &objstore.Error{Op: op, Key: key, Kind: objstore.Unsupported, Err: err,
				Hint: "another filesystem is mounted there, or a link leads out"}
		}
		return objstore.Object{}, wrap(op, key, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(t.Fd()), &st); err != nil {
		return objstore.Object{}, wrap(op, key, err)
	}
	o := s.object(key, &st)
	sum := s.readAttr(t.File, &st, &o)
	o.Checksum = sum
	return o, nil
}

// rename names the file.
func (s *Store) rename(t *tmpFile, key string, exclusive bool) error {
	dir, err := s.makeDirs(path.Dir(key))
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	base := path.Base(key)
	if exclusive {
		if err := unix.Linkat(t.dir, t.name, dir, base, 0); err != nil {
			return err
		}
		_ = unix.Unlinkat(t.dir, t.name, 0)
	} else if err := unix.Renameat(t.dir, t.name, dir, base); err != nil {
		return err
	}
	t.name = ""
	return unix.Fsync(dir)
}

// makeDirs makes a directory and those above it, and opens it.
func (s *Store) makeDirs(dir string) (int, error) {
	if dir == "." {
		return s.openDir("", unix.O_RDONLY)
	}
	fd, err := s.openDir(dir+"/", unix.O_RDONLY)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	parent, err := s.makeDirs(path.Dir(dir))
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	switch err := unix.Mkdirat(parent, path.Base(dir), 0o777); err {
	case nil:
		if err := unix.Fsync(parent); err != nil {
			return -1, err
		}
	case unix.EEXIST:
	default:
		return -1, err
	}
	return s.openDir(dir+"/", unix.O_RDONLY)
}
