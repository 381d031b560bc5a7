package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/leatfs/leatfs/cache/buf"
	"github.com/leatfs/leatfs/objstore"
)

// run is consecutive blocks of one object on their way to its file. It holds a reference
// of the file.
type run struct {
	o      *Object
	f      *objFile
	blocks []*block
}

// writeQueue holds what the writers of a directory still have to do. It is bounded by the
// buffers there are.
type writeQueue struct {
	mu     sync.Mutex
	ready  sync.Cond
	runs   []run
	closed bool
}

func (q *writeQueue) init() { q.ready.L = &q.mu }

func (q *writeQueue) push(r run) {
	q.mu.Lock()
	q.runs = append(q.runs, r)
	q.mu.Unlock()
	q.ready.Signal()
}

// pop waits for a run; false when the queue is closed and empty.
func (q *writeQueue) pop() (run, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.runs) == 0 {
		if q.closed {
			return run{}, false
		}
		q.ready.Wait()
	}
	r := q.runs[0]
	q.runs[0] = run{}
	q.runs = q.runs[1:]
	return r, true
}

func (q *writeQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.ready.Broadcast()
}

// writer stores what comes into the queue of d, until that is closed and empty.
func (c *Cache) writer(d *dir) {
	for {
		r, ok := d.queue.pop()
		if !ok {
			return
		}
		r.write()
	}
}

// keep hands blocks in a row, which have just arrived, to the writers. Those of small objects are
// written here and now, into the page cache: the kernel is about to read them by itself. (Unless
// that takes too much of the pool, when the disk is slower than the kernel lets pages become dirty.)
func (o *Object) keep(blocks []*block) {
	o.mu.Lock()
	f, err := o.openForWrite()
	if err != nil {
		if !errors.Is(err, errChanged) { // its file was found to be gone: the next block gets another
			o.keepErr = err
		}
		o.c.n.notKept.Add(uint64(len(blocks)))
		for _, b := range blocks {
			o.unqueue(b)
		}
		o.notify()
		o.mu.Unlock()
		o.c.pool.Nudge()
		return
	}
	o.mu.Unlock()
	r := run{o: o, f: f, blocks: blocks}
	if k := int64(len(blocks)); o.small() && o.c.inline.TryAcquire(k) {
		r.write()
		o.c.inline.Release(k)
	} else {
		f.d.queue.push(r)
	}
}

// unqueue ends the wait of a block for the disk; o.mu is held.
func (o *Object) unqueue(b *block) {
	b.queued = false
	if o.blocks[b.n] == b {
		o.settle(b)
	}
}

// write stores the blocks of r that are still wanted on disk, and gives r's reference back.
func (r run) write() {
	o, d := r.o, r.f.d
	for rest := r.blocks; len(rest) > 0; {
		o.mu.Lock()
		var now []*block
		for len(rest) > 0 {
			b := rest[0]
			ok := o.blocks[b.n] == b && b.queued && o.file == r.f && !o.state.Complete() && !o.inPunch(b.n)
			if !ok && len(now) > 0 {
				break
			}
			rest = rest[1:]
			if !ok {
				o.unqueue(b)
				continue
			}
			b.writing = true
			b.buf.Retain()
			now = append(now, b)
		}
		o.mu.Unlock()
		if len(now) == 0 {
			break
		}
		bytes := int64(len(now)) * BlockSize
		err := o.c.makeSpace(d, bytes)
		taken := err == nil
		if err == nil {
			var arr [runBlocks][]byte
			vecs := arr[:0]
			for _, b := range now {
				vecs = append(vecs, b.buf.Bytes()[:o.blockLen(b.n)])
			}
			if o.c.beforeWrite != nil {
				o.c.beforeWrite()
			}
			if err = r.f.write(vecs, int64(now[0].n)*BlockSize, !o.small()); err != nil {
				o.c.writeFailed(d, err)
			}
		}
		o.mu.Lock()
		current := o.file == r.f
		for _, b := range now {
			b.writing = false
			if err == nil && current {
				o.setPresent(b)
				o.c.n.filledBytes.Add(uint64(o.blockLen(b.n)))
				if o.blocks[b.n] == b {
					b.stored = true
					o.loose--
				}
			} else {
				o.keepErr = err
				o.c.n.notKept.Add(1)
			}
			o.unqueue(b)
		}
		if taken {
			d.settle(bytes, err == nil)
		}
		if err == nil && current {
			o.keepErr = nil
		}
		o.finish()
		o.notify()
		idle := o.idle()
		o.mu.Unlock()
		for _, b := range now {
			b.buf.Release()
		}
		if idle {
			o.c.retire(o)
		}
	}
	r.f.release()
	o.c.pool.Nudge()
}

// settle decides where a block that is full belongs now: out of memory, into one of the
// lists, or neither because somebody wants it; o.mu is held.
func (o *Object) settle(b *block) {
	c := o.c
	switch {
	case b.fetch != nil || b.wanted > 0 || b.writing:
		c.lists.put(b, nil, time.Time{})
	case b.queued:
		if b.read {
			c.lists.put(b, &c.lists.behind, c.cfg.Now())
		} else {
			c.lists.put(b, nil, time.Time{})
		}
	case b.read, b.stored && o.small():
		// The kernel has it now, or will find it in the page cache.
		o.drop(b)
	case b.touched:
		c.lists.put(b, &c.lists.spent, c.cfg.Now())
	default:
		c.lists.put(b, &c.lists.unread, c.cfg.Now())
	}
}

// drop takes a full block out of memory; o.mu is held.
func (o *Object) drop(b *block) {
	o.c.lists.put(b, nil, time.Time{})
	delete(o.blocks, b.n)
	if !b.stored {
		o.loose--
	}
	if b.ahead {
		if b.stored && o.id != 0 {
			o.markUnread(b.n)
		} else {
			o.c.n.aheadWasted.Add(uint64(o.blockLen(b.n)))
		}
	}
	b.buf.Release()
}

// reclaim gives up to want buffers back for a wish of priority p: the pool calls it.
func (c *Cache) reclaim(p objstore.Priority, want int) (n int) {
	for n < want {
		b := c.lists.pop(p, c.cfg.Now())
		if b == nil {
			break
		}
		if c.giveUp(b) {
			n++
		}
	}
	return n
}

// giveUp drops a block that came out of a list, if it may go, and tells whether that freed its
// buffer.
func (c *Cache) giveUp(b *block) (freed bool) {
	o := b.o
	o.mu.Lock()
	if o.blocks[b.n] != b || b.fetch != nil || b.wanted > 0 || b.writing {
		o.mu.Unlock() // who wants or writes it settles it
		return false
	}
	if b.queued {
		b.queued = false
		c.n.dropped.Add(1)
	}
	freed = !b.buf.Shared()
	o.drop(b)
	o.notify()
	idle := o.idle()
	o.mu.Unlock()
	if idle {
		c.retire(o)
	}
	return freed
}

// expire drops what stood in memory for so long that it is not worth it: the disk has it.
func (c *Cache) expire() {
	now := c.cfg.Now()
	for b := c.lists.popOld(now); b != nil; b = c.lists.popOld(now) {
		c.giveUp(b)
	}
}

// acquireDemand takes n buffers for a reader.
func (c *Cache) acquireDemand(ctx context.Context, n int, dst []*buf.Buf) ([]*buf.Buf, error) {
	return c.pool.AcquireN(ctx, objstore.Demand, n, dst)
}

// writeFailed notes that d could not be written, and leaves it alone for a while.
func (c *Cache) writeFailed(d *dir, err error) {
	c.n.fillErrors.Add(1)
	if d.usable() {
		c.log.Error("the cache directory cannot be written; reads go on uncached", "dir", d.path, "err", err, "retry_after", downTime)
	}
	d.fail()
	c.wantSpace(d)
}

// errFull: the directory has no room, and nothing that could be evicted.
var errFull = errors.New("the cache is full of data that may not be evicted")

// spaceWait is how long a writer waits for the evictor before it gives a block up. Readers do not
// wait for that, memory does.
const spaceWait = 2 * time.Second

// makeSpace reserves n bytes of d, waiting a little for the evictor.
func (c *Cache) makeSpace(d *dir, n int64) error {
	if !d.usable() {
		return errDown
	}
	if c.ledger.broken.Load() {
		return errDown
	}
	if d.take(n) {
		if d.over() > 0 {
			c.wantSpace(d)
		}
		return nil
	}
	deadline := time.NewTimer(spaceWait)
	defer deadline.Stop()
	for {
		d.space.Lock()
		stuck, freed := c.cfg.Now().Sub(d.space.stuck) < spaceWait, d.space.freed
		d.space.Unlock()
		if d.take(n) {
			return nil
		}
		if stuck {
			return errFull
		}
		d.space.waiting.Add(1)
		c.wantSpace(d)
		select {
		case <-freed:
		case <-deadline.C:
			d.space.waiting.Add(-1)
			return fmt.Errorf("no room in %s after %v: %w", d.path, spaceWait, errFull)
		case <-c.ctx.Done():
			d.space.waiting.Add(-1)
			return ErrClosed
		}
		d.space.waiting.Add(-1)
	}
}
