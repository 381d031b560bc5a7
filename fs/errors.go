package fs

import (
	"context"
	"errors"
	"fmt"
)

// The errors of this package. They name what a POSIX caller would see; package fuse maps
// them, and those of objstore, to errno in one table.
var (
	// ErrWouldWait: the context forbids to wait, and it would be necessary.
	ErrWouldWait    = errors.New("would have to wait")
	ErrNotExist     = errors.New("no such file or directory")
	ErrStale        = errors.New("stale node: look the name up again")
	ErrReadOnly     = errors.New("the mount is read-only")
	ErrIsDir        = errors.New("is a directory")
	ErrNotDir       = errors.New("not a directory")
	ErrNameTooLong  = errors.New("name too long: at most 255 bytes")
	ErrInvalid      = errors.New("invalid argument")
	ErrBadHandle    = errors.New("no such open file")
	ErrExist        = errors.New("file exists")
	ErrNotEmpty     = errors.New("directory not empty")
	ErrNotAllowed   = errors.New("operation not permitted")
	ErrNoAttr       = errors.New("no such extended attribute")
	ErrUnsupported  = errors.New("operation not supported")
	ErrCrossDevice  = errors.New("cannot be renamed in one step; copy and delete instead")
	ErrTooManyLinks = errors.New("too many links")
	ErrTooBig       = errors.New("file too large")
	ErrNotUTF8      = errors.New("names must be valid UTF-8, as keys of objects are")
	ErrProtected    = errors.New("the object was not written by this mount, which may not change it (--protect=foreign)")
	ErrNoRoom       = errors.New("no room for more extended attributes")
	ErrNoData       = errors.New("no data or hole beyond this offset")
)

// noWait tells whether a call under ctx must not wait for the origin, a disk or another call.
func noWait(ctx context.Context) bool {
	c, ok := ctx.(interface{ NoWait() bool })
	return ok && c.NoWait()
}

// PathError says what was tried on which file and why it failed.
type PathError struct {
	Op   string // "lookup", "open", "read", "list", …
	Path string // relative to the mount's root
	Err  error
}

func (e *PathError) Error() string { return fmt.Sprintf("%s %s: %v", e.Op, e.Path, e.Err) }

// Unwrap returns the cause.
func (e *PathError) Unwrap() error { return e.Err }

// requestOf returns the number that the kernel gave the request behind ctx, 0 when there is
// none, and whether another process was sent it before.
func requestOf(ctx context.Context) (unique uint64, resent bool) {
	if c, ok := ctx.(interface{ Request() (uint64, bool) }); ok {
		return c.Request()
	}
	return 0, false
}
