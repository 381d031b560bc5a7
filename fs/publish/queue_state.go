package publish

import "time"

// State is what an item is doing.
type State uint8

const (
	StateWaiting    State = iota // for its turn, or for a slot
	StateDebounced               // for its NotBefore
	StateOrdered                 // all uploaded, for those that must be published earlier
	StateRunning                 // Run is at work
	StateBackingOff              // it has failed; for its next try
)

var stateNames = [...]string{"waiting", "debounced", "ordered", "running", "backing off"}

func (s State) String() string { return stateNames[s] }

// ItemState is what a status shows of an item.
type ItemState struct {
	ID     uint64
	Key    string
	Seq    uint64
	Delete bool
	State  State
	Tries  uint32
	Next   time.Time // when it is due, if it is debounced or backing off
	Error  string    // of the last failure
}

// Counts says how many items are in each State.
type Counts [len(stateNames)]int

// Total is the number of items in the queue.
func (c Counts) Total() int {
	n := 0
	for _, v := range c {
		n += v
	}
	return n
}

// Running tells whether a Run of the item is under way, also one that was cancelled.
func (q *Queue) Running(id uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.entries[id]
	return e != nil && e.run != nil
}

// Counts is cheap.
func (q *Queue) Counts() Counts {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.counts
}

// Snapshot returns all items, in no order. It holds up the queue while it copies them.
func (q *Queue) Snapshot() []ItemState {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := make([]ItemState, 0, len(q.entries))
	for _, e := range q.entries {
		i := ItemState{ID: e.ID, Key: e.Key, Seq: e.Seq, Delete: e.Delete, State: e.state(), Tries: e.Tries, Error: e.Error}
		if e.phase == phaseTimer {
			i.Next = time.Unix(0, e.due)
		}
		s = append(s, i)
	}
	return s
}
