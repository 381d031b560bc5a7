package fs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/publish"
	"github.com/leatfs/leatfs/objstore"
)

// refused deals with a publication that the origin did not take.
func (f *FS) refused(ctx context.Context, w *work, err error) error {
	var c *publish.Conflict
	var s *publish.SourceChanged
	switch {
	case errors.As(err, &c):
		return f.conflict(ctx, w, c)
	case errors.As(err, &s):
		if w.in.Stage != 0 {
			return f.baseGone(ctx, w)
		}
		return f.sourceGone(w, s)
	case errors.Is(err, publish.ErrChanged):
		f.completeAgain(w)
		return publish.ErrSuperseded
	}
	return &PathError{Op: "publish", Path: f.path(w.dir.Ino, w.in.Name), Err: err}
}

// sourceGone: what was to be copied under a new name is gone at the origin, or another. Then so is
// the file: somebody else has removed or replaced it.
func (f *FS) sourceGone(w *work, s *publish.SourceChanged) error {
	ident, err := f.identity(&w.in)
	if err != nil {
		return err
	}
	if obj, err := f.cache.Object(f.ctx, ident, f.store); err == nil {
		// What is whole here is not lost.
		id, err := f.copyStageIf(obj, w)
		obj.Release()
		if err == nil {
			if _, err = f.staged(&w.in, id, 0, true); err != nil {
				f.removeStage(id)
				return err
			}
			f.changed(w.in.Parent, w.in.Name)
			f.completeSoon(w.in.Ino)
			return nil
		}
	}
	return &PathError{Op: "publish", Path: f.path(w.dir.Ino, w.in.Name), Err: fmt.Errorf("it was renamed here, and before the origin had copied it, somebody else removed or replaced its object %q there; put the object back, or give the file up with \"leatfs discard\"", s.Key)}
}

func (f *FS) copyStageIf(obj *cache.Object, w *work) (cache.ID, error) {
	if !obj.Complete() {
		return 0, cache.ErrIncomplete
	}
	return f.copyStage(obj, f.label(&w.dir, &w.in))
}

// conflict: somebody else has put something under the key, or removed what was there. An earlier
// content of our own is built upon. Else what the bucket has keeps the name, and ours is published beside it.
func (f *FS) conflict(ctx context.Context, w *work, c *publish.Conflict) error {
	have := c.Have
	if w.in.Stage != 0 && w.in.Flags&meta.Overlay != 0 && objectKey(&w.in, w.key) == w.key {
		return f.baseGone(ctx, w)
	}
	switch {
	case have.Key == "":
		// What was there is gone: nothing is lost by putting ours there.
		return f.rebase(w, "")
	case ours(have, w.dirty.Token) || ours(have, w.tomb) || f.labelledBase(w.in.Stage, have.ETag):
		return f.rebase(w, have.ETag)
	case f.opt.LastWins && !f.opt.Protect:
		f.log.Warn("what somebody else put under this name is overwritten (last-wins)", "path", f.path(w.dir.Ino, w.in.Name), "etag", have.ETag)
		return f.rebase(w, have.ETag)
	case w.in.Kind == meta.KindDir:
		return f.landed(ctx, w, publish.Outcome{Object: have}, nil)
	}
	name := f.conflictName(w.in.Name)
	var fx effects
	err := f.db.Do(func(tx *meta.Tx) error {
		fx.reset()
		now, err := tx.Inode(w.in.Ino)
		if err != nil {
			return err
		}
		if now.Parent != w.in.Parent || now.Name != w.in.Name || now.Flags&meta.Removed != 0 {
			return nil // it is called otherwise by now: nothing is in its way
		}
		in, err := tx.Move(w.in.Parent, w.in.Name, w.in.Parent, name)
		if err != nil {
			return err
		}
		if in.Flags&meta.Overlay == 0 && (in.Stage != 0 || objectKey(&w.in, w.key) == w.key) {
			if err := f.dropObject(tx, &in, w.key, &fx); err != nil {
				return err
			}
		}
		if err := tx.Update(&in); err != nil {
			return err
		}
		if err := absent(tx.ClearTomb(w.key)); err != nil {
			return err
		}
		fx.moved = append(fx.moved, in)
		return f.theirs(tx, meta.Name{Parent: w.in.Parent, Name: w.in.Name}, name, &have, &fx)
	})
	if err != nil {
		return err
	}
	f.tellConflict(meta.Name{Parent: w.in.Parent, Name: w.in.Name}, name, &have)
	f.after(&fx)
	return publish.ErrSuperseded
}

// conflictOfName is conflict for a further name n, with this key: theirs keeps it.
func (f *FS) conflictOfName(w *work, n meta.Name, key string, have *objstore.Object) error {
	name := f.conflictName(n.Name)
	moved := false
	var fx effects
	err := f.db.Do(func(tx *meta.Tx) error {
		fx.reset()
		moved = false
		if is, err := furtherName(tx, w.in.Ino, n, key); err != nil || !is {
			return err // it is gone, called otherwise, or the first name, by now: nothing is in its way
		}
		in, err := tx.Move(n.Parent, n.Name, n.Parent, name)
		if err != nil {
			return err
		}
		c, err := copyOf(tx, in.Ino, key)
		if err == nil && c.ETag != "" {
			err = tx.RemoveXattr(in.Ino, recordOf(key)) // what was there is gone
		}
		if err == nil {
			err = absent(tx.ClearTomb(key))
		}
		if err == nil {
			err = f.touchNames(tx, &in, &fx)
		}
		if err == nil {
			err = tx.Update(&in)
		}
		if err != nil {
			return err
		}
		moved = true
		return f.theirs(tx, n, name, have, &fx)
	})
	if err != nil {
		return err
	}
	if moved {
		f.tellConflict(n, name, have)
	}
	f.after(&fx)
	f.enqueue(w.in.Ino)
	return publish.ErrSuperseded
}

// conflictName is the name beside another under which ours is kept.
func (f *FS) conflictName(name string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	suffix := fmt.Sprintf(".conflict-%s-%s", host, time.Unix(0, f.now()).UTC().Format("20060102T150405.000Z"))
	return name[:min(len(name), MaxName-len(suffix))] + suffix
}

// theirs gives a name, which is free by now as ours is kept under another beside it, to what the bucket has.
func (f *FS) theirs(tx *meta.Tx, n meta.Name, ours string, have *objstore.Object, fx *effects) error {
	_, err := tx.Insert(n.Parent, meta.Inode{Kind: meta.KindFile, Name: n.Name, Checked: f.now(),
		Object: meta.Object{Size: have.Size, ETag: have.ETag, VersionID: have.VersionID, MTime: have.ModTime.UnixNano()}})
	fx.names = append(fx.names, changedName{n.Parent, n.Name}, changedName{n.Parent, ours})
	return err
}

func (f *FS) tellConflict(n meta.Name, ours string, have *objstore.Object) {
	f.countConflict()
	f.log.Error("somebody else has changed the object under this name; theirs keeps it, ours is kept beside it",
		"path", f.path(n.Parent, n.Name), "ours", f.path(n.Parent, ours), "etag", have.ETag)
}

// rebase notes what is under the key of a file that it may overwrite, and has it published again.
func (f *FS) rebase(w *work, etag string) error {
	var fx effects
	err := f.db.Do(func(tx *meta.Tx) error {
		fx.reset()
		if etag == "" {
			if err := f.fill(tx, w.key, ""); err != nil {
				return err
			}
		} else {
			old, err := f.tombOf(tx, w.key)
			if err != nil {
				return err
			}
			if err := tx.SetTomb(&meta.Tomb{Key: w.key, ETag: etag, Token: old.Token, Seq: f.db.NextSeq()}); err != nil {
				return err
			}
		}
		now, err := tx.Inode(w.in.Ino)
		if err != nil {
			return absent(err)
		}
		dir, err := tx.Inode(now.Parent)
		if err != nil || naturalKey(&dir, &now) != w.key {
			return absent(err) // it is called otherwise by now, and its object may be what is under that name
		}
		if now.Stage != 0 && now.Object.ETag != "" && now.Flags&meta.Overlay == 0 {
			if err := f.dropObject(tx, &now, w.key, &fx); err != nil {
				return err
			}
			return tx.Update(&now)
		}
		return nil
	})
	if err == nil {
		f.after(&fx)
		f.enqueueTomb(w.key) // should it be called otherwise by now
		err = errRebased
	}
	return err
}

// dropObject forgets what an inode was at the origin, which was to be copied to key, or was there, and is of no
// use any more. The caller writes in.
func (f *FS) dropObject(tx *meta.Tx, in *meta.Inode, key string, fx *effects) error {
	src := in.Object.Key
	in.Object = meta.Object{}
	if src == "" || src == key {
		return nil
	}
	return f.unneed(tx, src, fx)
}
