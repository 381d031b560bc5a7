// Package buf is the memory that data passes through: one pool of 128 KiB buffers outside
// the Go heap, with a hard cap, shared by all that moves bytes.
//
// The pool grows slab by slab as buffers are wanted and never beyond its cap. Buffers are
// aligned to 4 KiB, so that they may be used with O_DIRECT, and their pages are there before
// they are handed out. When all buffers are taken, a caller first asks the holder of
// reclaimable ones (SetReclaim) and then waits; waiters are served by priority, and in order
// within one priority. A part of the pool is kept for objstore.Demand, so that readers who
// wait are never stopped by guesses.
//
// A goroutine that waits for a buffer should hold none that others need to go on; who
// needs several at once asks for all of them in one call.
package buf

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/leatfs/leatfs/objstore"
)

// Size is the size of a buffer in bytes: the cache's block.
const Size = 128 << 10

// slabBufs is how many buffers the pool grows by: 4 MiB, two huge pages, and small
// enough that the time to pre-fault it (about 1 ms) is not seen.
const slabBufs = 32

// MinBuffers is the smallest pool that makes sense: a few reads of 1 MiB beside the reserve.
const MinBuffers = 32

// Options makes a Pool.
type Options struct {
	// Cap is the hard limit in bytes. It is rounded down to whole buffers.
	Cap int64
	// Poison overwrites buffers when they are given back, so that tests find uses after
	// release.
	Poison bool
}

// Pool hands out buffers. All methods may be called in parallel.
//
// Lock order: mu is innermost; nothing is called while it is held.
type Pool struct {
	arena   []byte
	bufs    []Buf
	poison  bool
	reserve int // buffers that only Demand may take

	reclaim atomic.Pointer[func(p objstore.Priority, want int) int]
	waiting atomic.Int32 // waiters in all queues

	mu        sync.Mutex
	slabs     []slab
	hint      int // no slab below it has a free buffer
	free      int // buffers not handed out, whether their slab is populated or not
	populated int // slabs with memory
	peak      int // most buffers in use since the last Trim
	queues    [3]queue
	waits     [3]uint64
	closed    bool
}

// slab is slabBufs neighbouring buffers; the last one of a pool may be shorter.
type slab struct {
	free      uint32 // bit i: buffer i is free
	all       uint32
	populated bool
}

// Buf is one buffer, counted by references. The one who acquired it holds the first.
type Buf struct {
	p    *Pool
	i    int
	refs atomic.Int32
}

// waiter waits for n buffers; got is written once, before ready is closed.
type waiter struct {
	n          int
	got        []*Buf
	ready      chan struct{}
	prev, next *waiter
	queued     bool
}

// queue is a list of waiters in order of arrival.
type queue struct{ head, tail *waiter }

func (q *queue) push(w *waiter) {
	w.prev, w.next, w.queued = q.tail, nil, true
	if q.tail != nil {
		q.tail.next = w
	} else {
		q.head = w
	}
	q.tail = w
}

func (q *queue) remove(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		q.head = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		q.tail = w.prev
	}
	w.prev, w.next, w.queued = nil, nil, false
}

// New makes a pool. It reserves address space for the cap, not memory.
func New(opt Options) (*Pool, error) {
	n := int(opt.Cap / Size)
	if n < MinBuffers {
		return nil, fmt.Errorf("buf: a pool of %d bytes is too small, the least is %d", opt.Cap, MinBuffers*Size)
	}
	arena, err := mapArena(n * Size)
	if err != nil {
		return nil, fmt.Errorf("buf: cannot map %d bytes of memory: %w", n*Size, err)
	}
	p := &Pool{arena: arena, bufs: make([]Buf, n), poison: opt.Poison, reserve: max(n/8, 1), free: n}
	for i := range p.bufs {
		p.bufs[i].p, p.bufs[i].i = p, i
	}
	for left := n; left > 0; left -= slabBufs {
		all := uint32(1)<<min(left, slabBufs) - 1
		if left >= slabBufs {
			all = ^uint32(0)
		}
		p.slabs = append(p.slabs, slab{free: all, all: all})
	}
	return p, nil
}

// SetReclaim names the one who can give back buffers that are merely kept. fn is called
// without locks of the pool, from goroutines that want buffers at priority p, possibly in
// parallel; it releases up to want buffers and returns how many. It must not wait.
func (p *Pool) SetReclaim(fn func(p objstore.Priority, want int) int) { p.reclaim.Store(&fn) }

// Buffers returns the cap as a number of buffers.
func (p *Pool) Buffers() int { return len(p.bufs) }

// Waiting tells whether anybody waits for a buffer.
func (p *Pool) Waiting() bool { return p.waiting.Load() > 0 }

// TryAcquire returns a buffer if one can be had at once, after reclaiming, else nil.
func (p *Pool) TryAcquire(prio objstore.Priority) *Buf {
	var one [1]*Buf
	got := p.try(prio, 1, one[:0])
	if got == nil && p.doReclaim(prio, 1) > 0 {
		got = p.try(prio, 1, one[:0])
	}
	if got == nil {
		return nil
	}
	return got[0]
}

// Acquire waits for a buffer. The error is ctx's.
func (p *Pool) Acquire(ctx context.Context, prio objstore.Priority) (*Buf, error) {
	var one [1]*Buf
	got, err := p.AcquireN(ctx, prio, 1, one[:0])
	if err != nil {
		return nil, err
	}
	return got[0], nil
}

// AcquireN waits until n buffers can be had together and appends them to dst. It takes all
// or none, so that no two callers can hold half of what the other needs. n must not exceed
// half of the pool.
func (p *Pool) AcquireN(ctx context.Context, prio objstore.Priority, n int, dst []*Buf) ([]*Buf, error) {
	if n > len(p.bufs)/2 {
		return nil, fmt.Errorf("buf: %d buffers asked for at once, the pool has %d", n, len(p.bufs))
	}
	if got := p.try(prio, n, dst); got != nil {
		return got, nil
	}
	if p.doReclaim(prio, n) > 0 {
		if got := p.try(prio, n, dst); got != nil {
			return got, nil
		}
	}
	w := &waiter{n: n, ready: make(chan struct{})}
	p.mu.Lock()
	p.queues[prio].push(w)
	p.waits[prio]++
	p.waiting.Add(1)
	p.grant()
	p.mu.Unlock()
	// What became reclaimable while the waiter was not yet in the queue told nobody.
	p.Nudge()
	select {
	case <-w.ready:
		return append(dst, w.got...), nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	if w.queued {
		p.queues[prio].remove(w)
		p.waiting.Add(-1)
		p.grant() // it may have stood in the way of others
		p.mu.Unlock()
		return nil, ctx.Err()
	}
	p.mu.Unlock()
	<-w.ready
	for _, b := range w.got {
		b.Release()
	}
	return nil, ctx.Err()
}

// Nudge asks the reclaimer on behalf of those who wait. To be called when something
// became reclaimable. It is cheap when nobody waits.
func (p *Pool) Nudge() {
	for p.waiting.Load() > 0 {
		p.mu.Lock()
		prio, want := objstore.Demand, 0
		for q := range p.queues {
			if w := p.queues[q].head; w != nil {
				prio, want = objstore.Priority(q), max(w.n+p.floor(objstore.Priority(q))-p.free, 1)
				break
			}
		}
		p.mu.Unlock()
		if want == 0 || p.doReclaim(prio, want) == 0 {
			return
		}
	}
}

func (p *Pool) doReclaim(prio objstore.Priority, want int) int {
	if fn := p.reclaim.Load(); fn != nil {
		return (*fn)(prio, want)
	}
	return 0
}

// floor is how many buffers prio must leave.
func (p *Pool) floor(prio objstore.Priority) int {
	switch prio {
	case objstore.Demand:
		return 0
	case objstore.Prefetch:
		return p.reserve
	}
	return 2 * p.reserve
}

func (p *Pool) try(prio objstore.Priority, n int, dst []*Buf) []*Buf {
	p.mu.Lock()
	defer p.mu.Unlock()
	for q := 0; q <= int(prio); q++ {
		if p.queues[q].head != nil {
			return nil
		}
	}
	if p.free-n < p.floor(prio) {
		return nil
	}
	return p.take(n, dst)
}

// grant serves waiters, the most urgent first; p.mu is held.
func (p *Pool) grant() {
	for q := range p.queues {
		for {
			w := p.queues[q].head
			if w == nil {
				break
			}
			if p.free-w.n < p.floor(objstore.Priority(q)) {
				return
			}
			p.queues[q].remove(w)
			p.waiting.Add(-1)
			w.got = p.take(w.n, nil)
			close(w.ready)
		}
	}
}

// take removes n free buffers, of the lowest slabs, so that the highest ones run empty;
// p.mu is held and p.free >= n.
func (p *Pool) take(n int, dst []*Buf) []*Buf {
	for range n {
		for p.slabs[p.hint].free == 0 {
			p.hint++
		}
		s := &p.slabs[p.hint]
		if !s.populated {
			off := p.hint * slabBufs * Size
			populate(p.arena[off : off+bits.OnesCount32(s.all)*Size])
			s.populated = true
			p.populated++
		}
		i := bits.TrailingZeros32(s.free)
		s.free &^= 1 << i
		b := &p.bufs[p.hint*slabBufs+i]
		b.refs.Store(1)
		dst = append(dst, b)
	}
	p.free -= n
	p.peak = max(p.peak, len(p.bufs)-p.free)
	return dst
}

// Bytes returns the whole buffer, Size bytes, aligned to 4 KiB. What it holds at first is
// undefined. It must not be used after the last Release.
func (b *Buf) Bytes() []byte {
	off := b.i * Size
	return b.p.arena[off : off+Size : off+Size]
}

// Retain adds a reference. Only one who holds a reference may call it.
func (b *Buf) Retain() {
	if b.refs.Add(1) <= 1 {
		panic("buf: Retain of a buffer that was given back")
	}
}

// Shared tells whether there is more than one reference.
func (b *Buf) Shared() bool { return b.refs.Load() > 1 }

// Release drops a reference; the last gives the buffer back to the pool.
func (b *Buf) Release() {
	n := b.refs.Add(-1)
	if n > 0 {
		return
	}
	if n < 0 {
		panic("buf: Release of a buffer that was given back")
	}
	p := b.p
	if p.poison {
		data := b.Bytes()
		data[0] = 0xdb
		for k := 1; k < len(data); k *= 2 {
			copy(data[k:], data[:k])
		}
	}
	p.mu.Lock()
	k := b.i / slabBufs
	p.slabs[k].free |= 1 << (b.i % slabBufs)
	p.hint = min(p.hint, k)
	p.free++
	if p.waiting.Load() > 0 {
		p.grant()
	}
	p.mu.Unlock()
}

// Trim gives memory back to the kernel that was not needed since the last Trim. To be
// called every few seconds.
func (p *Pool) Trim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	keep := p.peak
	p.peak = len(p.bufs) - p.free
	for k := len(p.slabs) - 1; k >= 0 && (p.populated-1)*slabBufs >= keep; k-- {
		s := &p.slabs[k]
		if !s.populated || s.free != s.all {
			continue
		}
		off := k * slabBufs * Size
		unpopulate(p.arena[off : off+bits.OnesCount32(s.all)*Size])
		s.populated = false
		p.populated--
	}
}

// Stats is the state of a pool. All but the waits are in buffers of Size bytes.
type Stats struct {
	Cap, InUse, Resident int
	Waiting              int
	Waits                [3]uint64 // calls that had to wait, by priority
}

// Stats returns a snapshot.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Cap: len(p.bufs), InUse: len(p.bufs) - p.free,
		Resident: min(p.populated*slabBufs, len(p.bufs)), Waiting: int(p.waiting.Load()), Waits: p.waits}
}

// Close frees the memory. Every buffer must have been given back: it is an error, and the
// memory stays, if one was not.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if n := len(p.bufs) - p.free; n > 0 {
		return fmt.Errorf("buf: %d buffers were not given back", n)
	}
	p.closed = true
	p.free = 0
	return unmapArena(p.arena)
}

// TB is the part of testing.TB that Check needs.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
}

// Check makes a test fail when, at its end, not all buffers were given back.
func (p *Pool) Check(tb TB) {
	tb.Helper()
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Errorf("%v", err)
		}
	})
}
