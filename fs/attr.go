package fs

import (
	"context"
	"time"

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
	a := Attr{Ino: uint64(in.Ino), Kind: in.Kind, UID: f.opt.UID, GID: f.opt.GID, Nlink: 1, Blocks: -1}
	if in.Ino == f.root.Ino {
		a.Ino = uint64(RootNode)
	}
	switch in.Kind {
	case meta.KindDir:
		// A prefix has no time of its own; the mount's is shown.
		a.Mode, a.Size, a.Nlink, a.MTime = f.opt.DirMode, 4096, 2, f.began
	case meta.KindFile:
		a.Mode, a.Size, a.MTime = f.opt.FileMode, in.Object.Size, in.Object.MTime
	default:
		a.Mode, a.Size = 0o777, int64(len(in.Target))
	}
	return a
}

// entry is the answer for an inode, with the time that it stays fresh.
func (f *FS) entry(in *meta.Inode) (Entry, error) {
	lst, err := f.db.Listing(in.Parent)
	if err != nil {
		return Entry{}, err
	}
	return Entry{Node: f.nodeOf(in), Attr: f.attr(in), Valid: max(0, f.freshFor(in, &lst))}, nil
}

// Getattr returns the attributes of a node, confirmed by the origin when they are too old.
// A node of an older version answers for that version while it is open, and is ErrStale
// otherwise.
func (f *FS) Getattr(ctx context.Context, node NodeID) (Attr, time.Duration, error) {
	if node == RootNode {
		return f.attr(&f.root), f.opt.TTL, nil
	}
	if o := f.open.get(node); o != nil {
		in, err := f.versionOf(o)
		return f.attr(&in), f.opt.TTL, err
	}
	in, err := f.fresh(ctx, node)
	if err != nil {
		return Attr{}, 0, err
	}
	e, err := f.entry(&in)
	return e.Attr, e.Valid, err
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
