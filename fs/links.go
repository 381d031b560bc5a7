package fs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/publish"
)

// A file with several names has an object under each: under its primary name the one that is
// uploaded, which Inode.Object describes, and copies of it under the others, made by the origin. What
// is there under a further name stands with the inode, where its extended attributes are.

// copied is the object under a further name of a file.
type copied struct {
	ETag string // of the copy
	From string // ETag of what it is a copy of; "": of something before, or since this was noted it was overwritten
}

// namePrefix begins the names of these records; no extended attribute of a user can.
const namePrefix = "leatfs.name."

// recordOf is where the object under a further name is noted.
func recordOf(key string) string {
	h := sha256.Sum256([]byte(key))
	return fmt.Sprintf("%s%x", namePrefix, h[:16])
}

// copyOf reads what is noted of a further name with a key; the zero value when nothing is.
func copyOf(tx *meta.Tx, ino meta.Ino, key string) (c copied, err error) {
	v, err := tx.Xattr(ino, recordOf(key))
	if err != nil {
		return c, absent(err)
	}
	return c, json.Unmarshal(v, &c)
}

// setCopy notes what is under a further name with a key.
func setCopy(tx *meta.Tx, ino meta.Ino, key string, c copied) error {
	v, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return tx.SetXattr(ino, recordOf(key), v)
}

// copyTokens are those of all copies under a key that a publication with one of these tokens may have
// made.
func copyTokens(tokens, key string) string {
	all := strings.Fields(tokens)
	for i, t := range all {
		all[i] = copyToken(t, key)
	}
	return strings.Join(all, " ")
}

// copyToken is the token of the copy under a key.
func copyToken(token, key string) string {
	if token == "" {
		return ""
	}
	return token + "." + recordOf(key)[len(namePrefix):]
}

// forsakeName notes in a transaction that what is at the origin under a further name is to go.
func (f *FS) forsakeName(tx *meta.Tx, ino meta.Ino, key string, fx *effects) error {
	c, err := copyOf(tx, ino, key)
	if err != nil {
		return err
	}
	d, err := tx.Dirty(ino)
	if err := absent(err); err != nil {
		return err
	}
	token := copyTokens(d.Token, key)
	if c.ETag == "" && token == "" {
		return nil
	}
	if c.ETag != "" {
		if err := tx.RemoveXattr(ino, recordOf(key)); err != nil {
			return err
		}
	}
	t, err := f.tombOf(tx, key)
	if err != nil {
		return err
	}
	if c.ETag != "" {
		t.ETag = c.ETag // else it is what the tomb says, if anything
	}
	t.Token = tokens(token, t.Token)
	return f.entomb(tx, &t, fx)
}

// strayedNames notes of the further names of a file, which is to be published with another token from now on, that copies
// made with token may be there: they are to be overwritten. but is the key of the name that it leaves.
func (f *FS) strayedNames(tx *meta.Tx, in *meta.Inode, but, token string, fx *effects) error {
	if in.Links == 0 {
		return nil
	}
	names, err := tx.Names(in.Ino)
	if err != nil {
		return err
	}
	for _, n := range names {
		dir, err := tx.Inode(n.Parent)
		if err != nil {
			return err
		}
		key := dir.Prefix + n.Name
		if key == but {
			continue
		}
		t, err := f.tombOf(tx, key)
		if err != nil {
			return err
		}
		t.Token = tokens(copyTokens(token, key), t.Token)
		if err := f.entomb(tx, &t, fx); err != nil {
			return err
		}
	}
	return nil
}

// touchNames has a file whose names have changed looked at again, unless it is open for writing and
// will be anyway.
func (f *FS) touchNames(tx *meta.Tx, in *meta.Inode, fx *effects) error {
	d, err := tx.Dirty(in.Ino)
	if errors.Is(err, meta.ErrNotFound) {
		d, err = meta.Dirty{Ino: in.Ino, Since: f.now(), Seq: 1}, nil
	}
	if err != nil {
		return err
	}
	if d.Seq != 0 {
		d.Seq = f.db.NextSeq() // what is under way is not all of it
	}
	if err := tx.SetDirty(&d); err != nil {
		return err
	}
	in.Flags |= meta.Local
	fx.moved = append(fx.moved, *in)
	return nil
}

// promote makes the copy under what has become the primary name the object of a file, if it is up to
// date: nothing is to be copied then.
func (f *FS) promote(tx *meta.Tx, in, was *meta.Inode, from, to string, fx *effects) (done bool, err error) {
	c, err := copyOf(tx, in.Ino, to)
	if err != nil {
		return false, err
	}
	d, err := tx.Dirty(in.Ino)
	if err := absent(err); err != nil {
		return false, err
	}
	token := copyTokens(d.Token, to) // of a copy that may be there
	if c.ETag == "" {
		if token == "" {
			return false, nil
		}
		t, err := f.tombOf(tx, to)
		if err != nil {
			return false, err
		}
		t.Token = tokens(token, t.Token)
		return false, f.entomb(tx, &t, fx)
	}
	if err := tx.RemoveXattr(in.Ino, recordOf(to)); err != nil {
		return false, err
	}
	if in.Stage != 0 || c.From != was.Object.ETag || was.Object.ETag == "" {
		t, err := f.tombOf(tx, to)
		if err != nil {
			return false, err
		}
		t.ETag, t.Token = c.ETag, tokens(token, t.Token)
		return false, f.entomb(tx, &t, fx) // to be overwritten
	}
	if err := f.strayed(tx, in, from, fx); err != nil {
		return false, err
	}
	if err := f.forsake(tx, was, from, fx); err != nil {
		return false, err
	}
	in.Object = was.Object
	in.Object.Key, in.Object.ETag, in.Object.VersionID = to, c.ETag, ""
	if err := f.fill(tx, to, ""); err != nil {
		return false, err
	}
	return true, f.touchNames(tx, in, fx)
}

// publishNames has the origin copy the object of a file to its further names.
func (f *FS) publishNames(ctx context.Context, w *work, order func(context.Context) error) error {
	names, err := f.db.Names(w.in.Ino)
	if err != nil || len(names) < 2 {
		return err
	}
	for _, n := range names[1:] {
		if err := f.publishName(ctx, w, n, order); err != nil {
			return err
		}
	}
	return nil
}

// furtherName tells whether a name is one of a file, with this key, and not its first.
func furtherName(tx *meta.Tx, ino meta.Ino, n meta.Name, key string) (bool, error) {
	have, err := tx.Lookup(n.Parent, n.Name)
	if err != nil || have.Ino != ino {
		return false, absent(err)
	}
	dir, err := tx.Inode(n.Parent)
	if err != nil || dir.Prefix+n.Name != key {
		return false, absent(err)
	}
	first, err := tx.Inode(ino)
	return err == nil && (first.Parent != n.Parent || first.Name != n.Name), absent(err)
}

func (f *FS) publishName(ctx context.Context, w *work, n meta.Name, order func(context.Context) error) error {
	dir, err := f.db.Inode(n.Parent)
	if err != nil {
		return absent(err)
	}
	key := dir.Prefix + n.Name
	if err := order(ctx); err != nil {
		return err
	}
	release, err := f.publisher.turns.take(ctx, key)
	if err != nil {
		return err
	}
	defer release()
	// The queue knows of the first name only: a deletion under this one that has begun could hit the copy, where both have
	// the same content. One that begins from now on finds that something follows.
	defer f.enqueueTomb(key) // should it be needed after all
	if err := f.publisher.queue.Cancel(ctx, f.tombID(key)); err != nil {
		return err
	}
	var c copied
	base, former, needs := "", "", meta.Ino(0)
	is := false
	if err := f.db.Do(func(tx *meta.Tx) error {
		needs = 0
		var err error
		if is, err = furtherName(tx, w.in.Ino, n, key); err != nil || !is {
			return err
		}
		if c, err = copyOf(tx, w.in.Ino, key); err != nil {
			return err
		}
		base, former = c.ETag, ""
		if c.From != "" && c.From != w.in.Object.ETag {
			// Should nobody come to know whether this copy is made, the one before is not taken to be there still, when
			// the file has become what it was.
			if err := setCopy(tx, w.in.Ino, key, copied{ETag: c.ETag}); err != nil {
				return err
			}
		}
		t, err := tx.Tomb(key)
		if err := absent(err); err != nil {
			return err
		}
		if c.From != w.in.Object.ETag {
			if err := f.mayPut(key, &t, copyTokens(w.dirty.Token, key)); err != nil {
				return err
			}
		}
		if err != nil || t.Done != 0 {
			return nil
		}
		base, former = cmp.Or(t.ETag, base), t.Token
		if c.From != w.in.Object.ETag {
			needs, err = f.needed(tx, &t, w)
			return err
		}
		return f.fill(tx, key, "") // the copy is what is to be there
	}); err != nil || !is || c.From == w.in.Object.ETag {
		return err // of a name that is not its own by now
	}
	if needs != 0 {
		return f.fetchSource(ctx, needs, key)
	}
	job := publish.Job{Key: key, Copy: &publish.Source{Key: w.key, ETag: w.in.Object.ETag, VersionID: w.in.Object.VersionID, Size: w.in.Object.Size},
		Token: copyToken(newest(w.dirty.Token), key), IfNoneMatch: base == "", IfMatch: base}
	out, err := f.publisher.pub.Publish(ctx, job)
	var other *publish.Conflict
	if errors.As(err, &other) {
		if other.Have.Key == "" {
			job.IfNoneMatch, job.IfMatch = true, ""
		} else if ours(other.Have, tokens(copyTokens(w.dirty.Token, key), former)) {
			job.IfNoneMatch, job.IfMatch = false, other.Have.ETag // an earlier content, copied unnoticed
		} else if f.opt.LastWins && !f.opt.Protect {
			f.log.Warn("what somebody else put under this name is overwritten (last-wins)", "path", f.path(n.Parent, n.Name), "etag", other.Have.ETag)
			job.IfNoneMatch, job.IfMatch = false, other.Have.ETag
		} else {
			return f.conflictOfName(w, n, key, &other.Have)
		}
		out, err = f.publisher.pub.Publish(ctx, job)
	}
	// What failed may have been carried out all the same: where the name is gone by now, it has to go.
	failed := err
	var fx effects
	err = f.db.Do(func(tx *meta.Tx) error {
		fx.reset()
		is, err := furtherName(tx, w.in.Ino, n, key)
		if err != nil {
			return err
		}
		if !is {
			t, err := f.tombOf(tx, key) // renamed or removed meanwhile, or the first name now
			if err != nil {
				return err
			}
			if failed == nil {
				t.ETag = out.Object.ETag
			}
			t.Token = tokens(job.Token, t.Token)
			return f.entomb(tx, &t, &fx)
		}
		if failed != nil {
			return nil
		}
		if err := f.fill(tx, key, job.Token); err != nil {
			return err
		}
		return setCopy(tx, w.in.Ino, key, copied{ETag: out.Object.ETag, From: w.in.Object.ETag})
	})
	if err == nil {
		f.after(&fx)
	}
	if failed != nil {
		return &PathError{Op: "publish", Path: f.path(n.Parent, n.Name), Err: failed}
	}
	return err
}
