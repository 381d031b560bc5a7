// Package fuse is the wire: it translates FUSE requests to calls of package fs and errors to
// errno, mounts, and registers cache files for kernel passthrough. It keeps no state of files:
// node ids come from the index and handles are numbers, so that another process can go on
// serving the same connection.
package fuse

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/leatfs/leatfs/fs"
	"github.com/leatfs/leatfs/fs/meta"
)

// blockSize is st_blksize: programs size their buffers by it (Python reads in units of it).
const blockSize = 1 << 20

// raw implements fuse.RawFileSystem over fs.FS. What it does not implement of mutations
// answers EROFS. There are two of them: one that may wait, and one with noWait, whose answer
// to what would have to wait is EAGAIN.
type raw struct {
	fuse.RawFileSystem // answers ENOSYS for what is not here
	*shared
	noWait bool
}

// shared is what the two have in common.
type shared struct {
	fs     *fs.FS // set before the first request but INIT
	log    *slog.Logger
	failed atomic.Int64  // requests answered with an unusual errno
	dead   chan struct{} // closed by conn when the connection has ended

	interrupts interrupts

	dirMu   sync.Mutex
	dirs    map[uint64]*fs.DirHandle // open directories, by dirMu
	nextDir uint64                   // by dirMu
}

// newRaw makes the one that may wait. Directory handles are numbered from epoch on, the number of
// this process among those that have served the mount: none is that of an earlier one.
func newRaw(log *slog.Logger, epoch uint32) *raw {
	return &raw{RawFileSystem: fuse.NewDefaultRawFileSystem(),
		shared: &shared{log: log, dead: make(chan struct{}), interrupts: interrupts{all: make(map[uint64]chan struct{})}, dirs: make(map[uint64]*fs.DirHandle), nextDir: uint64(epoch) << 32}}
}

// context is that of one request.
func (r *raw) context(cancel <-chan struct{}, h *fuse.InHeader) *requestContext {
	if !r.noWait {
		cancel = r.interrupts.of(h.Unique)
	}
	ctx := newRequestContext(cancel, h)
	ctx.noWait, ctx.dead = r.noWait, r.dead
	return ctx
}

func (r *raw) String() string { return "leatfs" }

func fillAttr(out *fuse.Attr, a *fs.Attr) {
	out.Ino = a.Ino
	out.Size = uint64(a.Size)
	out.Blocks = (out.Size + 511) / 512
	out.Blksize = blockSize
	out.Mode = modeOf(a.Kind) | a.Mode
	out.Nlink = a.Nlink
	out.Uid, out.Gid = a.UID, a.GID
	sec, nsec := uint64(a.MTime/1e9), uint32(a.MTime%1e9)
	out.Mtime, out.Ctime, out.Atime = sec, sec, sec
	out.Mtimensec, out.Ctimensec, out.Atimensec = nsec, nsec, nsec
}

func modeOf(k meta.Kind) uint32 {
	switch k {
	case meta.KindDir:
		return syscall.S_IFDIR
	case meta.KindSymlink:
		return syscall.S_IFLNK
	}
	return syscall.S_IFREG
}

func fillEntry(out *fuse.EntryOut, e *fs.Entry) {
	out.NodeId = uint64(e.Node)
	fillAttr(&out.Attr, &e.Attr)
	out.SetEntryTimeout(e.Valid)
	out.SetAttrTimeout(e.Valid)
}

func (r *raw) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	ctx := r.context(cancel, h)
	defer ctx.finish()
	e, err := r.fs.Lookup(ctx, fs.NodeID(h.NodeId), name)
	if err != nil {
		return r.status("lookup", err)
	}
	fillEntry(out, &e)
	return fuse.OK
}

func (r *raw) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	a, valid, err := r.fs.Getattr(ctx, fs.NodeID(in.NodeId))
	if err != nil {
		return r.status("getattr", err)
	}
	fillAttr(&out.Attr, &a)
	out.SetTimeout(valid)
	return fuse.OK
}

func (r *raw) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	o, err := r.fs.Open(ctx, fs.NodeID(in.NodeId), int(in.Flags))
	if err != nil {
		return r.status("open", err)
	}
	out.Fh = o.FH
	// A handle that only reads has nothing to flush: one request less at each close.
	out.OpenFlags = fuse.FOPEN_NOFLUSH
	if o.Passthrough {
		out.OpenFlags |= fuse.FOPEN_PASSTHROUGH
		out.BackingID = o.Backing
	} else {
		out.OpenFlags |= fuse.FOPEN_KEEP_CACHE
	}
	return fuse.OK
}

func (r *raw) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	r.fs.Release(in.Fh)
}

func (r *raw) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status { return fuse.OK }

func (r *raw) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status { return fuse.OK }

func (r *raw) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status { return fuse.OK }

func (r *raw) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	s := r.fs.Statfs()
	*out = fuse.StatfsOut{Blocks: s.Blocks, Bfree: s.Free, Bavail: s.Free, Bsize: s.BlockSize,
		Frsize: s.BlockSize, NameLen: s.MaxName, Files: 1 << 40, Ffree: 1 << 40}
	return fuse.OK
}

// Lseek: SEEK_DATA and SEEK_HOLE see a file without holes.
func (r *raw) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	a, _, err := r.fs.Getattr(ctx, fs.NodeID(in.NodeId))
	if err != nil {
		return r.status("lseek", err)
	}
	const seekData, seekHole = 3, 4
	switch {
	case in.Whence != seekData && in.Whence != seekHole:
		return fuse.EINVAL
	case in.Offset >= uint64(a.Size):
		return fuse.Status(syscall.ENXIO)
	case in.Whence == seekHole:
		out.Offset = uint64(a.Size)
	default:
		out.Offset = in.Offset
	}
	return fuse.OK
}

// GetXAttr: no file has any, and the answer says that there cannot be: ls -l asks for the
// SELinux label and the ACL, and given that answer asks for no other file of the mount. The one
// that the kernel itself asks for is merely absent.
func (r *raw) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, attr string, dest []byte) (uint32, fuse.Status) {
	if attr == "security.capability" {
		return 0, fuse.ENODATA
	}
	return 0, fuse.Status(syscall.EOPNOTSUPP)
}

func (r *raw) ListXAttr(cancel <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	return 0, fuse.OK
}
