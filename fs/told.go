package fs

import (
	"bytes"
	"context"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/publish"
	"github.com/leatfs/leatfs/objstore"
)

// With Metadata, what the metadata of an object tells is believed: permission bits, times, and that it is a symbolic
// link. Listings do not carry it: so nobody is given a file that was only listed before a HEAD has told what
// it is, and a file never becomes a link under who has it. Never believed are the owner, who is another on this
// machine, nor the bits that give a program somebody else's rights.

// maxTarget is how long the target of a symbolic link may be, in bytes.
const maxTarget = 4095

// untold tells whether a file has to be asked about before it is shown.
func (f *FS) untold(in *meta.Inode) bool {
	return f.opt.Metadata && in.Kind == meta.KindFile && in.Flags&(meta.Local|meta.Ours|meta.Told) == 0 && in.Links == 0
}

// seen makes want what the origin tells of an object.
func (f *FS) seen(ctx context.Context, want *meta.Inode, key string, obj *objstore.Object) error {
	setObject(want, obj)
	if !f.opt.Metadata {
		return nil
	}
	f.tell(want, obj)
	a := publish.ParseMetadata(obj.Metadata)
	if !a.HasMode || a.Mode&unix.S_IFMT != unix.S_IFLNK || obj.Size == 0 || obj.Size > maxTarget || obj.Archived {
		return nil
	}
	r, err := f.store.Get(ctx, key, objstore.GetOptions{Length: obj.Size, IfMatch: obj.ETag})
	if err != nil {
		return err
	}
	defer r.Body.Close()
	target, err := io.ReadAll(io.LimitReader(r.Body, maxTarget+1))
	if err != nil {
		return err
	}
	if int64(len(target)) == obj.Size && bytes.IndexByte(target, 0) < 0 {
		want.Kind, want.Target = meta.KindSymlink, string(target)
		want.Flags &^= meta.Owned
	}
	return nil
}

// tell takes permission bits and times from an object's metadata, as far as they make sense; what it does not tell is as
// the mount says.
func (f *FS) tell(in *meta.Inode, obj *objstore.Object) {
	a := publish.ParseMetadata(obj.Metadata)
	in.Flags = in.Flags&^meta.Owned | meta.Told
	in.Mode, in.UID, in.GID, in.MTime, in.CTime = 0, 0, 0, 0, 0
	if kind := a.Mode & unix.S_IFMT; a.HasMode && (kind == unix.S_IFREG || kind == 0) && a.Mode>>16 == 0 {
		in.Flags |= meta.Owned
		in.Mode, in.UID, in.GID = a.Mode&0o777, f.opt.UID, f.opt.GID
	}
	latest := f.now() + int64(24*time.Hour)
	if a.HasMTime && a.MTime > 0 && a.MTime < latest {
		in.MTime = a.MTime
	}
	if a.HasCTime && a.CTime > 0 && a.CTime < latest {
		in.CTime = a.CTime
	}
}
