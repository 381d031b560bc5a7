package meta

import (
	"encoding/binary"
	"fmt"

	"github.com/dgraph-io/badger/v4"
)

// Tomb says that the origin has, under a key, what the local tree has not there any more: it is
// to be deleted or overwritten, and hidden until then.
type Tomb struct {
	Key             string
	ETag, VersionID string // of what is to go
	// Prefix: it hides everything below Key, which ends in "/".
	Prefix bool
	// Needed is the inode that waits for a copy whose source this object is; 0: none.
	Needed Ino
	Seq    uint64
	// Done is when the origin agreed, nanoseconds since 1970; 0: not yet. It stays for a while,
	// so that older listings do not bring the object back.
	Done  int64
	Token string // as in Dirty
	Tries uint32
	Next  int64
	Error string
}

// maxKey is the longest object key, in bytes; S3's own limit is 1024.
const maxKey = 16 << 10

// Tomb returns the tomb of a key; ErrNotFound when there is none.
func (db *DB) Tomb(key string) (t Tomb, err error) {
	if db.TombCount() == 0 {
		return t, ErrNotFound
	}
	if err := db.enter(); err != nil {
		return t, err
	}
	defer db.life.RUnlock()
	err = db.view(func(tx *badger.Txn) error { return readTomb(tx, key, &t) })
	return t, err
}

func readTomb(tx *badger.Txn, key string, t *Tomb) error {
	return get(tx, nameKey(keyTomb, key), func(v []byte) (err error) {
		*t, err = decodeTomb(key, v)
		return err
	})
}

// TombCount returns how many tombs there are, at no cost. It may count those of transactions
// under way; where it is 0 there is none.
func (db *DB) TombCount() int { return int(db.tombs.Load()) }

// WalkTombs calls fn for the tombs of keys from from on and below to ("": to the end), in byte
// order of keys, until fn returns false. fn may use the index. What is changed meanwhile may be
// seen or not.
func (db *DB) WalkTombs(from, to string, fn func(Tomb) bool) error {
	if db.TombCount() == 0 {
		return nil
	}
	var end []byte
	if to != "" {
		end = nameKey(keyTomb, to)
	}
	for next := nameKey(keyTomb, from); next != nil; {
		var batch []Tomb
		var err error
		if next, err = db.walk(keyTomb, next, end, func(k, v []byte) error {
			t, err := decodeTomb(string(k[1:]), v)
			batch = append(batch, t)
			return err
		}); err != nil {
			return err
		}
		for i := range batch {
			if !fn(batch[i]) {
				return nil
			}
		}
	}
	return nil
}

func checkTomb(t *Tomb) error {
	if t.Key == "" || len(t.Key) > maxKey || t.Prefix && t.Key[len(t.Key)-1] != '/' {
		return fmt.Errorf("%w: tomb of key %q", ErrInvalid, t.Key)
	}
	return nil
}

func encodeTomb(t *Tomb) []byte {
	var prefix byte
	if t.Prefix {
		prefix = 1
	}
	form, sum, parts := etagForm(t.ETag)
	b := append(make([]byte, 0, 64+len(t.Token)+len(t.Error)), codecVersion, prefix, byte(form))
	b = appendETag(b, form, t.ETag, &sum, parts)
	b = appendString(b, t.VersionID)
	b = binary.AppendUvarint(b, uint64(t.Needed))
	b = binary.AppendUvarint(b, t.Seq)
	b = binary.AppendVarint(b, t.Done)
	b = appendString(b, t.Token)
	b = binary.AppendUvarint(b, uint64(t.Tries))
	b = binary.AppendVarint(b, t.Next)
	return append(b, t.Error...)
}

func decodeTomb(key string, v []byte) (Tomb, error) {
	d := decoder{b: v}
	d.version()
	prefix, form := d.byte(), d.byte()
	if prefix > 1 || form > etagParts {
		d.fail()
	}
	t := Tomb{Key: key, Prefix: prefix == 1, ETag: d.etag(uint64(form)), VersionID: d.string(),
		Needed: Ino(d.uintMax(uint64(MaxIno))), Seq: d.uint(), Done: d.int(), Token: d.string(),
		Tries: uint32(d.uintMax(1<<32 - 1)), Next: d.int()}
	t.Error = d.rest()
	if err := d.done(); err != nil {
		return Tomb{}, err
	}
	return t, nil
}
