package meta

import (
	"errors"

	"github.com/dgraph-io/badger/v4"
)

// An inode that gets a second name has its body moved under its own key, where it stays. Its
// dentries become references to it, and a table lists its names. Parent and Name are one of them; when that
// one goes, another becomes the primary one.

// Name is one name of an inode.
type Name struct {
	Parent Ino
	Name   string
}

// Names returns all names of an inode, the primary one first; none of one that was removed.
func (db *DB) Names(ino Ino) (names []Name, err error) {
	if err := db.enter(); err != nil {
		return nil, err
	}
	defer db.life.RUnlock()
	err = db.view(func(tx *badger.Txn) error {
		names, err = readNames(tx, ino)
		return err
	})
	return names, err
}

// Names is DB.Names in the transaction.
func (t *Tx) Names(ino Ino) (names []Name, err error) {
	err = t.call(func() error {
		if _, err := t.place(ino); err != nil {
			return err
		}
		names, err = readNames(t.txn(), ino)
		return err
	})
	return names, err
}

func readNames(tx *badger.Txn, ino Ino) ([]Name, error) {
	var in Inode
	if err := readInode(tx, ino, &in); err != nil || in.Flags&Removed != 0 {
		return nil, err
	}
	first := Name{in.Parent, in.Name}
	names := []Name{first}
	if in.Links > 0 {
		for _, n := range listNames(tx, ino) {
			if n != first {
				names = append(names, n)
			}
		}
	}
	return names, nil
}

// listNames reads the table of names.
func listNames(tx *badger.Txn, ino Ino) (names []Name) {
	prefix := nameOf(ino, 0, "")
	it := tx.NewIterator(badger.IteratorOptions{Prefix: prefix})
	defer it.Close()
	for it.Seek(prefix); it.Valid(); it.Next() {
		if k := it.Item().Key()[len(prefix):]; len(k) > inoLen {
			names = append(names, Name{getIno(k), string(k[inoLen:])})
		}
	}
	return names
}

// unlink takes away the name of in, which is a body as it stands in a dentry, or a reference. in
// is then the inode as it is afterwards. The dentry is deleted unless something else takes it over. Caller
// holds the lock of the directory and, of a reference, that of the inode.
func unlink(tx *badger.Txn, in *Inode, now int64, keepDentry bool) error {
	if !isRef(in) {
		return putRemoved(tx, in, now, keepDentry)
	}
	if err := resolve(tx, in); err != nil {
		return err
	}
	gone := Name{in.Parent, in.Name}
	if err := tx.Delete(nameOf(in.Ino, gone.Parent, gone.Name)); err != nil {
		return err
	}
	left := listNames(tx, in.Ino)
	if len(left) == 0 {
		in.Links = 0
		return putRemoved(tx, in, now, keepDentry)
	}
	if !keepDentry {
		if err := tx.Delete(dentryKey(gone.Parent, gone.Name)); err != nil {
			return err
		}
	}
	p, err := readPlace(tx, in.Ino)
	if err != nil {
		return err
	}
	if p.at == nil {
		return errors.New("inode of several names has its body in a dentry")
	}
	*in = *p.at
	if (Name{in.Parent, in.Name}) == gone {
		if err := fixKey(tx, in); err != nil {
			return err
		}
		in.Parent, in.Name = left[0].Parent, left[0].Name
	}
	in.Links = uint32(len(left) - 1)
	return tx.Set(inoKey(keyInode, in.Ino), encodeHere(in, 0))
}

// fixKey sets the Key of an inode's Object, before its primary name changes. Caller holds the
// lock of its directory.
func fixKey(tx *badger.Txn, in *Inode) error {
	if in.Object.Key != "" || !hasObject(&in.Object) {
		return nil
	}
	var dir Inode
	if err := readInode(tx, in.Parent, &dir); err != nil {
		return err
	}
	in.Object.Key = dir.Prefix + in.Name
	return nil
}
