package fuse

import (
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/leatfs/leatfs/fs"
)

// The requests that make, remove and rename, and those that change attributes.

func callerOf(h *fuse.InHeader) fs.Caller { return fs.Caller{UID: h.Uid, GID: h.Gid, PID: h.Pid} }

// permissions are the bits of a mode that chmod(2) sets. The kernel has taken the umask off.
const permissions = 0o7777

// made answers with the entry of what was made.
func (r *raw) made(op string, e *fs.Entry, err error, out *fuse.EntryOut) fuse.Status {
	if err != nil {
		return r.status(op, err)
	}
	fillEntry(out, e)
	return fuse.OK
}

func (r *raw) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	ctx.kill = in.OpenFlags&fuse.OPEN_KILL_SUIDGID != 0
	e, o, err := r.fs.Create(ctx, fs.NodeID(in.NodeId), name, int(in.Flags), in.Mode&permissions, callerOf(&in.InHeader))
	if err != nil {
		return r.status("create", err)
	}
	fillEntry(&out.EntryOut, &e)
	fillOpen(&out.OpenOut, &o)
	return fuse.OK
}

// Tmpfile is a file without a name, which could not be published.
func (r *raw) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	return fuse.Status(syscall.EOPNOTSUPP)
}

func (r *raw) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	e, err := r.fs.Mknod(ctx, fs.NodeID(in.NodeId), name, in.Mode, in.Rdev, callerOf(&in.InHeader))
	return r.made("mknod", &e, err, out)
}

func (r *raw) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	e, err := r.fs.Mkdir(ctx, fs.NodeID(in.NodeId), name, in.Mode&permissions, callerOf(&in.InHeader))
	return r.made("mkdir", &e, err, out)
}

func (r *raw) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	ctx := r.context(cancel, h)
	defer ctx.finish()
	e, err := r.fs.Symlink(ctx, fs.NodeID(h.NodeId), name, target, callerOf(h))
	return r.made("symlink", &e, err, out)
}

func (r *raw) Readlink(cancel <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	ctx := r.context(cancel, h)
	defer ctx.finish()
	target, err := r.fs.Readlink(ctx, fs.NodeID(h.NodeId))
	return []byte(target), r.status("readlink", err)
}

func (r *raw) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	e, err := r.fs.Link(ctx, fs.NodeID(in.Oldnodeid), fs.NodeID(in.NodeId), name)
	return r.made("link", &e, err, out)
}

func (r *raw) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	ctx := r.context(cancel, h)
	defer ctx.finish()
	return r.status("unlink", r.fs.Unlink(ctx, fs.NodeID(h.NodeId), name))
}

func (r *raw) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	ctx := r.context(cancel, h)
	defer ctx.finish()
	return r.status("rmdir", r.fs.Rmdir(ctx, fs.NodeID(h.NodeId), name))
}

func (r *raw) Rename(cancel <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	return r.status("rename", r.fs.Rename(ctx, fs.NodeID(in.NodeId), oldName, fs.NodeID(in.Newdir), newName, in.Flags))
}

func (r *raw) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	set, ok := setAttrOf(&in.SetAttrInCommon, time.Now())
	if !ok {
		return fuse.Status(syscall.EFBIG)
	}
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	fh, _ := in.GetFh()
	a, valid, err := r.fs.Setattr(ctx, fs.NodeID(in.NodeId), fh, set)
	if err != nil {
		return r.status("setattr", err)
	}
	fillAttr(&out.Attr, &a)
	out.SetTimeout(valid)
	return fuse.OK
}

// setAttrOf takes a SETATTR apart; false when it wants a size that no file can have.
func setAttrOf(in *fuse.SetAttrInCommon, now time.Time) (set fs.SetAttr, ok bool) {
	if m, ok := in.GetMode(); ok {
		m &= permissions
		set.Mode = &m
	}
	if in.Valid&fuse.FATTR_UID != 0 {
		uid := in.Uid
		set.UID = &uid
	}
	if in.Valid&fuse.FATTR_GID != 0 {
		gid := in.Gid
		set.GID = &gid
	}
	if size, has := in.GetSize(); has {
		n := int64(size)
		if n < 0 {
			return set, false
		}
		set.Size = &n
	}
	stamp := func(has, isNow uint32, sec uint64, nsec uint32) *int64 {
		if in.Valid&has == 0 {
			return nil
		}
		t := now.UnixNano()
		if in.Valid&isNow == 0 {
			t = nanoseconds(int64(sec), nsec)
		}
		return &t
	}
	set.ATime = stamp(fuse.FATTR_ATIME, fuse.FATTR_ATIME_NOW, in.Atime, in.Atimensec)
	set.MTime = stamp(fuse.FATTR_MTIME, fuse.FATTR_MTIME_NOW, in.Mtime, in.Mtimensec)
	set.CTime = stamp(fuse.FATTR_CTIME, 0, in.Ctime, in.Ctimensec)
	set.KillSUIDGID = in.Valid&fuse.FATTR_KILL_SUIDGID != 0
	return set, true
}

// nanoseconds since 1970 reach from the year 1677 to 2262; a time before or after becomes the
// first or the last.
func nanoseconds(sec int64, nsec uint32) int64 {
	const last int64 = 1<<63 - 1
	switch {
	case sec >= last/1e9:
		return last
	case sec <= -last/1e9:
		return -last
	}
	return sec*1e9 + int64(nsec)
}

// seconds takes nanoseconds since 1970 apart, as the protocol wants them.
func seconds(ns int64) (sec uint64, nsec uint32) {
	s, n := ns/1e9, ns%1e9
	if n < 0 {
		s, n = s-1, n+1e9
	}
	return uint64(s), uint32(n)
}
