package fs

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/publish"
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
		err := f.fits(&src)
		if err == nil {
			err = f.listTree(ctx, &src)
		}
		if err == nil {
			err = f.fits(&src)
		}
		if err != nil {
			return err
		}
	}
	f.completeClosed()
	f.publisher.renaming.Add(1)
	defer f.publisher.renaming.Add(-1)
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
	if err := f.leaveKey(tx, from.Prefix+name, fx); err != nil {
		return err
	}
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
	if err := f.keepDir(tx, &from, fx); err != nil {
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
//
// What is below a directory is published under its new name in the order in which it was completed;
// of what was published before, that is not known, and what says by custom that the rest is complete goes last.
func (f *FS) moveAll(tx *meta.Tx, in, was *meta.Inode, from, to string, fx *effects) error {
	if in.Kind != meta.KindDir {
		return f.moveObject(tx, in, was, from, to, fx)
	}
	var plan []moving
	if err := f.planMove(tx, in, was.Prefix, to+"/", &plan); err != nil {
		return err
	}
	slices.SortStableFunc(plan, func(a, b moving) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.seq, b.seq))
	})
	for i := range plan {
		m := &plan[i]
		if err := f.moveBelow(tx, m, fx); err != nil {
			return err
		}
		if m.in.Ino == in.Ino {
			*in = m.in
		} else if err := tx.Update(&m.in); err != nil {
			return err
		}
	}
	return nil
}

// moving is something in a directory that is renamed.
type moving struct {
	in       meta.Inode
	from, to string // keys, of a directory prefixes
	rank     int    // what goes before what else
	seq      uint64 // within a rank
	further  bool   // in is called otherwise first; this is a further name of it
}

// The ranks: directories after all that is in them.
const (
	rankPublished = iota
	rankMarker
	rankWritten
	rankDir
)

// planMove adds all that is below a directory, and the directory.
func (f *FS) planMove(tx *meta.Tx, dir *meta.Inode, from, to string, plan *[]moving) error {
	if len(to) > maxKey {
		return ErrNameTooLong
	}
	err := tx.Readdir(dir.Ino, func(child meta.Inode) error {
		if err := f.mayReplace(&child); err != nil {
			return err
		}
		m := moving{in: child, from: from + child.Name, to: to + child.Name}
		switch {
		case child.Kind == meta.KindDir:
			return f.planMove(tx, &child, m.from+"/", m.to+"/", plan)
		case publish.IsMarker(child.Name):
			m.rank = rankMarker
		}
		if child.Links > 0 {
			first, err := tx.Inode(child.Ino)
			if err != nil {
				return err
			}
			if m.further = first.Parent != dir.Ino || first.Name != child.Name; m.further {
				m.in = first
			}
		}
		d, err := tx.Dirty(child.Ino)
		if err := absent(err); err != nil {
			return err
		}
		if d.Seq != 0 && child.Stage != 0 {
			m.rank, m.seq = rankWritten, d.Seq
		}
		*plan = append(*plan, m)
		return nil
	})
	*plan = append(*plan, moving{in: *dir, from: from, to: to, rank: rankDir, seq: uint64(len(*plan))})
	return err
}

// moveBelow notes for one of them where its object is to be.
func (f *FS) moveBelow(tx *meta.Tx, m *moving, fx *effects) error {
	if m.in.Kind == meta.KindDir {
		return f.moveDir(tx, &m.in, m.from, m.to, fx)
	}
	if err := f.leaveKey(tx, m.from, fx); err != nil {
		return err
	}
	if !m.further {
		was := m.in
		return f.moveObject(tx, &m.in, &was, m.from, m.to, fx)
	}
	// Its object is elsewhere, or moved before. What was done for that stands in the index.
	var err error
	if m.in, err = tx.Inode(m.in.Ino); err != nil {
		return err
	}
	if err := f.forsakeName(tx, m.in.Ino, m.from, fx); err != nil {
		return err
	}
	return f.touchNames(tx, &m.in, fx)
}

// moveDir is moveObject for a directory, after all that is in it.
func (f *FS) moveDir(tx *meta.Tx, in *meta.Inode, from, to string, fx *effects) error {
	in.Prefix = to
	if in.Flags&meta.Local == 0 || in.Flags&meta.Marker != 0 {
		if err := tx.SetDirty(&meta.Dirty{Ino: in.Ino, Since: f.now(), Seq: f.db.NextSeq()}); err != nil {
			return err
		}
	} else if err := f.strayed(tx, in, from, fx); err != nil {
		return err
	}
	// While something below is yet to go, it must not show the directory.
	if in.Flags&meta.Marker != 0 || in.Flags&meta.Local == 0 || len(fx.tombs) > 0 || f.db.TombCount() > 0 {
		if err := f.entombDir(tx, in, from, "", fx); err != nil {
			return err
		}
	}
	in.Object = meta.Object{}
	in.Flags = in.Flags&^meta.Marker | meta.Local
	fx.moved = append(fx.moved, *in)
	return nil
}

// maxMoved is how many objects below a directory are certainly too many for one transaction of the index to note for each
// that it is to be copied and deleted: about 12,000 records fit.
const maxMoved = 6000

// fits tells, by what the index knows and before anything is asked or noted, whether a directory has too many
// objects below it to be renamed.
func (f *FS) fits(dir *meta.Inode) error {
	n := 0
	var count func(ino meta.Ino) error
	count = func(ino meta.Ino) error {
		var below []meta.Ino
		err := f.db.Readdir(ino, "", 0, func(in meta.Inode) bool {
			if in.Kind == meta.KindDir {
				below = append(below, in.Ino)
			} else if in.Object.ETag != "" {
				n++
			}
			return n <= maxMoved
		})
		for _, ino := range below {
			if err != nil || n > maxMoved {
				break
			}
			err = count(ino)
		}
		return err
	}
	err := count(dir.Ino)
	if err == nil && n > maxMoved {
		err = &PathError{Op: "rename", Path: f.path(dir.Parent, dir.Name), Err: ErrCrossDevice}
	}
	return err
}

// listTree has the index know all that is below a directory. What was made here can be moved
// also while the origin is away.
func (f *FS) listTree(ctx context.Context, dir *meta.Inode) error {
	if err := f.relist(ctx, dir); err != nil {
		if dir.Flags&(meta.Local|meta.Ours) == 0 || !objstore.KindOf(err).Temporary() {
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
