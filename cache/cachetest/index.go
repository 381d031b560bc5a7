// Package cachetest has what tests of the cache and of its users need: an index in memory.
package cachetest

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/leatfs/leatfs/cache"
)

// Index is a cache.Index in memory. It outlives the caches that use it, as one on disk would.
type Index struct {
	mu      sync.Mutex
	last    cache.ID
	records map[cache.ID]cache.Record
	byHash  map[[16]byte]cache.ID
	extents map[cache.ID]map[uint32]cache.Extent
	usages  map[cache.ID]cache.Usage
	vars    map[string][]byte
	frozen  bool
	fail    error
	full    error
	batches int
}

// NewIndex returns an empty index.
func NewIndex() *Index {
	return &Index{records: map[cache.ID]cache.Record{}, byHash: map[[16]byte]cache.ID{},
		extents: map[cache.ID]map[uint32]cache.Extent{}, usages: map[cache.ID]cache.Usage{}, vars: map[string][]byte{}}
}

// Freeze makes Apply lose what it is given, silently: what a process that was killed
// at this moment would have lost. Thaw ends that.
func (x *Index) Freeze() { x.set(func() { x.frozen = true }) }

// Thaw undoes Freeze.
func (x *Index) Thaw() { x.set(func() { x.frozen = false }) }

// Fail makes Apply fail with err until it is called with nil.
func (x *Index) Fail(err error) { x.set(func() { x.fail = err }) }

// Full makes Apply do only what an index does on a full disk, and fail with err otherwise, until it
// is called with nil.
func (x *Index) Full(err error) { x.set(func() { x.full = err }) }

// Batches is how many batches were applied.
func (x *Index) Batches() (n int) { x.set(func() { n = x.batches }); return n }

// Len is the number of records.
func (x *Index) Len() (n int) { x.set(func() { n = len(x.records) }); return n }

// LoseUsage forgets the usage of a file, and not its record: what a power loss may do.
func (x *Index) LoseUsage(id cache.ID) { x.set(func() { delete(x.usages, id) }) }

func (x *Index) set(fn func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	fn()
}

// NewID implements cache.Index. IDs are not lost by Freeze.
func (x *Index) NewID() (cache.ID, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.last++
	return x.last, nil
}

// Record implements cache.Index.
func (x *Index) Record(id cache.ID) (cache.Record, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return get(x.records, id)
}

// Find implements cache.Index.
func (x *Index) Find(ident cache.Identity) (cache.Record, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	id, err := get(x.byHash, ident.Hash())
	if err != nil {
		return cache.Record{}, err
	}
	return get(x.records, id)
}

// Extent implements cache.Index.
func (x *Index) Extent(id cache.ID, n uint32) (cache.Extent, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e, err := get(x.extents[id], n)
	e.CRC = slices.Clone(e.CRC)
	return e, err
}

// Usage implements cache.Index.
func (x *Index) Usage(id cache.ID) (cache.Usage, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return get(x.usages, id)
}

// Var implements cache.Index.
func (x *Index) Var(name string) ([]byte, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	v, err := get(x.vars, name)
	return slices.Clone(v), err
}

func get[K comparable, V any](m map[K]V, k K) (V, error) {
	v, ok := m[k]
	if !ok {
		return v, cache.ErrNoRecord
	}
	return v, nil
}

// Apply implements cache.Index.
func (x *Index) Apply(b cache.Batch) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.fail != nil {
		return x.fail
	}
	if x.full != nil && !b.Needed && len(b.Delete) == 0 {
		return x.full
	}
	if x.frozen {
		return nil
	}
	x.batches++
	for _, r := range b.Records {
		if r.ID == 0 {
			return errors.New("cachetest: a record without ID")
		}
		x.records[r.ID] = r
		x.byHash[r.Identity.Hash()] = r.ID
	}
	for _, e := range b.Extents {
		if x.extents[e.ID] == nil {
			x.extents[e.ID] = map[uint32]cache.Extent{}
		}
		x.extents[e.ID][e.N] = e.Extent
	}
	for _, u := range b.Usages {
		x.usages[u.ID] = u
	}
	for _, id := range b.Delete {
		if r, ok := x.records[id]; ok && x.byHash[r.Identity.Hash()] == id {
			delete(x.byHash, r.Identity.Hash())
		}
		delete(x.records, id)
		delete(x.extents, id)
		delete(x.usages, id)
	}
	maps.Copy(x.vars, b.Vars)
	return nil
}

// SampleUsage implements cache.Index.
func (x *Index) SampleUsage(pick float64, n int) ([]cache.Usage, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ids := slices.Sorted(maps.Keys(x.usages))
	var out []cache.Usage
	at := int(pick * float64(len(ids)))
	for i := range min(n, len(ids)) {
		out = append(out, x.usages[ids[(at+i)%len(ids)]])
	}
	return out, nil
}

// WalkRecords implements cache.Index.
func (x *Index) WalkRecords(after cache.ID, fn func(cache.Record) bool) error {
	x.mu.Lock()
	ids := slices.Sorted(maps.Keys(x.records))
	x.mu.Unlock()
	for _, id := range ids {
		if id <= after {
			continue
		}
		r, err := x.Record(id)
		if err != nil {
			continue
		}
		if !fn(r) {
			break
		}
	}
	return nil
}
