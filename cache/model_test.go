package cache_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
)

// TestModel runs random operations on a small cache over a few objects and compares every
// byte with the origin's, over restarts, kills, replaced versions and failing GETs.
func TestModel(t *testing.T) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		defer f.Value.Set(f.DefValue)
		if err := f.Value.Set("25"); err != nil { // some 25 seconds under the race detector
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(r *rapid.T) {
		e := newEnv(t, 12<<20, 48, func(c *cache.Config) {
			c.SmallLimit = 1 << 20
			c.MaxGet = 1 << 20
			c.FlushEvery = time.Millisecond
		})
		defer func() { // this cache must not live until the end of the test
			e.close()
		}()
		m := &model{e: e, open: map[string]*held{}}
		for i, n := range []int{1, block - 1, block, 700_000, 3 << 20, 4<<20 + 3, 18 << 20} {
			m.sizes = append(m.sizes, n)
			m.put(i)
		}
		r.Repeat(map[string]func(*rapid.T){
			"open":     m.openObject,
			"read":     m.read,
			"read2":    m.read,
			"read3":    m.read,
			"prefetch": m.prefetch,
			"fetch":    m.fetch,
			"lend":     m.lend,
			"release":  m.release,
			"replace":  m.replace,
			"faults":   func(r *rapid.T) { m.setFaults(rapid.IntRange(0, 4).Draw(r, "every")) },
			"restart": func(r *rapid.T) {
				m.releaseAll()
				e.restart(rapid.Bool().Draw(r, "crash"))
				if rapid.Bool().Draw(r, "maintain") {
					if err := e.Maintain(context.Background()); err != nil {
						r.Fatal(err)
					}
				}
			},
			"": func(r *rapid.T) {
				if use := e.diskUse(e.dir); use > 12<<20 {
					r.Fatalf("%d bytes on disk", use)
				}
			},
		})
		m.releaseAll()
	})
}

type model struct {
	e      *env
	sizes  []int
	gen    int
	faulty bool
	open   map[string]*held
}

// held is an object in use, with the bytes of its version.
type held struct {
	o     *cache.Object
	data  []byte
	stale bool
	lent  int
}

func (m *model) put(i int) {
	m.gen++
	opts := []func(*stored){func(*stored) {}, withCRC32C, onlyMD5, noChecksum}[(i+m.gen)%4]
	m.e.store.put(keyOf(i), m.sizes[i], opts)
	x := m.e.store.objects[keyOf(i)]
	// Another content for each version, and checksums to go with it.
	for k := m.gen % 64; k < len(x.data); k += 64 {
		x.data[k] ^= byte(m.gen)
	}
	refresh(x)
}

func (m *model) setFaults(every int) {
	n := 0
	m.e.store.mu.Lock()
	defer m.e.store.mu.Unlock()
	m.faulty = every > 0
	m.e.store.onRead = nil
	if m.faulty {
		m.e.store.onRead = func(key string, off int64) error {
			m.e.store.mu.Lock()
			defer m.e.store.mu.Unlock()
			if n++; n%(every*3) == 0 {
				return unavailable(key)
			}
			return nil
		}
	}
}

func (m *model) pick(r *rapid.T) *held {
	if len(m.open) == 0 {
		r.Skip("nothing is open")
	}
	i := rapid.IntRange(0, len(m.sizes)-1).Draw(r, "object")
	for k := range m.sizes {
		if h := m.open[keyOf((i+k)%len(m.sizes))]; h != nil {
			return h
		}
	}
	r.Skip("nothing is open")
	return nil
}

func (m *model) openObject(r *rapid.T) {
	i := rapid.IntRange(0, len(m.sizes)-1).Draw(r, "object")
	key := keyOf(i)
	if m.open[key] != nil {
		r.Skip("open")
	}
	x := m.e.store.objects[key]
	o := m.e.object(cache.Identity{Origin: m.e.store.String(), Key: key, ETag: x.etag, Size: int64(len(x.data))})
	m.open[key] = &held{o: o, data: bytes.Clone(x.data)}
}

// tolerable tells whether err may happen in the state that the model is in.
func (m *model) tolerable(h *held, err error) bool {
	switch {
	case err == nil:
		return true
	case errors.Is(err, cache.ErrStale):
		return h.stale
	case objstore.Is(err, objstore.Unavailable):
		return m.faulty
	case errors.Is(err, cache.ErrNotKept), errors.Is(err, cache.ErrIncomplete):
		return true
	}
	return false
}

func (m *model) read(r *rapid.T) {
	h := m.pick(r)
	size := int64(len(h.data))
	off := rapid.Int64Range(0, size-1).Draw(r, "off")
	n := rapid.Int64Range(1, 1<<20).Draw(r, "n")
	if rapid.Bool().Draw(r, "aligned") {
		off &^= block - 1
	}
	d, err := h.o.Read(context.Background(), off, n)
	if err != nil {
		if !m.tolerable(h, err) {
			r.Fatalf("read %d at %d: %v", n, off, err)
		}
		return
	}
	defer d.Release()
	got := d.AppendTo(nil)
	if len(got) == 0 || !bytes.Equal(got, h.data[off:off+int64(len(got))]) {
		r.Fatalf("read %d at %d: %d wrong bytes", n, off, len(got))
	}
}

func (m *model) prefetch(r *rapid.T) {
	h := m.pick(r)
	off := rapid.Int64Range(0, int64(len(h.data))).Draw(r, "off")
	h.o.Prefetch(off, rapid.Int64Range(0, 8<<20).Draw(r, "n"), objstore.Priority(rapid.IntRange(0, 2).Draw(r, "priority")))
}

func (m *model) fetch(r *rapid.T) {
	h := m.pick(r)
	if err := h.o.Fetch(context.Background()); !m.tolerable(h, err) {
		r.Fatalf("fetch: %v", err)
	}
}

func (m *model) lend(r *rapid.T) {
	h := m.pick(r)
	f, err := h.o.Lend()
	if err != nil {
		if !m.tolerable(h, err) {
			r.Fatal(err)
		}
		return
	}
	defer f.Close()
	got := make([]byte, len(h.data)+1)
	n, _ := f.ReadAt(got, 0)
	if !bytes.Equal(got[:n], h.data) {
		r.Fatal("the lent file has wrong bytes")
	}
	h.lent++
	if h.lent > 1 || rapid.Bool().Draw(r, "return") {
		h.lent--
		h.o.Return()
	}
}

func (m *model) drop(key string, h *held) {
	for ; h.lent > 0; h.lent-- {
		h.o.Return()
	}
	h.o.Release()
	delete(m.open, key)
}

func (m *model) release(r *rapid.T) {
	h := m.pick(r)
	if h.stale || rapid.IntRange(0, 9).Draw(r, "doom") == 0 {
		h.o.Doom()
	}
	m.drop(h.o.Identity().Key, h)
}

func (m *model) releaseAll() {
	for key, h := range m.open {
		m.drop(key, h)
	}
}

func (m *model) replace(r *rapid.T) {
	i := rapid.IntRange(0, len(m.sizes)-1).Draw(r, "object")
	m.put(i)
	if h := m.open[keyOf(i)]; h != nil {
		h.stale = true
	}
}
