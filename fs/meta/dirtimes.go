package meta

import (
	"encoding/binary"
	"errors"

	"github.com/dgraph-io/badger/v4"
)

// DirTimes returns the times of a directory in nanoseconds since 1970; 0 where they were never
// set. They are apart from the inode, since every change below writes them.
func (db *DB) DirTimes(dir Ino) (mtime, ctime int64, err error) {
	if err := db.enter(); err != nil {
		return 0, 0, err
	}
	defer db.life.RUnlock()
	err = db.view(func(tx *badger.Txn) error {
		mtime, ctime, err = readTimes(tx, dir)
		return err
	})
	return mtime, ctime, err
}

func readTimes(tx *badger.Txn, dir Ino) (mtime, ctime int64, err error) {
	err = get(tx, inoKey(keyTimes, dir), func(v []byte) error {
		mtime, ctime, err = decodeTimes(v)
		return err
	})
	if errors.Is(err, ErrNotFound) {
		err = nil
	}
	return mtime, ctime, err
}

func encodeTimes(mtime, ctime int64) []byte {
	return binary.AppendVarint(binary.AppendVarint([]byte{codecVersion}, mtime), ctime)
}

func decodeTimes(v []byte) (mtime, ctime int64, err error) {
	d := decoder{b: v}
	d.version()
	mtime, ctime = d.int(), d.int()
	return mtime, ctime, d.done()
}
