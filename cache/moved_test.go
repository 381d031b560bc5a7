package cache_test

import (
	"context"
	"testing"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/cache/cachetest"
	"github.com/leatfs/leatfs/objstore"
)

// move has the store hold the object under another key and ETag, as after a copy, and not under the old one.
func (s *origin) move(from, to, etag string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := *s.objects[from]
	x.etag, x.md5 = etag, false
	s.objects[to] = &x
	delete(s.objects, from)
}

// moved calls Moved, with the store's own move in between.
func (e *env) moved(from cache.Identity, key, etag string) cache.Identity {
	e.Helper()
	to := from
	to.Key, to.ETag = key, etag
	commit, err := e.Moved(from, to)
	if err != nil {
		e.Fatal(err)
	}
	e.store.move(from.Key, key, etag)
	commit(true)
	return to
}

// TestMoved: an object that the origin has copied to another key is read on there, by those who have it
// open and by others, and what is here of it is not fetched again, also after a restart.
func TestMoved(t *testing.T) {
	e := newEnv(t, 64<<20, 64)
	data, a := e.store.put("a", 9<<20)
	o := e.object(a)
	e.wantRead(o, data, 0, 2<<20)
	b := e.moved(a, "b", "new-2")
	e.wantRead(o, data, 2<<20, 3<<20)
	p := e.object(b)
	if p != o {
		t.Error("the new identity is another object")
	}
	p.Release()
	if got := o.Identity(); got != b {
		t.Errorf("it is %+v", got)
	}
	gets, _, _ := e.store.counts()
	e.wantRead(o, data, 0, 5<<20)
	if now, _, _ := e.store.counts(); now != gets {
		t.Errorf("%d GETs of what was here", now-gets)
	}
	if err := o.Fetch(context.Background()); err != nil {
		t.Fatal(err)
	}
	if o.State() != cache.Proven {
		t.Errorf("state %v", o.State())
	}
	e.wantLent(o, data)
	c := e.moved(b, "c", "newer-2") // of one that is complete
	o.Release()
	for _, crash := range []bool{false, true} {
		e.eventuallyFound(c)
		e.restart(crash)
		gets, _, _ = e.store.counts()
		o = e.object(c)
		if !o.Complete() {
			t.Errorf("crash %v: not complete", crash)
		}
		e.wantRead(o, data, 0, 9<<20)
		o.Release()
		if now, _, _ := e.store.counts(); now != gets {
			t.Errorf("crash %v: %d GETs", crash, now-gets)
		}
	}
	// An index that is lost is made anew of the labels.
	e.close()
	e.index = cachetest.NewIndex()
	e.cfg.Index = e.index
	e.open()
	if err := e.Reconcile(context.Background()); err != nil {
		t.Fatal(err)
	}
	gets, _, _ = e.store.counts()
	o = e.object(c)
	e.wantRead(o, data, 0, 9<<20)
	o.Release()
	if now, _, _ := e.store.counts(); now != gets {
		t.Errorf("index lost: %d GETs", now-gets)
	}
}

func (e *env) eventuallyFound(i cache.Identity) {
	e.Helper()
	eventually(e, "the record of the new identity", func() bool {
		_, err := e.index.Find(i)
		return err == nil
	})
}

// TestMovedNot: where the caller's change did not come about, nothing is another than before.
func TestMovedNot(t *testing.T) {
	e := newEnv(t, 64<<20, 64)
	data, a := e.store.put("a", 1<<20)
	o := e.object(a)
	defer o.Release()
	to := a
	to.Key = "b"
	commit, err := e.Moved(a, to)
	if err != nil {
		t.Fatal(err)
	}
	commit(false)
	e.wantRead(o, data, 0, 1<<20)
	if b := e.object(to); b == o {
		t.Error("the identity that came to nothing leads to the object")
	} else {
		b.Release()
	}
}

// TestMovedMeanwhile: a request for what has just been moved is made again at the new place.
func TestMovedMeanwhile(t *testing.T) {
	e := newEnv(t, 64<<20, 64)
	data, a := e.store.put("a", 4<<20)
	o := e.object(a)
	defer o.Release()
	once := false
	e.store.onGet = func(_ context.Context, key string, _ objstore.GetOptions) error {
		if once {
			return nil
		}
		once = true
		e.moved(a, "b", "new-2")
		return &objstore.Error{Op: "GET", Key: key, Kind: objstore.NotFound}
	}
	e.wantRead(o, data, 0, 128<<10)
	e.wantRead(o, data, 0, 4<<20)
}

// TestMovedOver: an object of the same bytes that is open under the new key stays what it is.
func TestMovedOver(t *testing.T) {
	e := newEnv(t, 64<<20, 64)
	data, a := e.store.put("a", 4<<20)
	b := a
	b.Key = "b"
	e.store.objects["b"] = e.store.objects["a"]
	p := e.object(b)
	defer p.Release()
	e.wantRead(p, data, 0, 1<<20)
	o := e.object(a)
	defer o.Release()
	e.wantRead(o, data, 0, 1<<20)
	e.moved(a, "b", a.ETag)
	e.wantRead(o, data, 0, 4<<20)
	e.wantRead(p, data, 0, 4<<20)
}
