package cache_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
)

// check reads [off, off+n) and compares it.
func check(o *cache.Object, want []byte, off, n int64) error {
	got, err := read(o, off, n)
	if err == nil && string(got) != string(want[off:off+n]) {
		err = errors.New("wrong bytes")
	}
	return err
}

// newGate makes a channel with what closes it, by the end of the test at the latest, lest a failed test
// wait for ever.
func newGate(t *testing.T) (<-chan struct{}, func()) {
	ch := make(chan struct{})
	open := sync.OnceFunc(func() { close(ch) })
	t.Cleanup(open)
	return ch, open
}

// TestErrorOfAnOlderDownload: a reader that joins a download begun before it, when the origin was
// still ill, does not get its error: the origin is asked once more.
func TestErrorOfAnOlderDownload(t *testing.T) {
	for _, prefetched := range []bool{false, true} {
		t.Run(fmt.Sprintf("prefetched=%v", prefetched), func(t *testing.T) {
			e := newEnv(t, 256<<20, 64)
			data, ident := e.store.put("big", 9<<20)
			gate, open := newGate(t)
			var asked atomic.Int32
			e.store.onGet = func(_ context.Context, key string, _ objstore.GetOptions) error {
				if asked.Add(1) == 1 {
					<-gate
					return unavailable(key)
				}
				return nil
			}
			o := e.object(ident)
			defer o.Release()
			var wg sync.WaitGroup
			if prefetched {
				o.Prefetch(0, 1<<20, objstore.Prefetch)
			} else {
				wg.Go(func() {
					if _, err := o.Read(t.Context(), 0, 1<<20); !errors.Is(err, errTest) {
						t.Errorf("the first reader: %v, want the origin's error", err)
					}
				})
			}
			eventually(t, "a GET", func() bool { return asked.Load() == 1 })
			before := cache.Waiting(o)
			wg.Go(func() {
				if err := check(o, data, block, 2*block); err != nil {
					t.Errorf("the reader that joined: %v", err)
				}
			})
			eventually(t, "it waits", func() bool { return cache.Waiting(o) > before })
			open()
			wg.Wait()
		})
	}
}

// TestReadersOfADeadOrigin: all who joined a download that failed get the error of the next one,
// not of one each, one after the other.
func TestReadersOfADeadOrigin(t *testing.T) {
	const readers = 10
	e := newEnv(t, 256<<20, 128)
	_, ident := e.store.put("big", 9<<20)
	first, failFirst := newGate(t)
	second, failSecond := newGate(t)
	var asked atomic.Int32
	e.store.onGet = func(_ context.Context, key string, _ objstore.GetOptions) error {
		switch asked.Add(1) {
		case 1:
			<-first
		case 2:
			<-second
		}
		return unavailable(key)
	}
	o := e.object(ident)
	defer o.Release()
	o.Prefetch(0, 1<<20, objstore.Prefetch)
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			if _, err := o.Read(t.Context(), 0, 2*block); !errors.Is(err, errTest) {
				t.Errorf("Read: %v, want the origin's error", err)
			}
		})
	}
	eventually(t, "all wait", func() bool { return cache.Waiting(o) == readers })
	failFirst()
	eventually(t, "all wait for a second download", func() bool { return asked.Load() == 2 && cache.Waiting(o) == readers })
	failSecond()
	wg.Wait()
	if n := asked.Load(); n != 2 {
		t.Errorf("the origin was asked %d times, want 2", n)
	}
}

// TestGuessesEndWithAFailure: when the origin fails a reader, prefetches of the object that have no
// answer yet are given up; one that a reader waits for is not, nor one that is being answered.
func TestGuessesEndWithAFailure(t *testing.T) {
	e := newEnv(t, 256<<20, 128)
	data, ident := e.store.put("big", 9<<20)
	const mib = 1 << 20
	var asked, stopped atomic.Int32
	failing, fail := newGate(t)
	rest, goOn := newGate(t)
	e.store.onGet = func(ctx context.Context, key string, opt objstore.GetOptions) error {
		asked.Add(1)
		switch opt.Offset {
		case 0: // the reader's own
			<-failing
			return unavailable(key)
		case mib: // a guess
			<-ctx.Done()
			stopped.Add(1)
			return ctx.Err()
		case 2 * mib: // a guess that somebody comes to wait for
			select {
			case <-ctx.Done():
				stopped.Add(1)
				return ctx.Err()
			case <-rest:
			}
		}
		return nil
	}
	var answering atomic.Bool
	e.store.onRead = func(_ string, off int64) error {
		if off == 3*mib { // a guess that is being answered
			answering.Store(true)
			<-rest
		}
		return nil
	}
	o := e.object(ident)
	defer o.Release()
	for i := range int64(3) {
		o.Prefetch((i+1)*mib, mib, objstore.Prefetch)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := check(o, data, 2*mib, mib); err != nil {
			t.Errorf("the reader of a guess: %v", err)
		}
	})
	wg.Go(func() {
		if _, err := o.Read(t.Context(), 0, mib); !errors.Is(err, errTest) {
			t.Errorf("the reader that fails: %v, want the origin's error", err)
		}
	})
	eventually(t, "all are under way", func() bool { return asked.Load() == 4 && cache.Waiting(o) == 2 && answering.Load() })
	fail()
	eventually(t, "the guess is given up", func() bool { return stopped.Load() == 1 })
	goOn()
	wg.Wait()
	if err := check(o, data, 3*mib, mib); err != nil {
		t.Error(err)
	}
	if n := stopped.Load(); n != 1 {
		t.Errorf("%d GETs were given up, want 1", n)
	}
	if n := asked.Load(); n != 4 {
		t.Errorf("the origin was asked %d times, want 4", n)
	}
}
