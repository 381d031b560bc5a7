package fs

import (
	"cmp"
	"errors"
	"path"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/publish"
)

// With ReuseParts the index remembers what the parts of published objects hold, so that those of the next version of
// a file, or of the next checkpoint, can be copied by the store where they are the same. A
// record names one version of one object; nothing is copied of another, whatever has become of it since. So
// records need not be kept in step with anything: one that is lost or too old costs a request.

const (
	// reuseMin is the size in bytes from which on a file is sent in parts.
	reuseMin = 16<<20 + 1
	// reuseObjects and reuseParts bound what is remembered: how many objects, and of how many parts in all (40
	// bytes each, in the index). The oldest is forgotten.
	reuseObjects = 4096
	reuseParts   = 400_000
	// reuseSources is how many objects a file is compared with.
	reuseSources = 3
)

// reuse knows which objects have a record. All methods may be called in parallel; of one that is off they do nothing.
type reuse struct {
	db *meta.DB // nil: off

	mu    sync.Mutex // a leaf lock
	known map[string]*knownParts
	alike map[string][]*knownParts // by family
	parts int                      // of all

	bytes, copied atomic.Int64 // that were not sent; objects of which some were not
}

// knownParts is an object that has a record.
type knownParts struct {
	key   string
	at    int64
	parts int
}

// ReuseStats is what was not sent because the store had it.
type ReuseStats struct {
	On    bool  `json:"on"`
	Able  bool  `json:"able"`           // the store copies parts of objects
	Files int64 `json:"files"`          // of which some was not sent, since this process began
	Bytes int64 `json:"bytes"`          // that were not sent
	Known int   `json:"known"`          // objects that can be compared with
	Parts int   `json:"parts,omitzero"` // of them
}

// open reads which records there are, and forgets all when it is to be off.
func (r *reuse) open(db *meta.DB, on bool) error {
	var all []*knownParts
	if err := db.WalkParts(func(p *meta.Parts) { all = append(all, &knownParts{p.Key, p.At, len(p.Sums)}) }); err != nil {
		return err
	}
	if !on {
		for _, k := range all {
			if err := db.Do(func(tx *meta.Tx) error { return tx.ClearParts(k.key) }); err != nil {
				return err
			}
		}
		return nil
	}
	r.db, r.known, r.alike = db, make(map[string]*knownParts), make(map[string][]*knownParts)
	for _, k := range all {
		r.add(k)
	}
	return nil
}

// add notes that an object has a record. By mu, or before there is anybody else.
func (r *reuse) add(k *knownParts) {
	r.drop(k.key)
	r.known[k.key] = k
	family := publish.Family(k.key)
	r.alike[family] = append(r.alike[family], k)
	r.parts += k.parts
}

// drop is the opposite of add; it tells whether there was one.
func (r *reuse) drop(key string) bool {
	k := r.known[key]
	if k == nil {
		return false
	}
	delete(r.known, key)
	family := publish.Family(key)
	rest := slices.DeleteFunc(r.alike[family], func(o *knownParts) bool { return o == k })
	if r.alike[family] = rest; len(rest) == 0 {
		delete(r.alike, family)
	}
	r.parts -= k.parts
	return true
}

// excess takes out the oldest while there are too many, and returns their keys. By mu.
func (r *reuse) excess() (out []string) {
	for len(r.known) > reuseObjects || r.parts > reuseParts {
		var oldest *knownParts
		for _, k := range r.known {
			if oldest == nil || k.at < oldest.at {
				oldest = k
			}
		}
		r.drop(oldest.key)
		out = append(out, oldest.key)
	}
	return out
}

// find returns what content of some size is to be compared with that goes under a key, the most likely first: what was
// under the key before; then those of the family (keys that differ in numbers only) with the same last name; with
// most numbers in common; the newest.
func (r *reuse) find(key string, size int64) (out []publish.Reuse) {
	if r.db == nil || size < reuseMin {
		return nil
	}
	type candidate struct {
		*knownParts
		rank int
	}
	var all []candidate
	r.mu.Lock()
	for _, k := range r.alike[publish.Family(key)] {
		c := candidate{k, publish.Likeness(key, k.key)}
		switch {
		case k.key == key:
			c.rank += 2000
		case path.Base(k.key) == path.Base(key):
			c.rank += 1000
		}
		all = append(all, c)
	}
	r.mu.Unlock()
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(b.at, a.at), cmp.Compare(a.key, b.key))
	})
	for _, c := range all[:min(len(all), reuseSources)] {
		p, err := r.db.Parts(c.key)
		if err != nil {
			continue // it was forgotten meanwhile, or the index tells of its state elsewhere
		}
		one := publish.Reuse{Key: p.Key, ETag: p.ETag, VersionID: p.VersionID, Size: p.Size, PartSize: p.PartSize, Parts: make([]publish.PartSum, len(p.Sums))}
		for i, s := range p.Sums {
			one.Parts[i] = publish.PartSum(s)
		}
		out = append(out, one)
	}
	return out
}

// published notes what an object holds that was put under a key, in place of what was known of that key.
func (r *reuse) published(key string, version *meta.Object, at int64, out *publish.Outcome) error {
	if r.db == nil {
		return nil
	}
	if out.Reused > 0 {
		r.bytes.Add(out.Reused)
		r.copied.Add(1)
	}
	gone := slices.DeleteFunc(slices.Clone(out.ReuseFailed), func(k string) bool { return k == key })
	if n := len(out.Parts); n < 2 || n > meta.MaxParts || version.ETag == "" {
		return r.forget(append(gone, key)...)
	}
	p := meta.Parts{Key: key, ETag: version.ETag, VersionID: version.VersionID, Size: version.Size, PartSize: out.PartSize, At: at,
		Sums: make([]meta.PartSum, len(out.Parts))}
	for i, s := range out.Parts {
		p.Sums[i] = meta.PartSum(s)
	}
	return errors.Join(r.set(&p), r.forget(gone...))
}

// moved notes that the store has copied an object to another key.
func (r *reuse) moved(from *meta.Object, key string, version *meta.Object) error {
	if r.db == nil {
		return nil
	}
	if !r.knows(from.Key) {
		return r.forget(key)
	}
	p, err := r.db.Parts(from.Key)
	if err != nil || p.ETag != from.ETag || p.Size != version.Size || version.ETag == "" {
		return r.forget(key)
	}
	p.Key, p.ETag, p.VersionID = key, version.ETag, version.VersionID
	return r.set(&p)
}

// knows tells whether an object has a record.
func (r *reuse) knows(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[key] != nil
}

// set writes a record.
func (r *reuse) set(p *meta.Parts) error {
	if err := r.db.Do(func(tx *meta.Tx) error { return tx.SetParts(p) }); err != nil {
		return err
	}
	r.mu.Lock()
	r.add(&knownParts{p.Key, p.At, len(p.Sums)})
	gone := r.excess()
	r.mu.Unlock()
	return r.clear(gone)
}

// forget drops records, where there are some.
func (r *reuse) forget(keys ...string) error {
	if r.db == nil {
		return nil
	}
	r.mu.Lock()
	keys = slices.DeleteFunc(keys, func(k string) bool { return !r.drop(k) })
	r.mu.Unlock()
	return r.clear(keys)
}

func (r *reuse) clear(keys []string) error {
	for _, k := range keys {
		if err := r.db.Do(func(tx *meta.Tx) error { return tx.ClearParts(k) }); err != nil {
			return err
		}
	}
	return nil
}

// noteParts notes what has landed of a file.
func (f *FS) noteParts(w *work, version *meta.Object, out *publish.Outcome) {
	var err error
	if w.in.Stage == 0 && w.in.Kind == meta.KindFile {
		err = f.reuse.moved(&w.in.Object, w.key, version)
	} else {
		err = f.reuse.published(w.key, version, f.now(), out)
	}
	if err != nil {
		f.log.Warn("what an object's parts hold cannot be remembered; the next version will be sent whole", "key", w.key, "err", err)
	}
}

// ReuseStats tells what was not sent because the store had it.
func (f *FS) ReuseStats() ReuseStats {
	r := &f.reuse
	c := f.store.Caps()
	out := ReuseStats{On: r.db != nil, Able: publish.CanReuse(&c), Files: r.copied.Load(), Bytes: r.bytes.Load()}
	r.mu.Lock()
	defer r.mu.Unlock()
	out.Known, out.Parts = len(r.known), r.parts
	return out
}
