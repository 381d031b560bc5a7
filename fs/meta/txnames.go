package meta

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dgraph-io/badger/v4"
)

// Lookup returns the inode of a name; ErrNotFound when there is none.
func (t *Tx) Lookup(parent Ino, name string) (in Inode, err error) {
	err = t.call(func() error {
		if in, err = t.entry(parent, name); err == nil && isRef(&in) {
			return t.follow(&in)
		}
		return err
	})
	if err != nil {
		return Inode{}, err
	}
	return in, nil
}

// entry reads a dentry, which may be a reference.
func (t *Tx) entry(parent Ino, name string) (in Inode, err error) {
	if name == "" || len(name) > MaxName {
		return in, ErrNotFound
	}
	if err := t.lock(parent); err != nil {
		return in, err
	}
	err = readEntry(t.txn(), parent, name, &in)
	return in, err
}

// follow makes of a reference the inode, under the name of the reference.
func (t *Tx) follow(in *Inode) error {
	if err := t.lock(in.Ino); err != nil {
		return err
	}
	return resolve(t.txn(), in)
}

// Inode returns the inode of a number under its primary name, as DB.Inode does.
func (t *Tx) Inode(ino Ino) (in Inode, err error) {
	err = t.call(func() error {
		_, in, err = t.body(ino)
		return err
	})
	return in, err
}

// HasEntries tells whether a directory has any name.
func (t *Tx) HasEntries(dir Ino) (has bool, err error) {
	err = t.call(func() error {
		if err := t.lock(dir); err != nil {
			return err
		}
		prefix := inoKey(keyDentry, dir)
		it := t.txn().NewIterator(badger.IteratorOptions{Prefix: prefix})
		defer it.Close()
		it.Seek(prefix)
		has = it.Valid()
		return nil
	})
	return has, err
}

// Readdir calls fn for all entries of a directory in byte order of names; fn may use t, and its
// error ends it.
func (t *Tx) Readdir(dir Ino, fn func(Inode) error) error {
	for after := ""; ; {
		var batch []Inode
		if err := t.call(func() error {
			if err := t.lock(dir); err != nil {
				return err
			}
			var err error
			if batch, err = readEntries(t.txn(), dir, after, readdirBatch, nil); err != nil {
				return err
			}
			for i := range batch {
				if isRef(&batch[i]) {
					if err := t.follow(&batch[i]); err != nil {
						return err
					}
				}
			}
			return nil
		}); err != nil {
			return err
		}
		for i := range batch {
			if err := fn(batch[i]); err != nil {
				return err
			}
		}
		if len(batch) < readdirBatch {
			return nil
		}
		after = batch[len(batch)-1].Name
	}
}

// Insert adds a name with an inode of its own, as DB.Insert does. ErrNotFound when the directory or
// one above it was removed.
func (t *Tx) Insert(parent Ino, in Inode) (out Inode, err error) {
	if err := checkNew(&in); err != nil {
		return in, err
	}
	out = in
	err = t.call(func() error {
		dir, err := t.free(parent, in.Name, &out)
		if err != nil {
			return err
		}
		if out.Ino, err = t.db.marks.newIno(); err != nil {
			return &callerError{err}
		}
		out.Parent = parent
		if onlyHere(out.Kind) {
			out.Flags |= Local
		}
		if out.Kind == KindDir && out.Prefix == "" {
			out.Prefix = dir.Prefix + out.Name + "/"
		}
		if t.fresh == nil {
			t.fresh = make(map[Ino]bool)
		}
		t.fresh[out.Ino] = true
		t.takes = true
		t.wrote = true
		if err := t.mark(&out, parent); err != nil {
			return err
		}
		return putNew(t.txn(), &out)
	})
	return out, err
}

// free makes sure that a name can be added to a directory, which is returned. On ErrExist have is
// what has the name.
func (t *Tx) free(parent Ino, name string, have *Inode) (dir Inode, err error) {
	var old Inode
	switch old, err = t.entry(parent, name); {
	case err == nil:
		if isRef(&old) {
			if err := t.follow(&old); err != nil {
				return dir, err
			}
		}
		*have = old
		return dir, ErrExist
	case !errors.Is(err, ErrNotFound):
		return dir, err
	}
	p, err := readPlace(t.txn(), parent)
	if err == nil {
		err = readBody(t.txn(), parent, &p, &dir)
	}
	switch {
	case err != nil:
		return dir, err
	case dir.Kind != KindDir:
		return dir, fmt.Errorf("%w: inode %d is a %s", ErrInvalid, parent, dir.Kind)
	case dir.Flags&Removed != 0:
		return dir, ErrNotFound
	}
	if t.there = parent; p.at != nil {
		return dir, nil
	}
	return dir, t.above(p.parent, 0)
}

// above returns ErrNotFound when a directory or one above it was removed, ErrInvalid when it is
// not or is one of those. Removing takes prune, or finds nothing below.
func (t *Tx) above(dir, not Ino) error {
	for range 1 << 16 {
		if dir == not {
			return fmt.Errorf("%w: inode %d would be below itself", ErrInvalid, not)
		}
		p, err := readPlace(t.txn(), dir)
		switch {
		case err != nil:
			return err
		case p.at == nil:
			dir = p.parent
		case p.at.Flags&Removed != 0:
			return ErrNotFound
		default:
			return nil
		}
	}
	return fmt.Errorf("inode %d: no end of directories above", dir)
}

// Update writes a changed inode. Ino, Kind, Parent, Name, Links and the flag Removed may not differ (ErrInvalid); of
// an inode with several names, Parent and Name may be any of them. Where Gen differs,
// what the inode was is kept for InodeAt.
func (t *Tx) Update(in *Inode) error {
	return t.call(func() error {
		p, old, err := t.body(in.Ino)
		if err != nil {
			return err
		}
		if onlyHere(in.Kind) {
			in.Flags |= Local
		}
		now := *in
		if (now.Parent != old.Parent || now.Name != old.Name) && p.at != nil {
			var e Inode
			if e, err = t.entry(now.Parent, now.Name); err != nil && !errors.Is(err, ErrNotFound) {
				return err
			} else if err == nil && e.Ino == old.Ino && isRef(&e) {
				now.Parent, now.Name = old.Parent, old.Name
			}
		}
		if err := checkUpdate(&old, &now); err != nil || now == old {
			return err
		}
		if now.Prefix != old.Prefix {
			if err := t.lock(now.Ino); err != nil {
				return err
			}
		}
		t.wrote = true
		if now.Flags&^old.Flags&Local != 0 || now.Stage != 0 && old.Stage == 0 {
			if err := t.markNames(&p, &now); err != nil {
				return err
			}
		}
		if now.Gen != old.Gen {
			if err := putKept(t.txn(), &old, time.Now().UnixNano()); err != nil {
				return err
			}
		}
		return putBody(t.txn(), &p, &now)
	})
}

// Remove takes a name away. Returns the inode as it is afterwards: flagged Removed when that was
// its last name, else under its primary one. What a removed directory holds is for the caller to ask
// before.
func (t *Tx) Remove(parent Ino, name string) (in Inode, err error) {
	err = t.call(func() error {
		t.gives = true
		if in, err = t.entry(parent, name); err != nil {
			return err
		}
		if in.Kind == KindDir || isRef(&in) {
			if err := t.lock(in.Ino); err != nil {
				return err
			}
		}
		t.wrote = true
		return unlink(t.txn(), &in, time.Now().UnixNano(), false)
	})
	if err != nil {
		return Inode{}, err
	}
	return in, nil
}

// Move gives the inode of a name another name, which must be free (ErrExist). Its Object stays
// what it is: its Key is set where the new place does not say it. So does the Prefix of a
// directory: see Update. A directory cannot come to be below itself (ErrInvalid). Returns the inode under its new
// name, or what has that name.
func (t *Tx) Move(parent Ino, name string, toParent Ino, toName string) (in Inode, err error) {
	if err := checkName(toName); err != nil {
		return in, err
	}
	err = t.call(func() error {
		t.gives = true
		if in, err = t.entry(parent, name); err != nil {
			return err
		}
		ref := isRef(&in)
		if ref {
			if err = t.follow(&in); err != nil {
				return err
			}
		}
		old := in
		dir, err := t.free(toParent, toName, &in)
		if err != nil {
			return err
		}
		if in.Kind == KindDir {
			if err := t.above(toParent, in.Ino); err != nil {
				return err
			}
		}
		var from Inode
		if err := readInode(t.txn(), parent, &from); err != nil {
			return err
		}
		t.wrote = true
		if err := t.mark(&in, toParent); err != nil {
			return err
		}
		if err := t.delete(dentryKey(parent, name)); err != nil {
			return err
		}
		if ref {
			return t.moveRef(&old, &in, toParent, toName)
		}
		in.Parent, in.Name = toParent, toName
		rekey(&in, from.Prefix+name, dir.Prefix+toName)
		return putNew(t.txn(), &in)
	})
	return in, err
}

// moveRef moves one of several names; old and in are the inode under it.
func (t *Tx) moveRef(old, in *Inode, toParent Ino, toName string) error {
	if err := t.delete(nameOf(old.Ino, old.Parent, old.Name)); err != nil {
		return err
	}
	if err := t.set(nameOf(old.Ino, toParent, toName), nil); err != nil {
		return err
	}
	if err := t.set(dentryKey(toParent, toName), encodeRef(old.Ino)); err != nil {
		return err
	}
	p, err := readPlace(t.txn(), old.Ino)
	if err != nil {
		return err
	}
	if p.at == nil {
		return errMalformed
	}
	first := p.at.Parent == old.Parent && p.at.Name == old.Name
	if first {
		if err := fixKey(t.txn(), in); err != nil {
			return err
		}
	}
	if in.Parent, in.Name = toParent, toName; !first {
		return nil
	}
	return t.set(inoKey(keyInode, old.Ino), encodeHere(in, 0))
}

// rekey keeps an inode's Object at the key where it is while its name changes: from and to are the
// keys that the names mean.
func rekey(in *Inode, from, to string) {
	o := &in.Object
	if !hasObject(o) {
		return
	}
	key := o.Key
	if key == "" {
		key = from
	}
	if o.Key = key; key == to {
		o.Key = ""
	}
}

// hasObject tells whether there is an object at all.
func hasObject(o *Object) bool {
	return o.ETag != "" || o.VersionID != "" || o.Size != 0 || o.MTime != 0 || o.File != 0
}

// Link gives an inode, not of a directory, one more name, which must be free (ErrExist). One that
// has no name any more does not come back: ErrNotFound. From then on the Key of its Object is always
// set. Returns the inode under the new name, or what has that name.
func (t *Tx) Link(ino, parent Ino, name string) (in Inode, err error) {
	if err := checkName(name); err != nil {
		return in, err
	}
	err = t.call(func() error {
		t.takes = true
		var p place
		if p, in, err = t.body(ino); err != nil {
			return err
		}
		switch {
		case in.Kind == KindDir:
			return fmt.Errorf("%w: another name for directory %d", ErrInvalid, ino)
		case in.Flags&Removed != 0:
			return ErrNotFound
		}
		if err := t.lock(ino); err != nil {
			return err
		}
		had := in
		if _, err := t.free(parent, name, &in); err != nil {
			return err
		}
		in = had
		if err := t.lock(in.Parent); err != nil { // for its Prefix
			return err
		}
		t.wrote = true
		if err := fixKey(t.txn(), &in); err != nil {
			return err
		}
		if p.at == nil {
			if err := t.set(dentryKey(in.Parent, in.Name), encodeRef(ino)); err != nil {
				return err
			}
			if err := t.set(nameOf(ino, in.Parent, in.Name), nil); err != nil {
				return err
			}
		}
		in.Links++
		if err := t.mark(&in, parent); err != nil {
			return err
		}
		if err := t.set(inoKey(keyInode, ino), encodeHere(&in, 0)); err != nil {
			return err
		}
		if err := t.set(nameOf(ino, parent, name), nil); err != nil {
			return err
		}
		in.Parent, in.Name = parent, name
		return t.set(dentryKey(parent, name), encodeRef(ino))
	})
	return in, err
}

// checkNew tells what is wrong with an inode that is to be inserted.
func checkNew(in *Inode) error {
	if err := checkName(in.Name); err != nil {
		return err
	}
	if in.Ino != 0 || in.Kind < KindFile || in.Kind > lastKind || in.Links != 0 || in.Flags&Removed != 0 || in.Gen > maxGen {
		return fmt.Errorf("%w: insert of %q", ErrInvalid, in.Name)
	}
	if in.Prefix != "" && !strings.HasSuffix(in.Prefix, "/") {
		return fmt.Errorf("%w: prefix %q", ErrInvalid, in.Prefix)
	}
	return nil
}

// checkUpdate tells what is wrong with a change of an inode.
func checkUpdate(old, in *Inode) error {
	if in.Ino != old.Ino || in.Kind != old.Kind || in.Parent != old.Parent || in.Name != old.Name ||
		in.Links != old.Links || (in.Flags^old.Flags)&Removed != 0 || in.Gen > maxGen {
		return fmt.Errorf("%w: update of inode %d changes what it may not", ErrInvalid, old.Ino)
	}
	return nil
}

// putBody writes an inode's body where it is.
func putBody(tx *badger.Txn, p *place, in *Inode) error {
	if p.at != nil {
		return tx.Set(inoKey(keyInode, in.Ino), encodeHere(in, p.since))
	}
	return tx.Set(dentryKey(in.Parent, in.Name), appendBody(nil, in))
}
