package record

import (
	"context"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// medium is what a file of the file system holds: a Log or an Image.
type medium interface {
	Size() int64
	Read(p []byte, off int64) error
	Write(p []byte, off int64) error
	Zero(off, n int64) error
	Flush()
}

var (
	_ medium = (*Log)(nil)
	_ medium = (*Image)(nil)
)

// root is the directory of the file system. Files come and go by add and remove.
type root struct {
	fs.Inode
	log *Log

	mu    sync.Mutex
	files map[string]medium
}

var _ fs.NodeLookuper = (*root)(nil)

func (r *root) add(name string, m medium) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files[name] = m
}

// remove takes a file's name away; who has it open goes on to have it.
func (r *root) remove(name string) {
	r.mu.Lock()
	delete(r.files, name)
	r.mu.Unlock()
	r.RmChild(name)
}

// markName is a file that turns what is written to it, one fact a write, into marks.
const markName = "marks"

func (r *root) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if name == markName {
		out.Mode = syscall.S_IFREG | 0o600
		return r.NewInode(ctx, &marks{log: r.log}, fs.StableAttr{Mode: syscall.S_IFREG}), 0
	}
	r.mu.Lock()
	m := r.files[name]
	r.mu.Unlock()
	if m == nil {
		return nil, syscall.ENOENT
	}
	f := &file{m: m}
	f.attr(&out.Attr)
	return r.NewInode(ctx, f, fs.StableAttr{Mode: syscall.S_IFREG}), 0
}

// file is a disk. Its content never goes through the page cache.
type file struct {
	fs.Inode
	m medium
}

var (
	_ fs.NodeOpener    = (*file)(nil)
	_ fs.NodeGetattrer = (*file)(nil)
	_ fs.NodeReader    = (*file)(nil)
	_ fs.NodeWriter    = (*file)(nil)
	_ fs.NodeFsyncer   = (*file)(nil)
	_ fs.NodeAllocater = (*file)(nil)
)

func (f *file) attr(a *fuse.Attr) {
	a.Mode = syscall.S_IFREG | 0o600
	a.Size = uint64(f.m.Size())
	a.Blksize = 4096
}

func (f *file) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.attr(&out.Attr)
	return 0
}

func (f *file) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES, 0
}

func (f *file) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if n := f.m.Size() - off; n < int64(len(dest)) {
		dest = dest[:max(n, 0)]
	}
	// Somebody may ask for less than the disk's unit; the loop device does not.
	from, to := off&^4095, (off+int64(len(dest))+4095)&^4095
	if from == off && to == off+int64(len(dest)) {
		if f.m.Read(dest, off) != nil {
			return nil, syscall.EIO
		}
		return fuse.ReadResultData(dest), 0
	}
	b := make([]byte, to-from)
	if f.m.Read(b, from) != nil {
		return nil, syscall.EIO
	}
	return fuse.ReadResultData(b[off-from:][:len(dest)]), 0
}

func (f *file) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	if f.m.Write(data, off) != nil {
		return 0, syscall.EIO
	}
	return uint32(len(data)), 0
}

func (f *file) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	f.m.Flush()
	return 0
}

// Allocate is how a loop device discards and writes zeros.
func (f *file) Allocate(_ context.Context, _ fs.FileHandle, off, size uint64, mode uint32) syscall.Errno {
	if mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) == 0 {
		return syscall.EOPNOTSUPP
	}
	if f.m.Zero(int64(off), int64(size)) != nil {
		return syscall.EIO
	}
	return 0
}

// marks is the file of marks.
type marks struct {
	fs.Inode
	log *Log
}

var (
	_ fs.NodeOpener    = (*marks)(nil)
	_ fs.NodeGetattrer = (*marks)(nil)
	_ fs.NodeWriter    = (*marks)(nil)
)

func (m *marks) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = syscall.S_IFREG | 0o600
	return 0
}

func (m *marks) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (m *marks) Write(_ context.Context, _ fs.FileHandle, data []byte, _ int64) (uint32, syscall.Errno) {
	m.log.Mark(string(data))
	return uint32(len(data)), 0
}
