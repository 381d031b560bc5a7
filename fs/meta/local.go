package meta

import (
	"errors"

	"github.com/dgraph-io/badger/v4"
)

// What is Local may not go because a directory above it went from the origin. So that this can be known
// without going through all that is below a directory, those above a Local inode are marked, as far as the
// first that has a mark. A mark stays, and does not say that there still is one.

// onlyHere tells whether inodes of a kind are never published.
func onlyHere(k Kind) bool { return k >= KindFIFO }

// mark marks the directories above a name of in, if in is Local or has a mark itself.
func (t *Tx) mark(in *Inode, parent Ino) error {
	if in.Flags&Local == 0 && in.Stage == 0 {
		if in.Kind != KindDir {
			return nil
		}
		if has, err := hasKey(t.txn(), inoKey(keyLocal, in.Ino)); err != nil || !has {
			return err
		}
	}
	return markAbove(t.txn(), parent)
}

// markNames is mark for all names of an inode.
func (t *Tx) markNames(p *place, in *Inode) error {
	if in.Flags&Removed != 0 || in.Parent == in.Ino {
		return nil
	}
	if err := t.mark(in, in.Parent); err != nil || p.at == nil || in.Links == 0 {
		return err
	}
	for _, n := range listNames(t.txn(), in.Ino) {
		if err := t.mark(in, n.Parent); err != nil {
			return err
		}
	}
	return nil
}

func markAbove(tx *badger.Txn, dir Ino) error {
	for {
		key := inoKey(keyLocal, dir)
		if has, err := hasKey(tx, key); err != nil || has {
			return err
		}
		if err := tx.Set(key, nil); err != nil {
			return err
		}
		p, err := readPlace(tx, dir)
		if err != nil || p.at != nil {
			return err
		}
		dir = p.parent
	}
}

// localBelow tells whether something below a directory is Local. Nobody else makes anything Local
// meanwhile: the caller holds prune alone.
func localBelow(tx *badger.Txn, dir Ino) (bool, error) {
	if has, err := hasKey(tx, inoKey(keyLocal, dir)); err != nil || !has {
		return false, err
	}
	for after := ""; ; {
		batch, err := readChildren(tx, dir, after, readdirBatch, nil)
		if err != nil {
			return false, err
		}
		for i := range batch {
			in := &batch[i]
			if in.Flags&Local != 0 || in.Stage != 0 {
				return true, nil
			}
			if in.Kind == KindDir {
				if local, err := localBelow(tx, in.Ino); err != nil || local {
					return local, err
				}
			}
		}
		if len(batch) < readdirBatch {
			return false, nil
		}
		after = batch[len(batch)-1].Name
	}
}

func hasKey(tx *badger.Txn, key []byte) (bool, error) {
	switch _, err := tx.Get(key); {
	case err == nil:
		return true, nil
	case errors.Is(err, badger.ErrKeyNotFound):
		return false, nil
	default:
		return false, err
	}
}
