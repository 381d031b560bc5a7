package publish

import "context"

// entry is an item in the queue. Guarded by Queue.mu, as is all of this file.
type entry struct {
	Item
	since   uint64 // lowest Seq of what it replaced: WaitAll waits for its successor too
	due     int64  // nanoseconds since 1970, in phaseTimer
	dir     *dir
	class   *class // of its dir; nil for a delete
	run     *run   // nil: no Run is under way
	nextKey *entry // the next by Seq of the same Key
	in      [heapKinds]int32
	phase   phase
	failed  bool // its last Run failed: in phaseTimer it backs off
}

// phase is where an entry is kept.
type phase uint8

const (
	phaseNone      phase = iota // not counted yet, or not any more
	phaseTimer                  // Queue.timers: debounced or backing off
	phaseCandidate              // the tree: for its turn and a slot, to start or (run != nil) to go on
	phaseParked                 // Queue.parked: for one particular item, likewise
	phaseActive                 // its Run is at work and holds a slot
)

// run is a Run under way.
type run struct {
	stop     context.CancelFunc
	stopped  context.Context // the Run's own: over after stop
	done     chan struct{}   // closed when it has returned and all is settled
	turn     chan struct{}   // closed when it may go on; set while it waits in order
	ahead    bool            // counted in Queue.ahead
	replaced *Item           // takes its place when it has returned
	gone     bool            // leaves the queue when it has returned
	place    *entry          // holds the place of replaced in the order until then, and is in nothing else; see Queue.keepPlace
}

func (e *entry) state() State {
	switch {
	case e.phase == phaseActive:
		return StateRunning
	case e.phase == phaseTimer && e.failed:
		return StateBackingOff
	case e.phase == phaseTimer:
		return StateDebounced
	case e.run != nil:
		return StateOrdered
	}
	return StateWaiting
}

func (e *entry) place() Place {
	return Place{Key: e.Key, Seq: e.Seq, Delete: e.Delete, Failing: !e.Delete && e.Tries >= patience}
}

// before is the order of entries wherever they are sorted by Seq.
func (e *entry) before(f *entry) bool {
	return e.Seq < f.Seq || e.Seq == f.Seq && e.ID < f.ID
}

// The places of an entry in heaps (entry.in). Those that exclude each other share one.
const (
	inClass     = iota // class.puts, or dir.withdrawn for a delete
	inCandidate        // class.candidates or dir.deletes; Queue.timers
	inAhead            // dir.ahead
	inHold             // tree.hold
	inAll              // Queue.all
	heapKinds
)

type byClass struct{}

func (byClass) less(a, b *entry) bool { return a.before(b) }
func (byClass) pos(e *entry) *int32   { return &e.in[inClass] }

type byCandidate struct{}

func (byCandidate) less(a, b *entry) bool { return a.before(b) }
func (byCandidate) pos(e *entry) *int32   { return &e.in[inCandidate] }

type byAhead struct{}

func (byAhead) less(a, b *entry) bool { return a.before(b) }
func (byAhead) pos(e *entry) *int32   { return &e.in[inAhead] }

type byHold struct{}

func (byHold) less(a, b *entry) bool { return a.before(b) }
func (byHold) pos(e *entry) *int32   { return &e.in[inHold] }

type bySince struct{}

func (bySince) less(a, b *entry) bool { return a.since < b.since }
func (bySince) pos(e *entry) *int32   { return &e.in[inAll] }

type byDue struct{}

func (byDue) less(a, b *entry) bool {
	return a.due < b.due || a.due == b.due && a.before(b)
}
func (byDue) pos(e *entry) *int32 { return &e.in[inCandidate] }
