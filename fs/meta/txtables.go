package meta

import (
	"errors"
	"fmt"

	"github.com/leatfs/leatfs/cache"
)

// Listing returns what is known of a directory as a whole, as DB.Listing does.
func (t *Tx) Listing(dir Ino) (l Listing, err error) {
	err = t.call(func() error {
		if err := t.lock(dir); err != nil {
			return err
		}
		l, err = readListing(t.txn(), dir)
		return err
	})
	return l, err
}

// SetListing replaces what Listing returns, as DB.SetListing does.
func (t *Tx) SetListing(dir Ino, l Listing) error {
	return t.call(func() error {
		if err := t.lock(dir); err != nil {
			return err
		}
		if _, err := readDir(t.txn(), dir); err != nil {
			return err
		}
		return t.set(inoKey(keyListing, dir), encodeListing(l))
	})
}

// Touch sets both times of a directory, nanoseconds since 1970. A removed one has times too.
func (t *Tx) Touch(dir Ino, at int64) error { return t.SetDirTimes(dir, at, at) }

// DirTimes returns the times of a directory, as DB.DirTimes does.
func (t *Tx) DirTimes(dir Ino) (mtime, ctime int64, err error) {
	err = t.call(func() error {
		if err := t.lock(dir); err != nil {
			return err
		}
		mtime, ctime, err = readTimes(t.txn(), dir)
		return err
	})
	return mtime, ctime, err
}

// SetDirTimes replaces what DirTimes returns.
func (t *Tx) SetDirTimes(dir Ino, mtime, ctime int64) error {
	return t.call(func() error {
		if err := t.known(dir); err != nil {
			return err
		}
		return t.set(inoKey(keyTimes, dir), encodeTimes(mtime, ctime))
	})
}

// known takes an inode's own lock, and makes sure that it is there: only then Purge will take out
// what is added to it.
func (t *Tx) known(ino Ino) error {
	if ino == 0 || ino > MaxIno {
		return ErrNotFound
	}
	if err := t.lock(ino); err != nil || ino == t.there || t.fresh[ino] {
		return err
	}
	_, err := readPlace(t.txn(), ino)
	return err
}

// Dirty returns the record of an inode; ErrNotFound when it has none.
func (t *Tx) Dirty(ino Ino) (d Dirty, err error) {
	err = t.call(func() error {
		if err := t.lock(ino); err != nil {
			return err
		}
		return readDirty(t.txn(), ino, &d)
	})
	return d, err
}

// SetDirty writes the record of the inode d.Ino; ErrNotFound when there is no such inode. An upload that
// the record had and d has not, or another, is to be aborted.
func (t *Tx) SetDirty(d *Dirty) error {
	if len(d.Upload.Key) > maxKey || len(d.Upload.ID) > maxKey {
		return fmt.Errorf("%w: upload of key %.100q", ErrInvalid, d.Upload.Key)
	}
	return t.call(func() error {
		t.gives = true
		if err := t.known(d.Ino); err != nil {
			return err
		}
		var old Dirty
		switch err := readDirty(t.txn(), d.Ino, &old); {
		case errors.Is(err, ErrNotFound):
			t.dirty++
		case err != nil:
			return err
		case old.Upload.ID != d.Upload.ID || old.Upload.Key != d.Upload.Key:
			if err := t.abort(old.Upload); err != nil {
				return err
			}
		}
		return t.set(inoKey(keyDirty, d.Ino), encodeDirty(d))
	})
}

// ClearDirty deletes the record of an inode, if it has one. An upload in it is to be aborted, unless
// it is finished.
func (t *Tx) ClearDirty(ino Ino, finished bool) error {
	return t.call(func() error {
		t.gives = true
		if err := t.lock(ino); err != nil {
			return err
		}
		var old Dirty
		if err := readDirty(t.txn(), ino, &old); err != nil {
			if errors.Is(err, ErrNotFound) {
				return nil
			}
			return err
		}
		if !finished {
			if err := t.abort(old.Upload); err != nil {
				return err
			}
		}
		t.dirty--
		return t.delete(inoKey(keyDirty, ino))
	})
}

// AddAbort says that an upload is to be aborted.
func (t *Tx) AddAbort(key, uploadID string) error {
	if len(key) > maxKey || len(uploadID) > maxKey {
		return fmt.Errorf("%w: upload of key %.100q", ErrInvalid, key)
	}
	return t.call(func() error { return t.abort(Upload{Key: key, ID: uploadID}) })
}

func (t *Tx) abort(u Upload) error {
	if u.ID == "" {
		return nil
	}
	return t.set(abortKey(u.Key, u.ID), nil)
}

// Tomb returns the tomb of a key; ErrNotFound when there is none.
func (t *Tx) Tomb(key string) (tomb Tomb, err error) {
	err = t.call(func() error {
		if err := t.lockKey(key); err != nil {
			return err
		}
		return readTomb(t.txn(), key, &tomb)
	})
	return tomb, err
}

// SetTomb writes the tomb of a key.
func (t *Tx) SetTomb(tomb *Tomb) error {
	if err := checkTomb(tomb); err != nil {
		return err
	}
	return t.call(func() error {
		t.gives = true
		if err := t.lockKey(tomb.Key); err != nil {
			return err
		}
		var old Tomb
		if err := readTomb(t.txn(), tomb.Key, &old); errors.Is(err, ErrNotFound) {
			t.tombs++
		} else if err != nil {
			return err
		}
		return t.set(nameKey(keyTomb, tomb.Key), encodeTomb(tomb))
	})
}

// ClearTomb deletes the tomb of a key, if there is one.
func (t *Tx) ClearTomb(key string) error {
	return t.call(func() error {
		t.gives = true
		if err := t.lockKey(key); err != nil {
			return err
		}
		var old Tomb
		if err := readTomb(t.txn(), key, &old); err != nil {
			if errors.Is(err, ErrNotFound) {
				return nil
			}
			return err
		}
		t.tombs--
		return t.delete(nameKey(keyTomb, key))
	})
}

// Xattr returns an extended attribute; ErrNotFound when there is none of that name.
func (t *Tx) Xattr(ino Ino, name string) (v []byte, err error) {
	err = t.call(func() error {
		if err := t.lock(ino); err != nil {
			return err
		}
		v, err = readXattr(t.txn(), ino, name)
		return err
	})
	return v, err
}

// Xattrs returns the names of an inode's extended attributes, in byte order.
func (t *Tx) Xattrs(ino Ino) (names []string, err error) {
	err = t.call(func() error {
		if err := t.lock(ino); err != nil {
			return err
		}
		names = readXattrs(t.txn(), ino)
		return nil
	})
	return names, err
}

// SetXattr writes an extended attribute of an inode; ErrNotFound when there is no such inode.
func (t *Tx) SetXattr(ino Ino, name string, v []byte) error {
	if name == "" || len(name) > maxXattrName || len(v) > maxXattr {
		return fmt.Errorf("%w: attribute %.300q of %d bytes", ErrInvalid, name, len(v))
	}
	return t.call(func() error {
		t.takes = true
		if err := t.known(ino); err != nil {
			return err
		}
		return t.set(xattrKey(ino, name), append([]byte{codecVersion}, v...))
	})
}

// RemoveXattr deletes an extended attribute; ErrNotFound when there is none of that name.
func (t *Tx) RemoveXattr(ino Ino, name string) error {
	return t.call(func() error {
		if err := t.lock(ino); err != nil {
			return err
		}
		if _, err := readXattr(t.txn(), ino, name); err != nil {
			return err
		}
		t.gives = true
		return t.delete(xattrKey(ino, name))
	})
}

// Apply changes the cache's records, as DB.Apply does.
func (t *Tx) Apply(b cache.Batch) error {
	if err := checkBatch(&b); err != nil {
		return err
	}
	return t.call(func() error {
		how := applyShared
		if len(b.Records)+len(b.Delete) > 0 {
			how = applyAlone
		}
		if err := t.lockApply(how); err != nil {
			return err
		}
		t.txn()
		t.wrote = true
		t.gives = t.gives || len(b.Delete) > 0
		t.gone = append(t.gone, b.Delete...)
		return putBatch(t.b, &b)
	})
}
