package publish

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// step is one thing that the test does to a queue.
type step struct {
	op      string
	id      uint64
	key     string
	seq     uint64 // 0: the next
	after   uint64
	del     bool
	ahead   bool
	upload  time.Duration
	fails   int  // so many Runs fail
	late    bool // and they fail at the commit, not before
	silent  bool // its end is ErrSuperseded
	wait    time.Duration
	pending time.Duration // debounce
}

func drawSteps(t *rapid.T) []step {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			op:      rapid.SampledFrom([]string{"add", "add", "add", "add", "cancel", "rekey", "rekey", "hasten", "hasten all"}).Draw(t, "op"),
			id:      rapid.Uint64Range(1, 12).Draw(t, "id"),
			key:     someKeys.Draw(t, "key"),
			seq:     rapid.SampledFrom([]uint64{0, 0, 0, 1, 5, 10}).Draw(t, "seq"),
			after:   rapid.SampledFrom([]uint64{0, 0, 0, 1, 2, 3, 4}).Draw(t, "after"),
			del:     rapid.IntRange(0, 3).Draw(t, "delete") == 0,
			ahead:   rapid.Bool().Draw(t, "ahead"),
			upload:  time.Duration(rapid.IntRange(0, 40).Draw(t, "upload")) * time.Millisecond,
			fails:   rapid.SampledFrom([]int{0, 0, 0, 1, 2, patience + 1}).Draw(t, "fails"),
			late:    rapid.Bool().Draw(t, "late"),
			silent:  rapid.IntRange(0, 9).Draw(t, "silent") == 0,
			wait:    time.Duration(rapid.IntRange(0, 30).Draw(t, "wait")) * time.Millisecond,
			pending: time.Duration(rapid.SampledFrom([]int{0, 0, 0, 20, 200}).Draw(t, "debounce")) * time.Millisecond,
		}
	}), 1, 40).Draw(t, "steps")
}

// naive is the queue as it ought to be: a set of places, looked through one by one.
type naive struct {
	mu      sync.Mutex
	in      map[uint64]*naiveItem
	running map[string]uint64
	errs    []string
}

type naiveItem struct {
	Place
	after   uint64
	tries   int
	fails   int
	running bool
	next    *naiveItem // takes its place when its Run has returned
	gone    bool       // leaves when its Run has returned
}

func (m *naive) failf(format string, args ...any) {
	m.errs = append(m.errs, fmt.Sprintf(format, args...))
}

// run returns the Run of an item that was added by s.
func (m *naive) run(s step) func(context.Context, func(context.Context) error) error {
	return func(ctx context.Context, order func(context.Context) error) (err error) {
		m.mu.Lock()
		n := m.in[s.id]
		if n == nil || n.running {
			m.failf("%d runs, in the model it is %+v", s.id, n)
			m.mu.Unlock()
			return ErrSuperseded
		}
		key := n.Key
		if other, ok := m.running[key]; ok {
			m.failf("%d and %d of key %q run at once", other, s.id, key)
		}
		m.running[key] = s.id
		n.running = true
		m.mu.Unlock()

		defer func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.running, key)
			n.running = false
			switch {
			case n.gone:
				delete(m.in, s.id)
			case n.next != nil:
				m.in[s.id] = n.next
			case ctx.Err() != nil: // it starts again
			case err == nil || errors.Is(err, ErrSuperseded):
				delete(m.in, s.id)
			default:
				n.tries++
				n.Failing = !n.Delete && n.tries >= patience
			}
		}()
		if err := pause(ctx, s.upload); err != nil {
			return err
		}
		if m.fail(n, !s.late) {
			return errors.New("not now")
		}
		if s.silent {
			return fmt.Errorf("unlinked: %w", ErrSuperseded)
		}
		if err := order(ctx); err != nil {
			return err
		}
		m.committed(s.id, n)
		if m.fail(n, s.late) {
			return errors.New("the commit failed")
		}
		return nil
	}
}

// fail uses up one of the failures that n has to have, if it is the time for them.
func (m *naive) fail(n *naiveItem, now bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !now || n.fails == 0 {
		return false
	}
	n.fails--
	return true
}

// committed checks that nothing is left that should have been before.
func (m *naive) committed(id uint64, n *naiveItem) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for aid, a := range m.in {
		if aid != id && (MustPrecede(a.Place, n.Place) || aid == n.after && a.Seq < n.Seq) {
			m.failf("%d %+v (after %d) is committed before %d %+v", id, n.Place, n.after, aid, a.Place)
		}
	}
}

// set makes n the item of id, at once or when its Run has returned.
func (m *naive) set(id uint64, n *naiveItem) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.in[id]; old != nil && old.running {
		old.next, old.gone = n, false
		return
	}
	m.in[id] = n
}

func (m *naive) do(ctx context.Context, q *Queue, s step, seq uint64) {
	switch s.op {
	case "add":
		m.set(s.id, &naiveItem{Place: Place{Key: s.key, Seq: seq, Delete: s.del}, after: s.after, fails: s.fails})
		it := Item{ID: s.id, Key: s.key, Seq: seq, Delete: s.del, After: s.after, Ahead: s.ahead, Run: m.run(s)}
		if s.pending > 0 {
			it.NotBefore = time.Now().Add(s.pending)
		}
		q.Add(it)
	case "cancel":
		m.mu.Lock()
		if n := m.in[s.id]; n != nil && n.running {
			n.gone, n.next = true, nil
		} else {
			delete(m.in, s.id)
		}
		m.mu.Unlock()
		if err := q.Cancel(ctx, s.id); err != nil {
			m.failf("cancel %d: %v", s.id, err)
		}
		m.mu.Lock()
		if m.in[s.id] != nil {
			m.failf("cancel %d has returned before its Run", s.id)
		}
		m.mu.Unlock()
	case "rekey":
		m.mu.Lock()
		if n := m.in[s.id]; n != nil {
			switch {
			case !n.running:
				n.Key = s.key
			case n.next == nil && !n.gone:
				next := *n
				next.running = false
				n.next = &next
			}
			if n.next != nil {
				n.next.Key = s.key
			}
		}
		m.mu.Unlock()
		q.Rekey(s.id, s.key)
	case "hasten":
		q.Hasten(s.id)
	case "hasten all":
		q.HastenAll()
	}
}

// TestQueueAgainstModel adds, cancels, renames and hastens at random, with Runs that fail: nothing is committed
// before what must precede it, no two of a key run at once, all is done once the failures are over, and nothing is left behind.
func TestQueueAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := drawSteps(rt)
		parallel := rapid.SampledFrom([]int{1, 2, 3, 8}).Draw(rt, "parallel")
		var errs []string
		synctest.Test(t, func(t *testing.T) { errs = runSteps(t, steps, parallel) })
		for _, e := range errs {
			rt.Error(e)
		}
	})
}

// TestQueueSameKeyEarlier: an item that waits in order starts again when an earlier one comes to have its key, though that is
// not due yet.
func TestQueueSameKeyEarlier(t *testing.T) {
	for _, del := range []bool{true, false} {
		steps := []step{
			{op: "add", id: 1, key: "1.bin", pending: 20 * time.Millisecond},
			{op: "add", id: 2, key: "r.b", ahead: true},
			{op: "add", id: 1, key: "r.b", seq: 1, del: del, pending: 200 * time.Millisecond},
		}
		synctest.Test(t, func(t *testing.T) {
			for _, e := range runSteps(t, steps, 1) {
				t.Error(e)
			}
		})
	}
}

func runSteps(t *testing.T, steps []step, parallel int) []string {
	m := &naive{in: make(map[uint64]*naiveItem), running: make(map[string]uint64)}
	q := NewQueue(QueueOptions{
		Parallel:   parallel,
		MinBackoff: 8 * time.Millisecond,
		MaxBackoff: 64 * time.Millisecond,
		Random:     func() float64 { return 0.5 },
	})
	q.Start()
	seq := uint64(0)
	for _, s := range steps {
		seq++
		at := s.seq
		if at == 0 || at > seq {
			at = seq
		}
		m.do(t.Context(), q, s, at)
		synctest.Wait()
		// Whole milliseconds and a nanosecond: no Run ends just when the next step is done.
		time.Sleep(s.wait + time.Nanosecond)
		synctest.Wait()
		if n, limit := q.Counts()[StateRunning], parallel; n > limit {
			m.failf("%d run, the limit is %d", n, limit)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	if err := q.WaitAll(ctx, seq); err != nil {
		m.failf("not all is done: %v: %+v", err, q.Snapshot())
	} else {
		synctest.Wait()
		m.leftovers(q)
	}
	cancel()
	if err := q.Close(t.Context()); err != nil {
		m.failf("close: %v", err)
	}
	return m.errs
}

// leftovers checks that an empty queue keeps nothing.
func (m *naive) leftovers(q *Queue) {
	if len(m.in) != 0 {
		m.failf("all is done, but the model has %v", m.in)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.counts != (Counts{}) || q.active != 0 || q.ahead != 0 {
		m.failf("counts of an empty queue: %v, %d active, %d ahead", q.counts, q.active, q.ahead)
	}
	if n := len(q.entries) + len(q.keys) + len(q.parked) + q.timers.len() + q.all.len() + len(q.waits) + len(q.waitAll); n != 0 {
		m.failf("an empty queue keeps %d entries, %d keys, %d parked", len(q.entries), len(q.keys), len(q.parked))
	}
	o := &q.order
	if n := len(o.dirs) + len(o.stuck) + o.hold.len() + o.held.len(); n != 0 {
		m.failf("an empty queue keeps %d dirs, %d stuck, %d hold, %d held", len(o.dirs), len(o.stuck), o.hold.len(), o.held.len())
	}
}
