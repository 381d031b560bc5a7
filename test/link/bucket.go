package link

import (
	"sync"
	"time"
)

// bucket spaces bytes out in time, by a clock of its own: next is when all bytes admitted
// so far will have passed. A caller that wakes late is not slowed further, since its next
// bytes are due by that clock and not by when it woke.
type bucket struct {
	rate float64 // bytes/s

	mu   sync.Mutex
	next time.Time // guarded by mu
}

// credit is how far next may lag behind the present: a wire that was idle for longer has
// lost the time. It covers the lateness of sleeps on a busy machine.
const credit = 5 * time.Millisecond

func newBucket(rate int64) *bucket { return &bucket{rate: float64(rate)} }

// admit returns when the last of n more bytes has passed. No byte passes before start
// (which may lie in the future).
func (b *bucket) admit(n int, now, start time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := now.Add(-credit); b.next.Before(t) {
		b.next = t
	}
	if b.next.Before(start) {
		b.next = start
	}
	b.next = b.next.Add(time.Duration(float64(n) / b.rate * 1e9))
	return b.next
}
