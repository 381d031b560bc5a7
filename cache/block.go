package cache

import (
	"math/bits"
	"sync"
	"time"

	"github.com/leatfs/leatfs/cache/buf"
	"github.com/leatfs/leatfs/objstore"
)

// block is a block of an object that is in memory or on its way. It is in Object.blocks
// from the start of its fetch until it is dropped; o.mu guards it but where said otherwise.
//
// State transitions:
//
//	flying (fetch set) → full and queued → full and stored, or full and loose → dropped
//	                  ↘ dropped, when the fetch fails
//
// Loose is full, neither queued nor stored: it could not be written, and is absent again when
// dropped. A block is dropped only when nobody wants it (wanted == 0) and it is not being
// written; a fetch's end and the discarding of a whole object are the exceptions, and wanters
// look again.
type block struct {
	o      *Object
	n      uint32
	fetch  *fetch   // while flying
	buf    *buf.Buf // when full
	crc    uint64
	sum32  uint32 // by o.sumAlg, if that is a 32-bit one
	has32  bool
	wanted int32 // readers that wait for it, or are about to take it

	queued  bool // in a run for the writers
	writing bool // a writer is at it
	stored  bool // resident on disk too
	read    bool // read to its end
	touched bool // read in part
	ahead   bool // brought by prefetch, and not read by anybody

	list       *blockList // guarded by lists.mu, as are the next two
	prev, next *block
	since      time.Time // when it came into its list
}

// blockList is a list of blocks in order of arrival.
type blockList struct {
	head, tail *block
	len        int
}

// lists are the blocks of all objects that may be given up when memory is short, in the
// order in which they go. mu is a leaf lock.
type lists struct {
	mu     sync.Mutex
	spent  blockList // stored or loose; read, at least in part
	unread blockList // stored or loose; not yet read
	behind blockList // read, and waiting for the disk: dropping one loses it
}

// put moves b to the end of l, or out of all lists when l is nil.
func (s *lists) put(b *block, l *blockList, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.list == l {
		return
	}
	s.unlink(b)
	if l == nil {
		return
	}
	b.list, b.prev, b.since = l, l.tail, now
	if l.tail != nil {
		l.tail.next = b
	} else {
		l.head = b
	}
	l.tail = b
	l.len++
}

func (s *lists) unlink(b *block) {
	l := b.list
	if l == nil {
		return
	}
	if b.prev != nil {
		b.prev.next = b.next
	} else {
		l.head = b.next
	}
	if b.next != nil {
		b.next.prev = b.prev
	} else {
		l.tail = b.prev
	}
	b.list, b.prev, b.next = nil, nil, nil
	l.len--
}

// staleAfter is how long an unread block is spared when prefetch wants its memory: what
// stood unread for so long is hardly about to be read. Demand does not wait for that.
const staleAfter = 5 * time.Second

// pop takes the next block out that may be given up for a wish of priority p, nil if none.
func (s *lists) pop(p objstore.Priority, now time.Time) *block {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.spent.head
	if b == nil {
		b = s.unread.head
		if b != nil && p != objstore.Demand && now.Sub(b.since) < staleAfter {
			b = nil
		}
	}
	if b == nil && p == objstore.Demand {
		b = s.behind.head
	}
	if b != nil {
		s.unlink(b)
	}
	return b
}

// The time after which blocks leave memory although nobody needs it: those read in part, and
// those unread.
const (
	spentFor  = 5 * time.Second
	unreadFor = 30 * time.Second
)

// popOld takes a block out that has stood for too long, nil if there is none.
func (s *lists) popOld(now time.Time) *block {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.spent.head
	if b == nil || now.Sub(b.since) < spentFor {
		b = s.unread.head
		if b == nil || now.Sub(b.since) < unreadFor {
			return nil
		}
	}
	s.unlink(b)
	return b
}

// spentLen returns how many blocks could be had without loss to anybody.
func (s *lists) spentLen() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spent.len
}

// extent is the residency of ExtentBlocks blocks of an active object; o.mu guards it.
type extent struct {
	Extent
	sum32    []uint32                  // by Object.sumAlg, nil when that has 64 bits
	has32    [ExtentBlocks / 64]uint64 // which of sum32 are known
	unread   [ExtentBlocks / 64]uint64 // resident, brought by prefetch, not yet read
	seen     [ExtentBlocks / 64]uint64 // resident and read: the first to go, see punch
	dirty    bool                      // not in the index as it is
	flushing bool                      // being written to the index
	stamp    uint64                    // Object.extentUse at the last use
}

func (e *extent) bytes() int64 { return int64(extentBytes + 8*len(e.CRC) + 4*len(e.sum32)) }

// extentBytes is the fixed part of an extent in memory.
const extentBytes = 4*ExtentBlocks/8 + 96

func has(m *[ExtentBlocks / 64]uint64, i uint32) bool { return m[i/64]>>(i%64)&1 != 0 }
func set(m *[ExtentBlocks / 64]uint64, i uint32)      { m[i/64] |= 1 << (i % 64) }
func clr(m *[ExtentBlocks / 64]uint64, i uint32)      { m[i/64] &^= 1 << (i % 64) }

func count(m *[ExtentBlocks / 64]uint64) (n uint32) {
	for _, w := range m {
		n += uint32(bits.OnesCount64(w))
	}
	return n
}
