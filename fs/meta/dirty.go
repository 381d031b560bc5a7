package meta

import (
	"encoding/binary"
	"errors"

	"github.com/dgraph-io/badger/v4"
)

// Dirty says that something of an inode is to be published. The record of an inode is guarded by
// the inode's own lock.
type Dirty struct {
	Ino   Ino
	Seq   uint64 // order of completion, see NextSeq; 0: not complete, somebody still writes
	Since int64  // when it became so, nanoseconds since 1970
	// Held: it may not be whole, Error says why. It is kept, and not published.
	Held bool
	// Early: Seq was given when somebody could write to it, who may have done so since.
	Early bool
	// Token marks the requests that publish it, so that a lost answer can be told from
	// somebody else's change.
	Token  string
	Upload Upload // under way, when its ID is set
	Tries  uint32 // failed in a row
	Next   int64  // when to try again, nanoseconds since 1970
	Error  string // of the last try; of what is held, why it is
}

// Upload is a multipart upload that was begun.
type Upload struct {
	Key, ID  string
	PartSize int64
	Token    string // its object will carry
}

// Dirty returns the record of an inode; ErrNotFound when it has none.
func (db *DB) Dirty(ino Ino) (d Dirty, err error) {
	if err := db.enter(); err != nil {
		return d, err
	}
	defer db.life.RUnlock()
	err = db.view(func(tx *badger.Txn) error { return readDirty(tx, ino, &d) })
	return d, err
}

func readDirty(tx *badger.Txn, ino Ino, d *Dirty) error {
	return get(tx, inoKey(keyDirty, ino), func(v []byte) (err error) {
		*d, err = decodeDirty(ino, v)
		return err
	})
}

// DirtyCount returns how many inodes have a Dirty record. It may count those of transactions
// under way.
func (db *DB) DirtyCount() int { return int(db.dirty.Load()) }

// walkChunk is how many records a walk reads at a time.
const walkChunk = 256

// WalkDirty calls fn for the records of inodes with numbers greater than after, in their
// order, until fn returns false. fn may use the index. What is changed meanwhile may be
// seen or not.
func (db *DB) WalkDirty(after Ino, fn func(Dirty) bool) error {
	for from := inoKey(keyDirty, after+1); from != nil; {
		var batch []Dirty
		var err error
		if from, err = db.walk(keyDirty, from, nil, func(k, v []byte) error {
			if len(k) != 1+inoLen {
				return errMalformed
			}
			d, err := decodeDirty(getIno(k[1:]), v)
			batch = append(batch, d)
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

// walk calls fn in one snapshot for walkChunk records of a table from the key from on, below
// the key to when that is not nil. Returns where to go on; nil when there are no more.
func (db *DB) walk(table byte, from, to []byte, fn func(k, v []byte) error) (next []byte, err error) {
	if err := db.enter(); err != nil {
		return nil, err
	}
	defer db.life.RUnlock()
	err = db.view(func(tx *badger.Txn) error {
		next, err = walkTable(tx, table, from, to, fn)
		return err
	})
	return next, err
}

func walkTable(tx *badger.Txn, table byte, from, to []byte, fn func(k, v []byte) error) (next []byte, err error) {
	it := tx.NewIterator(badger.IteratorOptions{Prefix: []byte{table}})
	defer it.Close()
	n := 0
	for it.Seek(from); it.Valid(); it.Next() {
		k := it.Item().Key()
		if to != nil && string(k) >= string(to) {
			break
		}
		if n == walkChunk {
			return it.Item().KeyCopy(nil), nil
		}
		n++
		if err := it.Item().Value(func(v []byte) error { return fn(k, v) }); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// Aborts returns the uploads that are to be aborted, in order of their keys.
func (db *DB) Aborts() (out []Upload, err error) {
	for from := []byte{keyAbort}; from != nil; {
		if from, err = db.walk(keyAbort, from, nil, func(k, _ []byte) error {
			u, err := decodeAbort(k)
			out = append(out, u)
			return err
		}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ClearAbort says that an upload was aborted, or is not there any more.
func (db *DB) ClearAbort(key, id string) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.life.RUnlock()
	return db.updateSmall(func(tx *badger.Txn) error { return tx.Delete(abortKey(key, id)) })
}

// abortKey names an upload. Keys of objects may hold any byte, so the length of the key stands at
// the end.
func abortKey(key, id string) []byte {
	b := append(make([]byte, 0, 3+len(key)+len(id)), keyAbort)
	b = append(append(b, key...), id...)
	return binary.BigEndian.AppendUint16(b, uint16(len(key)))
}

func decodeAbort(k []byte) (u Upload, err error) {
	if len(k) < 3 {
		return u, errMalformed
	}
	s, n := string(k[1:len(k)-2]), int(binary.BigEndian.Uint16(k[len(k)-2:]))
	if n > len(s) {
		return u, errMalformed
	}
	return Upload{Key: s[:n], ID: s[n:]}, nil
}

// NextSeq returns a number greater than all that it returned before, also in earlier processes, as
// far as they are still in a Dirty or a Tomb.
func (db *DB) NextSeq() uint64 { return db.seq.Add(1) }

// RaiseSeq makes all numbers that NextSeq returns from now on greater than seq.
func (db *DB) RaiseSeq(seq uint64) {
	for {
		now := db.seq.Load()
		if now >= seq || db.seq.CompareAndSwap(now, seq) {
			return
		}
	}
}

// loadCounts counts the records of Dirty and Tomb and finds the largest Seq. Called by Open.
func (db *DB) loadCounts() error {
	count := func(table byte, seq func(k, v []byte) (uint64, error)) (n int64, err error) {
		err = db.view(func(tx *badger.Txn) error {
			for from := []byte{table}; from != nil; {
				if from, err = walkTable(tx, table, from, nil, func(k, v []byte) error {
					s, err := seq(k, v)
					db.seq.Store(max(db.seq.Load(), s))
					n++
					return err
				}); err != nil {
					return err
				}
			}
			return nil
		})
		return n, err
	}
	dirty, err := count(keyDirty, func(_, v []byte) (uint64, error) {
		d, err := decodeDirty(1, v)
		return d.Seq, err
	})
	tombs, err2 := count(keyTomb, func(_, v []byte) (uint64, error) {
		t, err := decodeTomb("", v)
		return t.Seq, err
	})
	db.dirty.Store(dirty)
	db.tombs.Store(tombs)
	return errors.Join(err, err2)
}

// The flags of a Dirty.
const (
	dirtyHeld = 1 << iota
	dirtyEarly
)

func encodeDirty(d *Dirty) []byte {
	var flags byte
	if d.Held {
		flags |= dirtyHeld
	}
	if d.Early {
		flags |= dirtyEarly
	}
	b := append(make([]byte, 0, 32+len(d.Token)+len(d.Upload.Key)+len(d.Upload.ID)+len(d.Error)), codecVersion, flags)
	b = binary.AppendUvarint(b, d.Seq)
	b = binary.AppendVarint(b, d.Since)
	b = appendString(b, d.Token)
	b = appendString(b, d.Upload.Key)
	b = appendString(b, d.Upload.ID)
	b = binary.AppendVarint(b, d.Upload.PartSize)
	b = appendString(b, d.Upload.Token)
	b = binary.AppendUvarint(b, uint64(d.Tries))
	b = binary.AppendVarint(b, d.Next)
	return append(b, d.Error...)
}

func decodeDirty(ino Ino, v []byte) (Dirty, error) {
	d := decoder{b: v}
	d.version()
	flags := d.byte()
	if flags&^(dirtyHeld|dirtyEarly) != 0 {
		d.fail()
	}
	out := Dirty{Ino: ino, Held: flags&dirtyHeld != 0, Early: flags&dirtyEarly != 0, Seq: d.uint(), Since: d.int(), Token: d.string(),
		Upload: Upload{Key: d.string(), ID: d.string(), PartSize: d.int(), Token: d.string()},
		Tries:  uint32(d.uintMax(1<<32 - 1)), Next: d.int()}
	out.Error = d.rest()
	if err := d.done(); err != nil {
		return Dirty{}, err
	}
	return out, nil
}
