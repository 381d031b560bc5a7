package fs

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
)

// Rename gives a file or directory another name, in one transaction: whoever looks sees it under
// the one or the other. A file that is not published yet is published once, under the new name; an
// object is copied by the origin and deleted afterwards. flags are those of renameat2(2);
// RENAME_NOREPLACE is known.
//
// A directory takes its objects along, each noted in the same transaction: ErrCrossDevice when they are too many for one.
func (f *FS) Rename(ctx context.Context, parent NodeID, name string, toParent NodeID, toName string, flags uint32) error {
	if noWait(ctx) {
		return ErrWouldWait
	}
	if f.opt.ReadOnly {
		return ErrReadOnly
	}
	if flags&^unix.RENAME_NOREPLACE != 0 {
		return ErrInvalid
	}
	if _, ok, err := f.carriedOut(ctx, opRename); ok || err != nil {
		return err
	}
	from, err := f.dir(parent)
	if err != nil {
		return err
	}
	to, err := f.dir(toParent)
	if err != nil {
		return err
	}
	src, err := f.lookup(ctx, &from, name)
	if err != nil {
		return err
	}
	if err := f.newName(&to, toName, src.Kind == meta.KindDir); err != nil {
		return err
	}
	dst, err := f.lookup(ctx, &to, toName)
	if err != nil && !errors.Is(err, ErrNotExist) {
		return err
	}
	if err == nil && dst.Kind == meta.KindDir {
		if err := f.listed(ctx, &dst); err != nil {
			return err
		}
	}
	if src.Kind == meta.KindDir {
		if err := f.listTree(ctx, &src); err != nil {
			return err
		}
	}
	var fx effects
	err = f.change(ctx, opRename, func(tx *meta.Tx) error {
		fx.reset()
		return f.renameIn(tx, from.Ino, name, to.Ino, toName, flags, &fx)
	})
	if errors.Is(err, meta.ErrTooBig) {
		return &PathError{Op: "rename", Path: f.path(from.Ino, name), Err: ErrCrossDevice}
	}
	if err == nil {
		f.negatives.forget(negKey(to.Ino, toName))
		f.after(&fx)
	}
	return err
}

func (f *FS) renameIn(tx *meta.Tx, fromDir meta.Ino, name string, toDir meta.Ino, toName string, flags uint32, fx *effects) error {
	now := f.now()
	src, err := tx.Lookup(fromDir, name)
	if errors.Is(err, meta.ErrNotFound) {
		return ErrNotExist
	}
	if err != nil {
		return err
	}
	from, err := tx.Inode(fromDir)
	if err != nil {
		return err
	}
	to, err := tx.Inode(toDir)
	if err != nil {
		return err
	}
	if to.Flags&meta.Removed != 0 {
		return ErrNotExist
	}
	if err := f.notBelow(tx, &src, &to); err != nil {
		return err
	}
	if err := f.mayReplace(&src); err != nil {
		return err
	}
	tx.Result(&src)
	dst, err := tx.Lookup(toDir, toName)
	switch {
	case errors.Is(err, meta.ErrNotFound):
	case err != nil:
		return err
	case flags&unix.RENAME_NOREPLACE != 0:
		return ErrExist
	case dst.Ino == src.Ino:
		return nil // two names of one file stay as they are
	case dst.Kind == meta.KindDir && src.Kind != meta.KindDir:
		return ErrIsDir
	case dst.Kind != meta.KindDir && src.Kind == meta.KindDir:
		return ErrNotDir
	default:
		if err := f.mayReplace(&dst); err != nil {
			return err
		}
		if err := f.removeIn(tx, &to, &dst, toName, fx); err != nil {
			return err
		}
	}
	was, err := tx.Inode(src.Ino) // under its primary name
	if err != nil {
		return err
	}
	primary := was.Parent == fromDir && was.Name == name
	in, err := tx.Move(fromDir, name, toDir, toName)
	if err != nil {
		return err
	}
	in.CTime = now
	if !primary {
		if err := f.forsakeName(tx, in.Ino, from.Prefix+name, fx); err != nil {
			return err
		}
		if err := f.touchNames(tx, &in, fx); err != nil {
			return err
		}
	} else {
		if err := f.moveAll(tx, &in, &was, from.Prefix+name, to.Prefix+toName, fx); err != nil {
			return err
		}
	}
	if err := tx.Update(&in); err != nil {
		return err
	}
	if from, err = tx.Inode(fromDir); err != nil {
		return err
	}
	if err := f.keepDir(tx, &from); err != nil {
		return err
	}
	if err := tx.Touch(fromDir, now); err != nil {
		return err
	}
	return tx.Touch(toDir, now)
}

// notBelow refuses to move a directory below itself. The kernel does, too.
func (f *FS) notBelow(tx *meta.Tx, src, to *meta.Inode) error {
	if src.Kind != meta.KindDir {
		return nil
	}
	for d := *to; ; {
		if d.Ino == src.Ino {
			return ErrInvalid
		}
		if d.Ino == f.root.Ino || d.Parent == d.Ino {
			return nil
		}
		var err error
		if d, err = tx.Inode(d.Parent); err != nil {
			return err
		}
	}
}

// moveAll notes for an inode that is called to instead of from, and for all below it, where its
// object is to be. The caller writes in.
func (f *FS) moveAll(tx *meta.Tx, in, was *meta.Inode, from, to string, fx *effects) error {
	if in.Kind != meta.KindDir {
		return f.moveObject(tx, in, was, from, to, fx)
	}
	from, to = was.Prefix, to+"/"
	if len(to) > maxKey {
		return ErrNameTooLong
	}
	in.Prefix = to
	objects := len(fx.tombs)
	err := tx.Readdir(in.Ino, func(child meta.Inode) error {
		if child.Links > 0 {
			if first, err := tx.Inode(child.Ino); err != nil || first.Parent != in.Ino || first.Name != child.Name {
				if err != nil {
					return err
				}
				// A further name of a file whose object is elsewhere.
				if err := f.forsakeName(tx, child.Ino, from+child.Name, fx); err != nil {
					return err
				}
				if err := f.touchNames(tx, &first, fx); err != nil {
					return err
				}
				return tx.Update(&first)
			}
		}
		before := child
		if err := f.moveAll(tx, &child, &before, from+child.Name, to+child.Name, fx); err != nil {
			return err
		}
		if child == before {
			return nil
		}
		return tx.Update(&child)
	})
	if err != nil {
		return err
	}
	if in.Flags&meta.Local == 0 || in.Flags&meta.Marker != 0 {
		if err := tx.SetDirty(&meta.Dirty{Ino: in.Ino, Since: f.now(), Seq: f.db.NextSeq()}); err != nil {
			return err
		}
	} else if err := f.strayed(tx, in, from, fx); err != nil {
		return err
	}
	if in.Flags&meta.Marker != 0 || in.Flags&meta.Local == 0 || len(fx.tombs) > objects {
		t, err := f.tombOf(tx, from)
		if err != nil {
			return err
		}
		if t.Prefix = true; in.Flags&meta.Marker == 0 && t.Token == "" {
			t.ETag = noObject
		} else {
			t.ETag = in.Object.ETag
		}
		if err := f.entomb(tx, &t, fx); err != nil {
			return err
		}
	}
	in.Object = meta.Object{}
	in.Flags = in.Flags&^meta.Marker | meta.Local
	fx.moved = append(fx.moved, *in)
	return nil
}

// listTree has the index know all that is below a directory. What was made here can be moved
// also while the origin is away.
func (f *FS) listTree(ctx context.Context, dir *meta.Inode) error {
	if err := f.relist(ctx, dir); err != nil {
		if dir.Flags&meta.Local == 0 || !objstore.KindOf(err).Temporary() {
			return &PathError{Op: "rename", Path: f.path(dir.Parent, dir.Name), Err: err}
		}
		f.log.Warn("a directory is renamed without asking the origin what others put there, since it does not answer",
			"path", f.path(dir.Parent, dir.Name), "err", err)
	}
	var below []meta.Inode
	if err := f.db.Readdir(dir.Ino, "", 0, func(in meta.Inode) bool {
		if in.Kind == meta.KindDir {
			below = append(below, in)
		}
		return true
	}); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i := range below {
		g.Go(func() error { return f.listTree(ctx, &below[i]) })
	}
	return g.Wait()
}

// parentKey is the key of the directory that a key is in, "" or ending in "/".
func parentKey(key string) string {
	return key[:strings.LastIndexByte(strings.TrimSuffix(key, "/"), '/')+1]
}
