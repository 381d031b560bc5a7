package cache_test

import (
	"errors"
	"testing"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
)

func TestSmallObject(t *testing.T) {
	e := newEnv(t, 64<<20, 64)
	for _, n := range []int{1, 100, 4096, 110_000, block, block + 1, 3<<20 + 77} {
		data, ident := e.store.put(keyOf(n), n)
		gets, whole, heads := e.store.counts()
		o := e.object(ident)
		if err := o.Fetch(t.Context()); err != nil {
			t.Fatalf("%d bytes: Fetch: %v", n, err)
		}
		if got := o.State(); got != cache.Proven {
			t.Errorf("%d bytes: state %v, want Proven", n, got)
		}
		e.wantLent(o, data)
		e.wantRead(o, data, 0, int64(n)+5)
		g, w, h := e.store.counts()
		if g-gets != 1 || w-whole != 1 || h-heads != 0 {
			t.Errorf("%d bytes: %d GETs (%d whole) and %d HEADs, want one whole GET", n, g-gets, w-whole, h-heads)
		}
		o.Release()
	}
	if n := e.Stats().Memory.InUse; n != 0 {
		t.Errorf("%d buffers in use, want 0: the page cache has the data", n)
	}
}

func TestEmptyObject(t *testing.T) {
	e := newEnv(t, 64<<20, 64)
	_, ident := e.store.put("empty", 0)
	o := e.object(ident)
	defer o.Release()
	if err := o.Fetch(t.Context()); err != nil || !o.Complete() || o.Passthroughable() {
		t.Errorf("empty object: Fetch %v, complete %v, passthroughable %v", err, o.Complete(), o.Passthroughable())
	}
	e.wantRead(o, nil, 0, 10)
}

func TestColdSequentialRead(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	data, ident := e.store.put("big", 20<<20+1234)
	o := e.object(ident)
	defer o.Release()
	for off := int64(0); off < ident.Size; off += 1 << 20 {
		o.Prefetch(off+1<<20, 4<<20, objstore.Prefetch)
		e.wantRead(o, data, off, 1<<20)
	}
	eventually(t, "complete", o.Complete)
	if got := o.State(); got != cache.Proven {
		t.Errorf("state %v, want Proven", got)
	}
	e.wantLent(o, data)
	s := e.Stats()
	if s.OriginBytes != uint64(ident.Size) {
		t.Errorf("%d bytes from the origin, want %d", s.OriginBytes, ident.Size)
	}
	if _, _, heads := e.store.counts(); heads != 1 {
		t.Errorf("%d HEADs, want 1", heads)
	}
	if s.PrefetchWasted != 0 || s.PrefetchUsed == 0 {
		t.Errorf("prefetch used %d, wasted %d", s.PrefetchUsed, s.PrefetchWasted)
	}
}

func TestWarmAfterRestart(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	data, ident := e.store.put("big", 9<<20+5)
	small, sident := e.store.put("small", 110_000)
	o := e.object(ident)
	if err := o.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	id := o.ID()
	o.Release()
	o = e.object(sident)
	if err := o.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.Release()
	e.restart(false)
	gets, _, heads := e.store.counts()
	o = e.object(ident)
	if o.ID() != id || o.State() != cache.Proven || !o.Passthroughable() {
		t.Errorf("after restart: id %d (was %d), state %v", o.ID(), id, o.State())
	}
	e.wantLent(o, data)
	e.wantRead(o, data, 0, ident.Size)
	e.wantRead(o, data, block-3, 10)
	o.Release()
	o = e.object(sident)
	e.wantLent(o, small)
	e.wantRead(o, small, 5, 100)
	o.Release()
	if g, _, h := e.store.counts(); g != gets || h != heads {
		t.Errorf("a warm cache made %d GETs and %d HEADs", g-gets, h-heads)
	}
}

func TestPartialAfterRestart(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	data, ident := e.store.put("big", 9<<20+5)
	o := e.object(ident)
	e.wantRead(o, data, 3*block, 4*block)
	eventually(t, "resident", func() bool { return o.ResidentBytes() == 4*block })
	o.Release()
	e.restart(false)
	o = e.object(ident)
	defer o.Release()
	if got := o.ResidentBytes(); got != 4*block {
		t.Errorf("resident %d, want %d", got, 4*block)
	}
	if o.Missing(3*block, 4*block) || !o.Missing(2*block, 2*block) {
		t.Error("Missing is wrong after restart")
	}
	gets, _, _ := e.store.counts()
	e.wantRead(o, data, 3*block+7, 4*block-7)
	if g, _, _ := e.store.counts(); g != gets {
		t.Error("resident blocks were fetched again")
	}
	if err := o.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.wantLent(o, data)
	if got := e.Stats().OriginBytes; got != uint64(ident.Size)-4*block {
		t.Errorf("%d bytes fetched, want %d", got, ident.Size-4*block)
	}
}

func TestLendNeedsAll(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	data, ident := e.store.put("big", 9<<20)
	o := e.object(ident)
	defer o.Release()
	e.wantRead(o, data, 0, 1<<20)
	if _, err := o.Lend(); !errors.Is(err, cache.ErrIncomplete) {
		t.Errorf("Lend: %v, want ErrIncomplete", err)
	}
}
