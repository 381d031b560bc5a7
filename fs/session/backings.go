package session

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// backingSize is the size of a record in bytes.
const backingSize = 32

// backingRecord is a file that was given to the kernel to read by itself, for a node.
type backingRecord struct {
	node uint64 // 0: free
	file uint64 // the cache's name of it
	id   int32  // the kernel's
	_    [12]byte
}

type backings struct {
	slots
	all *[maxBackings]backingRecord

	// register is held from asking the kernel for an id until that is recorded: what a killed
	// process did not come to record is one id at most, and the one after the last recorded.
	register sync.Mutex
}

func (b *backings) open(s *Session) {
	b.all = (*[maxBackings]backingRecord)(unsafe.Pointer(&s.mem[backingsAt]))
	b.scan(&s.head.backingsHigh, maxBackings, func(i uint32) bool { return b.all[i].node != 0 })
}

// Backing is a record of a file given to the kernel.
type Backing struct {
	Ref  uint32 // for FreeBacking
	Node uint64
	File uint64
	ID   int32
}

// NewBacking has register give a file to the kernel, which answers with an id, and records
// that for the node. One register runs at a time; its error is returned. ErrFull beyond
// 1 million.
func (s *Session) NewBacking(node, file uint64, register func() (int32, error)) (Backing, error) {
	b := &s.backings
	i, err := b.take()
	if err != nil {
		return Backing{}, err
	}
	b.register.Lock()
	defer b.register.Unlock()
	id, err := register()
	if err != nil {
		b.give(i)
		return Backing{}, err
	}
	r := &b.all[i]
	r.file, r.id = file, id
	raise(&s.head.largestFile, file)
	atomic.StoreUint64(&r.node, node)
	atomic.StoreInt32(&s.head.lastBacking, id)
	return Backing{Ref: i, Node: node, File: file, ID: id}, nil
}

// FreeBacking forgets a record, when the kernel no longer has the file.
func (s *Session) FreeBacking(ref uint32) {
	atomic.StoreUint64(&s.backings.all[ref].node, 0)
	s.backings.give(ref)
}

// Backings calls fn for every file that the kernel was given. Nobody may make or free records
// meanwhile.
func (s *Session) Backings(fn func(Backing)) {
	for i := range atomic.LoadUint32(&s.head.backingsHigh) {
		if r := &s.backings.all[i]; r.node != 0 {
			fn(Backing{Ref: i, Node: r.node, File: r.file, ID: r.id})
		}
	}
}

// lostMax is how many processes in a row may die between getting an id and recording it,
// without any that recorded one in between.
const lostMax = 16

// Unrecorded returns the ids that a killed process may have been given and not have recorded.
// The kernel gives ids in turn, so they follow the last that was.
func (s *Session) Unrecorded() (ids []int32) {
	last := atomic.LoadInt32(&s.head.lastBacking)
	taken := make(map[int32]bool)
	s.Backings(func(b Backing) { taken[b.ID] = true })
	for id := last + 1; id > 0 && id <= last+lostMax; id++ {
		if !taken[id] {
			ids = append(ids, id)
		}
	}
	return ids
}
