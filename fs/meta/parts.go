package meta

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/dgraph-io/badger/v4"
)

// PartSum tells what a part of an object holds.
type PartSum struct {
	CRC  uint64 // CRC64NVME
	Hash [sha256.Size]byte
}

const partSumLen = 8 + sha256.Size

// Parts tells what an object holds that was published from here, part by part. A hint: the object may have
// been replaced or deleted since. Not of more than MaxParts parts.
type Parts struct {
	Key, ETag, VersionID string
	Size, PartSize       int64
	At                   int64 // when it was published, nanoseconds since 1970
	Sums                 []PartSum
}

// MaxParts is how many parts a record has at most: it is one value.
const MaxParts = 6000

// Parts returns the record of a key; ErrNotFound when there is none.
func (db *DB) Parts(key string) (p Parts, err error) {
	if err := db.enter(); err != nil {
		return p, err
	}
	defer db.life.RUnlock()
	err = db.view(func(tx *badger.Txn) error {
		return get(tx, nameKey(keyParts, key), func(v []byte) (err error) {
			p, err = decodeParts(key, v)
			return err
		})
	})
	return p, err
}

// WalkParts calls fn for each record, in byte order of keys. Sums is valid during the call only; fn may not use
// the index.
func (db *DB) WalkParts(fn func(p *Parts)) error {
	for from := []byte{keyParts}; from != nil; {
		var err error
		if from, err = db.walk(keyParts, from, nil, func(k, v []byte) error {
			p, err := decodeParts(string(k[1:]), v)
			if err == nil {
				fn(&p)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// SetParts writes the record of a key.
func (t *Tx) SetParts(p *Parts) error {
	if p.Key == "" || len(p.Key) > maxKey || len(p.Sums) > MaxParts {
		return fmt.Errorf("%w: %d parts of key %.100q", ErrInvalid, len(p.Sums), p.Key)
	}
	return t.call(func() error {
		if err := t.lockKey(p.Key); err != nil {
			return err
		}
		return t.set(nameKey(keyParts, p.Key), encodeParts(p))
	})
}

// ClearParts deletes the record of a key, if there is one.
func (t *Tx) ClearParts(key string) error {
	return t.call(func() error {
		if err := t.lockKey(key); err != nil {
			return err
		}
		k := nameKey(keyParts, key)
		there, err := hasKey(t.txn(), k)
		if err != nil || !there {
			return err
		}
		return t.delete(k)
	})
}

func encodeParts(p *Parts) []byte {
	form, sum, parts := etagForm(p.ETag)
	b := append(make([]byte, 0, 80+len(p.VersionID)+partSumLen*len(p.Sums)), codecVersion, byte(form))
	b = appendETag(b, form, p.ETag, &sum, parts)
	b = appendString(b, p.VersionID)
	b = binary.AppendVarint(b, p.Size)
	b = binary.AppendVarint(b, p.PartSize)
	b = binary.AppendVarint(b, p.At)
	b = binary.AppendUvarint(b, uint64(len(p.Sums)))
	for i := range p.Sums {
		b = binary.BigEndian.AppendUint64(b, p.Sums[i].CRC)
		b = append(b, p.Sums[i].Hash[:]...)
	}
	return b
}

func decodeParts(key string, v []byte) (Parts, error) {
	d := decoder{b: v}
	d.version()
	form := d.byte()
	if form > etagParts {
		d.fail()
	}
	p := Parts{Key: key, ETag: d.etag(uint64(form)), VersionID: d.string(), Size: d.int(), PartSize: d.int(), At: d.int()}
	n := d.uintMax(MaxParts)
	all := d.bytes(int(n) * partSumLen)
	if err := d.done(); err != nil {
		return Parts{}, err
	}
	p.Sums = make([]PartSum, n)
	for i := range p.Sums {
		one := all[i*partSumLen:]
		p.Sums[i].CRC = be64(one)
		copy(p.Sums[i].Hash[:], one[8:])
	}
	return p, nil
}
