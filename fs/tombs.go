package fs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/publish"
)

// hides tells whether an object under a tomb's key is what is to be deleted, or was since began. Another
// version than the one meant is somebody else's, and shown. The zero Tomb hides nothing.
func hides(t *meta.Tomb, etag string, began int64) bool {
	// With a token, the ETag of what may still land there is not known.
	return t.Key != "" && (t.Done == 0 || t.Done >= began) && (t.ETag == "" || t.Token != "" || t.ETag == etag)
}

// hidesDir tells of the tomb of a key that ends in "/" whether all below it is to go.
func hidesDir(t *meta.Tomb, began int64) bool {
	return t.Prefix && (t.Done == 0 || t.Done >= began)
}

// errLater: something else has to be done before; that is no failure.
var errLater = errors.New("waits")

// bury deletes an object that is no longer wanted: only the version that is meant. That of a
// directory goes last of all that is below it. What something new is to take the place of stays until that is
// published, or is called otherwise (leaveKey).
func (f *FS) bury(ctx context.Context, key string, order func(context.Context) error) error {
	t, err := f.db.Tomb(key)
	if err != nil || t.Done != 0 {
		return absent(err)
	}
	// First: what follows may have to see to it that the object is not needed any more (fetchSource).
	if follows, err := f.followed(key); err != nil || follows {
		return err
	}
	if t.Needed != 0 {
		return fmt.Errorf("%w: %q is still to be copied", errLater, key)
	}
	if err := f.mayBury(&t); err != nil {
		return err
	}
	if t.Prefix {
		below := ""
		if err := f.db.WalkTombs(key+"\x00", key[:len(key)-1]+"0", func(b meta.Tomb) bool {
			if b.Done == 0 {
				below = b.Key
			}
			return below == ""
		}); err != nil {
			return err
		}
		if below != "" {
			return fmt.Errorf("%w: %q is still to be deleted", errLater, below)
		}
	}
	if t.ETag != noObject || t.Token != "" {
		if err := order(ctx); err != nil {
			return err
		}
		err := f.keepReaders(ctx, key, t.ETag, 0)
		f.publisher.setRead(key, errors.Is(err, cache.ErrNotKept))
		if errors.Is(err, cache.ErrNotKept) {
			f.log.Warn("a removed object stays in the bucket until it is closed: the cache has no room for what is not read of it yet", "key", key, "err", err)
			return fmt.Errorf("%w: %q is open", errLater, key)
		} else if err != nil {
			return err
		}
		if err := f.deleteObject(ctx, &t); err != nil {
			return err
		}
		if err := f.reuse.forget(key); err != nil {
			return err
		}
	}
	err = f.db.Do(func(tx *meta.Tx) error {
		now, err := tx.Tomb(key)
		if err != nil || now.Seq != t.Seq {
			return absent(err)
		}
		now.Done = f.now()
		return tx.SetTomb(&now)
	})
	if above := parentKey(key); err == nil && above != "" {
		f.publisher.queue.Hasten(f.tombID(above)) // it may have waited for this
	}
	return err
}

// buryFailed notes a failure for the ledger, where the next process finds it.
func (f *FS) buryFailed(key string, cause error) {
	if err := f.db.Do(func(tx *meta.Tx) error {
		t, err := tx.Tomb(key)
		if err != nil || t.Done != 0 {
			return absent(err)
		}
		t.Tries, t.Error = t.Tries+1, clip(cause.Error())
		return tx.SetTomb(&t)
	}); err != nil {
		f.log.Debug("that a deletion failed is not remembered", "key", key, "err", err)
	}
}

// followed tells whether something is to be published under a key.
func (f *FS) followed(key string) (bool, error) {
	ino, err := f.follower(key)
	return ino != 0, err
}

// follower is what is to be published under a key, 0 when nothing is.
func (f *FS) follower(key string) (meta.Ino, error) {
	in, err := f.under(key, f.db.Lookup)
	if err != nil {
		return 0, absent(err)
	}
	if !published(in.Kind) || (in.Kind == meta.KindDir) != strings.HasSuffix(key, "/") {
		return 0, nil
	}
	d, err := f.db.Dirty(in.Ino)
	return d.Ino, absent(err)
}

// under returns what the index has under the name of a key, by lookup, that of the index or of a transaction.
func (f *FS) under(key string, lookup func(meta.Ino, string) (meta.Inode, error)) (in meta.Inode, err error) {
	below, ok := strings.CutPrefix(key, f.root.Prefix)
	if !ok {
		return in, meta.ErrNotFound
	}
	in = f.root
	for name := range strings.SplitSeq(strings.TrimSuffix(below, "/"), "/") {
		if in, err = lookup(in.Ino, name); err != nil {
			return in, err
		}
	}
	return in, nil
}

// deleteObject deletes the object of a tomb, if it is still that version.
func (f *FS) deleteObject(ctx context.Context, t *meta.Tomb) error {
	v := publish.Version{ETag: t.ETag}
	if all := strings.Fields(t.Token); len(all) > 0 {
		v.Token = all[0]
	}
	if v.ETag == noObject {
		v.ETag = ""
	}
	_, err := f.publisher.pub.Delete(ctx, t.Key, v)
	var c *publish.Conflict
	if !errors.As(err, &c) {
		return err
	}
	if ours(c.Have, t.Token) {
		_, err = f.publisher.pub.Delete(ctx, t.Key, publish.Version{ETag: c.Have.ETag})
		if !errors.As(err, &c) {
			return err
		}
	}
	if t.ETag != "" {
		f.log.Warn("an object was changed by somebody else before it was deleted here; it stays", "key", t.Key, "etag", c.Have.ETag)
	}
	return nil
}
