package fs

import (
	"context"
	"errors"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// effects are what is to be done once a change stands in the index. Nothing is lost when the
// process is killed before: the next one finds all of it in the index.
type effects struct {
	gone  []meta.Ino    // lost their last name
	moved []meta.Inode  // are called otherwise, or their object is to be
	tombs []string      // keys whose objects are to be deleted
	names []changedName // that the kernel does not know to be changed
}

type changedName struct {
	dir  meta.Ino
	name string
}

func (fx *effects) reset() { *fx = effects{} }

// after does what effects say.
func (f *FS) after(fx *effects) {
	for i := range fx.moved {
		in := &fx.moved[i]
		if in.Kind == meta.KindDir {
			f.labelDir(in)
		} else {
			f.relabel(in)
		}
		f.rekey(in)
	}
	for _, key := range fx.tombs {
		f.enqueueTomb(key)
	}
	for _, ino := range fx.gone {
		f.unqueue(ino)
		f.stopGrowth(ino)
		f.forget(f.ctx, ino)
	}
	for _, c := range fx.names {
		f.changed(c.dir, c.name)
	}
}

// Unlink takes the name of a file away. Who has it open keeps it.
func (f *FS) Unlink(ctx context.Context, parent NodeID, name string) error {
	return f.remove(ctx, parent, name, opUnlink)
}

// Rmdir takes the name of an empty directory away.
func (f *FS) Rmdir(ctx context.Context, parent NodeID, name string) error {
	return f.remove(ctx, parent, name, opRmdir)
}

func (f *FS) remove(ctx context.Context, parent NodeID, name string, op uint32) error {
	if noWait(ctx) {
		return ErrWouldWait
	}
	if f.opt.ReadOnly {
		return ErrReadOnly
	}
	if _, ok, err := f.carriedOut(ctx, op); ok || err != nil {
		return err
	}
	dir, err := f.dir(parent)
	if err != nil {
		return err
	}
	in, err := f.lookup(ctx, &dir, name)
	if err != nil {
		return err
	}
	if op == opRmdir && in.Kind == meta.KindDir {
		if err := f.listed(ctx, &in); err != nil {
			return err
		}
	}
	var fx effects
	err = f.change(ctx, op, func(tx *meta.Tx) error {
		fx.reset()
		in, err := tx.Lookup(dir.Ino, name)
		if errors.Is(err, meta.ErrNotFound) {
			return ErrNotExist
		}
		if err != nil {
			return err
		}
		if err := f.mayReplace(&in); err != nil {
			return err
		}
		switch {
		case op == opUnlink && in.Kind == meta.KindDir:
			return ErrIsDir
		case op == opRmdir && in.Kind != meta.KindDir:
			return ErrNotDir
		}
		tx.Result(&in)
		d, err := tx.Inode(dir.Ino)
		if err != nil {
			return err
		}
		return f.removeIn(tx, &d, &in, name, &fx)
	})
	if err == nil {
		f.after(&fx)
	}
	return err
}

// mayReplace tells whether what an inode is at the origin may be deleted or overwritten by this
// mount.
func (f *FS) mayReplace(in *meta.Inode) error {
	there := in.Object.ETag != "" || in.Kind == meta.KindDir && in.Flags&meta.Marker != 0
	if f.opt.Protect && there && in.Flags&meta.Ours == 0 {
		return &PathError{Op: "change", Path: f.path(in.Parent, in.Name), Err: ErrProtected}
	}
	return nil
}

// listed makes sure that the index knows what is in a directory, as of the last TTL.
func (f *FS) listed(ctx context.Context, dir *meta.Inode) error {
	lst, err := f.db.Listing(dir.Ino)
	if err != nil {
		return err
	}
	if lst.Complete > 0 && (f.opt.Immutable || lst.Complete > f.now()-int64(f.opt.TTL)) {
		return nil
	}
	return f.relist(ctx, dir)
}

// removeIn takes a name away in a transaction, and notes what is to become of its object. d is
// the directory, name the name, in the inode behind it.
func (f *FS) removeIn(tx *meta.Tx, d, in *meta.Inode, name string, fx *effects) error {
	now := f.now()
	if in.Kind == meta.KindDir {
		some, err := tx.HasEntries(in.Ino)
		if err != nil {
			return err
		}
		if some {
			return ErrNotEmpty
		}
	}
	was, err := tx.Inode(in.Ino) // under its primary name
	if err != nil {
		return err
	}
	primary := was.Parent == d.Ino && was.Name == name
	left, err := tx.Remove(d.Ino, name)
	if err != nil {
		return err
	}
	left.CTime = now
	if err := f.leaveKey(tx, d.Prefix+name, fx); err != nil {
		return err
	}
	if left.Flags&meta.Removed == 0 {
		if primary {
			p, err := tx.Inode(left.Parent)
			if err != nil {
				return err
			}
			done, err := f.promote(tx, &left, &was, d.Prefix+name, p.Prefix+left.Name, fx)
			if err == nil && !done {
				err = f.moveObject(tx, &left, &was, d.Prefix+name, p.Prefix+left.Name, fx)
			}
			if err != nil {
				return err
			}
		} else if err := f.forsakeName(tx, in.Ino, d.Prefix+name, fx); err != nil {
			return err
		}
		if err := f.touchNames(tx, &left, fx); err != nil {
			return err
		}
	} else {
		if err := f.forsake(tx, &was, d.Prefix+name, fx); err != nil {
			return err
		}
		if left.Stage == 0 { // else the record tells the next process of the staging file
			if err := absent(tx.ClearDirty(in.Ino, false)); err != nil {
				return err
			}
		}
		left.Flags |= meta.Local // it is as it is here, whatever the name stands for later
		fx.gone = append(fx.gone, in.Ino)
	}
	if err := tx.Update(&left); err != nil {
		return err
	}
	if err := f.keepDir(tx, d, fx); err != nil {
		return err
	}
	return tx.Touch(d.Ino, now)
}

// objectKey is where the object of an inode is, key being what its name says.
func objectKey(in *meta.Inode, key string) string {
	if in.Object.Key != "" {
		return in.Object.Key
	}
	return key
}

// forsake notes that what there is at the origin of an inode that is called key is to be deleted: its
// object, and what a publication that was under way may have put there.
func (f *FS) forsake(tx *meta.Tx, in *meta.Inode, key string, fx *effects) error {
	if in.Kind == meta.KindDir {
		d, err := tx.Dirty(in.Ino)
		if err := absent(err); err != nil {
			return err
		}
		if in.Flags&meta.Marker == 0 && d.Token == "" && f.db.TombCount() == 0 {
			return nil // nothing there, and nothing below that is yet to go
		}
		return f.entombDir(tx, in, in.Prefix, d.Token, fx)
	}
	if err := f.strayed(tx, in, key, fx); err != nil || in.Object.ETag == "" {
		return err
	}
	t, err := f.tombOf(tx, objectKey(in, key))
	if err != nil {
		return err
	}
	t.ETag, t.VersionID, t.Needed = in.Object.ETag, in.Object.VersionID, 0
	return f.entomb(tx, &t, fx)
}

// entombDir notes that the object of a directory is to go, if it has one, or may have one with a
// token, and that the origin is not to be believed that there is a directory.
func (f *FS) entombDir(tx *meta.Tx, in *meta.Inode, key, token string, fx *effects) error {
	t, err := f.tombOf(tx, key)
	if err != nil {
		return err
	}
	t.Prefix = true
	switch {
	case in.Flags&meta.Marker != 0:
		if t.ETag = in.Object.ETag; t.ETag == "" {
			t.Token = "" // whatever it is
		}
	case token != "":
		t.Token = tokens(token, t.Token)
	case t.Seq == 0:
		t.ETag = noObject
	}
	return f.entomb(tx, &t, fx)
}

// strayed notes that a publication under a key that is not the inode's any more may have been
// carried out, or may still be.
func (f *FS) strayed(tx *meta.Tx, in *meta.Inode, key string, fx *effects) error {
	d, err := tx.Dirty(in.Ino)
	if err != nil || d.Token == "" {
		return absent(err)
	}
	t, err := f.tombOf(tx, key)
	if err != nil {
		return err
	}
	t.Token = tokens(d.Token, t.Token)
	if err := f.strayedNames(tx, in, key, d.Token, fx); err != nil {
		return err
	}
	d.Token = ""
	if err := tx.SetDirty(&d); err != nil {
		return err
	}
	return f.entomb(tx, &t, fx)
}

// tombOf returns the tomb of a key that is still open, or a new one.
func (f *FS) tombOf(tx *meta.Tx, key string) (meta.Tomb, error) {
	t, err := tx.Tomb(key)
	switch {
	case err != nil:
		return meta.Tomb{Key: key}, absent(err)
	case t.Done != 0 && f.inDoubt():
		return meta.Tomb{Key: key, Token: t.Token}, nil
	case t.Done != 0:
		return meta.Tomb{Key: key}, nil
	}
	return t, nil
}

// leaveKey has what is to be deleted under a key deleted, if nobody overwrites it any more: the name is
// no longer that of the inode that bury left it to.
func (f *FS) leaveKey(tx *meta.Tx, key string, fx *effects) error {
	t, err := tx.Tomb(key)
	if err == nil && t.Done == 0 {
		fx.tombs = append(fx.tombs, key)
	}
	return absent(err)
}

// entomb writes a tomb as the newest.
func (f *FS) entomb(tx *meta.Tx, t *meta.Tomb, fx *effects) error {
	if f.deletedBefore(t) {
		f.deletions.Store(t.Key, nil) // the tomb does not tell that any more
	}
	t.Seq, t.Tries, t.Error = f.db.NextSeq(), 0, ""
	fx.tombs = append(fx.tombs, t.Key)
	return tx.SetTomb(t)
}

// noObject stands in place of an ETag in the tomb of a directory that has no object of its own.
const noObject = "-"

// moveObject notes that an inode is called to instead of from: its object is to be copied there and
// deleted where it is, or, where the content is newer, only deleted. was is the inode before, in
// as it is now; the caller writes it.
func (f *FS) moveObject(tx *meta.Tx, in, was *meta.Inode, from, to string, fx *effects) error {
	if len(to) > maxKey {
		return ErrNameTooLong
	}
	if from == to || !published(in.Kind) {
		return nil
	}
	if err := f.strayed(tx, in, from, fx); err != nil {
		return err
	}
	d, err := tx.Dirty(in.Ino)
	if was.Object.ETag == "" && errors.Is(err, meta.ErrNotFound) {
		return nil
	}
	if errors.Is(err, meta.ErrNotFound) {
		d, err = meta.Dirty{Ino: in.Ino, Since: f.now(), Seq: 1}, nil
	}
	if err != nil {
		return err
	}
	if d.Seq != 0 || in.Stage == 0 {
		// It has come to its name now: after all that was complete before.
		d.Seq = f.db.NextSeq()
	}
	if in.Stage == 0 && d.Upload.ID != "" {
		if err := tx.AddAbort(d.Upload.Key, d.Upload.ID); err != nil {
			return err
		}
		d.Upload = meta.Upload{}
	}
	if err := tx.SetDirty(&d); err != nil {
		return err
	}
	if was.Object.ETag == "" {
		fx.moved = append(fx.moved, *in)
		return nil
	}
	src := objectKey(was, from)
	in.Object.Key = src
	if in.Links == 0 && src == to {
		in.Object.Key = ""
	}
	in.Flags |= meta.Local
	fx.moved = append(fx.moved, *in)
	if src == to {
		// It is back where its object is, or what a publication that was under way when it left has put in its place: that is
		// known by its token.
		if in.Stage != 0 {
			t, err := f.tombOf(tx, to)
			if err != nil {
				return err
			}
			d.Token = besides(d.Token, t.Token)
			if err := tx.SetDirty(&d); err != nil {
				return err
			}
		}
		if err := f.fill(tx, to, ""); err != nil || in.Stage != 0 {
			return err
		}
		if in.Links > 0 {
			return nil // its further names may have to be published yet
		}
		in.Flags &^= meta.Local
		in.Checked = f.now() // a listing that is under way may not have seen it
		return tx.ClearDirty(in.Ino, false)
	}
	t, err := f.tombOf(tx, src)
	if err != nil {
		return err
	}
	t.ETag, t.VersionID, t.Needed = in.Object.ETag, in.Object.VersionID, 0
	if in.Stage != 0 && in.Flags&meta.Overlay == 0 || in.Kind == meta.KindSymlink {
		// What it was at the origin is of no use any more.
		in.Object = meta.Object{}
	} else {
		t.Needed = in.Ino
	}
	return f.entomb(tx, &t, fx)
}

// keepDir sees to it that a directory that has become empty has an object of its own: without one
// it would be gone at the origin with the last object in it.
func (f *FS) keepDir(tx *meta.Tx, d *meta.Inode, fx *effects) error {
	if d.Ino == f.root.Ino || d.Flags&(meta.Marker|meta.Local|meta.Removed) != 0 {
		return nil
	}
	some, err := tx.HasEntries(d.Ino)
	if err != nil || some {
		return err
	}
	d.Flags |= meta.Local
	if err := tx.Update(d); err != nil {
		return err
	}
	fx.moved = append(fx.moved, *d)
	return tx.SetDirty(&meta.Dirty{Ino: d.Ino, Since: f.now(), Seq: f.db.NextSeq()})
}

// forget gives up the content of an inode that has no name any more, once nobody has it open.
func (f *FS) forget(ctx context.Context, ino meta.Ino) {
	in, err := f.db.Inode(ino)
	if err != nil || in.Flags&meta.Removed == 0 {
		return
	}
	if in.Kind == meta.KindDir {
		defer f.labels.lock(ino)() // what is being written as its label comes before
		if err := f.cache.RemoveDirLabel(uint64(ino)); err != nil {
			f.log.Debug("the label of a removed directory stays", "inode", ino, "err", err)
		}
		return
	}
	for {
		node := f.nodeOf(&in)
		end, err := f.open.begin(ctx, node)
		if err != nil {
			return // the mount ends; the next start does it
		}
		// It may have been staged meanwhile, also as another node.
		if in, err = f.db.Inode(ino); err == nil && f.nodeOf(&in) == node {
			f.forgetAlone(node, &in)
		}
		end(nil)
		if err != nil || f.nodeOf(&in) == node {
			return
		}
	}
}

// forgetAlone is forget of a file for the only one to open its node.
func (f *FS) forgetAlone(node NodeID, in *meta.Inode) {
	ino := in.Ino
	if f.open.openHandles(ino) || !f.open.drop(node) {
		f.relabel(in) // it has no name after a power cut either
		return        // at its last close
	}
	if in.Stage == 0 {
		f.doom(in)
		return
	}
	var stage cache.ID
	if err := f.db.Do(func(tx *meta.Tx) error {
		in, err := tx.Inode(ino)
		if err != nil {
			return err
		}
		stage, in.Stage = in.Stage, 0
		if err := tx.Update(&in); err != nil {
			return err
		}
		return absent(tx.ClearDirty(ino, false))
	}); err != nil {
		f.log.Warn("the content of a removed file stays until the next start", "inode", ino, "err", err)
		return
	}
	f.removeStage(stage)
}
