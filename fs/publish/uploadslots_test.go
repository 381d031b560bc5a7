package publish

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// TestFair: with one slot, a large file does not keep a second one waiting for its end.
func TestFair(t *testing.T) {
	w := newWorld(t, Options{Parallel: 1})
	var mu sync.Mutex
	var order []string
	w.hook = func(op objstore.Op, _ int) (fate, func()) {
		if op.Name == "PUT PART" {
			mu.Lock()
			order = append(order, op.Key)
			mu.Unlock()
			time.Sleep(2 * time.Millisecond)
		}
		return pass, nil
	}
	var wg sync.WaitGroup
	wg.Go(func() { w.publish(Job{Key: "A", File: file(t, random(68, 40*part))}) })
	w.until("PUT PART", 3)
	wg.Go(func() { w.publish(Job{Key: "b", File: file(t, random(69, 5*part))}) })
	wg.Wait()
	s := strings.Join(order, "")
	i, j := strings.Index(s, "b"), strings.LastIndex(s, "b")
	if n := strings.Count(s[i:j], "A"); n > 8 {
		t.Errorf("b did not get its turns: %s", s)
	}
}

// TestParallel: never more parts than allowed, of all jobs together.
func TestParallel(t *testing.T) {
	w := newWorld(t, Options{Parallel: 3})
	now, most := 0, 0
	var mu sync.Mutex
	w.p.store = objstore.Around(w.mem, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
		if op.Name == "PUT PART" {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(time.Millisecond)
			defer func() { mu.Lock(); now--; mu.Unlock() }()
		}
		return call(ctx)
	})
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() { w.publish(Job{Key: fmt.Sprint(i), File: file(t, random(70, 10*part))}) })
	}
	wg.Wait()
	if most != 3 {
		t.Errorf("%d at once, want 3", most)
	}
}

// TestSlotsCanceled: who stops waiting takes nothing with it.
func TestSlotsCanceled(t *testing.T) {
	s := &slots{free: 2}
	var wg sync.WaitGroup
	for range 8 {
		l := s.lane()
		for range 4 {
			wg.Go(func() {
				for range 200 {
					ctx, cancel := context.WithCancel(t.Context())
					wg.Go(cancel)
					if l.acquire(ctx) == nil {
						l.release()
					}
					cancel()
				}
			})
		}
	}
	wg.Wait()
	if s.free != 2 || len(s.lanes) != 0 {
		t.Errorf("%d free, %d wait", s.free, len(s.lanes))
	}
}

// TestSlotsFewest: a free slot goes to who has the fewest, not to who asked first.
func TestSlotsFewest(t *testing.T) {
	s := &slots{free: 2}
	a, b := s.lane(), s.lane()
	for range 2 {
		if err := a.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan string, 2)
	var wg sync.WaitGroup
	for i, l := range []*lane{a, b} {
		wg.Go(func() {
			if l.acquire(t.Context()) == nil {
				got <- string("ab"[i])
			}
		})
		for waiting := 0; waiting != i+1; time.Sleep(time.Millisecond) {
			s.mu.Lock()
			waiting = len(s.lanes)
			s.mu.Unlock()
		}
	}
	a.release()
	if who := <-got; who != "b" {
		t.Errorf("%s got it", who)
	}
	a.release()
	wg.Wait()
}
