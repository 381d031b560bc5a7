package publish

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// wait is somebody who waits for an item. done has room for the one answer.
type wait struct {
	done   chan error
	orFail bool // a failure is an answer too
}

// waitAll is somebody who waits for everything that was complete at seq.
type waitAll struct {
	seq  uint64
	done chan error
}

// Hasten ends the debounce or backoff of an item, and of those that must be published before it.
func (q *Queue) Hasten(id uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.entries[id]
	if e == nil {
		return
	}
	at := e.place()
	var early []*entry
	for _, t := range q.timers.a {
		if t == e || t.ID == e.After || MustPrecede(t.place(), at) {
			early = append(early, t)
		}
	}
	q.hasten(early)
	if r := e.run; r != nil && r.replaced != nil {
		r.replaced.NotBefore = time.Time{}
	}
}

// Retry ends the backoff of an item that has failed, and of no other: why it failed may be over.
func (q *Queue) Retry(id uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e := q.entries[id]; e != nil && e.phase == phaseTimer && e.failed {
		q.hasten([]*entry{e})
	}
}

// HastenAll ends all debounces and backoffs.
func (q *Queue) HastenAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range q.entries {
		if r := e.run; r != nil && r.replaced != nil {
			r.replaced.NotBefore = time.Time{}
		}
	}
	q.hasten(slices.Clone(q.timers.a))
}

func (q *Queue) hasten(entries []*entry) {
	for _, e := range entries {
		q.timers.remove(e)
		e.due, e.NotBefore = 0, time.Time{}
		q.ready(e)
	}
	q.dispatch()
}

// Wait returns when the item has left the queue: nil, also when it was cancelled or superseded, or was not there.
func (q *Queue) Wait(ctx context.Context, id uint64) error { return q.wait(ctx, id, false) }

// WaitOrFail is Wait, but returns the error of the next failure if that comes first: of the item, or of one that must be
// published before it.
func (q *Queue) WaitOrFail(ctx context.Context, id uint64) error { return q.wait(ctx, id, true) }

func (q *Queue) wait(ctx context.Context, id uint64, orFail bool) error {
	q.mu.Lock()
	if q.entries[id] == nil {
		q.mu.Unlock()
		return nil
	}
	if q.closed {
		q.mu.Unlock()
		return ErrClosed
	}
	w := &wait{done: make(chan error, 1), orFail: orFail}
	q.waits[id] = append(q.waits[id], w)
	q.mu.Unlock()
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		q.mu.Lock()
		defer q.mu.Unlock()
		q.setWaits(id, slices.DeleteFunc(q.waits[id], func(o *wait) bool { return o == w }))
		return context.Cause(ctx)
	}
}

// WaitAll returns when all items with a Seq of at most seq have left. One that is replaced (written anew)
// meanwhile is waited for still: what was written before seq is in what it became.
func (q *Queue) WaitAll(ctx context.Context, seq uint64) error {
	q.mu.Lock()
	if e := q.all.top(); e == nil || e.since > seq {
		q.mu.Unlock()
		return nil
	}
	if q.closed {
		q.mu.Unlock()
		return ErrClosed
	}
	w := &waitAll{seq: seq, done: make(chan error, 1)}
	q.waitAll = append(q.waitAll, w)
	q.mu.Unlock()
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		q.mu.Lock()
		defer q.mu.Unlock()
		q.waitAll = slices.DeleteFunc(q.waitAll, func(o *waitAll) bool { return o == w })
		return context.Cause(ctx)
	}
}

// tell answers those who wait for id. left: it is no longer in the queue.
func (q *Queue) tell(id uint64, err error, left bool) {
	keep := q.waits[id][:0]
	for _, w := range q.waits[id] {
		if left || w.orFail {
			w.done <- err
		} else {
			keep = append(keep, w)
		}
	}
	q.setWaits(id, keep)
}

// tellFailed answers those who want to know that e has failed: it, or what must not be published before it.
func (q *Queue) tellFailed(e *entry, err error) {
	q.tell(e.ID, err, false)
	for id := range q.waits {
		b := q.entries[id]
		if b != nil && (b.After == e.ID || MustPrecede(e.place(), b.place())) {
			q.tell(id, fmt.Errorf("%q has to be published before %q: %w", e.Key, b.Key, err), false)
		}
	}
}

func (q *Queue) setWaits(id uint64, to []*wait) {
	if len(to) == 0 {
		delete(q.waits, id)
		return
	}
	q.waits[id] = to
}

// tellAll answers those who wait for everything up to a seq, if the last of it has just left.
func (q *Queue) tellAll() {
	if len(q.waitAll) == 0 {
		return
	}
	first := ^uint64(0)
	if e := q.all.top(); e != nil {
		first = e.since
	}
	q.waitAll = slices.DeleteFunc(q.waitAll, func(w *waitAll) bool {
		if first <= w.seq {
			return false
		}
		w.done <- nil
		return true
	})
}
