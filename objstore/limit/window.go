package limit

import "time"

// holdOff is the least time between two cuts. A store refuses faster than it serves: without
// it one storm, answered within milliseconds, would cut down to one.
const holdOff = 250 * time.Millisecond

// window is one adaptive limit. It is guarded by its pool's lock.
type window struct {
	limit     float64
	max       float64
	slowStart bool // doubling per round trip, until the first throttle
	cut       time.Time
	throttled uint64
}

func newWindow(start, most int) window {
	return window{limit: float64(start), max: float64(most), slowStart: true}
}

// slots is the limit in whole requests, at least one.
func (w *window) slots() int { return max(1, int(w.limit)) }

// grow notes a success of a request that was sent while all slots were in use.
func (w *window) grow() {
	if w.slowStart {
		w.limit++
	} else {
		w.limit += 1 / w.limit
	}
	w.limit = min(w.limit, w.max)
}

// shrink notes that the store throttled a request sent at the given time; share is the part
// of the requests in flight that the throttle speaks of. All that were sent before the last
// cut tell what it told already.
func (w *window) shrink(sent, now time.Time, share float64) {
	w.throttled++
	if sent.Before(w.cut) || now.Sub(w.cut) < holdOff {
		return
	}
	w.limit = max(1, w.limit*(1-share/2))
	w.slowStart = false
	w.cut = now
}
