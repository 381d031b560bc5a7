package cache

import (
	"errors"
	"math/bits"
)

// The number of extents one active object keeps in memory: 64 are 8 GiB of object and half a
// MiB of memory; when all objects together have more than extentBudget bytes, few each.
const (
	extentsPerObject = 64
	extentsWhenTight = 4
	extentBudget     = 32 << 20
)

// extentLen is how many blocks extent k covers.
func (o *Object) extentLen(k uint32) uint32 {
	return min(ExtentBlocks, o.blockN-k*ExtentBlocks)
}

// extent returns extent k, from the index if need be; o.mu is held.
func (o *Object) extent(k uint32) *extent {
	o.extentUse++
	if e := o.extents[k]; e != nil {
		e.stamp = o.extentUse
		return e
	}
	n := int(o.extentLen(k))
	e := &extent{stamp: o.extentUse}
	if o.id != 0 && !o.fresh {
		x, err := o.c.cfg.Index.Extent(o.id, k)
		switch {
		case err == nil && len(x.CRC) == n:
			e.Extent = x
			if r := uint32(n) % 64; r != 0 { // no bits beyond the end
				e.Present[n/64] &= 1<<r - 1
			}
			clear(e.Present[(n+63)/64:])
			e.seen = e.Present // who read what before is not known
		case err != nil && !errors.Is(err, ErrNoRecord):
			o.c.log.Error("the index cannot be read; the blocks are fetched again", "key", o.ident.Key, "err", err)
		}
	}
	if e.CRC == nil {
		e.CRC = make([]uint64, n)
	}
	o.extents[k] = e
	o.c.extentBytes.Add(e.bytes())
	o.trimExtents()
	return e
}

// trimExtents drops the extents used longest ago from memory, but for those that changed.
func (o *Object) trimExtents() {
	limit := extentsPerObject
	if o.c.extentBytes.Load() > extentBudget {
		limit = extentsWhenTight
	}
	for len(o.extents) > limit {
		var old *extent
		var at uint32
		for k, e := range o.extents {
			if !e.dirty && !e.flushing && e.stamp != o.extentUse && (old == nil || e.stamp < old.stamp) {
				old, at = e, k
			}
		}
		if old == nil {
			return
		}
		o.dropExtent(at, old)
	}
}

func (o *Object) dropExtent(k uint32, e *extent) {
	o.c.n.aheadWasted.Add(uint64(count(&e.unread)) * BlockSize)
	o.c.extentBytes.Add(-e.bytes())
	delete(o.extents, k)
	o.fresh = false
}

// present tells whether block n is on disk; o.mu is held.
func (o *Object) present(n uint32) bool {
	if o.id == 0 || o.resident == 0 {
		return false
	}
	return has(&o.extent(n/ExtentBlocks).Present, n%ExtentBlocks)
}

// setPresent marks a block resident that was written; o.mu is held.
func (o *Object) setPresent(b *block) {
	e, i := o.extent(b.n/ExtentBlocks), b.n%ExtentBlocks
	e.CRC[i] = b.crc
	if b.has32 && is32(o.sumAlg) {
		if e.sum32 == nil {
			e.sum32 = make([]uint32, len(e.CRC))
			o.c.extentBytes.Add(int64(4 * len(e.sum32)))
		}
		e.sum32[i] = b.sum32
		set(&e.has32, i)
	}
	if !has(&e.Present, i) {
		set(&e.Present, i)
		o.resident++
	}
	if b.read || b.touched {
		set(&e.seen, i)
	} else {
		clr(&e.seen, i)
	}
	e.dirty = true
	o.accounted()
}

// clearPresent marks a block absent, before its bytes go or because they are bad.
func (o *Object) clearPresent(n uint32) {
	e, i := o.extent(n/ExtentBlocks), n%ExtentBlocks
	if has(&e.Present, i) {
		clr(&e.Present, i)
		o.resident--
	}
	if has(&e.unread, i) {
		clr(&e.unread, i)
		o.c.n.aheadWasted.Add(uint64(o.blockLen(n)))
	}
	clr(&e.has32, i)
	clr(&e.seen, i)
	e.dirty = true
	o.accounted()
}

// accounted brings the usage and the directory's count in line with resident; o.mu is held.
func (o *Object) accounted() {
	n := o.onDisk()
	o.dir.used.Add(n - o.usage.Bytes)
	o.usage.Bytes = n
	o.usageDirty = true
	o.c.ledger.mark(o)
}

// onDisk is what the resident blocks take. (The last block's true size is counted only
// when all are there: that keeps the count of blocks derivable from the bytes.)
func (o *Object) onDisk() int64 {
	if o.resident == o.blockN {
		return (o.ident.Size + dioAlign - 1) &^ (dioAlign - 1)
	}
	return int64(o.resident) * BlockSize
}

// recount makes resident what the extents say; for when it is in doubt. o.mu is held.
func (o *Object) recount() {
	if n := o.counted(); n != o.resident {
		o.resident = n
		o.accounted()
	}
}

// counted is how many blocks are resident by the extents. o.mu is held.
func (o *Object) counted() (n uint32) {
	for k := uint32(0); k*ExtentBlocks < o.blockN; k++ {
		n += count(&o.extent(k).Present)
	}
	return n
}

// markUnread remembers that prefetch brought a block that left memory before it was read.
func (o *Object) markUnread(n uint32) { set(&o.extent(n/ExtentBlocks).unread, n%ExtentBlocks) }

// markSeen remembers that a resident block was read.
func (o *Object) markSeen(n uint32) {
	e, i := o.extent(n/ExtentBlocks), n%ExtentBlocks
	set(&e.seen, i)
	if has(&e.unread, i) {
		clr(&e.unread, i)
		o.c.n.aheadUsed.Add(uint64(o.blockLen(n)))
	}
}

// countAheadUsed counts as used what prefetch brought of a file that is now lent: nobody sees
// its reads.
func (o *Object) countAheadUsed() {
	for _, e := range o.extents {
		if n := count(&e.unread); n > 0 {
			o.c.n.aheadUsed.Add(uint64(n) * BlockSize)
			clear(e.unread[:])
		}
	}
	for _, b := range o.blocks {
		if b.ahead {
			b.ahead = false
			o.c.n.aheadUsed.Add(uint64(o.blockLen(b.n)))
		}
	}
}

// nextSet returns the first set bit of m at or after i, or ExtentBlocks.
func nextSet(m *[ExtentBlocks / 64]uint64, i uint32) uint32 {
	for i < ExtentBlocks {
		if w := m[i/64] >> (i % 64); w != 0 {
			return i + uint32(bits.TrailingZeros64(w))
		}
		i = (i/64 + 1) * 64
	}
	return ExtentBlocks
}
