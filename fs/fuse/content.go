package fuse

import (
	"math"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs"
)

// The requests that change what is in a file, or make it durable. Of a file that the kernel writes
// by itself, WRITE never comes; the others do.

// Write: the data lies in the request, and is not needed afterwards.
func (r *raw) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if uint64(len(data)) < uint64(in.Size) {
		return 0, fuse.EIO
	}
	if in.Offset > math.MaxInt64-uint64(in.Size) {
		return 0, fuse.Status(syscall.EFBIG)
	}
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	kill := in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0
	if err := r.fs.Write(ctx, fs.NodeID(in.NodeId), in.Fh, int64(in.Offset), data[:in.Size], kill); err != nil {
		return 0, r.status("write", err)
	}
	// Of a file opened with FOPEN_DIRECT_IO the kernel sends no FSYNC for O_SYNC.
	if in.Flags&unix.O_DSYNC != 0 {
		if err := r.fs.Fsync(ctx, fs.NodeID(in.NodeId), in.Fh, in.Flags&unix.O_SYNC != unix.O_SYNC); err != nil {
			return 0, r.status("write (O_SYNC)", err)
		}
	}
	return in.Size, fuse.OK
}

func (r *raw) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	return r.status("flush", r.fs.Flush(ctx, fs.NodeID(in.NodeId), in.Fh))
}

func (r *raw) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	const dataOnly = 1 // FUSE_FSYNC_FDATASYNC
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	return r.status("fsync", r.fs.Fsync(ctx, fs.NodeID(in.NodeId), in.Fh, in.FsyncFlags&dataOnly != 0))
}

func (r *raw) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	return r.status("fsyncdir", r.fs.Fsyncdir(ctx, fs.NodeID(in.NodeId)))
}

func (r *raw) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	if in.Length > math.MaxInt64 || in.Offset > math.MaxInt64-in.Length {
		return fuse.Status(syscall.EFBIG)
	}
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	return r.status("fallocate", r.fs.Fallocate(ctx, fs.NodeID(in.NodeId), in.Fh, int64(in.Offset), int64(in.Length), in.Mode))
}

// Lseek is asked for SEEK_DATA and SEEK_HOLE only.
func (r *raw) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	switch {
	case in.Whence != unix.SEEK_DATA && in.Whence != unix.SEEK_HOLE:
		return fuse.EINVAL
	case in.Offset > math.MaxInt64:
		return fuse.Status(syscall.ENXIO)
	}
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	off, err := r.fs.Seek(ctx, fs.NodeID(in.NodeId), in.Fh, int64(in.Offset), int(in.Whence))
	if err != nil {
		return r.status("lseek", err)
	}
	out.Offset = uint64(off)
	return fuse.OK
}

// copyMax is how many bytes one request copies at most: callers ask again, and the kernel locks
// both files meanwhile.
const copyMax = 1 << 30

// CopyFileRange: the opcode with 64-bit lengths is refused by go-fuse, and the kernel sends this one.
func (r *raw) CopyFileRange(cancel <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	n := min(in.Len, copyMax)
	if in.OffIn > math.MaxInt64-n || in.OffOut > math.MaxInt64-n {
		return 0, fuse.Status(syscall.EFBIG)
	}
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	copied, err := r.fs.CopyRange(ctx, fs.NodeID(in.NodeId), in.FhIn, int64(in.OffIn),
		fs.NodeID(in.NodeIdOut), in.FhOut, int64(in.OffOut), int64(n))
	if err != nil {
		return 0, r.status("copy_file_range", err)
	}
	return uint32(copied), fuse.OK
}
