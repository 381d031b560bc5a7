package meta

import (
	"bytes"

	"github.com/dgraph-io/badger/v4"
)

// readdirBatch is how many entries are read at a time: enough that placing the iterator
// (some 20 µs) does not show, few enough that a batch is some 80 KB.
const readdirBatch = 256

// Readdir calls fn for the entries of a directory with names greater than after ("" for all),
// in byte order of names, until fn returns false, max entries were given (0: no bound) or
// there are no more. after need not exist. fn may call the index. Entries come in batches;
// each is a snapshot, all of them together are not: a name that is there throughout is given
// exactly once.
func (db *DB) Readdir(dir Ino, after string, max int, fn func(Inode) bool) error {
	if err := db.enter(); err != nil {
		return err
	}
	batch := db.batches.Get().(*[]Inode)
	db.life.RUnlock()
	defer func() {
		clear(*batch)
		db.batches.Put(batch)
	}()
	for given := 0; max == 0 || given < max; {
		n := readdirBatch
		if max != 0 {
			n = min(n, max-given)
		}
		if err := db.readBatch(dir, after, n, batch); err != nil {
			return err
		}
		for i := range *batch {
			if !fn((*batch)[i]) {
				return nil
			}
		}
		if len(*batch) < n {
			return nil
		}
		given += n
		after = (*batch)[n-1].Name
	}
	return nil
}

func (db *DB) readBatch(dir Ino, after string, n int, batch *[]Inode) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.life.RUnlock()
	return db.view(func(tx *badger.Txn) (err error) {
		*batch, err = readChildren(tx, dir, after, n, (*batch)[:0])
		return err
	})
}

// readChildren appends up to n entries with names greater than after to out.
func readChildren(tx *badger.Txn, dir Ino, after string, n int, out []Inode) ([]Inode, error) {
	first := len(out)
	out, err := readEntries(tx, dir, after, n, out)
	for i := first; i < len(out) && err == nil; i++ {
		err = resolve(tx, &out[i])
	}
	return out, err
}

// readEntries is readChildren where references are left as they are.
func readEntries(tx *badger.Txn, dir Ino, after string, n int, out []Inode) ([]Inode, error) {
	prefix := inoKey(keyDentry, dir)
	it := tx.NewIterator(badger.IteratorOptions{Prefix: prefix})
	defer it.Close()
	for it.Seek(seekAfter(prefix, after)); it.Valid() && len(out) < n; it.Next() {
		in, err := readItem(it.Item(), dir, len(prefix))
		if err != nil {
			return out, err
		}
		out = append(out, in)
	}
	return out, nil
}

// seekAfter is the smallest key of a directory's dentries greater than that of name.
func seekAfter(prefix []byte, name string) []byte {
	if name == "" {
		return prefix
	}
	return append(append(bytes.Clone(prefix), name...), 0)
}

// readItem decodes a dentry, which may be a reference, that an iterator stands on.
func readItem(item *badger.Item, dir Ino, prefix int) (in Inode, err error) {
	k := item.Key()
	if len(k) <= prefix {
		return in, errMalformed
	}
	name := string(k[prefix:])
	err = item.Value(func(v []byte) error { return decodeDentry(v, dir, name, &in) })
	return in, err
}
