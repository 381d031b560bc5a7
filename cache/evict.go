package cache

import (
	"time"

	"golang.org/x/sys/unix"
)

// pollEvery is how often the evictor looks at the disks by itself; others fill them too.
const pollEvery = 250 * time.Millisecond

// trimEvery is how often unneeded memory is given back.
const trimEvery = 2 * time.Second

// wantSpace wakes the evictor. d is for the reader of the code: the evictor looks at all.
func (c *Cache) wantSpace(*dir) {
	select {
	case c.evict <- struct{}{}:
	default:
	}
}

// evictor keeps the directories below their watermarks.
func (c *Cache) evictor() {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	trimmed := time.Now()
	for {
		select {
		case <-c.stop:
			return
		case <-c.evict:
		case <-tick.C:
			c.pool.Nudge() // blocks get old enough to be given up
			c.expire()
			if time.Since(trimmed) >= trimEvery {
				c.pool.Trim()
				trimmed = time.Now()
			}
		}
		for _, d := range c.dirs {
			if err := d.statfs(); err != nil {
				c.log.Error("the disk of a cache directory cannot be asked for its space", "dir", d.path, "err", err)
				d.fail()
				continue
			}
			if d.over() > 0 || d.space.waiting.Load() > 0 {
				c.makeRoom(d)
			}
		}
	}
}

// makeRoom evicts from d until it is below its low watermark, or nothing more can be.
func (c *Cache) makeRoom(d *dir) {
	goal := func() int64 {
		n := max(d.used.Load()-d.low, d.keepFree()+d.margin-d.free.Load()-d.doomed.Load())
		if d.space.waiting.Load() > 0 {
			room := min(d.size-d.used.Load(), d.free.Load()+d.doomed.Load()-d.keepFree())
			n = max(n, 2*runBytes-room)
		}
		return max(n, 0)
	}
	freed := false
	for need := goal(); need > 0; need = goal() {
		select {
		case <-c.stop:
			return
		default:
		}
		got := c.evictFiles(d, need, classOnce)
		if got == 0 {
			got = c.punchActive(d, need, true)
		}
		if got == 0 {
			got = c.evictFiles(d, need, classSpared)
		}
		if got == 0 {
			got = c.punchActive(d, need, false)
		}
		if got == 0 {
			if got = c.shedLost(d, need); got > 0 {
				_ = d.statfs()
			}
		}
		if got == 0 {
			break
		}
		freed = true
	}
	if d.doomed.Load() > 0 {
		// The disk has the space only after the index has forgotten the files.
		if err := c.ledger.sync(c.ctx); err != nil {
			return
		}
		_ = d.statfs()
	}
	if !freed && goal() > 0 && d.doomed.Load() == 0 {
		d.space.Lock()
		d.space.stuck = c.cfg.Now()
		close(d.space.freed)
		d.space.freed = make(chan struct{})
		d.space.Unlock()
	}
}

// evictFiles removes files of classes up to class until need bytes are gone, or a sample
// gives no more; it returns how many bytes.
func (c *Cache) evictFiles(d *dir, need int64, class int) (got int64) {
	for range 4 { // samples that happen to hold nothing
		now := c.clock.Load()
		sample, err := c.sampler.sample(c.cfg.Index, now, c.capacity)
		if err != nil {
			c.log.Error("the index cannot be read; nothing is evicted", "err", err)
			return got
		}
		n := 0
		for _, u := range sample {
			if u.Dir == d.format.Number && !c.ledger.deleted(u.ID) {
				sample[n] = u
				n++
			}
		}
		p := policy{now: now, capacity: uint64(d.size), reach: c.reach.get(now)}
		took := 0
		for _, u := range p.choose(sample[:n]) {
			if took >= evictBatch || got >= need || p.class(u) > class {
				break
			}
			if c.evictFile(d, u) {
				got += u.Bytes + fileOverhead
				took++
			}
		}
		if got > 0 {
			return got
		}
	}
	return got
}

// evictFile removes a file if nobody needs it.
func (c *Cache) evictFile(d *dir, u Usage) bool {
	rec, err := c.cfg.Index.Record(u.ID)
	if err != nil || rec.Pinned {
		return false
	}
	hash := rec.Identity.Hash()
	for asked := false; ; asked = true {
		c.mu.Lock()
		o := c.active[hash]
		if o == nil {
			// Asked once more: it may have become a staging file, and an object file again. And the ledger first: what it has
			// deleted since is not in the index.
			gone := c.ledger.deleted(u.ID)
			if now, err := c.cfg.Index.Record(u.ID); gone || err != nil || now.Identity != rec.Identity {
				c.mu.Unlock()
				return false
			}
			c.forget(d, u.ID, u.Bytes+fileOverhead)
			c.mu.Unlock()
			c.n.evicted.Add(1)
			c.n.evictedBytes.Add(uint64(u.Bytes))
			return true
		}
		o.mu.Lock()
		held := o.refs > 0 || o.lent > 0 || o.busy > 0 || o.fetches > 0 || o.making != nil
		lent := o.lent > 0
		if !held && o.id == u.ID && !o.pinned && !o.retired && !o.wanted() {
			o.discard()
			o.mu.Unlock()
			c.mu.Unlock()
			c.retire(o)
			c.n.evicted.Add(1)
			c.n.evictedBytes.Add(uint64(u.Bytes))
			return true
		}
		o.mu.Unlock()
		c.mu.Unlock()
		fn := c.reclaimFn.Load()
		if asked || !lent || fn == nil || !(*fn)(u.ID) {
			return false
		}
	}
}

// wanted tells whether a block is on its way to the disk or to a reader; o.mu is held.
func (o *Object) wanted() bool {
	for _, b := range o.blocks {
		if b.fetch != nil || b.wanted > 0 || b.queued || b.writing {
			return true
		}
	}
	return false
}

// punchActive takes blocks from an object that is being read through the daemon: the one with
// the most bytes here, so that several share the space. With once only from objects that were
// never reused and hold a good part of the directory. It returns how many bytes.
func (c *Cache) punchActive(d *dir, need int64, once bool) int64 {
	var victim *Object
	most := uint32(0)
	c.mu.Lock()
	for _, o := range c.active {
		o.mu.Lock()
		if o.dir == d && o.resident > most && !o.state.Complete() && !o.ending && !o.pinned && o.lent == 0 && o.punching == nil &&
			(!once || o.usage.Hits == 0 && o.residentBytes() > d.size/8) {
			victim, most = o, o.resident
		}
		o.mu.Unlock()
	}
	var id ID
	if victim != nil {
		victim.mu.Lock()
		victim.busy++
		id = victim.id
		victim.mu.Unlock()
	}
	c.mu.Unlock()
	if victim == nil {
		return 0
	}
	got := int64(0)
	if fn := c.reclaimFn.Load(); fn == nil || (*fn)(id) {
		got = victim.punch(c, need, id)
	} else {
		victim.leave(id)
	}
	victim.mu.Lock()
	victim.busy--
	idle := victim.idle()
	victim.mu.Unlock()
	if idle {
		c.retire(victim)
	}
	return got
}

// leave gives file id up as it is, should it not be complete: the kernel reads it all the same,
// given it by a process that was killed before the index knew of it.
func (o *Object) leave(id ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.id == id && !o.state.Complete() && !o.ending {
		o.c.log.Warn("the kernel reads a file that the index does not know to be complete; another is made",
			"key", o.ident.Key, "path", o.dir.filePath(id))
		o.discard()
	}
}

// punchAtMost is how many blocks are given back at once: 8 MiB, or an eighth of the object
// where that is less.
const punchAtMost = 64

// punch gives up blocks of an object that is not complete: those read, in the order of the
// file from where it stopped the last time, which for a reader from end to end is the order
// in which they were read; else any. First the index forgets them, then the disk.
func (o *Object) punch(c *Cache, need int64, id ID) int64 {
	o.mu.Lock()
	if o.state.Complete() || o.ending || o.id != id || id == 0 || o.punching != nil || o.resident == 0 {
		o.mu.Unlock()
		return 0
	}
	limit := max(min(uint32((need+BlockSize-1)/BlockSize), punchAtMost, o.resident/8), 1)
	runs := o.pick(limit, true)
	if len(runs) == 0 {
		runs = o.pick(limit, false)
	}
	gen, before := o.gen, o.usage.Bytes
	for _, r := range runs {
		for n := r.lo; n < r.hi; n++ {
			o.clearPresent(n)
			if b := o.blocks[n]; b != nil && b.stored {
				b.stored = false
				o.loose++
			}
		}
	}
	o.punching = runs
	freed := before - o.usage.Bytes
	d := o.dir
	d.doomed.Add(freed)
	f, err := o.openForRead()
	o.mu.Unlock()
	if len(runs) == 0 {
		if f != nil {
			f.release()
		}
		return 0
	}
	if err == nil {
		// Must be in the index before the holes are there, or they would be believed to be data
		// (and found out only by their CRC).
		if err = c.ledger.sync(c.ctx); err == nil {
			for _, r := range runs {
				if err = f.punch(int64(r.lo)*BlockSize, int64(r.hi-r.lo)*BlockSize); err != nil {
					break
				}
			}
		}
		f.release()
	}
	o.mu.Lock()
	if o.gen == gen {
		o.punching = nil
	}
	o.notify()
	o.mu.Unlock()
	d.doomed.Add(-freed)
	if err != nil {
		c.log.Error("space could not be given back", "dir", d.path, "err", err)
		return 0
	}
	c.n.punchedBytes.Add(uint64(freed))
	d.free.Add(freed)
	d.announce()
	return freed
}

// pick returns up to limit resident blocks from the hand on, as runs; seen: only those that
// were read. Blocks that a reader wants now are left. o.mu is held.
func (o *Object) pick(limit uint32, seen bool) (runs []blkRun) {
	got := uint32(0)
	n := o.hand
	for looked := uint32(0); looked < o.blockN && got < limit; {
		if n >= o.blockN {
			n = 0
		}
		k, i := n/ExtentBlocks, n%ExtentBlocks
		e := o.extent(k)
		m := e.Present
		if seen {
			for w := range m {
				m[w] &= e.seen[w]
			}
		}
		next := min(nextSet(&m, i), o.extentLen(k))
		looked += next - i
		if n = k*ExtentBlocks + next; next == o.extentLen(k) || looked >= o.blockN {
			continue
		}
		looked++
		if b := o.blocks[n]; b != nil && b.wanted > 0 {
			n++
			continue
		}
		if l := len(runs); l > 0 && runs[l-1].hi == n {
			runs[l-1].hi++
		} else {
			runs = append(runs, blkRun{n, n + 1})
		}
		got++
		n++
	}
	o.hand = n
	return runs
}

// inPunch tells whether block n is being given back; o.mu is held.
func (o *Object) inPunch(n uint32) bool {
	for _, r := range o.punching {
		if n >= r.lo && n < r.hi {
			return true
		}
	}
	return false
}

// reached learns from a use after age bytes.
func (c *Cache) reached(age uint64) { c.reach.hit(c.clock.Load(), age) }

// syncfs forces what was written to the disk of d.
func (d *dir) syncfs() error { return unix.Syncfs(int(d.lock.Fd())) }
