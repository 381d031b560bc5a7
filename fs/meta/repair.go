package meta

import (
	"errors"

	"github.com/dgraph-io/badger/v4"
)

// A power cut may take the end of one of badger's logs and leave a younger one: each
// transaction is whole or absent, but one may be there without one before it. (Tables are
// synced as they are made, so only what was in logs, that is newer than all tables, can be
// so.) An Update without the Insert before it leaves a name whose inode is not found; a
// Listing without the names it speaks of hides them for as long as it is believed.
//
// repair goes through what is newer than since, gives such names their inodes back, drops
// those whose directory is lost, and drops listings. Called by Open, after another boot.
func (db *DB) repair(since uint64) error {
	const chunk = 2048
	mended, dropped := 0, 0
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
			switch {
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
			}
			mended++
			return tx.Set(inoKey(keyInode, in.Ino), encodePlace(parent, name))
		}},
		{keyListing, func(_, tx *badger.Txn, k, _ []byte) error {
			dropped++
			return tx.Delete(k)
		}},
	} {
		for next := []byte{step.table}; next != nil; {
			err := db.view(func(read *badger.Txn) error {
				return db.update(func(tx *badger.Txn) error {
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
