package session

import (
	"sync/atomic"
	"unsafe"
)

// handleSize is the size of a record in bytes.
const handleSize = 32

// HandleWrite is a flag of a handle: it can write.
const HandleWrite uint32 = 1

// handleRecord is an open handle. A file handle is its number plus one, and above that how
// often the record has been used: no two handles of a mount are the same.
type handleRecord struct {
	node   uint64 // 0: free
	unique uint64 // the request that made it
	uses   uint32
	// backing is the kernel's id of the file that it reads by itself for the handle; 0: none. The
	// records of files do not tell: two of one node can stand there for a moment.
	backing int32
	epoch   uint32 // of the process that made it
	flags   uint32 // as NewHandle was given; 0 in what older versions wrote
}

type handles struct {
	slots
	all *[maxHandles]handleRecord
}

func (h *handles) open(s *Session) {
	h.all = (*[maxHandles]handleRecord)(unsafe.Pointer(&s.mem[handlesAt]))
	h.scan(&s.head.handlesHigh, maxHandles, func(i uint32) bool { return h.all[i].node != 0 })
}

// NewHandle records a handle on a node, made by the request unique (0: none), before that is
// answered. backing is the id of the file that the kernel reads by itself, 0 when the handle is
// served otherwise. flags are HandleWrite or none. The number is unique for the life of the mount.
// ErrFull beyond 2 million.
func (s *Session) NewHandle(node, unique uint64, backing int32, flags uint32) (fh uint64, err error) {
	i, err := s.handles.take()
	if err != nil {
		return 0, err
	}
	r := &s.handles.all[i]
	r.unique, r.backing, r.epoch, r.flags = unique, backing, s.epoch, flags
	r.uses++
	atomic.StoreUint64(&r.node, node)
	return uint64(r.uses)<<32 | uint64(i+1), nil
}

// FreeHandle forgets a handle and returns its node; false when there is no such handle, or no
// longer.
func (s *Session) FreeHandle(fh uint64) (node uint64, ok bool) {
	i := uint32(fh) - 1
	if i >= atomic.LoadUint32(&s.head.handlesHigh) {
		return 0, false
	}
	r := &s.handles.all[i]
	node = atomic.LoadUint64(&r.node)
	// Of two that free it at the same time one wins.
	if node == 0 || r.uses != uint32(fh>>32) || !atomic.CompareAndSwapUint64(&r.node, node, 0) {
		return 0, false
	}
	s.handles.give(i)
	return node, true
}

// HandleFlags returns the flags of an open handle, 0 when there is no such handle.
func (s *Session) HandleFlags(fh uint64) uint32 {
	i := uint32(fh) - 1
	if i >= atomic.LoadUint32(&s.head.handlesHigh) || s.handles.all[i].uses != uint32(fh>>32) {
		return 0
	}
	return s.handles.all[i].flags
}

// Made tells whether this process made a handle, and not one before it.
func (s *Session) Made(fh uint64) bool {
	i := uint32(fh) - 1
	return i < atomic.LoadUint32(&s.head.handlesHigh) && s.handles.all[i].uses == uint32(fh>>32) && s.handles.all[i].epoch == s.epoch
}

// Handle is an open handle, as NewHandle recorded it.
type Handle struct {
	FH, Node, Unique uint64
	Backing          int32
	Flags            uint32
}

// Handles calls fn for every open handle. Nobody may make or free handles meanwhile.
func (s *Session) Handles(fn func(h Handle)) {
	for i := range atomic.LoadUint32(&s.head.handlesHigh) {
		if r := &s.handles.all[i]; r.node != 0 {
			fn(Handle{FH: uint64(r.uses)<<32 | uint64(i+1), Node: r.node, Unique: r.unique, Backing: r.backing, Flags: r.flags})
		}
	}
}

// HandleOf returns the handle that a request made; false when there is none. It looks at all
// handles, so it is for requests that were sent again only.
func (s *Session) HandleOf(unique uint64) (fh, node uint64, ok bool) {
	for i := range atomic.LoadUint32(&s.head.handlesHigh) {
		r := &s.handles.all[i]
		if n := atomic.LoadUint64(&r.node); n != 0 && r.unique == unique {
			return uint64(r.uses)<<32 | uint64(i+1), n, true
		}
	}
	return 0, 0, false
}
