package prefetch

import (
	"container/list"
	"sync"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// Options of an Engine. The zero value means the defaults.
type Options struct {
	// Budget bounds the bytes that were asked for and not yet read, over all streams that
	// are being read; default 256 MiB.
	Budget int64
	// MaxPerStream bounds a stream's window; default 128 MiB: 32 GETs of 4 MiB, which is 2 GB/s at 20 ms and 90 MB/s per
	// connection.
	MaxPerStream int64
	// MaxStreams bounds the streams remembered over all handles; default 4096, of about
	// 300 bytes each.
	MaxStreams int
	// Now is a clock that never goes back; default the time since New.
	Now func() time.Duration
}

const (
	defaultBudget     = 256 << 20
	defaultPerStream  = 128 << 20
	defaultMaxStreams = 4096
	// idleAfter is how long a stream that is not read keeps its share of the Budget. What it asked
	// for is on disk by then, not in memory.
	idleAfter = 5 * time.Second
)

// Engine carries out the decisions of the pure half. All methods may be called in parallel.
// It starts no goroutine.
//
// Locks: Engine.mu and link.mu are leaves, never held together, nor while a Target is called.
type Engine struct {
	opt  Options
	link link

	mu       sync.Mutex
	handles  map[uint64]*handle // guarded by mu
	entries  map[*Stream]*entry // guarded by mu
	active   *list.List         // of *entry that prefetch and are read, most recent first; guarded by mu
	idle     *list.List         // of all other *entry; guarded by mu
	ahead    int64              // sum of the ledgers' ahead; guarded by mu
	pressure float64            // guarded by mu
	stats    Stats              // the sums; guarded by mu
}

// handle is an open file with at least one stream.
type handle struct {
	History
	fh uint64
}

// entry is what the engine keeps beside a Stream.
type entry struct {
	*Stream
	of     *handle
	ledger ledger
	last   time.Duration // of the last read
	place  *list.Element // in active or idle
	active bool
}

// New makes an engine.
func New(opt Options) *Engine {
	if opt.Budget <= 0 {
		opt.Budget = defaultBudget
	}
	if opt.MaxPerStream <= 0 {
		opt.MaxPerStream = defaultPerStream
	}
	if opt.MaxStreams <= 0 {
		opt.MaxStreams = defaultMaxStreams
	}
	if opt.Now == nil {
		start := time.Now()
		opt.Now = func() time.Duration { return time.Since(start) }
	}
	return &Engine{
		opt:     opt,
		handles: make(map[uint64]*handle),
		entries: make(map[*Stream]*entry),
		active:  list.New(),
		idle:    list.New(),
	}
}

// OnRead is told of a read of [off, off+n) by process pid through handle fh of a file of size
// bytes, and asks t for what should follow it. fh is a number that no other open handle
// has; pid may be 0 when unknown. Best called when the read's own fetch was begun, but
// before waiting for it. It does not wait for anything. Reads beyond the end are ignored.
func (e *Engine) OnRead(t Target, fh uint64, pid uint32, off, n, size int64) {
	if off < 0 || n <= 0 || off >= size {
		return
	}
	now := e.opt.Now()
	most := e.link.most(now, e.opt.MaxPerStream)

	e.mu.Lock()
	en := e.find(fh, pid, off, n, now)
	before := en.ledger.ahead()
	used, wasted := en.ledger.consume(off, off+n, en.high-slack)
	e.account(en, used, wasted)
	e.ahead += en.ledger.ahead() - before
	asks := en.Observe(off, n, size, now, e.limits(en, most))
	if en.sequential() {
		e.activate(en) // also if it got nothing: it needs its share of the Budget
	}
	for i, r := range asks {
		if e.ahead+r.Len > e.opt.Budget {
			en.retract(r.Off)
			asks = asks[:i]
			break
		}
		en.ledger.add(r)
		e.ahead += r.Len
	}
	e.mu.Unlock()

	for i, r := range asks {
		started := t.Prefetch(r.Off, r.Len, objstore.Prefetch)
		if started < 0 {
			e.refuse(en, asks[i:])
			return
		}
		e.settle(en, r, started)
	}
}

// find is the entry for a read, touched. e.mu is held.
func (e *Engine) find(fh uint64, pid uint32, off, n int64, now time.Duration) *entry {
	e.retire(now)
	h := e.handles[fh]
	if h == nil {
		h = &handle{fh: fh}
		e.handles[fh] = h
	}
	s, evicted := h.Place(pid, off, n)
	if evicted != nil {
		e.forget(e.entries[evicted])
	}
	en := e.entries[s]
	if en == nil {
		en = &entry{Stream: s, of: h}
		en.place = e.idle.PushFront(en)
		e.entries[s] = en
		if len(e.entries) > e.opt.MaxStreams {
			e.evict()
		}
	}
	en.last = now
	if en.active {
		e.active.MoveToFront(en.place)
	} else {
		e.idle.MoveToFront(en.place)
	}
	return en
}

// limits is what en may have now. e.mu is held.
func (e *Engine) limits(en *entry, most int64) Limits {
	streams := e.active.Len()
	if !en.active {
		streams++
	}
	// No least share: the first streams would keep it and the last get nothing.
	share := min(e.opt.Budget/int64(streams), most)
	share = int64(float64(share) * (1 - e.pressure))
	return Limits{Max: share, Streams: streams, Ramp: en.of.ramp()}
}

// activate counts en among the streams that share the Budget. e.mu is held.
func (e *Engine) activate(en *entry) {
	if en.active {
		return
	}
	e.idle.Remove(en.place)
	en.place = e.active.PushFront(en)
	en.active = true
}

// retire takes the streams that nobody read lately out of the sharing. e.mu is held.
func (e *Engine) retire(now time.Duration) {
	for {
		last := e.active.Back()
		if last == nil {
			return
		}
		en := last.Value.(*entry)
		if now-en.last < idleAfter {
			return
		}
		e.active.Remove(last)
		en.place = e.idle.PushFront(en)
		en.active = false
		e.ahead -= en.ledger.ahead()
		en.ledger.park()
	}
}

// evict forgets the least useful stream but the newest. e.mu is held.
func (e *Engine) evict() {
	last := e.idle.Back()
	if e.idle.Len() < 2 {
		last = e.active.Back()
	}
	if last == nil {
		return
	}
	en := last.Value.(*entry)
	h := en.of
	h.drop(en.Stream)
	e.forget(en)
	if len(h.streams) == 0 {
		delete(e.handles, h.fh)
	}
	e.stats.Evicted++
}

// forget takes a stream out of the tables; what it prefetched and was not read is
// wasted. e.mu is held.
func (e *Engine) forget(en *entry) {
	e.account(en, 0, en.ledger.wasted())
	e.ahead -= en.ledger.ahead()
	if en.active {
		e.active.Remove(en.place)
	} else {
		e.idle.Remove(en.place)
	}
	en.ledger.pieces, en.active = nil, false
	delete(e.entries, en.Stream)
}

// account adds to the sums. e.mu is held.
func (e *Engine) account(en *entry, used, wasted int64) {
	en.of.account(used, wasted)
	e.stats.Used += used
	e.stats.Wasted += wasted
}

// settle enters what the target began to fetch of an ask.
func (e *Engine) settle(en *entry, r Range, started int64) {
	started = min(started, r.Len)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stats.Asks++
	e.stats.Prefetched += started
	before := en.ledger.ahead()
	used, found := en.ledger.settle(r.Off, started)
	if !found { // forgotten meanwhile
		e.account(en, 0, started)
		return
	}
	e.account(en, used, 0)
	e.ahead += en.ledger.ahead() - before
}

// refuse takes back asks that the target has no room for, so that a later read asks again.
func (e *Engine) refuse(en *entry, asks []Range) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stats.Refused++
	en.retract(asks[0].Off)
	before := en.ledger.ahead()
	for _, r := range asks {
		en.ledger.settle(r.Off, 0)
	}
	e.ahead += en.ledger.ahead() - before
}

// Close drops what is known of a handle. No OnRead for it may follow or be under way.
func (e *Engine) Close(fh uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.handles[fh]
	if h == nil {
		return
	}
	for _, s := range h.streams {
		e.forget(e.entries[s])
	}
	delete(e.handles, fh)
}

// Unused tells that n bytes prefetched for a handle were thrown away unread, because their
// fetch failed or the cache needed the room: its streams become more careful. What is simply never
// read needs no telling.
func (e *Engine) Unused(fh uint64, n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if h := e.handles[fh]; h != nil {
		h.account(0, n)
	}
	e.stats.Dropped += n
}

// Pressure tells how short memory is: 0 not at all, 1 so that nothing should be
// prefetched. Windows shrink in proportion at the next reads.
func (e *Engine) Pressure(level float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pressure = min(max(level, 0), 1)
}

// Fetched tells of a GET that brought n bytes and took so long from the request to the last
// byte. From these the engine learns how much can be on its way at once, and lets no
// window be more than a few times that. Without them windows go up to MaxPerStream.
func (e *Engine) Fetched(n int64, took time.Duration) {
	e.link.fetched(n, took, e.opt.Now())
}
