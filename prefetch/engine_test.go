package prefetch

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/leatfs/leatfs/objstore"
)

// target starts every fetch it is asked for, in full but for what answer says.
type target struct {
	mu     sync.Mutex
	asks   []Range
	answer func(off, n int64) int64 // nil: n
}

func (g *target) Prefetch(off, n int64, p objstore.Priority) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p != objstore.Prefetch {
		panic("priority " + objstore.Class(p).String())
	}
	g.asks = append(g.asks, Range{off, n})
	if g.answer != nil {
		return g.answer(off, n)
	}
	return n
}

func (g *target) sum() (n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.asks {
		n += r.Len
	}
	return n
}

// books checks what must hold at any time when no call is under way.
func books(t interface{ Fatalf(string, ...any) }, e *Engine) {
	st := e.Stats()
	if d := st.Prefetched - st.Used - st.Wasted - st.Waiting; d > 4096 || d < -4096 {
		t.Fatalf("prefetched is not used + wasted + waiting by %d: %+v", d, st)
	}
	if st.Ahead > e.opt.Budget || st.Ahead < -4096 || st.Streams > e.opt.MaxStreams || st.Active > st.Streams {
		t.Fatalf("out of bounds: %+v, options %+v", st, e.opt)
	}
	var sum int64
	for _, en := range e.entries {
		sum += en.ledger.ahead()
	}
	if sum != st.Ahead {
		t.Fatalf("ahead is %d, the ledgers say %d", st.Ahead, sum)
	}
	var streams int
	for _, h := range e.handles {
		streams += len(h.streams)
	}
	if streams != st.Streams || e.active.Len()+e.idle.Len() != streams {
		t.Fatalf("%d streams in handles, %d in lists: %+v", streams, e.active.Len()+e.idle.Len(), st)
	}
}

func TestBudget(t *testing.T) {
	var now time.Duration
	e := New(Options{Budget: 64 << 20, Now: func() time.Duration { return now }})
	const size = 1 << 30
	// 100 readers, all in full swing: no more than the budget in all, and a fair part each.
	var targets [100]target
	for i := range 64 {
		for fh := range targets {
			now += 10 * time.Microsecond
			e.OnRead(&targets[fh], uint64(fh), 1, int64(i)<<20, 1<<20, size)
			books(t, e)
		}
	}
	st := e.Stats()
	if st.Active != 100 || st.Ahead < 32<<20 {
		t.Errorf("want 100 active streams that use most of the budget: %+v", st)
	}
	least := int64(size)
	for i := range targets {
		least = min(least, targets[i].sum())
	}
	if least < 24<<20 { // a window is 0.64 MiB, a read 1 MiB
		t.Errorf("the worst served of 100 readers of 64 MiB got %d bytes", least)
	}
	// All stop but one: it has the budget for itself a little later.
	now += idleAfter
	for i := range int64(64) {
		now += 5 * time.Millisecond
		e.OnRead(&targets[0], 0, 1, (64+i)<<20, 1<<20, size)
		books(t, e)
	}
	if st := e.Stats(); st.Active != 1 || st.Ahead < 60<<20 {
		t.Errorf("one reader left: %+v", st)
	}
	// Another comes back: what it had asked for is still known to be its own.
	used := e.Stats().Used
	e.OnRead(&targets[1], 1, 1, 64<<20, 1<<20, size)
	books(t, e)
	if got := e.Stats().Used; got <= used {
		t.Errorf("a reader that comes back: used %d, was %d", got, used)
	}
}

func TestTableIsBounded(t *testing.T) {
	e := New(Options{MaxStreams: 50})
	rng := rand.New(rand.NewPCG(1, 1))
	var g target
	for range 5000 {
		e.OnRead(&g, rng.Uint64N(1000), 1, rng.Int64N(1<<40), 4096, 1<<41)
	}
	books(t, e)
	if st := e.Stats(); st.Streams != 50 || st.Handles > 50 || st.Evicted != 4950 {
		t.Errorf("%+v", st)
	}
	for fh := range uint64(1000) {
		e.Close(fh)
	}
	if st := e.Stats(); st.Streams != 0 || st.Handles != 0 {
		t.Errorf("after Close: %+v", st)
	}
}

func TestResident(t *testing.T) {
	e := New(Options{})
	g := target{answer: func(off, n int64) int64 { return 0 }}
	for i := range int64(20) {
		e.OnRead(&g, 1, 1, i<<20, 1<<20, 1<<30)
		books(t, e)
	}
	if st := e.Stats(); st.Prefetched != 0 || st.Ahead != 0 || st.Asks == 0 {
		t.Errorf("all was there already: %+v", st)
	}
}

func TestRefused(t *testing.T) {
	e := New(Options{})
	room := false
	g := target{answer: func(off, n int64) int64 {
		if room {
			return n
		}
		return Refused
	}}
	e.OnRead(&g, 1, 1, 0, 1<<20, 1<<30)
	if len(g.asks) != 1 {
		t.Fatalf("asked %d times after a refusal", len(g.asks))
	}
	books(t, e)
	room = true
	e.OnRead(&g, 1, 1, 1<<20, 1<<20, 1<<30)
	books(t, e)
	if len(g.asks) < 3 || g.asks[1].Off > 2<<20 {
		t.Errorf("asks after a refusal: %v", g.asks)
	}
	if st := e.Stats(); st.Refused != 1 {
		t.Errorf("%+v", st)
	}
}

func TestPressure(t *testing.T) {
	e := New(Options{})
	var g target
	e.Pressure(1)
	for i := range int64(4) {
		e.OnRead(&g, 1, 1, i<<20, 1<<20, 1<<30)
	}
	if len(g.asks) != 0 {
		t.Errorf("under full pressure: %v", g.asks)
	}
	e.Pressure(0.75)
	for i := int64(4); i < 40; i++ {
		e.OnRead(&g, 1, 1, i<<20, 1<<20, 1<<30)
	}
	if st := e.Stats(); st.Ahead < 8<<20 || st.Ahead > 32<<20 {
		t.Errorf("at three quarters: %+v", st)
	}
}

// TestUnused: a handle whose prefetch is thrown away has small windows.
func TestUnused(t *testing.T) {
	e := New(Options{})
	var g target
	e.OnRead(&g, 1, 1, 0, 1<<20, 1<<30)
	e.Unused(1, 100<<20)
	e.Unused(2, 1) // no such handle
	for i := int64(1); i < 16; i++ {
		e.OnRead(&g, 1, 1, i<<20, 1<<20, 1<<30)
	}
	if st := e.Stats(); st.Windows > 8<<20 || st.Dropped != 100<<20+1 {
		t.Errorf("%+v", st)
	}
}

func TestOddReads(t *testing.T) {
	e := New(Options{})
	var g target
	for _, r := range [][3]int64{{-1, 10, 100}, {0, 0, 100}, {100, 10, 100}, {0, 10, 0}, {200, 10, 100}} {
		e.OnRead(&g, 1, 1, r[0], r[1], r[2])
	}
	e.OnRead(&g, 1, 1, 0, 1<<40, 100) // longer than the file
	books(t, e)
	if len(g.asks) != 0 {
		t.Errorf("%v", g.asks)
	}
}

// TestProperties: whatever is read, asks are within the file and aligned, none is repeated
// unless it was refused, and the books balance.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var now time.Duration
		budget := rapid.Int64Range(1<<20, 128<<20).Draw(t, "budget")
		e := New(Options{Budget: budget, MaxStreams: 20, Now: func() time.Duration { return now }})
		size := rapid.Int64Range(1, 300<<20).Draw(t, "size")
		refuse := rapid.IntRange(0, 5).Draw(t, "refuse 1 in")
		count := 0
		g := &target{}
		g.answer = func(off, n int64) int64 {
			if off%Block != 0 || n <= 0 || off+n > size || (off+n)%Block != 0 && off+n != size {
				t.Fatalf("Prefetch(%d, %d) of a file of %d bytes", off, n, size)
			}
			if count++; refuse > 0 && count%refuse == 0 {
				return Refused
			}
			return n / 2
		}
		var at [4]int64
		for range rapid.IntRange(1, 200).Draw(t, "reads") {
			now += time.Duration(rapid.IntRange(0, 200).Draw(t, "ms")) * time.Millisecond
			i := rapid.IntRange(0, 3).Draw(t, "reader")
			n := rapid.SampledFrom([]int64{4096, 128 << 10, 1 << 20}).Draw(t, "n")
			switch rapid.IntRange(0, 20).Draw(t, "move") {
			case 0:
				at[i] = rapid.Int64Range(0, size).Draw(t, "seek")
			case 1:
				at[i] = max(0, at[i]-rapid.Int64Range(0, 8<<20).Draw(t, "back"))
			case 2:
				e.Close(uint64(i % 2))
			}
			e.OnRead(g, uint64(i%2), uint32(i), at[i], n, size)
			at[i] += n
			books(t, e)
		}
	})
}

func TestParallel(t *testing.T) {
	e := New(Options{Budget: 32 << 20, MaxStreams: 30})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			g := target{answer: func(off, n int64) int64 { return rng.Int64N(n+n/4) - n/4 }}
			for i := range int64(500) {
				off := i << 20
				if i%50 == 0 {
					off = rng.Int64N(1 << 30)
				}
				e.OnRead(&g, uint64(w/2), uint32(w), off, 1<<20, 1<<30)
				e.Fetched(1<<20, 30*time.Millisecond)
				e.Pressure(rng.Float64())
				e.Stats()
			}
		})
	}
	wg.Wait()
	books(t, e)
	for fh := range uint64(4) {
		e.Close(fh)
	}
	if st := e.Stats(); st.Streams != 0 || st.Ahead != 0 || st.Waiting != 0 {
		t.Errorf("after Close: %+v", st)
	}
}

// TestLink: the window follows what the link can hold.
func TestLink(t *testing.T) {
	const limit = 1 << 30
	var l link
	if got := l.most(0, limit); got != limit {
		t.Errorf("nothing measured: %d", got)
	}
	// 1 GB/s in fetches of 2 MiB that take 45 ms: 45 MB on their way.
	var now time.Duration
	for ; now < 3*time.Second; now += time.Millisecond {
		l.fetched(1e6, 10*time.Millisecond, now) // small: says nothing of the time
		if now%(2*time.Millisecond) == 0 {
			l.fetched(2<<20, 45*time.Millisecond, now)
		}
	}
	want := headroom * 0.045 * (1e9 + float64(1<<20)/1e-3)
	if got := float64(l.most(now, limit)); got < want*0.95 || got > want*1.05 {
		t.Errorf("most is %.0f, want about %.0f", got, want)
	}
	if got := l.most(now, 10<<20); got != 10<<20 {
		t.Errorf("beyond the limit: %d", got)
	}
	// Long idle: nothing is known any more.
	if got := l.most(now+time.Minute, limit); got != limit {
		t.Errorf("after a minute: %d", got)
	}
	for now = 2 * time.Minute; now < 3*time.Minute; now += 100 * time.Millisecond {
		l.fetched(1<<20, 30*time.Millisecond, now)
	}
	if got := l.most(now, limit); got != leastWindow {
		t.Errorf("a slow link: %d, want %d", got, int64(leastWindow))
	}
}

func TestCollector(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	e := New(Options{})
	reg.MustRegister(e.Collector())
	var g target
	e.OnRead(&g, 1, 1, 0, 1<<20, 1<<30)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "leatfs_prefetch_") {
			t.Errorf("name %q", f.GetName())
		}
		if f.GetName() == "leatfs_prefetch_bytes_total" {
			found = f.Metric[0].Counter.GetValue() == float64(g.sum())
		}
	}
	if !found {
		t.Error("leatfs_prefetch_bytes_total is missing or wrong")
	}
}

func BenchmarkOnRead(b *testing.B) {
	e := New(Options{})
	g := target{}
	var off int64
	for b.Loop() {
		e.OnRead(&g, 1, 1, off, 128<<10, 1<<50)
		off += 128 << 10
		if len(g.asks) > 1000 {
			g.asks = g.asks[:0]
		}
	}
}
