package meta

import (
	"errors"
	"slices"
	"time"

	"github.com/dgraph-io/badger/v4"
)

// A power cut may take the end of one of badger's logs and leave a younger one: each
// transaction is whole or absent, but one may be there without one before it. (Tables are
// synced as they are made, so only what was in logs, that is newer than all tables, can be
// so.) An Update without the Insert before it leaves a name whose inode is not found; a
// Listing without the names it speaks of hides them for as long as it is believed.
//
// repair goes through what is newer than since, gives such names their inodes back, drops
// those whose directory is lost and what was noted of inodes that are lost, and drops listings. Called by Open, after another boot.
func (db *DB) repair(since uint64) error {
	const chunk = 2048
	mended, dropped := 0, 0
	orphan := func(read, tx *badger.Txn, k []byte) error {
		_, err := readPlace(read, getIno(k[1:]))
		if !errors.Is(err, ErrNotFound) {
			return err
		}
		dropped++
		return tx.Delete(k)
	}
	orphaned := func(read, tx *badger.Txn, k, _ []byte) error { return orphan(read, tx, k) }
	var dir Ino // the directory last looked at
	var dirLost bool
	for _, step := range []struct {
		table byte
		fix   func(read, tx *badger.Txn, k, v []byte) error
	}{
		{keyDentry, func(read, tx *badger.Txn, k, v []byte) error {
			parent, name := getIno(k[1:]), string(k[1+inoLen:])
			var in Inode
			if err := decodeDentry(v, parent, name, &in); err != nil {
				return err
			}
			if parent != dir { // dentries come directory by directory
				_, err := readPlace(read, parent)
				if err != nil && !errors.Is(err, ErrNotFound) {
					return err
				}
				dir, dirLost = parent, err != nil
			}
			p, err := readPlace(read, in.Ino)
			if !dirLost && (in.Flags&Local != 0 || in.Stage != 0) {
				if err := markAbove(tx, parent); err != nil && !errors.Is(err, ErrNotFound) {
					return err
				}
			}
			switch {
			case err == nil && p.at != nil && p.at.Flags&Removed == 0 && !dirLost && p.at.Ino != p.at.Parent:
				return nil // one of several names: see repairNames
			case err != nil && !errors.Is(err, ErrNotFound):
				return err
			case dirLost || err == nil && (p.at != nil || p.parent != parent || p.name != name):
				dropped++
				if err == nil && p.at == nil && p.parent == parent && p.name == name {
					if err := tx.Delete(inoKey(keyInode, in.Ino)); err != nil {
						return err
					}
				}
				return tx.Delete(k)
			case err == nil:
				return nil
			case isRef(&in):
				dropped++
				return tx.Delete(k)
			}
			mended++
			return tx.Set(inoKey(keyInode, in.Ino), encodePlace(parent, name))
		}},
		{keyInode, func(read, tx *badger.Txn, k, v []byte) error {
			p, err := decodePlace(v)
			if err != nil || p.at == nil || p.at.Flags&Removed != 0 || p.at.Ino == p.at.Parent {
				return err
			}
			n, err := repairNames(tx, p.at)
			mended += n
			return err
		}},
		{keyName, func(read, tx *badger.Txn, k, _ []byte) error {
			var in Inode
			if len(k) > 1+2*inoLen {
				err := readEntry(read, getIno(k[1+inoLen:]), string(k[1+2*inoLen:]), &in)
				if err != nil && !errors.Is(err, ErrNotFound) || err == nil && isRef(&in) && in.Ino == getIno(k[1:]) {
					return err
				}
			}
			dropped++
			return tx.Delete(k)
		}},
		{keyDirty, func(read, tx *badger.Txn, k, v []byte) error {
			d, err := decodeDirty(getIno(k[1:]), v)
			if err == nil && d.Upload.ID != "" {
				if _, err := readPlace(read, d.Ino); errors.Is(err, ErrNotFound) {
					if err := tx.Set(abortKey(d.Upload.Key, d.Upload.ID), nil); err != nil {
						return err
					}
				}
			}
			return errors.Join(err, orphan(read, tx, k))
		}},
		{keyTimes, orphaned},
		{keyLocal, orphaned},
		{keyXattr, orphaned},
		{keyListing, func(_, tx *badger.Txn, k, _ []byte) error {
			dropped++
			return tx.Delete(k)
		}},
	} {
		for next := []byte{step.table}; next != nil; {
			err := db.view(func(read *badger.Txn) error {
				return db.updateSmall(func(tx *badger.Txn) error {
					it := read.NewIterator(badger.IteratorOptions{Prefix: []byte{step.table}, SinceTs: since})
					defer it.Close()
					n := 0
					for it.Seek(next); it.Valid(); it.Next() {
						k := it.Item().KeyCopy(nil)
						if n++; n > chunk {
							next = k
							return nil
						}
						if len(k) < 1+inoLen {
							return errMalformed
						}
						if err := it.Item().Value(func(v []byte) error { return step.fix(read, tx, k, v) }); err != nil {
							return err
						}
					}
					next = nil
					return nil
				})
			})
			if err != nil {
				return err
			}
		}
	}
	if mended+dropped > 0 {
		db.log.Warn("index: mended after a power cut", "index", db.opt.Dir, "mended", mended, "dropped", dropped)
	}
	return nil
}

// repairNames makes the names of an inode whose body is under its own key agree with the table of names: a
// dentry that is missing is made, where its directory is there and nothing else has the name. An
// inode that is left with no name is removed. Returns how much was mended.
func repairNames(tx *badger.Txn, in *Inode) (mended int, err error) {
	names := listNames(tx, in.Ino)
	if first := (Name{in.Parent, in.Name}); !slices.Contains(names, first) {
		names = append(names, first)
		mended++
	}
	var have []Name
	for _, n := range names {
		key := nameOf(in.Ino, n.Parent, n.Name)
		var e Inode
		err := readEntry(tx, n.Parent, n.Name, &e)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return mended, err
		}
		_, lost := readPlace(tx, n.Parent)
		if lost != nil && !errors.Is(lost, ErrNotFound) {
			return mended, lost
		}
		if lost != nil || err == nil && e.Ino != in.Ino {
			mended++
			if err := tx.Delete(key); err != nil {
				return mended, err
			}
			continue
		}
		if err != nil || !isRef(&e) {
			mended++
			if err := tx.Set(dentryKey(n.Parent, n.Name), encodeRef(in.Ino)); err != nil {
				return mended, err
			}
		}
		if err := tx.Set(key, nil); err != nil {
			return mended, err
		}
		have = append(have, n)
	}
	now := *in
	if len(have) == 0 {
		now.Links = 0
		return mended + 1, putRemoved(tx, &now, time.Now().UnixNano(), true)
	}
	if !slices.Contains(have, Name{in.Parent, in.Name}) {
		now.Parent, now.Name = have[0].Parent, have[0].Name
	}
	if now.Links = uint32(len(have) - 1); now == *in {
		return mended, nil
	}
	return mended + 1, tx.Set(inoKey(keyInode, in.Ino), encodeHere(&now, 0))
}
