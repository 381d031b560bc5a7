package meta

import "github.com/dgraph-io/badger/v4"

// The longest name of an extended attribute, and the longest value, in bytes; Linux' own limits.
const (
	maxXattrName = 255
	maxXattr     = 64 << 10
)

// Xattr returns an extended attribute; ErrNotFound when there is none of that name.
func (db *DB) Xattr(ino Ino, name string) (v []byte, err error) {
	if err := db.enter(); err != nil {
		return nil, err
	}
	defer db.life.RUnlock()
	err = db.view(func(tx *badger.Txn) error {
		v, err = readXattr(tx, ino, name)
		return err
	})
	return v, err
}

// Xattrs returns the names of an inode's extended attributes, in byte order.
func (db *DB) Xattrs(ino Ino) (names []string, err error) {
	if err := db.enter(); err != nil {
		return nil, err
	}
	defer db.life.RUnlock()
	err = db.view(func(tx *badger.Txn) error {
		names = readXattrs(tx, ino)
		return nil
	})
	return names, err
}

func readXattr(tx *badger.Txn, ino Ino, name string) (v []byte, err error) {
	err = get(tx, xattrKey(ino, name), func(b []byte) error {
		d := decoder{b: b}
		d.version()
		v = []byte(d.rest())
		return d.done()
	})
	return v, err
}

func readXattrs(tx *badger.Txn, ino Ino) (names []string) {
	prefix := xattrKey(ino, "")
	it := tx.NewIterator(badger.IteratorOptions{Prefix: prefix})
	defer it.Close()
	for it.Seek(prefix); it.Valid(); it.Next() {
		names = append(names, string(it.Item().Key()[len(prefix):]))
	}
	return names
}
