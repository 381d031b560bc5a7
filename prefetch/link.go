package prefetch

import (
	"sync"
	"time"
)

const (
	// period is over what time bandwidth is measured, and periods how many of them count:
	// the best of the last 8 s.
	period  = 500 * time.Millisecond
	periods = 16
	// headroom is how many times what was measured a window may be. Above 1 because what was
	// measured was bounded by the windows of then: so they grow in a few periods.
	headroom = 4
	// leastWindow is what a window may always be as far as the link is concerned.
	leastWindow = 32 << 20
)

// link estimates how many bytes are on their way when the link to the origin is full: the
// best bandwidth of the last periods times the shortest time that a large fetch took.
type link struct {
	mu      sync.Mutex
	current int64                // number of the period being measured; guarded by mu
	bytes   [periods + 1]int64   // per period, a ring; guarded by mu
	took    [periods + 1]float64 // shortest fetch, seconds, 0 for none; guarded by mu
	known   bool                 // any fetch was ever seen; guarded by mu
}

// turn makes the ring's head the period of now. l.mu is held.
func (l *link) turn(now time.Duration) {
	n := int64(now / period)
	for i := max(l.current+1, n-periods); i <= n; i++ {
		l.bytes[i%(periods+1)], l.took[i%(periods+1)] = 0, 0
	}
	l.current = max(l.current, n)
}

// fetched takes note of a GET that has just ended.
func (l *link) fetched(n int64, took, now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known = true
	l.turn(now)
	i := l.current % (periods + 1)
	l.bytes[i] += n
	// Small ones say little of how long data must be asked for ahead.
	if s := took.Seconds(); n >= MinChunk && (l.took[i] == 0 || s < l.took[i]) {
		l.took[i] = s
	}
}

// most is the largest useful window, at most limit; limit itself where nothing was measured.
func (l *link) most(now time.Duration, limit int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.known {
		return limit
	}
	l.turn(now)
	var bytes int64
	var took float64
	for i := range l.bytes {
		if int64(i) == l.current%(periods+1) {
			continue // not over yet
		}
		bytes = max(bytes, l.bytes[i])
		if t := l.took[i]; t > 0 && (took == 0 || t < took) {
			took = t
		}
	}
	if bytes == 0 || took == 0 {
		return limit
	}
	onWay := float64(bytes) / period.Seconds() * took
	return min(limit, max(leastWindow, int64(headroom*onWay)))
}
