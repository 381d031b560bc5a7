package publish

import (
	"context"
	"errors"
	"time"
)

// All of this file but perform, await and tick is called with Queue.mu held.

// insert enters it as a new entry. since is the least Seq of what it stands for.
func (q *Queue) insert(it Item, since uint64) {
	e := &entry{Item: it, since: min(since, it.Seq), failed: it.Tries > 0 && !it.NotBefore.IsZero()}
	q.entries[it.ID] = e
	q.all.push(e)
	q.order.insert(e)
	q.chain(e)
	if at := it.NotBefore; !at.IsZero() && at.After(q.opts.Now()) {
		q.until(e, at)
		return
	}
	q.ready(e)
}

// leave takes e, whose Run is not under way, out of the queue, and tells who waits for it.
func (q *Queue) leave(e *entry) {
	q.drop(e)
	q.tell(e.ID, nil, true)
	q.tellAll()
}

// replace puts it in the place of e, whose Run is not under way.
func (q *Queue) replace(e *entry, it Item) {
	q.drop(e)
	q.insert(it, e.since)
	q.tellAll()
}

// drop is leave without telling.
func (q *Queue) drop(e *entry) {
	switch e.phase {
	case phaseTimer:
		q.timers.remove(e)
	case phaseCandidate:
		q.order.withdraw(e)
	}
	q.setPhase(e, phaseNone)
	q.order.remove(e)
	q.all.remove(e)
	q.unchain(e)
	delete(q.entries, e.ID)
	q.unpark(e.ID)
}

// setPhase moves e to phase p, and counts it there.
func (q *Queue) setPhase(e *entry, p phase) {
	if e.phase != phaseNone {
		q.counts[e.state()]--
	}
	if e.phase = p; p != phaseNone {
		q.counts[e.state()]++
	}
}

// until keeps e until at.
func (q *Queue) until(e *entry, at time.Time) {
	e.due = at.UnixNano()
	q.setPhase(e, phaseTimer)
	q.timers.push(e)
	if q.timers.top() == e {
		select {
		case q.kick <- struct{}{}:
		default:
		}
	}
}

// ready says that e, which is in no heap of candidates, waits for its turn and a slot only.
func (q *Queue) ready(e *entry) {
	q.setPhase(e, phaseCandidate)
	q.order.offer(e)
}

// park keeps e, a candidate, until something happens to the entry of ID on.
func (q *Queue) park(e *entry, on uint64) {
	q.order.withdraw(e)
	q.setPhase(e, phaseParked)
	q.parked[on] = append(q.parked[on], e.ID)
}

// unpark has those looked at again that wait for id in particular.
func (q *Queue) unpark(id uint64) {
	ids, ok := q.parked[id]
	if !ok {
		return
	}
	delete(q.parked, id)
	for _, id := range ids {
		if e := q.entries[id]; e != nil && e.phase == phaseParked {
			q.ready(e)
		}
	}
}

// after returns the entry that e names in After, if it is to be waited for.
func (q *Queue) after(e *entry) *entry {
	if e.After == 0 {
		return nil
	}
	if a := q.entries[e.After]; a != nil && a.Seq < e.Seq {
		return a
	}
	return nil
}

// sameKey returns the entry that must leave before e starts, since it has the same key: one that runs,
// or the first.
func (q *Queue) sameKey(e *entry) *entry {
	first := q.keys[e.Key]
	for f := first; f != nil; f = f.nextKey {
		if f.run != nil && f != e {
			return f
		}
	}
	if first != e {
		return first
	}
	return nil
}

// giveWay has f, whose Run waits in order, start again after e, an earlier one of the same key that came
// later: each would wait for the other. One that is at work meets e in await.
func (q *Queue) giveWay(f, e *entry) {
	if f.Key == e.Key && e.before(f) && f.run != nil && f.phase != phaseActive {
		q.again(f)
	}
}

// again cancels the Run of e, after which it starts anew.
func (q *Queue) again(e *entry) {
	if r := e.run; r.replaced == nil && !r.gone {
		it := e.Item
		r.replaced = &it
	}
	e.run.stop()
}

// keepPlace has what is to take the place of a running item hold up what comes after it from now on, not only when the
// Run has returned: what was renamed with it, and is to be seen after it, could be published in between.
func (q *Queue) keepPlace(r *run) {
	if r.place != nil {
		q.order.remove(r.place)
		r.place = nil
	}
	if r.replaced != nil {
		r.place = &entry{Item: *r.replaced}
		q.order.insert(r.place)
	}
}

// chain enters e among the entries of its key.
func (q *Queue) chain(e *entry) {
	first := q.keys[e.Key]
	if first == nil || e.before(first) {
		e.nextKey = first
		q.keys[e.Key] = e
		return
	}
	f := first
	for f.nextKey != nil && f.nextKey.before(e) {
		f = f.nextKey
	}
	e.nextKey, f.nextKey = f.nextKey, e
}

func (q *Queue) unchain(e *entry) {
	if f := q.keys[e.Key]; f != e {
		for f.nextKey != e {
			f = f.nextKey
		}
		f.nextKey = e.nextKey
	} else if e.nextKey != nil {
		q.keys[e.Key] = e.nextKey
	} else {
		delete(q.keys, e.Key)
	}
	e.nextKey = nil
}

// dispatch gives the free slots to whose turn it is. A quarter of them may be held by what was started ahead.
func (q *Queue) dispatch() {
	for q.started && !q.closed && q.active < q.opts.Parallel {
		if q.ahead < max(1, q.opts.Parallel/4) {
			if e := q.order.early(); e != nil {
				if b := q.sameKey(e); b != nil {
					q.giveWay(b, e)
					q.park(e, b.ID)
				} else {
					q.order.withdraw(e)
					q.start(e, true)
				}
				continue
			}
		}
		e := q.order.next()
		if e == nil {
			return
		}
		b := q.after(e)
		if b == nil && e.run == nil {
			b = q.sameKey(e)
		}
		if b != nil {
			q.giveWay(b, e)
			q.park(e, b.ID)
			continue
		}
		q.order.withdraw(e)
		if e.run == nil {
			q.start(e, false)
			continue
		}
		if q.keys[e.Key].before(e) {
			q.again(e) // as in await: the earlier one, which may not be due, came to have the key meanwhile
		}
		q.resume(e)
		close(e.run.turn)
		e.run.turn = nil
	}
}

// start runs e, which is in no heap of candidates.
func (q *Queue) start(e *entry, ahead bool) {
	ctx, stop := context.WithCancel(context.Background())
	r := &run{stop: stop, stopped: ctx, done: make(chan struct{}), ahead: ahead}
	if ahead {
		q.ahead++
	}
	q.setPhase(e, phaseNone) // state looks at run
	e.run = r
	q.resume(e)
	q.runs.Go(func() { q.perform(e, r) })
}

// resume gives e a slot.
func (q *Queue) resume(e *entry) {
	q.setPhase(e, phaseActive)
	q.active++
}

// perform carries e out once and settles what becomes of it. Queue.mu is not held.
func (q *Queue) perform(e *entry, r *run) {
	err := e.Run(r.stopped, func(ctx context.Context) error { return q.await(ctx, e, r) })
	if errors.Is(err, ErrSuperseded) {
		err = nil
	}
	var next time.Time
	q.mu.Lock()
	failed := err != nil && r.stopped.Err() == nil
	if failed {
		e.Tries++
		e.Error = err.Error()
		next = q.opts.Now().Add(q.backoff(e.Tries))
	}
	tries := e.Tries
	q.mu.Unlock()
	if failed && q.opts.OnFail != nil {
		q.opts.OnFail(e.ID, tries, next, err)
	}

	q.mu.Lock()
	defer q.mu.Unlock()
	r.stop()
	q.setPhase(e, phaseNone)
	e.run = nil
	q.active--
	q.atCommit(r)
	if r.place != nil {
		q.order.remove(r.place)
	}
	switch {
	case r.gone && r.replaced == nil:
		q.leave(e)
	case r.replaced != nil && !q.closed:
		q.replace(e, *r.replaced)
	case q.closed: // it stays, for the status
	case failed:
		e.failed = true
		if e.in[inHold] != 0 && e.place().Failing {
			q.order.release(e)
		}
		q.until(e, next)
		q.unpark(e.ID)
		q.tellFailed(e, err)
	case err == nil:
		q.leave(e)
	}
	close(r.done)
	q.dispatch()
}

// atCommit says that r is ahead no longer.
func (q *Queue) atCommit(r *run) {
	if r.ahead {
		r.ahead = false
		q.ahead--
	}
}

// await is what Run gets as order. Meanwhile its slot is free for others. Queue.mu is not held.
func (q *Queue) await(ctx context.Context, e *entry, r *run) error {
	q.mu.Lock()
	if err := errors.Join(ctx.Err(), r.stopped.Err()); err != nil {
		q.mu.Unlock()
		return err
	}
	if q.keys[e.Key].before(e) {
		q.again(e)
		q.mu.Unlock()
		return context.Canceled
	}
	if !q.order.blocked(e) && q.after(e) == nil {
		q.atCommit(r)
		q.mu.Unlock()
		return nil
	}
	q.active--
	turn := make(chan struct{})
	r.turn = turn
	q.ready(e)
	q.dispatch()
	q.mu.Unlock()

	select {
	case <-turn:
	case <-ctx.Done():
	case <-r.stopped.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.turn != nil { // it was not given a slot; it takes one for the short rest of its life
		r.turn = nil
		if e.phase == phaseCandidate {
			q.order.withdraw(e)
		}
		q.resume(e)
	}
	if err := errors.Join(ctx.Err(), r.stopped.Err()); err != nil {
		return err
	}
	q.atCommit(r)
	return nil
}

// backoff returns how long to wait after so many failures.
func (q *Queue) backoff(tries uint32) time.Duration {
	d := q.opts.MinBackoff
	for ; tries > 1 && d < q.opts.MaxBackoff; tries-- {
		d *= 2
	}
	d = min(d, q.opts.MaxBackoff)
	return d/2 + time.Duration(float64(d/2)*q.opts.Random())
}

// tick makes candidates of what is due, until the queue is closed. Queue.mu is not held.
func (q *Queue) tick() {
	for {
		q.mu.Lock()
		now := q.opts.Now().UnixNano()
		wait := time.Hour
		for e := q.timers.top(); e != nil; e = q.timers.top() {
			if e.due > now {
				wait = min(wait, time.Duration(e.due-now))
				break
			}
			q.timers.remove(e)
			q.ready(e)
		}
		q.dispatch()
		q.mu.Unlock()
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-q.kick:
		case <-q.quit:
			t.Stop()
			return
		}
		t.Stop()
	}
}
