package meta

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/dgraph-io/badger/v4"

	"github.com/leatfs/leatfs/cache"
)

// This file is cache.Index. A record is found by its ID, and through the table of
// identities by what it holds. Extents of a deleted record may be many (one per 128 MiB), so
// they are deleted after it, in transactions of their own; until then the ID stands in the
// table of the doomed, which Open goes on with.

// maxVar is the longest value of a cache variable, in bytes.
const maxVar = 64 << 10

// NewID implements cache.Index.
func (db *DB) NewID() (cache.ID, error) {
	if err := db.enter(); err != nil {
		return 0, err
	}
	defer db.life.RUnlock()
	return db.marks.newID()
}

// Record implements cache.Index.
func (db *DB) Record(id cache.ID) (r cache.Record, err error) {
	err = db.cacheGet(func(tx *badger.Txn) error { return readRecord(tx, id, &r) })
	return r, err
}

func readRecord(tx *badger.Txn, id cache.ID, r *cache.Record) error {
	return get(tx, idKey(keyRecord, id), func(v []byte) (err error) {
		*r, err = decodeRecord(id, v)
		return err
	})
}

// Find implements cache.Index.
func (db *DB) Find(ident cache.Identity) (r cache.Record, err error) {
	err = db.cacheGet(func(tx *badger.Txn) error {
		id, err := readIdent(tx, ident.Hash())
		if err != nil {
			return err
		}
		return readRecord(tx, id, &r)
	})
	return r, err
}

func readIdent(tx *badger.Txn, hash [16]byte) (id cache.ID, err error) {
	err = get(tx, identKey(hash), func(v []byte) error {
		d := decoder{b: v}
		d.version()
		id = cache.ID(d.uint())
		return d.done()
	})
	return id, err
}

// Extent implements cache.Index.
func (db *DB) Extent(id cache.ID, n uint32) (e cache.Extent, err error) {
	err = db.cacheGet(func(tx *badger.Txn) error {
		return get(tx, extentKey(id, n), func(v []byte) (err error) {
			e, err = decodeExtent(v)
			return err
		})
	})
	return e, err
}

// Usage implements cache.Index.
func (db *DB) Usage(id cache.ID) (u cache.Usage, err error) {
	err = db.cacheGet(func(tx *badger.Txn) error {
		return get(tx, idKey(keyUsage, id), func(v []byte) (err error) {
			u, err = decodeUsage(id, v)
			return err
		})
	})
	return u, err
}

// Var implements cache.Index.
func (db *DB) Var(name string) (v []byte, err error) {
	err = db.cacheGet(func(tx *badger.Txn) error {
		return get(tx, nameKey(keyVar, name), func(b []byte) error {
			v = append([]byte{}, b...)
			return nil
		})
	})
	return v, err
}

// cacheGet is view with the cache's word for what is missing.
func (db *DB) cacheGet(fn func(tx *badger.Txn) error) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.life.RUnlock()
	err := db.view(fn)
	if errors.Is(err, ErrNotFound) {
		return cache.ErrNoRecord
	}
	return err
}

// Apply implements cache.Index. A Batch fits when it is below 1 MB encoded, for example some
// 100 full Extents; a larger one is ErrTooBig and changes nothing.
func (db *DB) Apply(b cache.Batch) error {
	if err := checkBatch(&b); err != nil {
		return err
	}
	if err := db.enter(); err != nil {
		return err
	}
	defer db.life.RUnlock()
	if len(b.Records)+len(b.Delete) > 0 {
		db.applyMu.Lock()
		defer db.applyMu.Unlock()
	} else {
		db.applyMu.RLock()
		defer db.applyMu.RUnlock()
	}
	update := db.update
	if b.Needed || len(b.Delete) > 0 {
		update = db.updateSmall
	}
	if err := update(func(tx *badger.Txn) error { return putBatch(tx, &b) }); err != nil {
		return err
	}
	db.dropExtents(b.Delete)
	return nil
}

func checkBatch(b *cache.Batch) error {
	for i := range b.Extents {
		if !validExtent(&b.Extents[i].Extent) {
			return fmt.Errorf("%w: extent %d of %d has blocks beyond its end", ErrInvalid, b.Extents[i].N, b.Extents[i].ID)
		}
	}
	for name, v := range b.Vars {
		if name == "" || len(name) > MaxName || len(v) > maxVar {
			return fmt.Errorf("%w: variable %q of %d bytes", ErrInvalid, name, len(v))
		}
	}
	return nil
}

// putBatch writes all of a Batch but the deletion of extents. Caller holds applyMu.
func putBatch(tx *badger.Txn, b *cache.Batch) error {
	gone := make(map[cache.ID]bool, len(b.Delete))
	for _, id := range b.Delete {
		gone[id] = true
	}
	for id := range gone {
		if err := deleteRecord(tx, id); err != nil {
			return err
		}
	}
	for i := range b.Records {
		if r := &b.Records[i]; !gone[r.ID] {
			if err := putRecord(tx, r); err != nil {
				return err
			}
		}
	}
	for i := range b.Extents {
		if e := &b.Extents[i]; !gone[e.ID] {
			if err := tx.Set(extentKey(e.ID, e.N), encodeExtent(&e.Extent)); err != nil {
				return err
			}
		}
	}
	for i := range b.Usages {
		if u := &b.Usages[i]; !gone[u.ID] {
			if err := tx.Set(idKey(keyUsage, u.ID), encodeUsage(u)); err != nil {
				return err
			}
		}
	}
	for name, v := range b.Vars {
		if err := tx.Set(nameKey(keyVar, name), append([]byte(nil), v...)); err != nil {
			return err
		}
	}
	return nil
}

// dropExtents deletes the extents of deleted records. Caller holds applyMu.
func (db *DB) dropExtents(gone []cache.ID) {
	for _, id := range gone {
		if err := db.deleteExtents(id); err != nil {
			// The record is gone, which is what was asked; the rest is for the next Open.
			db.log.Warn("index: extents of a deleted file remain", "id", id, "err", err)
		}
	}
}

func putRecord(tx *badger.Txn, r *cache.Record) error {
	if r.ID == 0 || r.State > cache.Unverifiable {
		return fmt.Errorf("%w: record %d in state %d", ErrInvalid, r.ID, r.State)
	}
	hash := r.Identity.Hash()
	var old cache.Record
	switch err := readRecord(tx, r.ID, &old); {
	case err == nil:
		if h := old.Identity.Hash(); h != hash {
			if err := deleteIdent(tx, h, r.ID); err != nil {
				return err
			}
		}
	case !errors.Is(err, ErrNotFound):
		return err
	default:
		// The file may have come back after its deletion, of which the rest was left undone: the next Open must not go on with
		// that.
		doomed := idKey(keyDoomed, r.ID)
		_, err := tx.Get(doomed)
		if err == nil {
			err = tx.Delete(doomed)
		}
		if err != nil && !errors.Is(err, badger.ErrKeyNotFound) {
			return err
		}
	}
	if err := tx.Set(idKey(keyRecord, r.ID), encodeRecord(r)); err != nil {
		return err
	}
	return tx.Set(identKey(hash), binary.AppendUvarint([]byte{codecVersion}, uint64(r.ID)))
}

// deleteIdent deletes an identity that still leads to id.
func deleteIdent(tx *badger.Txn, hash [16]byte, id cache.ID) error {
	switch have, err := readIdent(tx, hash); {
	case errors.Is(err, ErrNotFound), err == nil && have != id:
		return nil
	case err != nil:
		return err
	}
	return tx.Delete(identKey(hash))
}

func deleteRecord(tx *badger.Txn, id cache.ID) error {
	var r cache.Record
	switch err := readRecord(tx, id, &r); {
	case err == nil:
		if err := deleteIdent(tx, r.Identity.Hash(), id); err != nil {
			return err
		}
	case !errors.Is(err, ErrNotFound):
		return err
	}
	for _, table := range []byte{keyRecord, keyUsage} {
		if err := tx.Delete(idKey(table, id)); err != nil {
			return err
		}
	}
	return tx.Set(idKey(keyDoomed, id), nil)
}

// deleteExtents deletes the extents of a doomed ID, then its mark. Caller holds applyMu, or
// nobody else is there yet.
func (db *DB) deleteExtents(id cache.ID) error {
	const chunk = 4096
	prefix := idKey(keyExtent, id)
	for more := true; more; {
		err := db.updateSmall(func(tx *badger.Txn) error {
			it := tx.NewIterator(badger.IteratorOptions{Prefix: prefix})
			defer it.Close()
			n := 0
			for it.Seek(prefix); it.Valid() && n < chunk; it.Next() {
				if err := tx.Delete(it.Item().KeyCopy(nil)); err != nil {
					return err
				}
				n++
			}
			if more = n == chunk; more {
				return nil
			}
			return tx.Delete(idKey(keyDoomed, id))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// resumeDoomed goes on with what a dead process left of deleteExtents.
func (db *DB) resumeDoomed() {
	var ids []cache.ID
	err := db.view(func(tx *badger.Txn) error {
		prefix := []byte{keyDoomed}
		it := tx.NewIterator(badger.IteratorOptions{Prefix: prefix})
		defer it.Close()
		for it.Seek(prefix); it.Valid() && len(ids) < 4096; it.Next() {
			if k := it.Item().Key(); len(k) == 9 {
				ids = append(ids, cache.ID(be64(k[1:])))
			}
		}
		return nil
	})
	for _, id := range ids {
		if err == nil {
			err = db.deleteExtents(id)
		}
	}
	if err != nil {
		db.log.Warn("index: extents of deleted files remain", "err", err)
	}
}

// SampleUsage implements cache.Index.
func (db *DB) SampleUsage(pick float64, n int) ([]cache.Usage, error) {
	var out []cache.Usage
	err := db.cacheGet(func(tx *badger.Txn) error {
		first, last, err := usageRange(tx)
		if err != nil || n <= 0 {
			return err
		}
		pick := math.Max(0, math.Min(pick, 1))
		start := first + cache.ID(pick*float64(last-first+1))
		if out, err = readUsages(tx, start, last, n, nil); err != nil || start == first {
			return err
		}
		out, err = readUsages(tx, first, start-1, n, out)
		return err
	})
	if errors.Is(err, cache.ErrNoRecord) {
		return nil, nil
	}
	return out, err
}

// usageRange returns the smallest and the largest ID with a Usage.
func usageRange(tx *badger.Txn) (first, last cache.ID, err error) {
	end := func(reverse bool, from byte) (cache.ID, error) {
		it := tx.NewIterator(badger.IteratorOptions{Reverse: reverse})
		defer it.Close()
		it.Seek([]byte{from})
		if !it.ValidForPrefix([]byte{keyUsage}) {
			return 0, ErrNotFound
		}
		k := it.Item().Key()
		if len(k) != 9 {
			return 0, errMalformed
		}
		return cache.ID(be64(k[1:])), nil
	}
	if first, err = end(false, keyUsage); err == nil {
		last, err = end(true, keyUsage+1)
	}
	return first, last, err
}

// readUsages appends usages with IDs from from to to, until out holds n.
func readUsages(tx *badger.Txn, from, to cache.ID, n int, out []cache.Usage) ([]cache.Usage, error) {
	it := tx.NewIterator(badger.IteratorOptions{Prefix: []byte{keyUsage}})
	defer it.Close()
	for it.Seek(idKey(keyUsage, from)); it.Valid() && len(out) < n; it.Next() {
		k := it.Item().Key()
		if len(k) != 9 {
			return nil, errMalformed
		}
		id := cache.ID(be64(k[1:]))
		if id > to {
			break
		}
		if err := it.Item().Value(func(v []byte) error {
			u, err := decodeUsage(id, v)
			out = append(out, u)
			return err
		}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// WalkRecords implements cache.Index.
func (db *DB) WalkRecords(after cache.ID, fn func(cache.Record) bool) error {
	const chunk = 256
	batch := make([]cache.Record, 0, chunk)
	for {
		batch = batch[:0]
		err := db.cacheGet(func(tx *badger.Txn) error {
			it := tx.NewIterator(badger.IteratorOptions{Prefix: []byte{keyRecord}})
			defer it.Close()
			for it.Seek(idKey(keyRecord, after+1)); it.Valid() && len(batch) < chunk; it.Next() {
				k := it.Item().Key()
				if len(k) != 9 {
					return errMalformed
				}
				if err := it.Item().Value(func(v []byte) error {
					r, err := decodeRecord(cache.ID(be64(k[1:])), v)
					batch = append(batch, r)
					return err
				}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		for i := range batch {
			if !fn(batch[i]) {
				return nil
			}
		}
		if len(batch) < chunk {
			return nil
		}
		after = batch[chunk-1].ID
	}
}
