package meta

import (
	"errors"

	"github.com/dgraph-io/badger/v4"
)

// A FUSE node id is an inode number and a generation, and the kernel keeps those it has handles
// on however often the inode gets a new one. So whenever an inode's generation changes, the
// inode as it was is kept under (number, generation), in the same transaction: whoever opens
// the index next knows what every node id stands for that this process gave out.
//
// A second entry, ordered by time, leads Purge to those that are old enough to forget.
//
// A generation comes back after 2^24 changes. Then the newer is kept, and the older's entry in
// the order of time leads to nothing; Purge compares the times.

// InodeAt returns the inode as it is, when gen is its generation, or as it was under gen; what
// Update or Merge changed since then is not in it. ErrNotFound when neither is known: it never was,
// or was forgotten by Purge. What is kept outlives the inode itself. It has the flag Removed
// when the inode has no name any more.
func (db *DB) InodeAt(ino Ino, gen uint32) (in Inode, err error) {
	if ino == 0 || ino > MaxIno || gen > maxGen {
		return in, ErrNotFound
	}
	if err := db.enter(); err != nil {
		return in, err
	}
	defer db.life.RUnlock()
	err = db.view(func(tx *badger.Txn) error {
		var gone Flags
		switch err := readInode(tx, ino, &in); {
		case err == nil && in.Gen == gen:
			return nil
		case err == nil:
			gone = in.Flags & Removed
		case errors.Is(err, ErrNotFound):
			gone = Removed
		default:
			return err
		}
		k, err := readKept(tx, ino, gen)
		if err != nil {
			return err
		}
		in = *k.at
		in.Flags |= gone
		return nil
	})
	if err != nil {
		in = Inode{}
	}
	return in, err
}

// readKept returns what is kept; at is set, and since is when it was replaced.
func readKept(tx *badger.Txn, ino Ino, gen uint32) (p place, err error) {
	err = get(tx, keptKey(ino, gen), func(v []byte) error {
		if p, err = decodePlace(v); err == nil && (p.at == nil || p.at.Ino != ino || p.at.Gen != gen) {
			err = errMalformed
		}
		return err
	})
	return p, err
}

// putKept keeps an inode whose generation is about to change. Caller holds the lock that
// guards its body.
func putKept(tx *badger.Txn, old *Inode, now int64) error {
	if err := tx.Set(keptKey(old.Ino, old.Gen), encodeHere(old, now)); err != nil {
		return err
	}
	return tx.Set(agedKey(now, old.Ino, old.Gen), nil)
}

// forgetKept takes out what the given entries in the order of time lead to, and the entries. No
// lock is held: nobody else writes these keys until a generation comes back, which takes
// longer than anything is kept.
func (db *DB) forgetKept(entries []dueEntry) error {
	if len(entries) == 0 {
		return nil
	}
	return db.updateSmall(func(tx *badger.Txn) error {
		for _, e := range entries {
			switch k, err := readKept(tx, e.ino, e.gen); {
			case err == nil && k.since == e.at:
				if err := tx.Delete(keptKey(e.ino, e.gen)); err != nil {
					return err
				}
			case err != nil && !errors.Is(err, ErrNotFound):
				return err
			}
			if err := tx.Delete(agedKey(e.at, e.ino, e.gen)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Past changes in the transaction what is kept of an inode under an earlier generation. ErrNotFound when nothing is.
func (t *Tx) Past(ino Ino, gen uint32, fn func(in *Inode)) error {
	return t.call(func() error {
		if _, _, err := t.body(ino); err != nil { // for the lock that guards it
			return err
		}
		p, err := readKept(t.txn(), ino, gen)
		if err != nil {
			return err
		}
		fn(p.at)
		return t.set(keptKey(ino, gen), encodeHere(p.at, p.since))
	})
}
