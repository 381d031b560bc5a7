package publish

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// ErrSuperseded is returned by Item.Run when there is nothing to be done any more: something later
// has taken its place. The item leaves the queue silently.
var ErrSuperseded = errors.New("publication superseded")

// ErrClosed is returned by the waits of a queue that has been closed.
var ErrClosed = errors.New("the publication queue is closed")

// QueueOptions say how a queue works. The zero value is usable.
type QueueOptions struct {
	// Parallel is how many items run at once, 64 if zero. One that waits in order does not count.
	Parallel int
	// Now tells the time; time.Now if nil.
	Now func() time.Time
	// MinBackoff is the wait after the first failure, 1 s if zero; it doubles up to MaxBackoff, 60 s if zero.
	MinBackoff, MaxBackoff time.Duration
	// Random returns a number in [0, 1) for the jitter: a wait is between half of what it would be
	// and the whole of it. rand.Float64 if nil.
	Random func() float64
	// OnFail is called after a Run that has failed, before it may run again; nil: nobody is told. It is
	// called for several items at once, with no lock held, and not for a Run that was cancelled.
	OnFail func(id uint64, tries uint32, next time.Time, err error)
}

// Item is one thing to be carried out at the origin.
type Item struct {
	ID  uint64 // not zero; unique while it is in the queue: inode number, or a tomb's number
	Key string // full object key ("dir/sub/name"; directories end in "/")
	Seq uint64 // order of completion, not zero
	// After is the ID of an item with a lower Seq that must have left the queue before this one is committed,
	// wherever it is: the copy that still reads the object that this one deletes or overwrites. 0: none. One
	// that is not in the queue, or has not a lower Seq, is not waited for.
	After uint64
	// Ahead: it has much to upload before its commit (several parts). It may be started before its turn and
	// then waits in order. Others are started when their turn has come.
	Ahead     bool
	Delete    bool      // it removes the key: see order.go
	Tries     uint32    // failures so far, and the last: as the ledger says after a restart
	Error     string    // likewise
	NotBefore time.Time // debounce
	// Run carries it out. nil: done, it leaves the queue; ErrSuperseded: likewise; else it is tried again for
	// ever with backoff. order waits until everything that must be published earlier is; Run calls it right before
	// each commit and returns its error if it has one. After Rekey, Run is called again and has to look up the key itself.
	// What a Run returns after its ctx has been cancelled is not looked at.
	Run func(ctx context.Context, order func(context.Context) error) error
}

// Queue carries out publications in the order that order.go defines, many at once, each until it
// succeeds. It knows nothing of stores or the index. Directories take turns, so that one of 100,000 small files does
// not hold up another; within a directory the earliest goes first. Safe for parallel use.
//
// Each Add, each end of a Run and each order costs O(depth of the key × log n). An item takes about
// 270 bytes where many are alike, 420 where all names differ, 650 with a directory of its own (BenchmarkQueue), and its key
// and Run's closure; one that runs a goroutine besides. The items themselves are not limited: the caller knows how many are dirty.
type Queue struct {
	opts QueueOptions

	runs    sync.WaitGroup // of Runs
	timer   sync.WaitGroup // of the goroutine that waits for the next due item
	kick    chan struct{}  // capacity 1: the first due time has changed
	quit    chan struct{}  // closed by Close
	mu      sync.Mutex     // guards all below; OnFail and Run are called without it
	started bool
	closed  bool
	entries map[uint64]*entry
	keys    map[string]*entry // first of a key by Seq; the others by entry.nextKey
	order   tree
	timers  heapOf[*entry, byDue]
	all     heapOf[*entry, bySince]
	parked  map[uint64][]uint64 // blocker's ID: those that wait for it in particular
	active  int                 // Runs that hold a slot
	ahead   int                 // Runs that were started ahead and have not come to their commit
	counts  Counts
	waits   map[uint64][]*wait
	waitAll []*waitAll
}

// NewQueue returns an empty queue, which carries out nothing before Start.
func NewQueue(o QueueOptions) *Queue {
	if o.Parallel <= 0 {
		o.Parallel = 64
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MinBackoff <= 0 {
		o.MinBackoff = time.Second
	}
	if o.MaxBackoff <= 0 {
		o.MaxBackoff = time.Minute
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	return &Queue{
		opts:    o,
		kick:    make(chan struct{}, 1),
		quit:    make(chan struct{}),
		entries: make(map[uint64]*entry),
		keys:    make(map[string]*entry),
		order:   newTree(),
		parked:  make(map[uint64][]uint64),
		waits:   make(map[uint64][]*wait),
	}
}

// Start begins to carry out what is in the queue. What the ledger says should be in the queue before,
// or the order is not known yet.
func (q *Queue) Start() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.started || q.closed {
		return
	}
	q.started = true
	q.timer.Go(q.tick)
	q.dispatch()
}

// Close cancels the Runs, waits for them, or for the end of ctx, and ends all waits with ErrClosed. What was in the
// queue stays in the ledger. Add does nothing afterwards.
func (q *Queue) Close(ctx context.Context) error {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		close(q.quit)
		for _, e := range q.entries {
			if e.run != nil {
				e.run.stop()
			}
		}
		for id := range q.waits {
			q.tell(id, ErrClosed, true)
		}
		for _, w := range q.waitAll {
			w.done <- ErrClosed
		}
		q.waitAll = nil
	}
	q.mu.Unlock()
	done := make(chan struct{})
	go func() { // ends with the last Run
		q.runs.Wait()
		q.timer.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Add puts it into the queue. One of the same ID that waits is replaced. If that one is running, it is cancelled, and the
// new one takes its place when it has returned, whatever it returned. Who waits for the ID waits for the new one.
func (q *Queue) Add(it Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	old := q.entries[it.ID]
	switch {
	case old == nil:
		q.insert(it, it.Seq)
	case old.run != nil:
		old.run.replaced, old.run.gone = &it, false
		q.keepPlace(old.run)
		old.run.stop()
	default:
		q.replace(old, it)
	}
	q.dispatch()
}

// Cancel takes the item out of the queue, and returns when its Run has returned or ctx is over; in the latter case it leaves the
// queue as soon as its Run returns. An unknown id is none of its business. Not to be called from within the item's own Run.
func (q *Queue) Cancel(ctx context.Context, id uint64) error {
	q.mu.Lock()
	e := q.entries[id]
	if e == nil {
		q.mu.Unlock()
		return nil
	}
	r := e.run
	if r == nil {
		q.leave(e)
		q.dispatch()
		q.mu.Unlock()
		return nil
	}
	r.replaced, r.gone = nil, true
	q.keepPlace(r)
	r.stop()
	q.mu.Unlock()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Rekey says that the item was renamed. Its place in the order of completion stays. If it is running, it is cancelled and
// starts again under the new key when it has returned, whatever it returned.
func (q *Queue) Rekey(id uint64, key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.entries[id]
	switch {
	case q.closed || e == nil || e.run != nil && e.run.gone:
		return
	case e.run == nil:
		it := e.Item
		it.Key = key
		q.replace(e, it)
	default:
		q.again(e)
		e.run.replaced.Key = key
		q.keepPlace(e.run)
	}
	q.dispatch()
}
