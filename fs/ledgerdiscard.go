package fs

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/leatfs/leatfs/fs/meta"
)

// ErrNothingLocal: the origin has all that there is under this name.
var ErrNothingLocal = errors.New("nothing here that the bucket has not")

// Retry has what is not at the origin tried at once: what failed, what waits, and, as from now on
// complete, what is held. file is a path below the mount, which may be a directory's; "" is all. It returns how
// many that are.
func (f *FS) Retry(ctx context.Context, file string) (n int, err error) {
	if file != "" {
		file = path.Clean("/" + file)
	}
	var inodes []meta.Ino
	var inner error
	open := false
	err = f.db.WalkDirty(0, func(d meta.Dirty) bool {
		in, err := f.db.Inode(d.Ino)
		switch {
		case errors.Is(err, meta.ErrNotFound):
		case err != nil:
			inner = err
		case in.Flags&meta.Removed != 0 || !isAt(file, func() string { return f.path(in.Parent, in.Name) }):
		case d.Seq == 0 && !d.Held:
			open = true
		case d.Held:
			inner = f.unhold(d.Ino)
			n++
		default:
			inodes = append(inodes, d.Ino)
		}
		return inner == nil && ctx.Err() == nil
	})
	if err = errors.Join(err, inner, ctx.Err()); err != nil {
		return n, err
	}
	var ids []uint64
	for _, ino := range inodes {
		ids = append(ids, uint64(ino))
	}
	if err := f.db.WalkTombs("", "", func(t meta.Tomb) bool {
		if t.Done == 0 && isAt(file, func() string { return strings.TrimSuffix(f.pathOfKey(t.Key), "/") }) {
			ids = append(ids, f.tombID(t.Key))
		}
		return true
	}); err != nil {
		return n, err
	}
	n += len(ids)
	if n == 0 && file != "" && open {
		return 0, &PathError{Op: "retry", Path: file, Err: errWritten}
	}
	if n == 0 && file != "" {
		return 0, &PathError{Op: "retry", Path: file, Err: ErrNothingLocal}
	}
	if file == "" {
		f.publisher.queue.HastenAll()
		return n, nil
	}
	for _, id := range ids {
		f.publisher.queue.Hasten(id)
	}
	return n, nil
}

// isAt tells whether a path is file, or below it; "" is above all.
func isAt(file string, of func() string) bool {
	if file == "" || file == "/" {
		return true
	}
	p := of()
	return p == file || strings.HasPrefix(p, file+"/")
}

// unhold says that a held file is complete as it is.
func (f *FS) unhold(ino meta.Ino) error {
	staged := false
	err := f.db.Do(func(tx *meta.Tx) error {
		d, err := tx.Dirty(ino)
		if err != nil || !d.Held {
			return absent(err)
		}
		in, err := tx.Inode(ino)
		if err != nil {
			return err
		}
		d.Held, d.Seq, d.Error = false, f.db.NextSeq(), ""
		if staged = in.Stage != 0; staged {
			d.Seq, d.Early = 0, false // the completer looks whether somebody writes
		}
		return tx.SetDirty(&d)
	})
	switch {
	case err != nil:
	case staged:
		f.completeSoon(ino)
	default:
		f.enqueue(ino)
	}
	return err
}

// Discard gives up what was done here under a name and is not at the origin: the name becomes what
// the origin has, or vanishes with what it held. An object that was to be deleted shows again; a file that was renamed has
// its old name again. file is a path below the mount. Nobody may have the file open.
//
// What landed at the origin at the last moment stays. ErrNothingLocal: there is nothing to give up.
func (f *FS) Discard(ctx context.Context, file string) error {
	file = path.Clean("/" + file)
	err := f.discard(ctx, file)
	if err != nil {
		return &PathError{Op: "discard", Path: file, Err: err}
	}
	f.log.Info("what was changed here under a name, and was not in the bucket, was given up as asked", "path", file)
	return nil
}

func (f *FS) discard(ctx context.Context, file string) error {
	if file == "/" {
		return fmt.Errorf("it is the mount itself: %w", ErrInvalid)
	}
	dir, err := f.indexed(path.Dir(file))
	if errors.Is(err, meta.ErrNotFound) {
		// Its directory is gone too: what is to be deleted there has nothing but its key.
		return f.undelete(ctx, f.root.Prefix+file[1:])
	}
	if err != nil {
		return err
	}
	name := path.Base(file)
	in, err := f.db.Lookup(dir.Ino, name)
	switch {
	case errors.Is(err, meta.ErrNotFound):
		return f.undelete(ctx, dir.Prefix+name)
	case err != nil:
		return err
	}
	d, err := f.db.Dirty(in.Ino)
	if errors.Is(err, meta.ErrNotFound) {
		return ErrNothingLocal
	}
	if err != nil {
		return err
	}
	if in.Kind == meta.KindDir {
		return fmt.Errorf("%w: discard the files in it, or remove it", ErrIsDir)
	}
	if in.Links > 0 {
		return errors.New("it has several names (hard links): remove the others first")
	}
	if err := f.hold(&d); err != nil {
		return err
	}
	err = f.discardHeld(ctx, &dir, &in)
	if err != nil && !d.Held { // else it was held before, and still nobody knows whether it is whole
		if uerr := f.unhold(in.Ino); uerr != nil {
			f.log.Warn("a file is held that was to be discarded and could not be", "path", file, "err", uerr)
		}
	}
	return err
}

// indexed is the directory of a path, as the index knows it.
func (f *FS) indexed(dir string) (meta.Inode, error) {
	in := f.root
	for _, name := range strings.Split(strings.Trim(dir, "/"), "/") {
		if name == "" {
			continue
		}
		var err error
		if in, err = f.db.Lookup(in.Ino, name); err != nil {
			return in, err
		}
		if in.Kind != meta.KindDir {
			return in, ErrNotDir
		}
	}
	return in, nil
}

// hold has a file neither published nor completed from now on.
func (f *FS) hold(d *meta.Dirty) error {
	if f.open.writers(d.Ino) > 0 {
		return errOpen
	}
	return f.db.Do(func(tx *meta.Tx) error {
		now, err := tx.Dirty(d.Ino)
		if err != nil {
			return absent(err)
		}
		now.Held = true
		return tx.SetDirty(&now)
	})
}

var errWritten = errors.New("somebody has it open for writing: it is published once it is closed")

var errOpen = errors.New("somebody has it open: let them close it first")

// discardHeld gives up a file that is held.
func (f *FS) discardHeld(ctx context.Context, dir, in *meta.Inode) error {
	// What is under way ends first: it may still come to the origin.
	if err := f.publisher.queue.Cancel(ctx, uint64(in.Ino)); err != nil {
		return err
	}
	node := f.nodeOf(in)
	end, err := f.open.begin(ctx, node)
	if err != nil {
		return err
	}
	defer func() { end(nil) }()
	if f.open.openHandles(in.Ino) || !f.open.drop(node) {
		return errOpen
	}
	if in.Stage != 0 {
		if writers, users, err := f.cache.StageBusy(in.Stage); err == nil && (writers || users) {
			return errOpen
		}
	}
	var src string
	moved := false
	err = f.db.Do(func(tx *meta.Tx) error {
		src, moved = "", false
		now, err := tx.Lookup(dir.Ino, in.Name)
		if errors.Is(err, meta.ErrNotFound) || err == nil && now.Ino != in.Ino {
			return errors.New("it was removed or renamed at this moment")
		}
		if err != nil {
			return err
		}
		if _, err := tx.Dirty(in.Ino); errors.Is(err, meta.ErrNotFound) {
			return ErrNothingLocal // it has just been published
		} else if err != nil {
			return err
		}
		d, err := tx.Inode(dir.Ino)
		if err != nil {
			return err
		}
		key := d.Prefix + in.Name
		if objectKey(&now, key) != key {
			src = now.Object.Key
			if err := f.unneeded(tx, src, now.Ino); err != nil {
				return err
			}
		}
		t, err := tx.Tomb(key)
		if err := absent(err); err != nil {
			return err
		}
		// What was renamed, and is still to be copied from there, is not given up with it.
		if moved = t.Needed != 0 && t.Needed != now.Ino; !moved {
			if err := absent(tx.ClearTomb(key)); err != nil {
				return err
			}
		}
		left, err := tx.Remove(dir.Ino, in.Name)
		if err != nil {
			return err
		}
		left.Flags |= meta.Local // it is as it is here, whatever the name stands for later
		left.CTime = f.now()
		left.Object = meta.Object{}
		if err := tx.Update(&left); err != nil {
			return err
		}
		if left.Stage == 0 { // else the record tells the next process of the staging file
			if err := absent(tx.ClearDirty(in.Ino, false)); err != nil {
				return err
			}
		}
		return f.unlist(tx, d.Ino)
	})
	if err != nil {
		return err
	}
	f.stopGrowth(in.Ino)
	end(nil)
	end = func(error) {}
	f.forget(ctx, in.Ino)
	if src != "" {
		f.shown(src)
	}
	if moved {
		f.enqueueTomb(dir.Prefix + in.Name) // nothing takes its place any more
	}
	f.negatives.forget(negKey(dir.Ino, in.Name))
	f.changed(dir.Ino, in.Name)
	return nil
}

// unneeded forgets, in a transaction, that an object is to be deleted once it was copied for an inode: it shows again.
func (f *FS) unneeded(tx *meta.Tx, key string, ino meta.Ino) error {
	t, err := tx.Tomb(key)
	if err != nil || t.Needed != ino {
		return absent(err)
	}
	switch _, err := f.under(key, tx.Lookup); {
	case err == nil:
		return fmt.Errorf("it was renamed, and its old name %s is another's by now: discard, rename or remove that first", f.pathOfKey(key))
	case !errors.Is(err, meta.ErrNotFound):
		return err
	}
	// A directory above that is to go stays, too, or it would hide it.
	for above := parentKey(key); len(above) > len(f.root.Prefix); above = parentKey(above) {
		switch t, err := tx.Tomb(above); {
		case errors.Is(err, meta.ErrNotFound):
		case err != nil:
			return err
		case t.Prefix && t.Done == 0:
			if err := tx.ClearTomb(above); err != nil {
				return err
			}
		}
	}
	return tx.ClearTomb(key)
}

// unlist has a directory listed anew before anybody believes that a name is missing there.
func (f *FS) unlist(tx *meta.Tx, dir meta.Ino) error {
	l, err := tx.Listing(dir)
	if err != nil || l.Complete == 0 {
		return absent(err)
	}
	l.Complete = 0
	return tx.SetListing(dir, l)
}

// shown has the object of a key looked for anew, by index and kernel.
func (f *FS) shown(key string) {
	// Its deletion, if that waits, finds no tomb.
	if err := f.publisher.queue.Cancel(f.ctx, f.tombID(key)); err != nil {
		return
	}
	file := strings.TrimSuffix(f.pathOfKey(key), "/")
	// The directories on the way may have to show again too.
	for dir := path.Dir(file); ; dir = path.Dir(dir) {
		if in, err := f.indexed(dir); err == nil {
			if err := f.db.Do(func(tx *meta.Tx) error { return f.unlist(tx, in.Ino) }); err != nil {
				f.log.Warn("an object that was to be deleted, and is not, shows later", "key", key, "err", err)
			}
			name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(file, dir), "/"), "/")
			f.negatives.forget(negKey(in.Ino, name))
			f.changed(in.Ino, name)
			return
		}
		if dir == "/" {
			return
		}
	}
}

// undelete forgets that the object of a key, and all below it, is to be deleted.
func (f *FS) undelete(ctx context.Context, key string) error {
	var keys []string
	for _, r := range [][2]string{{key, key + "\x00"}, {key + "/", key + "0"}} {
		if err := f.db.WalkTombs(r[0], r[1], func(t meta.Tomb) bool {
			if t.Done == 0 {
				keys = append(keys, t.Key)
			}
			return true
		}); err != nil {
			return err
		}
	}
	if len(keys) == 0 {
		return ErrNothingLocal
	}
	// A directory above that is to go stays, too, or it would hide them.
	for above := parentKey(key); len(above) > len(f.root.Prefix); above = parentKey(above) {
		if t, err := f.db.Tomb(above); err == nil && t.Prefix && t.Done == 0 {
			keys = append(keys, above)
		}
	}
	var moved error
	n := 0
	for _, k := range keys {
		id := f.tombID(k)
		// A deletion under way ends first; whether it was carried out the origin tells afterwards.
		if err := f.publisher.queue.Cancel(ctx, id); err != nil {
			return err
		}
		err := f.db.Do(func(tx *meta.Tx) error {
			t, err := tx.Tomb(k)
			if err != nil || t.Done != 0 {
				return absent(err)
			}
			if t.Needed != 0 {
				return errMoved
			}
			return tx.ClearTomb(k)
		})
		switch {
		case errors.Is(err, errMoved):
			f.enqueueTomb(k)
			moved = fmt.Errorf("%s %w", f.pathOfKey(k), errMoved)
			continue
		case err != nil:
			return err
		}
		n++
		f.shown(k)
	}
	if n == 0 {
		return moved
	}
	return nil
}

var errMoved = errors.New("was renamed, and its object is still to be copied: discard it under its new name")
