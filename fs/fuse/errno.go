package fuse

import (
	"context"
	"errors"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/session"
	"github.com/leatfs/leatfs/objstore"
)

// sentinel maps the errors of package fs, in the order they are tried.
func sentinel(err error) (syscall.Errno, bool) {
	for _, s := range []struct {
		err   error
		errno syscall.Errno
	}{
		{fs.ErrNotExist, syscall.ENOENT},
		{fs.ErrWouldWait, syscall.EAGAIN},
		{fs.ErrStale, syscall.ESTALE},
		{cache.ErrStale, syscall.ESTALE},
		{fs.ErrReadOnly, syscall.EROFS},
		{fs.ErrIsDir, syscall.EISDIR},
		{fs.ErrNotDir, syscall.ENOTDIR},
		{fs.ErrNameTooLong, syscall.ENAMETOOLONG},
		{fs.ErrInvalid, syscall.EINVAL},
		{fs.ErrNotUTF8, syscall.EILSEQ},
		{fs.ErrBadHandle, syscall.EBADF},
		{fs.ErrExist, syscall.EEXIST},
		{fs.ErrNotEmpty, syscall.ENOTEMPTY},
		{fs.ErrNotAllowed, syscall.EPERM},
		{fs.ErrProtected, syscall.EPERM},
		{fs.ErrNoAttr, syscall.ENODATA},
		{fs.ErrUnsupported, syscall.EOPNOTSUPP},
		{fs.ErrCrossDevice, syscall.EXDEV},
		{fs.ErrTooManyLinks, syscall.EMLINK},
		{fs.ErrTooBig, syscall.EFBIG},
		{fs.ErrNoData, syscall.ENXIO},
		{meta.ErrExist, syscall.EEXIST},
		{fs.ErrNoRoom, syscall.ENOSPC},
		{meta.ErrNoSpace, syscall.ENOSPC},
		{session.ErrFull, syscall.ENFILE},
		{meta.ErrNotFound, syscall.ESTALE}, // its directory was removed meanwhile
		{context.Canceled, syscall.EINTR},
	} {
		if errors.Is(err, s.err) {
			return s.errno, true
		}
	}
	return 0, false
}

// ofFile tells whether an errno that a system call on a file of the cache's disk failed with means
// the same to who uses the mount. Any other, ENOENT above all, says that something is wrong here.
func ofFile(e syscall.Errno) bool {
	switch e {
	case syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG, syscall.ENXIO, syscall.EINVAL, syscall.EOPNOTSUPP,
		syscall.E2BIG, syscall.ERANGE, syscall.ENODATA, syscall.ENOMEM, syscall.ETXTBSY:
		return true
	}
	return false
}

// errnoOf is the one place where errors become errno. An origin that throttles, fails or
// does not answer is EIO, never ENOENT.
func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if e, ok := sentinel(err); ok {
		return e
	}
	// An errno of the network is none of a file's.
	var origin *objstore.Error
	var file syscall.Errno
	if !errors.As(err, &origin) && errors.As(err, &file) && ofFile(file) {
		return file
	}
	switch objstore.KindOf(err) {
	case objstore.NotFound:
		return syscall.ENOENT
	case objstore.AccessDenied, objstore.Archived:
		return syscall.EACCES
	case objstore.PreconditionFailed:
		return syscall.ESTALE
	case objstore.Unsupported:
		return syscall.EOPNOTSUPP
	case objstore.Canceled:
		return syscall.EINTR
	}
	return syscall.EIO
}

// quiet tells whether an errno is an everyday answer, not worth a log line.
func quiet(e syscall.Errno) bool {
	switch e {
	case syscall.ENOENT, syscall.EAGAIN, syscall.ESTALE, syscall.EROFS, syscall.EISDIR, syscall.ENOTDIR,
		syscall.ENAMETOOLONG, syscall.EINTR, syscall.EBADF, syscall.EEXIST, syscall.ENOTEMPTY, syscall.EPERM, syscall.ENODATA,
		syscall.EOPNOTSUPP, syscall.EXDEV, syscall.EMLINK, syscall.EFBIG, syscall.ENXIO, syscall.ERANGE, syscall.EINVAL,
		syscall.E2BIG, syscall.ETXTBSY, syscall.EILSEQ:
		return true
	}
	return false
}

// status turns an error into the answer to a request, and logs it where it is a failure.
func (r *raw) status(op string, err error) fuse.Status {
	e := errnoOf(err)
	if e != 0 && !quiet(e) {
		r.failed.Add(1)
		r.log.Error("request failed", "op", op, "errno", e.Error(), "err", err)
	}
	return fuse.Status(e)
}
