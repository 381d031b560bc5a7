package buf

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/leatfs/leatfs/objstore"
)

func newPool(t testing.TB, n int) *Pool {
	t.Helper()
	p, err := New(Options{Cap: int64(n) * Size, Poison: true})
	if err != nil {
		t.Fatal(err)
	}
	p.Check(t)
	return p
}

func TestAlignedAndDistinct(t *testing.T) {
	p := newPool(t, 70)
	seen := map[*byte]bool{}
	var all []*Buf
	for range 70 {
		b := p.TryAcquire(objstore.Demand)
		if b == nil {
			t.Fatal("pool ran out early")
		}
		data := b.Bytes()
		if len(data) != Size || uintptr(unsafe.Pointer(&data[0]))%4096 != 0 || seen[&data[0]] {
			t.Fatalf("bad buffer: len %d at %p", len(data), &data[0])
		}
		seen[&data[0]] = true
		data[0], data[Size-1] = 1, 2
		all = append(all, b)
	}
	if b := p.TryAcquire(objstore.Demand); b != nil {
		t.Fatal("got more than the cap")
	}
	for _, b := range all {
		b.Release()
	}
}

func TestReserveIsForDemand(t *testing.T) {
	p := newPool(t, 64) // reserve 8
	var got []*Buf
	for {
		b := p.TryAcquire(objstore.Background)
		if b == nil {
			break
		}
		got = append(got, b)
	}
	if len(got) != 48 {
		t.Errorf("Background got %d buffers, want 48", len(got))
	}
	for {
		b := p.TryAcquire(objstore.Prefetch)
		if b == nil {
			break
		}
		got = append(got, b)
	}
	if len(got) != 56 {
		t.Errorf("Prefetch came to %d buffers, want 56", len(got))
	}
	for range 8 {
		b := p.TryAcquire(objstore.Demand)
		if b == nil {
			t.Fatal("Demand was refused the reserve")
		}
		got = append(got, b)
	}
	for _, b := range got {
		b.Release()
	}
}

func TestPriorityOrder(t *testing.T) {
	p := newPool(t, 32)
	hold, err := p.AcquireN(t.Context(), objstore.Demand, 16, nil)
	if err != nil {
		t.Fatal(err)
	}
	hold, err = p.AcquireN(t.Context(), objstore.Demand, 16, hold)
	if err != nil {
		t.Fatal(err)
	}
	order := make(chan objstore.Priority, 3)
	var wg sync.WaitGroup
	for _, prio := range []objstore.Priority{objstore.Background, objstore.Prefetch, objstore.Demand} {
		before := p.Stats().Waiting
		wg.Go(func() {
			b, err := p.Acquire(t.Context(), prio)
			if err != nil {
				t.Error(err)
				return
			}
			order <- prio
			b.Release()
		})
		for p.Stats().Waiting == before {
			time.Sleep(time.Millisecond)
		}
	}
	for i, want := range []objstore.Priority{objstore.Demand, objstore.Prefetch, objstore.Background} {
		// Release until the next waiter is served: Prefetch waits for the reserve of 4 to be whole.
		for len(order) == 0 && len(hold) > 0 {
			hold[0].Release()
			hold = hold[1:]
			time.Sleep(2 * time.Millisecond)
		}
		if got := <-order; got != want {
			t.Errorf("served %d: priority %d, want %d", i, got, want)
		}
	}
	wg.Wait()
	for _, b := range hold {
		b.Release()
	}
}

func TestCancelLeavesNothing(t *testing.T) {
	p := newPool(t, 32)
	hold, _ := p.AcquireN(t.Context(), objstore.Demand, 16, nil)
	hold, _ = p.AcquireN(t.Context(), objstore.Demand, 16, hold)
	ctx, cancel := context.WithCancel(t.Context())
	errc := make(chan error, 2)
	go func() { _, err := p.AcquireN(ctx, objstore.Demand, 10, nil); errc <- err }()
	for p.Stats().Waiting < 1 {
		time.Sleep(time.Millisecond)
	}
	small := make(chan *Buf)
	go func() { b, _ := p.Acquire(t.Context(), objstore.Demand); small <- b }()
	for p.Stats().Waiting < 2 {
		time.Sleep(time.Millisecond)
	}
	hold[0].Release() // not enough for the first waiter, which stands in front of the second
	cancel()
	if err := <-errc; !errors.Is(err, context.Canceled) {
		t.Errorf("AcquireN: %v, want Canceled", err)
	}
	(<-small).Release()
	for _, b := range hold[1:] {
		b.Release()
	}
}

func TestReclaimBeforeWaiting(t *testing.T) {
	p := newPool(t, 32)
	var mu sync.Mutex
	kept, _ := p.AcquireN(t.Context(), objstore.Demand, 16, nil)
	more, _ := p.AcquireN(t.Context(), objstore.Demand, 16, nil)
	p.SetReclaim(func(_ objstore.Priority, want int) (n int) {
		mu.Lock()
		defer mu.Unlock()
		for ; n < want && len(kept) > 0; n++ {
			kept[0].Release()
			kept = kept[1:]
		}
		return n
	})
	b, err := p.AcquireN(t.Context(), objstore.Demand, 5, nil)
	if err != nil || len(b) != 5 {
		t.Fatalf("AcquireN after reclaim: %d buffers, %v", len(b), err)
	}
	if got := p.Stats().Waits[objstore.Demand]; got != 0 {
		t.Errorf("waited %d times, want 0", got)
	}
	for _, l := range [][]*Buf{b, kept, more} {
		for _, b := range l {
			b.Release()
		}
	}
}

func TestTrimGivesMemoryBack(t *testing.T) {
	p := newPool(t, 128)
	hold, _ := p.AcquireN(t.Context(), objstore.Demand, 64, nil)
	hold, _ = p.AcquireN(t.Context(), objstore.Demand, 32, hold)
	if got := p.Stats().Resident; got != 96 {
		t.Errorf("resident %d, want 96", got)
	}
	for _, b := range hold[1:] {
		b.Release()
	}
	p.Trim() // the peak since the last Trim was 96
	if got := p.Stats().Resident; got != 96 {
		t.Errorf("resident after the first Trim %d, want 96", got)
	}
	p.Trim()
	if got := p.Stats().Resident; got != 32 {
		t.Errorf("resident after the second Trim %d, want 32", got)
	}
	hold[0].Release()
}

func TestParallel(t *testing.T) {
	p := newPool(t, 40)
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for range 300 {
				ctx, cancel := context.WithCancel(t.Context())
				if r.IntN(4) == 0 {
					cancel()
				}
				got, err := p.AcquireN(ctx, objstore.Priority(r.IntN(3)), 1+r.IntN(9), nil)
				cancel()
				if err != nil {
					continue
				}
				for _, b := range got {
					d := b.Bytes()
					d[0], d[Size-1] = byte(w), byte(w)
				}
				for _, b := range got {
					b.Retain()
					d := b.Bytes()
					if d[0] != byte(w) || d[Size-1] != byte(w) {
						t.Error("a buffer is held twice")
					}
					b.Release()
					b.Release()
				}
			}
		})
	}
	wg.Wait()
}

func TestUnreturnedIsFound(t *testing.T) {
	p, err := New(Options{Cap: 32 * Size})
	if err != nil {
		t.Fatal(err)
	}
	b := p.TryAcquire(objstore.Demand)
	if err := p.Close(); err == nil {
		t.Error("Close with a buffer out: no error")
	}
	b.Release()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	p := newPool(b, 64)
	p.poison = false
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			p.TryAcquire(objstore.Demand).Release()
		}
	})
}
