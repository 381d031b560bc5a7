package prefetch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// sim is a link, a cache and readers in simulated time, which goes on in steps of tick.
type sim struct {
	latency time.Duration // to the first byte
	perConn float64       // bytes/s of a connection
	total   float64       // bytes/s of all together
	conns   int           // at once

	engine *Engine
	now    time.Duration
	files  []*simFile
	queue  []*simFetch // waiting for a connection, demand first
	flying []*simFetch
	most   int // most connections at once
}

const tick = 100 * time.Microsecond

func newSim(opt Options) *sim {
	s := &sim{latency: 20 * time.Millisecond, perConn: 90e6, total: 1.5e9, conns: 128}
	opt.Now = func() time.Duration { return s.now }
	s.engine = New(opt)
	return s
}

// simFile is an object and, by block, whether it is there, asked for, or neither.
type simFile struct {
	s       *sim
	size    int64
	blocks  []simBlock
	demand  int64 // bytes fetched because a reader waited
	room    int64 // bytes that may be on their way by prefetch, 0 for any
	flyingB int64
}

type simBlock struct{ there, coming bool }

type simFetch struct {
	f        *simFile
	off, end int64
	at       float64 // how far it is, bytes
	starts   time.Duration
	began    time.Duration
	demand   bool
}

func (s *sim) file(size int64) *simFile {
	f := &simFile{s: s, size: size, blocks: make([]simBlock, (size+Block-1)/Block)}
	s.files = append(s.files, f)
	return f
}

// Prefetch implements Target: consecutive absent blocks become one fetch.
func (f *simFile) Prefetch(off, n int64, p objstore.Priority) int64 {
	if off%Block != 0 || off < 0 || n <= 0 || off+n > f.size || (off+n)%Block != 0 && off+n != f.size {
		panic(fmt.Sprintf("Prefetch(%d, %d) of a file of %d bytes", off, n, f.size))
	}
	if f.room > 0 && f.flyingB+n > f.room && p != objstore.Demand {
		return Refused
	}
	var started int64
	for b := off / Block; b*Block < off+n; b++ {
		if f.blocks[b].there || f.blocks[b].coming {
			continue
		}
		first := b
		for ; b*Block < off+n && !f.blocks[b].there && !f.blocks[b].coming; b++ {
			f.blocks[b].coming = true
		}
		fe := &simFetch{f: f, off: first * Block, end: min(b*Block, f.size), demand: p == objstore.Demand}
		started += fe.end - fe.off
		if fe.demand {
			i := slices.IndexFunc(f.s.queue, func(q *simFetch) bool { return !q.demand })
			if i < 0 {
				i = len(f.s.queue)
			}
			f.s.queue = slices.Insert(f.s.queue, i, fe)
		} else {
			f.flyingB += fe.end - fe.off
			f.s.queue = append(f.s.queue, fe)
		}
	}
	return started
}

// there tells whether a reader can have [off, end).
func (f *simFile) there(off, end int64) bool {
	for b := off / Block; b*Block < end; b++ {
		if !f.blocks[b].there {
			return false
		}
	}
	return true
}

// step lets the link work for one tick.
func (s *sim) step() {
	s.now += tick
	for len(s.queue) > 0 && len(s.flying) < s.conns {
		fe := s.queue[0]
		s.queue = s.queue[1:]
		fe.began, fe.starts, fe.at = s.now, s.now+s.latency, float64(fe.off)
		s.flying = append(s.flying, fe)
	}
	s.most = max(s.most, len(s.flying))
	var moving int
	for _, fe := range s.flying {
		if fe.starts <= s.now {
			moving++
		}
	}
	if moving == 0 {
		return
	}
	each := min(s.perConn, s.total/float64(moving)) * tick.Seconds()
	s.flying = slices.DeleteFunc(s.flying, func(fe *simFetch) bool {
		if fe.starts > s.now {
			return false
		}
		before := int64(fe.at)
		fe.at = min(fe.at+each, float64(fe.end))
		for b := before / Block; b*Block < fe.end; b++ {
			if float64(min((b+1)*Block, fe.end)) > fe.at {
				break
			}
			fe.f.blocks[b].there = true
		}
		if fe.at < float64(fe.end) {
			return false
		}
		if !fe.demand {
			fe.f.flyingB -= fe.end - fe.off
		}
		s.engine.Fetched(fe.end-fe.off, s.now-fe.began)
		return true
	})
}

// simReader reads what next says, n bytes at a time, several reads at once as the kernel's
// readahead does.
type simReader struct {
	f     *simFile
	fh    uint64
	pid   uint32
	n     int64         // bytes of one read
	depth int           // reads on their way
	speed float64       // bytes/s that it can take, 0 for any
	next  func() int64  // offset of the next read, < 0 at the end
	busy  time.Duration // until when it works on what it has read
	open  []Range
	done  bool
	read  int64
}

// sequential reads [from, to).
func sequential(from, to, n int64) func() int64 {
	return func() int64 {
		if from >= to {
			return -1
		}
		from += n
		return from - n
	}
}

func (r *simReader) step(s *sim) {
	for !r.done {
		for len(r.open) < r.depth {
			off := r.next()
			if off < 0 {
				r.done = len(r.open) == 0
				break
			}
			n := min(r.n, r.f.size-off)
			r.f.s.engine.OnRead(r.f, r.fh, r.pid, off, n, r.f.size)
			from := off / Block * Block
			r.f.demand += r.f.Prefetch(from, min(alignUp(off+n, Block), r.f.size)-from, objstore.Demand)
			r.open = append(r.open, Range{off, n})
		}
		if r.done || s.now < r.busy || !r.f.there(r.open[0].Off, r.open[0].End()) {
			return
		}
		n := r.open[0].Len
		r.read += n
		r.open = r.open[1:]
		if r.speed > 0 {
			r.busy = max(r.busy, s.now-tick) + time.Duration(float64(n)/r.speed*1e9)
		}
	}
}

// run lets all readers come to their end and returns how long it took.
func (s *sim) run(t *testing.T, readers ...*simReader) time.Duration {
	t.Helper()
	start := s.now
	for {
		busy := false
		for _, r := range readers {
			r.step(s)
			busy = busy || !r.done
		}
		if !busy {
			return s.now - start
		}
		s.step()
		if s.now > time.Hour {
			t.Fatal("no end after an hour")
		}
	}
}

func mb(n int64, d time.Duration) float64 { return float64(n) / 1e6 / d.Seconds() }

// ideal is the time that n bytes need with the link always full.
func (s *sim) ideal(n int64) time.Duration {
	return s.latency + time.Duration(float64(n)/min(s.total, float64(s.conns)*s.perConn)*1e9)
}

// check closes all handles and holds the books against each other.
func (s *sim) check(t *testing.T, fhs ...uint64) Stats {
	t.Helper()
	before := s.engine.Stats()
	if d := before.Prefetched - before.Used - before.Wasted - before.Waiting; d > 64 || d < -64 {
		t.Errorf("prefetched is not used + wasted + waiting: %+v", before)
	}
	for _, fh := range fhs {
		s.engine.Close(fh)
	}
	st := s.engine.Stats()
	if st.Streams != 0 || st.Handles != 0 || st.Active != 0 || st.Ahead != 0 || st.Waiting != 0 {
		t.Errorf("after Close: %+v", st)
	}
	return st
}

// TestSimSequential: a reader that takes 2 GB/s, as a copy through FUSE does at best. What is
// missing to the ideal is the start: 1 GiB is a second's work, and requests of 4 MiB, which
// spare processor time, fill a fast link a little later than smaller ones.
func TestSimSequential(t *testing.T) {
	const size = 1 << 30
	for _, tc := range []struct {
		name  string
		total float64
		n     int64
		depth int
		min   float64
	}{
		{"400 MB/s, reads of 128 KiB", 400e6, 128 << 10, 2, 0.97},
		{"400 MB/s, one read of 1 MiB at a time", 400e6, 1 << 20, 1, 0.97},
		{"1 GB/s, reads of 128 KiB", 1e9, 128 << 10, 2, 0.93},
		{"1 GB/s, reads of 1 MiB", 1e9, 1 << 20, 2, 0.93},
		{"1.5 GB/s, one read of 128 KiB at a time", 1.5e9, 128 << 10, 1, 0.88},
		{"1.5 GB/s, reads of 1 MiB", 1.5e9, 1 << 20, 4, 0.92},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSim(Options{})
			s.total = tc.total
			f := s.file(size)
			took := s.run(t, &simReader{f: f, fh: 1, pid: 1, n: tc.n, depth: tc.depth, speed: 2e9, next: sequential(0, size, tc.n)})
			ratio := s.ideal(size).Seconds() / took.Seconds()
			most := s.most
			st := s.check(t, 1)
			t.Logf("%.0f MB/s, %.3f of ideal, %d connections at most, %d GETs of prefetch, %.1f MiB by demand",
				mb(size, took), ratio, most, st.Asks, float64(f.demand)/(1<<20))
			if ratio < tc.min {
				t.Errorf("%.3f of the ideal, want %.2f", ratio, tc.min)
			}
			if st.Wasted != 0 || st.Used != size-f.demand {
				t.Errorf("demand %d, %+v", f.demand, st)
			}
		})
	}
}

// TestSimInterleaved: eight processes share one descriptor of a file, or have one each.
func TestSimInterleaved(t *testing.T) {
	const size, parts = 2 << 30, 8
	for _, shared := range []bool{true, false} {
		t.Run(fmt.Sprintf("shared=%v", shared), func(t *testing.T) {
			s := newSim(Options{})
			f := s.file(size)
			var readers []*simReader
			var fhs []uint64
			for i := range int64(parts) {
				fh := uint64(1)
				if !shared {
					fh = uint64(i + 1)
				}
				fhs = append(fhs, fh)
				readers = append(readers, &simReader{f: f, fh: fh, pid: uint32(100 + i), n: 1 << 20, depth: 2, speed: 2e9,
					next: sequential(i*size/parts, (i+1)*size/parts, 1<<20)})
			}
			took := s.run(t, readers...)
			ratio := s.ideal(size).Seconds() / took.Seconds()
			st := s.check(t, fhs...)
			t.Logf("%.0f MB/s, %.3f of ideal, %d connections at most, %d GETs of prefetch", mb(size, took), ratio, s.most, st.Asks)
			if ratio < 0.95 {
				t.Errorf("%.3f of the ideal, want 0.95", ratio)
			}
			if st.Wasted > 0 {
				t.Errorf("wasted: %+v", st)
			}
		})
	}
}

// TestSimShards: eight processes read shards of 128 MiB one after the other.
func TestSimShards(t *testing.T) {
	const size, each, procs = 128 << 20, 4, 8
	s := newSim(Options{})
	s.conns = 64
	var readers []*simReader
	for i := range procs {
		r := &simReader{pid: uint32(i), n: 1 << 20, depth: 2, speed: 2e9}
		var shard int
		next := func() int64 { return -1 }
		r.next = func() int64 {
			off := next()
			if off < 0 && shard < each && len(r.open) == 0 {
				if shard > 0 {
					s.engine.Close(r.fh)
				}
				shard++
				r.fh++
				r.f = s.file(size)
				next = sequential(0, size, r.n)
				off = next()
			}
			return off
		}
		r.fh = uint64(i * 1000)
		readers = append(readers, r)
	}
	took := s.run(t, readers...)
	var fhs []uint64
	for _, r := range readers {
		fhs = append(fhs, r.fh)
	}
	const all = size * each * procs
	ratio := s.ideal(all).Seconds() / took.Seconds()
	st := s.check(t, fhs...)
	t.Logf("%.0f MB/s, %.3f of ideal, %d connections at most, %d GETs of prefetch", mb(all, took), ratio, s.most, st.Asks)
	if ratio < 0.95 {
		t.Errorf("%.3f of the ideal, want 0.95", ratio)
	}
}

// TestSimRandom: random reads prefetch nothing.
func TestSimRandom(t *testing.T) {
	const size, threads, each = 1 << 30, 8, 500
	for _, n := range []int64{4 << 10, 128 << 10} {
		s := newSim(Options{})
		f := s.file(size)
		rng := rand.New(rand.NewPCG(1, uint64(n)))
		var readers []*simReader
		for i := range threads {
			left := each
			readers = append(readers, &simReader{f: f, fh: 1, pid: uint32(i), n: n, depth: 1, next: func() int64 {
				if left--; left < 0 {
					return -1
				}
				return (1 + rng.Int64N(size/n-1)) * n
			}})
		}
		s.run(t, readers...)
		if st := s.check(t, 1); st.Asks != 0 || st.Prefetched != 0 {
			t.Errorf("reads of %d: %+v", n, st)
		}
	}
}

// TestSimRecords: records of 1 MiB at random places, each several READs, waste little.
func TestSimRecords(t *testing.T) {
	const size, record, n = 4 << 30, 1 << 20, 128 << 10
	s := newSim(Options{})
	f := s.file(size)
	rng := rand.New(rand.NewPCG(2, 2))
	var at, end int64
	left := 500
	r := &simReader{f: f, fh: 1, pid: 1, n: n, depth: 4}
	r.next = func() int64 {
		if at == end {
			if left--; left < 0 {
				return -1
			}
			at = (1 + rng.Int64N(size/record-1)) * record
			end = at + record
		}
		at += n
		return at - n
	}
	s.run(t, r)
	st := s.check(t, 1)
	t.Logf("read %d MiB, prefetched %.1f MiB, wasted %.1f MiB", r.read>>20, float64(st.Prefetched)/(1<<20), float64(st.Wasted)/(1<<20))
	if st.Wasted > r.read/10 {
		t.Errorf("wasted %d of %d bytes read", st.Wasted, r.read)
	}
}

// TestSimStop: a reader that stops wastes at most First and Ramp for each byte it read.
func TestSimStop(t *testing.T) {
	for _, stop := range []int64{128 << 10, 1 << 20, 4 << 20, 16 << 20} {
		s := newSim(Options{})
		f := s.file(1 << 30)
		s.run(t, &simReader{f: f, fh: 1, pid: 1, n: 128 << 10, depth: 1, next: sequential(0, stop, 128<<10)})
		st := s.check(t, 1)
		t.Logf("stopped after %.1f MiB: wasted %.1f MiB", float64(stop)/(1<<20), float64(st.Wasted)/(1<<20))
		if limit := First + Ramp*stop; st.Wasted > min(limit, defaultPerStream) {
			t.Errorf("stopped after %d: wasted %d, want %d at most", stop, st.Wasted, limit)
		}
	}
}

// TestSimSlowReader: a reader of 5 MB/s has no large window, and never waits once begun.
func TestSimSlowReader(t *testing.T) {
	const size, speed = 64 << 20, 5e6
	s := newSim(Options{})
	f := s.file(1 << 30)
	took := s.run(t, &simReader{f: f, fh: 1, pid: 1, n: 128 << 10, depth: 1, speed: speed, next: sequential(0, size, 128<<10)})
	st := s.check(t, 1)
	want := time.Duration(size / speed * 1e9)
	t.Logf("took %v, at its speed %v, wasted %.1f MiB", took, want, float64(st.Wasted)/(1<<20))
	if took > want+100*time.Millisecond || st.Wasted > 10<<20 {
		t.Errorf("took %v, want %v; %+v", took, want, st)
	}
}

// TestSimRefused: with room for little, a stream goes on at the speed that the room allows.
func TestSimRefused(t *testing.T) {
	const size, room = 512 << 20, 32 << 20
	s := newSim(Options{})
	f := s.file(size)
	f.room = room
	took := s.run(t, &simReader{f: f, fh: 1, pid: 1, n: 1 << 20, depth: 2, next: sequential(0, size, 1<<20)})
	st := s.check(t, 1)
	t.Logf("%.0f MB/s with room for %d MiB, refused %d times, %d MiB by demand", mb(size, took), room>>20, st.Refused, f.demand>>20)
	if st.Refused == 0 || mb(size, took) < 500 {
		t.Errorf("%.0f MB/s: %+v", mb(size, took), st)
	}
}
