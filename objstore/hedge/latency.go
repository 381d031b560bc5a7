package hedge

import (
	"slices"
	"sync"
	"time"
)

const (
	// samples are remembered: enough for a 95th percentile, few enough to follow a change
	// within seconds.
	samples = 128
	// enough samples before there is a percentile.
	enough = 20
	// every so many samples the percentile is computed anew: sorting costs 5 µs.
	every = 8
	// maxCredit is how many hedges may be saved up for one bad moment.
	maxCredit = 8
)

// latency remembers the times to the first byte, and the budget of hedges.
type latency struct {
	mu     sync.Mutex
	ring   [samples]time.Duration
	n      int // ever added
	late   time.Duration
	credit float64
}

// add notes a time to the first byte.
func (l *latency) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring[l.n%samples] = d
	l.n++
	if l.n < enough || l.n%every != 0 && l.n != enough {
		return
	}
	sorted := l.ring
	known := sorted[:min(l.n, samples)]
	slices.Sort(known)
	l.late = known[len(known)*95/100]
}

// p95 is the time within which 95 of 100 requests answer, 0 if not known yet.
func (l *latency) p95() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.late
}

// earn adds a request's part of a hedge.
func (l *latency) earn(share float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.credit = min(maxCredit, l.credit+share)
}

// spend takes a hedge, if there is one.
func (l *latency) spend() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.credit < 1 {
		return false
	}
	l.credit--
	return true
}
