package fuse

import (
	"sync"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs/session"
)

// What is carried out beside the reader needs its request after the reader has gone on to the next.
// A small one is copied; a large one (a WRITE) gets the buffer that it was read into, and the reader
// another one. The memory of both has a bound: when it is reached, the reader waits.

const (
	// keptMax bounds the memory of requests that are carried out beside the reader, in bytes.
	keptMax = 16 << 20
	// keptFree is the size up to which a request does not count: the kernel has a few thousand
	// under way at most.
	keptFree = 4096
	// copiedMax is the size up to which a request is copied and does not take the reader's buffer.
	copiedMax = 32 << 10
)

// keeper is that memory.
type keeper struct {
	room *semaphore.Weighted

	mu   sync.Mutex
	free [][]byte // by mu: buffers of inSize
}

func newKeeper() keeper { return keeper{room: semaphore.NewWeighted(keptMax)} }

// buffer returns a buffer to read a request into. It is not of the heap, which would grow by twice
// its size, and its pages are there.
func (k *keeper) buffer() []byte {
	k.mu.Lock()
	if n := len(k.free); n > 0 {
		b := k.free[n-1]
		k.free = k.free[:n-1]
		k.mu.Unlock()
		return b
	}
	k.mu.Unlock()
	b, err := unix.Mmap(-1, 0, inSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		b = make([]byte, inSize)
	}
	populate(b)
	return b
}

func (k *keeper) giveBack(b []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.free = append(k.free, b[:inSize])
}

// keep returns a request as memory that stays as it is until done is called. false when the reader
// was told to leave while it waited for memory: then nothing is carried out, and the next process is
// sent the request again, or finds it in the session.
func (c *conn) keep(in []byte, r session.Request) (kept []byte, done func(), ok bool) {
	switch {
	case &in[0] != &c.in[0]:
		return in, func() {}, true // not the reader's buffer
	case c.replay && r.Large() != nil:
		return r.Large(), func() {}, true // until the request is ended
	case len(in) <= keptFree:
		return append([]byte(nil), in...), func() {}, true
	}
	handOver := len(in) > copiedMax && !c.replay // in replay mode the buffer is the session's
	weight := int64(len(in))
	if handOver {
		weight = inSize
	}
	if !c.kept.room.TryAcquire(weight) {
		c.busy.Store(0)
		err := c.kept.room.Acquire(c.left, weight)
		c.busy.Store(c.now())
		if err != nil {
			return nil, nil, false
		}
	}
	if handOver {
		c.in = c.kept.buffer()
		return in, func() { c.kept.giveBack(in); c.kept.room.Release(weight) }, true
	}
	return append([]byte(nil), in...), func() { c.kept.room.Release(weight) }, true
}
