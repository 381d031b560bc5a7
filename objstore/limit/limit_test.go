package limit_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/limit"
	"github.com/leatfs/leatfs/objstore/memstore"
)

// server answers after latency, and throttles what exceeds bears in flight.
type server struct {
	objstore.Store
	mu        sync.Mutex
	inFlight  int
	most      int
	served    int
	throttled int
	bears     func(key string) int
	order     []string
}

func newServer(latency time.Duration, bears func(key string) int) *server {
	s := &server{bears: bears}
	mem := memstore.New()
	for i := range 8 {
		mem.Set(fmt.Sprintf("g%d/k", i), make([]byte, 1000))
	}
	by := map[string]int{}
	s.Store = objstore.Around(mem, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
		s.mu.Lock()
		g := op.Key[:2]
		s.inFlight++
		by[g]++
		s.most = max(s.most, s.inFlight)
		s.order = append(s.order, op.Key)
		refused := by[g] > s.bears(op.Key)
		if refused {
			s.throttled++
		} else {
			s.served++
		}
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			s.inFlight--
			by[g]--
			s.mu.Unlock()
		}()
		if refused {
			time.Sleep(latency / 10)
			return &objstore.Error{Op: op.Name, Key: op.Key, Kind: objstore.Throttled}
		}
		time.Sleep(latency)
		return call(ctx)
	})
	return s
}

func any(string) int { return 1 << 30 }

func put(ctx context.Context, s objstore.Store, key string) error {
	_, err := s.Copy(ctx, "g0/k", key, objstore.CopyOptions{})
	return err
}

// load keeps n requests wanted for a while, and reports how many succeeded.
func load(t *testing.T, s objstore.Store, n int, d time.Duration, key func() string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	ok := 0
	for range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				err := put(ctx, s, key())
				if objstore.Is(err, objstore.Throttled) {
					time.Sleep(time.Duration(rand.N(int64(200 * time.Millisecond))))
				} else if err == nil {
					mu.Lock()
					ok++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return ok
}

func idle(t *testing.T, s *limit.Store) {
	t.Helper()
	for _, x := range []limit.Slots{s.Snapshot().Data, s.Snapshot().Meta} {
		if x.InFlight != 0 || x.Waiting != [3]int{} {
			t.Errorf("slots are not back: %+v", x)
		}
	}
}

func TestGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(20*time.Millisecond, any)
		s := limit.New(srv, limit.Options{})
		load(t, s, 300, time.Second, func() string { return "g1/x" })
		if srv.most != 128 {
			t.Errorf("%d in flight at most, want 128", srv.most)
		}
		idle(t, s)
	})
}

func TestDoesNotGrowUnused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limit.New(newServer(20*time.Millisecond, any), limit.Options{})
		load(t, s, 10, time.Second, func() string { return "g1/x" })
		if got := s.Snapshot().Data.Limit; got != 32 {
			t.Errorf("the limit is %d, want 32 as at the start", got)
		}
	})
}

// The limit settles near what the store bears.
func TestSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(20*time.Millisecond, func(string) int { return 40 })
		s := limit.New(srv, limit.Options{})
		ok := load(t, s, 300, 20*time.Second, func() string { return "g1/x" })
		best := 40 * 50 * 20
		t.Logf("%d of %d served, %d throttled, limit %d", ok, best, srv.throttled, s.Snapshot().Data.Limit)
		if ok < best*7/10 {
			t.Errorf("%d requests served, want at least 70%% of %d", ok, best)
		}
		if srv.throttled > ok/20 {
			t.Errorf("%d throttled beside %d served", srv.throttled, ok)
		}
		idle(t, s)
	})
}

// One throttled group does not slow the others.
func TestGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(20*time.Millisecond, func(key string) int {
			if key[:2] == "g0" {
				return 2
			}
			return 1 << 30
		})
		s := limit.New(srv, limit.Options{})
		i := 0
		var mu sync.Mutex
		load(t, s, 200, 5*time.Second, func() string {
			mu.Lock()
			defer mu.Unlock()
			i++
			return fmt.Sprintf("g%d/x", i%4)
		})
		snap := s.Snapshot().Data
		for _, g := range snap.Groups {
			t.Logf("%+v", g)
			if g.Name == "g0" && (g.Limit > 8 || g.Throttled == 0) || g.Name != "g0" && g.Limit < 32 {
				t.Errorf("group %s has limit %d, throttled %d", g.Name, g.Limit, g.Throttled)
			}
		}
		if snap.Limit < 24 {
			t.Errorf("the store's limit fell to %d", snap.Limit)
		}
	})
}

// Demand goes first, and finds a slot even where prefetch wants all.
func TestPriorities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(time.Second, any)
		s := limit.New(srv, limit.Options{Max: 8, Start: 8})
		var wg sync.WaitGroup
		send := func(pr objstore.Priority, key string) {
			wg.Go(func() {
				if err := put(objstore.WithPriority(t.Context(), pr), s, key); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(time.Millisecond) // so that slots come free one by one
		}
		inFlight := func() int {
			srv.mu.Lock()
			defer srv.mu.Unlock()
			return srv.inFlight
		}
		for i := range 10 {
			send(objstore.Prefetch, fmt.Sprintf("g1/prefetch%d", i))
		}
		if n := inFlight(); n != 6 {
			t.Errorf("%d prefetches in flight, want 6 of 8 slots", n)
		}
		send(objstore.Demand, "g1/demand0")
		send(objstore.Demand, "g1/demand1")
		if n := inFlight(); n != 8 {
			t.Errorf("%d in flight, want demand beside prefetch", n)
		}
		send(objstore.Background, "g1/background")
		send(objstore.Demand, "g1/demand2")
		send(objstore.Demand, "g2/demand3")
		wg.Wait()
		want := []string{"g1/demand2", "g2/demand3", "g1/prefetch6", "g1/prefetch7", "g1/prefetch8", "g1/prefetch9", "g1/background"}
		if got := srv.order[8:]; !slices.Equal(got, want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
		idle(t, s)
	})
}

// TestRaised: a prefetch that a reader comes to wait for goes before the others of its kind.
func TestRaised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(time.Second, any)
		s := limit.New(srv, limit.Options{Max: 2, Start: 2})
		var wg sync.WaitGroup
		send := func(key string) (raised chan struct{}) {
			raised = make(chan struct{})
			ctx := objstore.WithRaised(objstore.WithPriority(t.Context(), objstore.Prefetch), raised)
			wg.Go(func() {
				if err := put(ctx, s, key); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(time.Millisecond)
			return raised
		}
		send("g1/under way")
		send("g1/first")
		close(send("g1/wanted")) // takes the slot that is Demand's at once
		late := send("g1/late")
		synctest.Wait()
		close(late)
		wg.Wait()
		if want := []string{"g1/under way", "g1/wanted", "g1/late", "g1/first"}; !slices.Equal(srv.order, want) {
			t.Errorf("got  %v\nwant %v", srv.order, want)
		}
		idle(t, s)
	})
}

func TestOneSlotServesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limit.New(newServer(time.Second, any), limit.Options{Max: 1})
		for pr := objstore.Demand; pr <= objstore.Background; pr++ {
			if err := put(objstore.WithPriority(t.Context(), pr), s, "g1/x"); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestCancelWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limit.New(newServer(time.Second, any), limit.Options{Max: 1})
		go func() { _ = put(t.Context(), s, "g1/x") }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := put(ctx, s, "g1/y"); !objstore.Is(err, objstore.Canceled) {
			t.Errorf("got %v, want canceled", err)
		}
		time.Sleep(2 * time.Second)
		idle(t, s)
	})
}

// A body holds its slot until its end, its error or its Close, and gives it back once.
func TestBodyHoldsSlot(t *testing.T) {
	s := limit.New(newServer(0, any), limit.Options{})
	get := func() *objstore.Reader {
		r, err := s.Get(t.Context(), "g1/k", objstore.GetOptions{Length: -1})
		if err != nil {
			t.Fatal(err)
		}
		if n := s.Snapshot().Data.InFlight; n != 1 {
			t.Errorf("%d in flight, want 1", n)
		}
		return r
	}
	r := get()
	if _, err := io.ReadAll(r.Body); err != nil {
		t.Error(err)
	}
	idle(t, s)
	_ = r.Body.Close()
	idle(t, s)
	r = get()
	_ = r.Body.Close()
	_ = r.Body.Close()
	idle(t, s)
}

// HEAD and LIST do not queue behind data.
func TestMetaSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limit.New(newServer(time.Second, any), limit.Options{Max: 1})
		r, err := s.Get(t.Context(), "g1/k", objstore.GetOptions{Length: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		start := time.Now()
		if _, err := s.Head(t.Context(), "g1/k", objstore.HeadOptions{}); err != nil || time.Since(start) != time.Second {
			t.Errorf("HEAD beside a download: %v after %v", err, time.Since(start))
		}
	})
}

// The number of groups is bounded.
func TestManyGroups(t *testing.T) {
	s := limit.New(newServer(0, any), limit.Options{})
	for i := range 1000 {
		if err := put(t.Context(), s, fmt.Sprintf("g1-%d/x", i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.Snapshot().Data.Groups); n > 65 {
		t.Errorf("%d groups are held", n)
	}
	synctest.Test(t, func(t *testing.T) {
		s := limit.New(newServer(time.Second, any), limit.Options{Max: 200, Start: 200})
		load(t, s, 100, 3*time.Second, func() string { return fmt.Sprintf("g1-%d/x", rand.N(1000)) })
		if n := len(s.Snapshot().Data.Groups); n > 65 {
			t.Errorf("%d groups are held", n)
		}
		idle(t, s)
	})
}

func BenchmarkUncontended(b *testing.B) {
	s := limit.New(memstore.New(), limit.Options{})
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_, _ = s.ListParts(context.Background(), "k/x", "u")
		}
	})
}
