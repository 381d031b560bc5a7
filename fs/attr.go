package fs

import (
	"context"
	"errors"
	"time"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// Attr is what stat(2) shows.
type Attr struct {
	Ino      uint64
	Kind     meta.Kind
	Mode     uint32 // permission bits
	UID, GID uint32
	Nlink    uint32
	Rdev     uint32 // of a device
	Size     int64
	Blocks   int64 // of 512 bytes; negative: as many as the size needs
	// Nanoseconds since 1970; where CTime or ATime is 0, it is MTime.
	MTime, CTime, ATime int64
}

// attr are the attributes of an inode.
func (f *FS) attr(in *meta.Inode) Attr {
	a := Attr{Ino: uint64(in.Ino), Kind: in.Kind, Nlink: 1 + in.Links, Blocks: -1,
		Rdev: in.Rdev, CTime: in.CTime, ATime: in.ATime}
	if in.Ino == f.root.Ino {
		a.Ino = uint64(RootNode)
	}
	switch in.Kind {
	case meta.KindDir:
		// A prefix has no time of its own; the mount's is shown.
		a.Size, a.Nlink, a.MTime = 4096, 2, f.began
		if m, c, err := f.db.DirTimes(in.Ino); err == nil && m != 0 {
			a.MTime, a.CTime = m, max(c, in.CTime)
		}
	case meta.KindFile:
		a.Size, a.MTime = in.Object.Size, in.Object.MTime
	case meta.KindSymlink:
		a.Size = int64(len(in.Target))
	}
	if in.MTime != 0 {
		a.MTime = in.MTime
	}
	a.Mode, a.UID, a.GID = f.owner(in)
	if in.Flags&meta.Removed != 0 {
		a.Nlink = 0
	}
	return a
}

// owner are the permission bits and the owner of an inode: its own, or those of the mount.
func (f *FS) owner(in *meta.Inode) (mode, uid, gid uint32) {
	if in.Flags&meta.Owned != 0 {
		return in.Mode, in.UID, in.GID
	}
	switch mode = 0o777; in.Kind {
	case meta.KindDir:
		mode = f.opt.DirMode
	case meta.KindFile:
		mode = f.opt.FileMode
	}
	return mode, f.opt.UID, f.opt.GID
}

// attrNow are the attributes with what only the staging file of a file knows. Should it have been
// published at this moment, in is as it is then.
func (f *FS) attrNow(in *meta.Inode) (Attr, error) {
	for {
		a := f.attr(in)
		if in.Stage == 0 {
			return a, nil
		}
		st, err := f.cache.StatStage(in.Stage)
		if err == nil {
			a.Size, a.Blocks = st.Size, st.Blocks
			a.MTime, a.ATime = st.Mtim.Nano(), st.Atim.Nano()
			a.CTime = max(st.Ctim.Nano(), in.CTime)
			return a, nil
		}
		if now, gone := f.unstaged(in, err); gone {
			*in = now
			continue
		}
		return a, err
	}
}

// unstaged tells whether err is that the staging file of an inode is not there because the inode has
// another, or none, by now.
func (f *FS) unstaged(in *meta.Inode, err error) (now meta.Inode, gone bool) {
	if !errors.Is(err, cache.ErrNoStage) {
		return now, false
	}
	now, err = f.db.Inode(in.Ino)
	return now, err == nil && now.Stage != in.Stage
}

// entry is the answer for an inode, with the time that it stays fresh.
func (f *FS) entry(in *meta.Inode) (Entry, error) {
	lst, err := f.db.Listing(in.Parent)
	if err != nil {
		return Entry{}, err
	}
	e := Entry{Node: f.nodeOf(in), Valid: max(0, f.freshFor(in, &lst))}
	if lst.Complete > in.Checked && in.Flags&meta.Local == 0 {
		// The listing may have ended since in was read, and have found another version.
		if now, err := f.db.Inode(in.Ino); err != nil || now.Gen != in.Gen || now.Flags&meta.Removed != 0 {
			e.Valid = 0
		}
	}
	if e.Attr, err = f.attrNow(in); err != nil {
		return e, err
	}
	if in.Stage == 0 {
		e.AttrValid = e.Valid // what is written to a staging file, we are not told
	}
	return e, nil
}

// Getattr returns the attributes of a node, confirmed by the origin when they are too old.
// A node of an older version answers for that version while it is open, and is ErrStale
// otherwise.
func (f *FS) Getattr(ctx context.Context, node NodeID) (Attr, time.Duration, error) {
	in, err := f.inode(node)
	if err != nil {
		return Attr{}, 0, err
	}
	if node == RootNode {
		return f.attr(&in), f.opt.TTL, nil
	}
	if in.Gen == node.Gen() && in.Flags&meta.Local != 0 {
		a, err := f.attrNow(&in)
		if in.Stage == 0 && in.Flags&meta.Removed == 0 {
			return a, f.opt.TTL, err
		}
		return a, 0, err
	}
	if o := f.open.get(node); o != nil {
		// Of the present generation the index knows better: the table may not have heard yet that what was written is
		// published, and has it as it was opened.
		if in.Gen != node.Gen() {
			in, err = f.versionOf(o)
		}
		return f.attr(&in), f.opt.TTL, err
	}
	in, err = f.fresh(ctx, node)
	if err != nil {
		return Attr{}, 0, err
	}
	e, err := f.entry(&in)
	return e.Attr, e.AttrValid, err
}

// fresh returns the inode of a node id, confirmed not longer than the TTL ago; ErrStale
// when the node id is not the inode's present one.
func (f *FS) fresh(ctx context.Context, node NodeID) (meta.Inode, error) {
	in, err := f.inode(node)
	if err != nil {
		return in, err
	}
	if in.Ino == f.root.Ino {
		return in, nil
	}
	lst, err := f.db.Listing(in.Parent)
	if err != nil {
		return in, err
	}
	// Once more, for the listing may have ended between the two, and have found another version.
	parent := in.Parent
	if in, err = f.inode(node); err != nil {
		return in, err
	}
	if in.Parent != parent {
		lst = meta.Listing{} // it was moved, and is asked for
	}
	if in.Flags&(meta.Removed|meta.Local) == meta.Removed|meta.Local && f.nodeOf(&in) == node {
		return in, nil // removed here
	}
	if f.freshFor(&in, &lst) <= 0 || in.Flags&meta.Removed != 0 {
		dir, err := f.db.Inode(in.Parent)
		if err != nil {
			return in, ErrStale
		}
		now, err := f.lookup(ctx, &dir, in.Name)
		if err != nil {
			return in, err
		}
		in = now
	}
	if f.nodeOf(&in) != node {
		return in, ErrStale
	}
	return in, nil
}

// StatfsOut describes the file system as statfs(2) does. An object store has no size: it
// shows 1 PiB, all free, so that programs that check for room go on.
type StatfsOut struct {
	BlockSize    uint32
	Blocks, Free uint64
	MaxName      uint32
}

// Statfs never fails.
func (f *FS) Statfs() StatfsOut {
	const pib = 1 << 50
	return StatfsOut{BlockSize: 1 << 20, Blocks: pib >> 20, Free: pib >> 20, MaxName: MaxName}
}
