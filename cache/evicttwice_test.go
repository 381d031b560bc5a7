package cache_test

import (
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/cache/cachetest"
)

// heldIndex is an index that deletes nothing before it is told to, and whose answers may be old.
type heldIndex struct {
	*cachetest.Index
	once           sync.Once
	deleting, goOn chan struct{}
	asked          func() // called after a record was read
}

func (x *heldIndex) Apply(b cache.Batch) error {
	if len(b.Delete) > 0 {
		x.once.Do(func() { close(x.deleting) })
		<-x.goOn
	}
	return x.Index.Apply(b)
}

func (x *heldIndex) Record(id cache.ID) (cache.Record, error) {
	r, err := x.Index.Record(id)
	if x.asked != nil {
		x.asked()
	}
	return r, err
}

// TestNotEvictedTwice: a file that is being removed when it is chosen to be evicted counts once.
func TestNotEvictedTwice(t *testing.T) {
	x := &heldIndex{deleting: make(chan struct{}), goOn: make(chan struct{})}
	e := newEnv(t, 64<<20, 64, func(c *cache.Config) {
		x.Index = c.Index.(*cachetest.Index)
		c.Index = x
	})
	_, other := e.store.put("b", 300_000)
	e.fetched(other).Release()
	used := e.Stats().Dirs[0].Used
	_, ident := e.store.put("a", 300_000)
	o := e.fetched(ident)
	id := o.ID()
	eventually(t, "indexed", func() bool {
		_, uerr := e.index.Usage(id)
		r, err := e.index.Record(id)
		return err == nil && uerr == nil && r.State.Complete()
	})
	path := e.path(id)
	o.Doom()
	o.Release()
	eventually(t, "deleted", func() bool {
		select {
		case <-x.deleting:
			return true
		default:
			return false
		}
	})
	times := 0
	x.asked = func() {
		if times++; times == 2 { // the ledger is done before the answer is looked at
			close(x.goOn)
			eventually(t, "removed", func() bool { _, err := os.Lstat(path); return errors.Is(err, os.ErrNotExist) })
		}
	}
	if cache.Evict(e.Cache, id) {
		t.Fatal("it was evicted")
	}
	if times < 2 {
		t.Fatal("the index was not asked; the test shows nothing")
	}
	eventually(t, "the other alone counts", func() bool { return e.Stats().Dirs[0].Used == used })
}
