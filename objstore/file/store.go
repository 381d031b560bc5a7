// Package file is the origin on a POSIX directory: a parallel filesystem or a disk. Keys are
// the paths of regular files below the directory.
//
// What makes a version of a file is its inode, size, mtime and ctime: they are the ETag,
// and every read is held against them before its bytes are given out. A change that moves
// none of them is not seen: a store into a shared mapping between two write-backs, and, on
// a filesystem whose clock is coarse, a second change within one tick of it; against the
// latter a file that was changed just now is waited for (settle).
//
// Symbolic links are followed to regular files inside the directory; those to directories
// are not listed and those that lead out are as if they were not there. Nothing outside
// the directory is ever opened (openat2, RESOLVE_BENEATH).
//
// Writes are atomic by a temporary file in .leatfs-tmp and rename. Conditions on what a
// write replaces cannot be kept against other writers (rename does not compare), so
// Caps.PutIfMatch and Caps.DeleteIfMatch are false; IfNoneMatch is link(2)'s own.
package file

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
)

// tmpDir holds unfinished writes; it is no part of the store's keys.
const tmpDir = ".leatfs-tmp"

// maxParts is as on S3; nothing here depends on it.
const maxParts = 10000

// Store is one directory. It is made by Open.
type Store struct {
	name   string // String()
	root   *os.File
	dev    uint64 // st_dev of root
	xattrs bool   // the filesystem keeps user.* attributes
	window int    // windowNames; less in tests

	cursors cursors
	sweep   sync.Once // old temporary files are removed before the first write
}

var _ objstore.Store = (*Store)(nil)

// Open opens the directory dir, which must be there. It writes nothing.
func Open(dir string) (*Store, error) {
	abs, err := absolute(dir)
	if err != nil {
		return nil, wrap(opOpen, dir, err)
	}
	f, err := os.OpenFile(abs, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		e := wrap(opOpen, abs, err).(*objstore.Error)
		switch e.Kind {
		case objstore.NotFound:
			e.Kind, e.Hint = objstore.NoBucket, "there is no such directory"
			if errors.Is(err, unix.ENOTDIR) {
				e.Hint = "it is not a directory"
			}
		case objstore.AccessDenied:
			e.Hint = "the directory cannot be read by this user"
		}
		return nil, e
	}
	s := &Store{name: "file://" + abs, root: f, window: windowNames}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, wrap(opOpen, abs, err)
	}
	s.dev = uint64(st.Dev)
	_, err = unix.Fgetxattr(int(f.Fd()), xattrName, nil)
	s.xattrs = err == nil || errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ERANGE)
	if fd, err := s.openat2(".", unix.O_PATH|unix.O_DIRECTORY); err != nil {
		f.Close()
		return nil, &objstore.Error{Op: opOpen, Key: abs, Kind: objstore.Unsupported, Err: err,
			Hint: "the kernel has no openat2 (Linux 5.6), or a sandbox forbids it"}
	} else {
		unix.Close(fd)
	}
	return s, nil
}

func absolute(dir string) (string, error) {
	if path.IsAbs(dir) {
		return path.Clean(dir), nil
	}
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	return path.Join(wd, dir), nil
}

// String implements objstore.Store.
func (s *Store) String() string { return s.name }

// Caps implements objstore.Store.
func (s *Store) Caps() objstore.Caps {
	return objstore.Caps{
		ListOrdered:    true,
		PutIfNoneMatch: true,
		CopyIfMatch:    true,
		Multipart:      true, PartCopy: true,
		Checksums:   s.xattrs,
		MinPartSize: 1, MaxPartSize: 1 << 50, MaxParts: maxParts,
		MaxListKeys: 4096,
	}
}

// Close implements objstore.Store.
func (s *Store) Close() error {
	s.cursors.clear()
	return s.root.Close()
}

// The names of operations in errors.
const (
	opOpen = "OPEN"
	opList = "LIST"
	opHead = "HEAD"
	opGet  = "GET"
	opPut  = "PUT"
	opCopy = "COPY"
	opDel  = "DELETE"
)

// checkKey refuses keys that are no clean relative paths, or of the store's own.
func checkKey(op, key string) error {
	if fs.ValidPath(toValid(key)) && key != "." && !strings.ContainsRune(key, 0) && !isTmp(key) && len(key) < unix.PathMax {
		return nil
	}
	return &objstore.Error{Op: op, Key: key, Kind: objstore.BadRequest,
		Hint: "a directory holds only clean relative paths, without \"//\", \".\", \"..\" and " + tmpDir}
}

// toValid replaces the bytes that are not UTF-8, which fs.ValidPath would refuse and Linux does not.
func toValid(key string) string { return strings.ToValidUTF8(key, "?") }

// isTmp tells whether a key lies in the store's own directory.
func isTmp(key string) bool {
	return key == tmpDir || strings.HasPrefix(key, tmpDir+"/")
}

// missingKey is the error of reading a key that cannot exist.
func missingKey(op, key string) error {
	if key == "" {
		return checkKey(op, key)
	}
	if checkKey(op, key) != nil {
		return &objstore.Error{Op: op, Key: key, Kind: objstore.NotFound}
	}
	return nil
}

func unsupported(op, key, what string) error {
	return &objstore.Error{Op: op, Key: key, Kind: objstore.Unsupported, Hint: "a directory cannot " + what}
}

// canceled is the error of a context that is done, nil of one that is not.
func canceled(ctx context.Context, op, key string) error {
	if ctx.Err() == nil {
		return nil
	}
	return &objstore.Error{Op: op, Key: key, Kind: objstore.Canceled, Err: context.Cause(ctx)}
}

// wrap turns an error of a system call into an *objstore.Error.
func wrap(op, key string, err error) error {
	var done *objstore.Error
	if err == nil || errors.As(err, &done) {
		return err
	}
	e := &objstore.Error{Op: op, Key: key, Err: err}
	var no unix.Errno
	if !errors.As(err, &no) {
		return e
	}
	switch no {
	case unix.ENOENT, unix.ENOTDIR, unix.EISDIR, unix.ENAMETOOLONG:
		e.Kind = objstore.NotFound
	case unix.EXDEV, unix.ELOOP:
		e.Kind, e.Hint = objstore.NotFound, "a link leads out of the directory, or round"
	case unix.EACCES, unix.EPERM:
		e.Kind = objstore.AccessDenied
	case unix.EROFS:
		e.Kind, e.Hint = objstore.AccessDenied, "the filesystem is mounted read-only"
	case unix.EEXIST:
		e.Kind = objstore.PreconditionFailed
	case unix.ENOSPC, unix.EDQUOT:
		e.Kind, e.Hint = objstore.Unavailable, "the origin's filesystem is full"
	case unix.EIO, unix.ESTALE, unix.EREMOTEIO, unix.ENOTCONN, unix.EHOSTDOWN, unix.ENODEV:
		e.Kind = objstore.Unavailable
	case unix.ETIMEDOUT:
		e.Kind = objstore.Timeout
	case unix.EINVAL, unix.E2BIG:
		e.Kind = objstore.BadRequest
	case unix.EOPNOTSUPP, unix.ENOSYS:
		e.Kind = objstore.Unsupported
	}
	return e
}
