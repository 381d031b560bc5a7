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

// raw implements fuse.RawFileSystem over fs.FS. There are two of them: one that may wait, and one
// with noWait, whose answer to what would have to wait is EAGAIN; it is asked for nothing that
// goes to a disk (see op).
type raw struct {
	fuse.RawFileSystem // answers ENOSYS for what is not here: locks are the kernel's
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
	if out.Blocks = uint64(a.Blocks); a.Blocks < 0 {
		out.Blocks = (out.Size + 511) / 512
	}
	out.Blksize = blockSize
	out.Mode = modeOf(a.Kind) | a.Mode
	out.Nlink = a.Nlink
	out.Rdev = a.Rdev
	out.Uid, out.Gid = a.UID, a.GID
	ctime, atime := a.CTime, a.ATime
	if ctime == 0 {
		ctime = a.MTime
	}
	if atime == 0 {
		atime = a.MTime
	}
	out.Mtime, out.Mtimensec = seconds(a.MTime)
	out.Ctime, out.Ctimensec = seconds(ctime)
	out.Atime, out.Atimensec = seconds(atime)
}

func modeOf(k meta.Kind) uint32 {
	switch k {
	case meta.KindDir:
		return syscall.S_IFDIR
	case meta.KindSymlink:
		return syscall.S_IFLNK
	case meta.KindFIFO:
		return syscall.S_IFIFO
	case meta.KindSocket:
		return syscall.S_IFSOCK
	case meta.KindChar:
		return syscall.S_IFCHR
	case meta.KindBlock:
		return syscall.S_IFBLK
	}
	return syscall.S_IFREG
}

func fillEntry(out *fuse.EntryOut, e *fs.Entry) {
	out.NodeId = uint64(e.Node)
	fillAttr(&out.Attr, &e.Attr)
	out.SetEntryTimeout(e.Valid)
	out.SetAttrTimeout(e.AttrValid)
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
	ctx.kill = in.Mode&fuse.OPEN_KILL_SUIDGID != 0
	o, err := r.fs.Open(ctx, fs.NodeID(in.NodeId), int(in.Flags))
	if err != nil {
		return r.status("open", err)
	}
	fillOpen(out, &o)
	return fuse.OK
}

func fillOpen(out *fuse.OpenOut, o *fs.Opened) {
	out.Fh = o.FH
	if !o.Flush {
		// One request less at each close.
		out.OpenFlags = fuse.FOPEN_NOFLUSH
	}
	// The kernel refuses other mixes: what it reads by itself it keeps as it sees fit.
	switch {
	case o.Passthrough && o.Direct:
		// This handle is served by the daemon, beside others of the node that are not.
		out.OpenFlags |= fuse.FOPEN_PASSTHROUGH | fuse.FOPEN_DIRECT_IO
		out.BackingID = o.Backing
	case o.Passthrough:
		out.OpenFlags |= fuse.FOPEN_PASSTHROUGH
		out.BackingID = o.Backing
	case o.Direct:
		out.OpenFlags |= fuse.FOPEN_DIRECT_IO
	default:
		out.OpenFlags |= fuse.FOPEN_KEEP_CACHE
	}
}

func (r *raw) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	r.fs.Release(in.Fh)
}

func (r *raw) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	s := r.fs.Statfs()
	*out = fuse.StatfsOut{Blocks: s.Blocks, Bfree: s.Free, Bavail: s.Free, Bsize: s.BlockSize,
		Frsize: s.BlockSize, NameLen: s.MaxName, Files: 1 << 40, Ffree: 1 << 40}
	return fuse.OK
}
