package meta

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/dgraph-io/badger/v4"
)

// Origin returns the root directory of the origin id, a store's name with a prefix, and makes
// it at the first call. prefix is the root's key prefix, "" or ending in "/". The root is its
// own parent. Several origins may live in one index.
func (db *DB) Origin(id, prefix string) (Inode, error) {
	if id == "" || len(id) > 16<<10 || prefix != "" && !strings.HasSuffix(prefix, "/") {
		return Inode{}, fmt.Errorf("%w: origin %q with prefix %q", ErrInvalid, id, prefix)
	}
	if err := db.enter(); err != nil {
		return Inode{}, err
	}
	defer db.life.RUnlock()
	db.originMu.Lock()
	defer db.originMu.Unlock()
	key := nameKey(keyOrigin, id)
	var root Inode
	err := db.view(func(tx *badger.Txn) error {
		var ino Ino
		if err := get(tx, key, func(v []byte) error {
			d := decoder{b: v}
			d.version()
			ino = Ino(d.uintMax(uint64(MaxIno)))
			return d.done()
		}); err != nil {
			return err
		}
		return readInode(tx, ino, &root)
	})
	if err == nil && root.Prefix != prefix {
		return Inode{}, fmt.Errorf("%w: origin %q has prefix %q, not %q", ErrInvalid, id, root.Prefix, prefix)
	}
	if !errors.Is(err, ErrNotFound) {
		return root, err
	}
	ino, err := db.marks.newIno()
	if err != nil {
		return Inode{}, err
	}
	root = Inode{Ino: ino, Kind: KindDir, Parent: ino, Prefix: prefix}
	err = db.update(func(tx *badger.Txn) error {
		if err := tx.Set(key, encodeOrigin(ino)); err != nil {
			return err
		}
		return tx.Set(inoKey(keyInode, ino), encodeHere(&root, 0))
	})
	return root, err
}

// Inode returns the inode of a number; ErrNotFound when there never was one or it was purged.
// One that has lost its name is returned with the flag Removed. What is below a removed
// directory goes when the directory is purged, see Purge.
func (db *DB) Inode(ino Ino) (in Inode, err error) {
	if ino == 0 || ino > MaxIno {
		return in, ErrNotFound
	}
	if err := db.enter(); err != nil {
		return in, err
	}
	defer db.life.RUnlock()
	err = db.view(func(tx *badger.Txn) error { return readInode(tx, ino, &in) })
	return in, err
}

func readInode(tx *badger.Txn, ino Ino, in *Inode) error {
	p, err := readPlace(tx, ino)
	if err != nil {
		return err
	}
	return readBody(tx, ino, &p, in)
}

func readPlace(tx *badger.Txn, ino Ino) (p place, err error) {
	err = get(tx, inoKey(keyInode, ino), func(v []byte) error {
		p, err = decodePlace(v)
		return err
	})
	return p, err
}

func readBody(tx *badger.Txn, ino Ino, p *place, in *Inode) error {
	if p.at != nil {
		*in = *p.at
	} else if err := readEntry(tx, p.parent, p.name, in); err != nil {
		if errors.Is(err, ErrNotFound) {
			return fmt.Errorf("inode %d: its entry %q in %d is missing", ino, p.name, p.parent)
		}
		return err
	}
	if in.Ino != ino || isRef(in) {
		return fmt.Errorf("inode %d: found %d in its place", ino, in.Ino)
	}
	return nil
}

// readEntry reads a dentry, which may be a reference.
func readEntry(tx *badger.Txn, parent Ino, name string, in *Inode) error {
	return get(tx, dentryKey(parent, name), func(v []byte) error { return decodeDentry(v, parent, name, in) })
}

// readDentry reads the inode of a name.
func readDentry(tx *badger.Txn, parent Ino, name string, in *Inode) error {
	if err := readEntry(tx, parent, name, in); err != nil {
		return err
	}
	return resolve(tx, in)
}

// resolve makes of a reference the inode, under the name of the reference.
func resolve(tx *badger.Txn, in *Inode) error {
	if !isRef(in) {
		return nil
	}
	p, err := readPlace(tx, in.Ino)
	if err != nil || p.at == nil || p.at.Ino != in.Ino || p.at.Flags&Removed != 0 {
		return fmt.Errorf("entry %q of inode %d leads to inode %d, which is not there (%w)", in.Name, in.Parent, in.Ino, errMalformed)
	}
	parent, name := in.Parent, in.Name
	*in = *p.at
	in.Parent, in.Name = parent, name
	return nil
}

// Lookup returns the inode of a name; ErrNotFound when the index has none.
func (db *DB) Lookup(parent Ino, name string) (in Inode, err error) {
	if name == "" || len(name) > MaxName {
		return in, ErrNotFound
	}
	if err := db.enter(); err != nil {
		return in, err
	}
	defer db.life.RUnlock()
	err = db.view(func(tx *badger.Txn) error { return readDentry(tx, parent, name, &in) })
	return in, err
}

// Listing returns what is known of a directory as a whole; the zero Listing when nothing is.
func (db *DB) Listing(dir Ino) (l Listing, err error) {
	if err := db.enter(); err != nil {
		return l, err
	}
	defer db.life.RUnlock()
	err = db.view(func(tx *badger.Txn) error {
		l, err = readListing(tx, dir)
		return err
	})
	return l, err
}

func readListing(tx *badger.Txn, dir Ino) (l Listing, err error) {
	err = get(tx, inoKey(keyListing, dir), func(v []byte) error {
		l, err = decodeListing(v)
		return err
	})
	if errors.Is(err, ErrNotFound) {
		return Listing{}, nil
	}
	return l, err
}

// SetListing replaces what Listing returns. ErrNotFound when there is no such directory, or
// it was removed.
func (db *DB) SetListing(dir Ino, l Listing) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.life.RUnlock()
	mu := db.dirLock(dir)
	mu.Lock()
	defer mu.Unlock()
	return db.update(func(tx *badger.Txn) error {
		if _, err := readDir(tx, dir); err != nil {
			return err
		}
		return tx.Set(inoKey(keyListing, dir), encodeListing(l))
	})
}

// readDir reads a directory that can have entries.
func readDir(tx *badger.Txn, dir Ino) (in Inode, err error) {
	if err := readInode(tx, dir, &in); err != nil {
		return in, err
	}
	if in.Kind != KindDir {
		return in, fmt.Errorf("%w: inode %d is a %s", ErrInvalid, dir, in.Kind)
	}
	if in.Flags&Removed != 0 {
		return in, ErrNotFound
	}
	return in, nil
}

// Update changes an inode, removed ones too: fn alters it in place, or returns an error that
// Update returns, and nothing is changed. fn may be called more than once, runs under a
// lock of the index and must not call it. It may not change Ino, Kind, Parent, Name and the
// flag Removed (ErrInvalid). Where it changes Gen, what the inode was is kept for InodeAt.
// Returns the inode as it is afterwards. opts: see For.
func (db *DB) Update(ino Ino, fn func(*Inode) error, opts ...Option) (in Inode, err error) {
	err = db.Do(func(tx *Tx) error {
		if in, err = tx.Inode(ino); err != nil {
			return err
		}
		old := in
		if err = fn(&in); err == nil {
			err = tx.Update(&in)
		}
		if err != nil {
			in = old
			return err
		}
		tx.Result(&in)
		return nil
	}, opts...)
	return in, err
}

// Insert adds a name with an inode of its own to a directory. in.Ino must be 0, in.Parent is
// set to parent, and a directory without a Prefix gets the usual one. Returns the inode with
// its number, or ErrExist together with what has the name. opts: see For.
func (db *DB) Insert(parent Ino, in Inode, opts ...Option) (out Inode, err error) {
	err = db.Do(func(tx *Tx) error {
		if out, err = tx.Insert(parent, in); err == nil {
			tx.Result(&out)
		}
		return err
	}, opts...)
	return out, err
}

func checkName(name string) error {
	if name == "" || len(name) > MaxName || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("%w: name %q", ErrInvalid, name)
	}
	return nil
}

// putNew writes an inode that has not been there.
func putNew(tx *badger.Txn, in *Inode) error {
	if err := tx.Set(dentryKey(in.Parent, in.Name), appendBody(make([]byte, 0, 64), in)); err != nil {
		return err
	}
	return tx.Set(inoKey(keyInode, in.Ino), encodePlace(in.Parent, in.Name))
}

// putRemoved takes an inode's name away. The dentry is deleted unless something else takes it
// over.
func putRemoved(tx *badger.Txn, in *Inode, now int64, keepDentry bool) error {
	if !keepDentry {
		if err := tx.Delete(dentryKey(in.Parent, in.Name)); err != nil {
			return err
		}
	}
	in.Flags |= Removed
	if err := tx.Set(removedKey(now, in.Ino), nil); err != nil {
		return err
	}
	if in.Kind == KindDir { // nobody may believe what it says of names below
		if err := tx.Delete(inoKey(keyListing, in.Ino)); err != nil {
			return err
		}
	}
	return tx.Set(inoKey(keyInode, in.Ino), encodeHere(in, now))
}

// Remove takes a name out of a directory. Its inode is flagged Removed and kept until
// Purge. Nothing is asked about what a removed directory holds. ErrNotFound when there
// is no such name. opts: see For.
func (db *DB) Remove(parent Ino, name string, opts ...Option) error {
	return db.Do(func(tx *Tx) error {
		in, err := tx.Remove(parent, name)
		tx.Result(&in)
		return err
	}, opts...)
}

// RemoveIf is Remove if fn says so, atomically, and nothing below is Local; else nothing
// happens. Returns the inode that has, or had, the name, and whether it was removed. fn is given the inode and what was last
// heard of a listing of its parent. It runs under a lock of the index and must not call it.
func (db *DB) RemoveIf(parent Ino, name string, fn func(*Inode, *Listing) bool, opts ...Option) (in Inode, removed bool, err error) {
	for alone := false; ; alone = true {
		err = db.do(alone, func(tx *Tx) error {
			if in, err = tx.Lookup(parent, name); err != nil {
				return err
			}
			lst, err := readListing(tx.txn(), parent)
			if err != nil {
				return err
			}
			if !fn(&in, &lst) {
				return errNo
			}
			if in.Kind == KindDir {
				if !alone {
					return errAlone
				}
				if local, err := localBelow(tx.txn(), in.Ino); err != nil || local {
					return cmp.Or(err, errNo)
				}
			}
			if in, err = tx.Remove(parent, name); err == nil {
				tx.Result(&in)
			}
			return err
		}, opts)
		switch {
		case errors.Is(err, errNo):
			return in, false, nil
		case err != errAlone:
			return in, err == nil, err
		}
	}
}

// errNo: a caller's function said no. errAlone: this may not be done beside transactions of Do.
var (
	errNo    = errors.New("no")
	errAlone = errors.New("alone")
)

// largest returns the largest inode number and cache ID in the database.
func (db *DB) largest() (ino, id uint64, err error) {
	err = db.view(func(tx *badger.Txn) error {
		last := func(table byte) []byte {
			it := tx.NewIterator(badger.IteratorOptions{Reverse: true})
			defer it.Close()
			it.Seek([]byte{table + 1})
			if !it.ValidForPrefix([]byte{table}) {
				return nil
			}
			return it.Item().KeyCopy(nil)[1:]
		}
		if k := last(keyInode); len(k) == inoLen {
			ino = uint64(getIno(k)) + 1
		}
		if k := last(keyKept); len(k) == inoLen+genLen {
			ino = max(ino, uint64(getIno(k))+1)
		}
		if k := last(keyRecord); len(k) == 8 {
			id = be64(k) + 1
		}
		err := get(tx, []byte{keyMarks}, func(v []byte) error {
			i, d, err := decodeMarks(v)
			ino, id = max(ino, i), max(id, d)
			return err
		})
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		return err
	})
	return ino, id, err
}

// copyMarks keeps a copy of the marks in the database, for restoreMarks.
func (db *DB) copyMarks(ino, id uint64) {
	tx := db.b.NewTransaction(true)
	defer tx.Discard()
	if db.space.allow() && tx.Set([]byte{keyMarks}, encodeMarks(ino, id)) == nil {
		tx.CommitWith(func(error) {})
	}
}
