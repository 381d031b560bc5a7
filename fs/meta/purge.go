package meta

import (
	"bytes"
	"errors"
	"time"

	"github.com/dgraph-io/badger/v4"
)

// purgeChunk bounds what one transaction of Purge does.
const purgeChunk = 512

// Purge forgets inodes that were removed, and generations that were replaced, before the given
// time (nanoseconds since 1970, by this machine's clock), except those of which held says that
// somebody has them: handles may live for days. held may be nil: then nobody has. It is called with
// no lock held and may use the index. An inode that is found by InodeAt and held only after
// that may be forgotten meanwhile: look it up again once it is held.
//
// What is below a removed directory is then removed itself, to be purged later. Returns how many
// were forgotten; it does at most max, rounded up, and is to be called again while it
// returns max or more.
func (db *DB) Purge(before int64, max int, held func(ino Ino, gen uint32) bool) (n int, err error) {
	if held == nil {
		held = func(Ino, uint32) bool { return false }
	}
	for _, table := range []struct {
		key  byte
		rest int // length of the key after the time
		do   func(due []dueEntry, held func(Ino, uint32) bool) (int, error)
	}{
		{keyRemoved, inoLen, db.purgeRemoved},
		{keyAged, inoLen + genLen, db.purgeKept},
	} {
		for after := []byte{table.key}; after != nil && n < max; {
			var due []dueEntry
			if due, after, err = db.due(after, before, table.rest); err != nil {
				return n, err
			}
			done, err := table.do(due, held)
			n += done
			if err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// dueEntry is an entry in the order of time: of a removed inode, or of a kept generation.
type dueEntry struct {
	at  int64
	ino Ino
	gen uint32 // of kept ones
}

// due reads entries of a table from the key after on, made before the given time. next is where
// to go on, nil when there are no more.
func (db *DB) due(after []byte, before int64, rest int) (due []dueEntry, next []byte, err error) {
	if err := db.enter(); err != nil {
		return nil, nil, err
	}
	defer db.life.RUnlock()
	err = db.view(func(tx *badger.Txn) error {
		end := removedKey(before, 0)
		it := tx.NewIterator(badger.IteratorOptions{Prefix: after[:1]})
		defer it.Close()
		for it.Seek(after); it.Valid(); it.Next() {
			k := it.Item().Key()
			if len(k) != 1+timeLen+rest {
				return errMalformed
			}
			if bytes.Compare(k[1:], end[1:]) >= 0 {
				break
			}
			if len(due) == purgeChunk {
				next = bytes.Clone(k)
				break
			}
			e := dueEntry{at: int64(be64(k[1:])), ino: getIno(k[1+timeLen:])}
			if rest > inoLen {
				e.gen = getGen(k[1+timeLen+inoLen:])
			}
			due = append(due, e)
		}
		return nil
	})
	return due, next, err
}

func (db *DB) purgeKept(due []dueEntry, held func(Ino, uint32) bool) (int, error) {
	unheld := due[:0]
	for _, e := range due {
		if !held(e.ino, e.gen) {
			unheld = append(unheld, e)
		}
	}
	if err := db.enter(); err != nil {
		return 0, err
	}
	defer db.life.RUnlock()
	if err := db.forgetKept(unheld); err != nil {
		return 0, err
	}
	return len(unheld), nil
}

func (db *DB) purgeRemoved(due []dueEntry, held func(Ino, uint32) bool) (n int, err error) {
	for _, e := range due {
		// A removed inode's generation may still change; nobody holds a new one of it before
		// it was looked up.
		in, err := db.Inode(e.ino)
		switch {
		case err == nil && (in.Stage != 0 || held(e.ino, in.Gen)):
			continue
		case err != nil && !errors.Is(err, ErrNotFound):
			return n, err
		}
		done, err := db.purge(e, err != nil || in.Kind == KindDir)
		if err != nil {
			return n, err
		}
		if done {
			n++
		}
	}
	return n, nil
}

// purge forgets one removed inode, which may be a directory; not one that is still wanted.
func (db *DB) purge(e dueEntry, dir bool) (done bool, err error) {
	if err := db.enter(); err != nil {
		return false, err
	}
	defer db.life.RUnlock()
	if dir {
		for more := true; more; {
			if more, err = db.removeChildren(e.ino); err != nil {
				return false, err
			}
		}
	}
	mu := db.dirLock(e.ino)
	mu.Lock()
	defer mu.Unlock()
	err = db.updateSmall(func(tx *badger.Txn) error {
		p, err := readPlace(tx, e.ino)
		switch {
		case err == nil && p.at != nil && p.at.Stage != 0:
			return nil
		case err != nil && !errors.Is(err, ErrNotFound):
			return err
		}
		if dirty, err := hasKey(tx, inoKey(keyDirty, e.ino)); err != nil || dirty {
			return err
		}
		for _, name := range readXattrs(tx, e.ino) {
			if err := tx.Delete(xattrKey(e.ino, name)); err != nil {
				return err
			}
		}
		keys := [][]byte{inoKey(keyInode, e.ino), removedKey(e.at, e.ino)}
		if dir {
			keys = append(keys, inoKey(keyListing, e.ino), inoKey(keyTimes, e.ino), inoKey(keyLocal, e.ino))
		}
		for _, k := range keys {
			if err := tx.Delete(k); err != nil {
				return err
			}
		}
		done = true
		return nil
	})
	return done, err
}

// removeChildren removes some of what is below a removed directory, and tells whether there may be more.
// Nobody adds anything there, see Tx.above.
func (db *DB) removeChildren(dir Ino) (more bool, err error) {
	db.prune.Lock()
	defer db.prune.Unlock()
	mu := db.dirLock(dir)
	mu.Lock()
	defer mu.Unlock()
	now := time.Now().UnixNano()
	err = db.updateSmall(func(tx *badger.Txn) error {
		children, err := readEntries(tx, dir, "", purgeChunk, nil)
		if err != nil {
			return err
		}
		for i := range children {
			if err := unlink(tx, &children[i], now, false); err != nil {
				return err
			}
		}
		more = len(children) == purgeChunk
		return nil
	})
	return more, err
}
