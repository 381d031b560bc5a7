package fs

import (
	"context"
	"time"
)

// Caller is who asks for a change: new files become his.
type Caller struct {
	UID, GID, PID uint32
}

// SetAttr are attributes to be set; nil ones stay.
type SetAttr struct {
	Mode         *uint32 // permission bits with set-uid, set-gid and sticky
	UID, GID     *uint32
	Size         *int64
	ATime, MTime *int64 // nanoseconds since 1970
	CTime        *int64 // nil: now
	// KillSUIDGID: what is changed by one who is not privileged loses set-uid and set-gid.
	KillSUIDGID bool
}

// Create makes a file in a directory and opens it with the flags of open(2). One that is there
// already is opened, or with O_EXCL is ErrExist. mode holds the permission bits, the umask taken
// off.
func (f *FS) Create(ctx context.Context, parent NodeID, name string, flags int, mode uint32, who Caller) (Entry, Opened, error) {
	return Entry{}, Opened{}, ErrReadOnly
}

// Mknod makes a file that is not opened, or with a type in mode (S_IFMT) a FIFO, a socket or a
// device, which live in the index alone.
func (f *FS) Mknod(ctx context.Context, parent NodeID, name string, mode, rdev uint32, who Caller) (Entry, error) {
	return Entry{}, ErrReadOnly
}

// Mkdir makes a directory.
func (f *FS) Mkdir(ctx context.Context, parent NodeID, name string, mode uint32, who Caller) (Entry, error) {
	return Entry{}, ErrReadOnly
}

// Symlink makes a symbolic link.
func (f *FS) Symlink(ctx context.Context, parent NodeID, name, target string, who Caller) (Entry, error) {
	return Entry{}, ErrReadOnly
}

// Readlink returns the target of a symbolic link.
func (f *FS) Readlink(ctx context.Context, node NodeID) (string, error) {
	return "", ErrInvalid
}

// Link gives a file one more name.
func (f *FS) Link(ctx context.Context, node, parent NodeID, name string) (Entry, error) {
	return Entry{}, ErrReadOnly
}

// Unlink takes the name of a file away, Rmdir that of an empty directory.
func (f *FS) Unlink(ctx context.Context, parent NodeID, name string) error { return ErrReadOnly }

// Rmdir see Unlink.
func (f *FS) Rmdir(ctx context.Context, parent NodeID, name string) error { return ErrReadOnly }

// Rename gives a file or directory another name. flags are those of renameat2(2);
// RENAME_NOREPLACE is known.
func (f *FS) Rename(ctx context.Context, parent NodeID, name string, toParent NodeID, toName string, flags uint32) error {
	return ErrReadOnly
}

// Setattr changes attributes. fh is an open handle of the node, 0 when none was named.
func (f *FS) Setattr(ctx context.Context, node NodeID, fh uint64, set SetAttr) (Attr, time.Duration, error) {
	return Attr{}, 0, ErrReadOnly
}

// Write writes to a node that the daemon serves. All is written, or none is.
func (f *FS) Write(ctx context.Context, node NodeID, fh uint64, off int64, data []byte, killSUIDGID bool) error {
	return ErrReadOnly
}

// Flush is a close(2) of one descriptor of an open file.
func (f *FS) Flush(ctx context.Context, node NodeID, fh uint64) error { return nil }

// Fsync makes what was written durable, as the policy of the path says.
func (f *FS) Fsync(ctx context.Context, node NodeID, fh uint64, dataOnly bool) error { return nil }

// Fsyncdir makes the names of a directory durable.
func (f *FS) Fsyncdir(ctx context.Context, node NodeID) error { return nil }

// Fallocate is fallocate(2); mode holds its flags.
func (f *FS) Fallocate(ctx context.Context, node NodeID, fh uint64, off, n int64, mode uint32) error {
	return ErrReadOnly
}

// Seek is lseek(2) with SEEK_DATA or SEEK_HOLE.
func (f *FS) Seek(ctx context.Context, node NodeID, fh uint64, off int64, whence int) (int64, error) {
	return 0, ErrInvalid
}

// CopyRange is copy_file_range(2) between two open files; fewer bytes than asked for may be copied.
func (f *FS) CopyRange(ctx context.Context, from NodeID, fromFH uint64, fromOff int64, to NodeID, toFH uint64, toOff, n int64) (int64, error) {
	return 0, ErrReadOnly
}

// Getxattr, Setxattr, Listxattr and Removexattr are the extended attributes of a node. Names of
// the namespaces "user." and "trusted." are kept. flags are those of setxattr(2).
func (f *FS) Getxattr(ctx context.Context, node NodeID, name string) ([]byte, error) {
	return nil, ErrNotExist
}

// Setxattr see Getxattr.
func (f *FS) Setxattr(ctx context.Context, node NodeID, name string, value []byte, flags int) error {
	return ErrReadOnly
}

// Listxattr see Getxattr.
func (f *FS) Listxattr(ctx context.Context, node NodeID) ([]string, error) { return nil, nil }

// Removexattr see Getxattr.
func (f *FS) Removexattr(ctx context.Context, node NodeID, name string) error { return ErrReadOnly }

// Answered says that the answers to these requests have been given: what is recorded of them for
// being sent again may be forgotten. It costs next to nothing.
func (f *FS) Answered(uniques ...uint64) {}
