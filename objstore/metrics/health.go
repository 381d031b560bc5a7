package metrics

import (
	"sync"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// State is how an origin does.
type State string

// The states. Idle: nothing was asked yet.
const (
	Idle     State = "idle"
	OK       State = "ok"
	Degraded State = "degraded" // some requests fail
	Down     State = "down"     // none has succeeded for a while
)

const (
	// downAfter failures in a row, with no success for downFor, is Down. A node has tens of
	// requests in flight: eight failures can be one moment, five seconds are not.
	downAfter = 8
	downFor   = 5 * time.Second
	// degradedAfter failures in a row, or degradedShare of the last hundred or so requests.
	degradedAfter = 3
	degradedShare = 0.1
	// shareWeight is a request's weight in the moving share of failures.
	shareWeight = 0.01
)

// Health is the state of an origin, for people.
type Health struct {
	State       State
	LastSuccess time.Time // zero: never
	LastError   string    // "" if none
	LastErrorAt time.Time
	// Consecutive is the number of failures since the last success.
	Consecutive int
}

// health judges the results. An answer that is about the object (not found, precondition
// failed, access denied …) shows a store that works; a canceled request shows nothing.
type health struct {
	mu    sync.Mutex
	h     Health  // State is computed at reading
	share float64 // moving share of failures
	since time.Time
}

func failure(k objstore.Kind) bool {
	switch k {
	case objstore.NotFound, objstore.AccessDenied, objstore.PreconditionFailed, objstore.InvalidRange,
		objstore.Archived, objstore.Unsupported, objstore.BadRequest, objstore.Corrupt:
		return false
	}
	return true
}

func (h *health) result(err error) {
	kind := objstore.KindOf(err)
	if err != nil && kind == objstore.Canceled {
		return
	}
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil || !failure(kind) {
		h.h.LastSuccess, h.h.Consecutive = now, 0
		h.share *= 1 - shareWeight
		return
	}
	if h.h.Consecutive == 0 {
		h.since = now
	}
	h.h.Consecutive++
	h.h.LastError, h.h.LastErrorAt = err.Error(), now
	h.share += (1 - h.share) * shareWeight
}

func (h *health) snapshot() Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.h
	switch {
	case out.LastSuccess.IsZero() && out.Consecutive == 0:
		out.State = Idle
	case out.Consecutive >= downAfter && time.Since(h.since) >= downFor,
		out.Consecutive > 0 && out.LastSuccess.IsZero():
		out.State = Down
	case out.Consecutive >= degradedAfter || h.share >= degradedShare:
		out.State = Degraded
	default:
		out.State = OK
	}
	return out
}
