package limit

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// maxGroups is how many groups are told apart; one more holds the rest.
const maxGroups = 64

const otherGroups = "*"

// pool is one sort of slots.
type pool struct {
	start, most int
	reserve     float64

	mu       sync.Mutex
	all      window
	inFlight int
	groups   map[string]*group
	serial   uint64
}

// group is guarded by its pool's lock.
type group struct {
	name     string
	window   window
	inFlight int
	queue    [3][]*waiter // by priority
	used     uint64       // serial of the last use
	last     time.Time    // of the last throttle
}

func (g *group) idle() bool {
	return g.inFlight == 0 && len(g.queue[0])+len(g.queue[1])+len(g.queue[2]) == 0
}

type waiter struct {
	group    *group
	priority objstore.Priority
	serial   uint64
	slot     chan *slot // holds one
}

// slot is the right to one request.
type slot struct {
	pool  *pool
	group *group
	sent  time.Time
	// Whether the pool's limit, and the group's, were in use when it was given.
	fullPool, fullGroup bool
}

func newPool(most, start int, reserve float64) *pool {
	return &pool{start: start, most: most, reserve: reserve, all: newWindow(start, most), groups: map[string]*group{}}
}

// of returns the group of a name, under the lock.
func (p *pool) of(name string) *group {
	if g := p.groups[name]; g != nil {
		return g
	}
	if len(p.groups) >= maxGroups && name != otherGroups {
		var oldest *group
		for _, g := range p.groups {
			if g.idle() && g.name != otherGroups && (oldest == nil || g.used < oldest.used) {
				oldest = g
			}
		}
		if oldest == nil {
			return p.of(otherGroups)
		}
		delete(p.groups, oldest.name)
	}
	g := &group{name: name, window: newWindow(p.start, p.most)}
	p.groups[name] = g
	return g
}

// low is how many of n slots requests below Demand may take: all but the reserve.
func (p *pool) low(n int) int {
	return max(1, n-max(1, int(float64(n)*p.reserve)))
}

// room tells, under the lock, whether a request of the priority may be sent now.
func (p *pool) room(g *group, pr objstore.Priority) bool {
	all, own := p.all.slots(), g.window.slots()
	if pr != objstore.Demand {
		all, own = p.low(all), p.low(own)
	}
	return p.inFlight < all && g.inFlight < own
}

// give makes a slot, under the lock.
func (p *pool) give(g *group) *slot {
	p.inFlight++
	g.inFlight++
	// Nearly all counts too: the reserve keeps low priorities from ever filling a limit.
	return &slot{pool: p, group: g, sent: time.Now(),
		fullPool:  p.inFlight >= p.low(p.all.slots()),
		fullGroup: g.inFlight >= p.low(g.window.slots())}
}

func (p *pool) acquire(ctx context.Context, name string) (*slot, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	pr := min(objstore.PriorityOf(ctx), objstore.Background)
	p.mu.Lock()
	g := p.of(name)
	p.serial++
	g.used = p.serial
	ahead := 0
	for q := range int(pr) + 1 {
		ahead += len(g.queue[q])
	}
	if ahead == 0 && p.room(g, pr) {
		s := p.give(g)
		p.mu.Unlock()
		return s, nil
	}
	w := &waiter{group: g, priority: pr, serial: p.serial, slot: make(chan *slot, 1)}
	g.queue[pr] = append(g.queue[pr], w)
	p.mu.Unlock()
	raised := objstore.Raised(ctx)
	for {
		select {
		case s := <-w.slot:
			return s, nil
		case <-raised:
			raised = nil
			p.raise(w)
			continue
		case <-ctx.Done():
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.leave(w) {
			p.dispatch() // it may have stood in the way of others
		} else { // given at the same moment
			p.drop(<-w.slot)
		}
		return nil, ctx.Err()
	}
}

// leave takes w out of its queue, under the lock; false when it has its slot already.
func (p *pool) leave(w *waiter) bool {
	q := &w.group.queue[w.priority]
	i := slices.Index(*q, w)
	if i >= 0 {
		*q = slices.Delete(*q, i, i+1)
	}
	return i >= 0
}

// raise puts w among those of Demand, behind those that wait already: what was a guess has a
// reader now.
func (p *pool) raise(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.priority != objstore.Demand && p.leave(w) {
		w.priority = objstore.Demand
		p.serial++
		w.serial = p.serial
		w.group.queue[objstore.Demand] = append(w.group.queue[objstore.Demand], w)
		p.dispatch()
	}
}

// dispatch gives free slots to those who wait, under the lock: the highest priority first,
// within it the oldest whose group has room.
func (p *pool) dispatch() {
	for {
		var best *waiter
		for _, g := range p.groups {
			for pr, q := range g.queue {
				if len(q) == 0 {
					continue
				}
				w := q[0]
				if p.room(g, objstore.Priority(pr)) && (best == nil ||
					cmp.Or(cmp.Compare(w.priority, best.priority), cmp.Compare(w.serial, best.serial)) < 0) {
					best = w
				}
				break // lower priorities of the group go after it
			}
		}
		if best == nil {
			return
		}
		q := &best.group.queue[best.priority]
		*q = slices.Delete(*q, 0, 1)
		best.slot <- p.give(best.group)
	}
}

// drop takes a slot back, under the lock.
func (p *pool) drop(s *slot) {
	p.inFlight--
	s.group.inFlight--
	p.dispatch()
}

// release gives the slot back; err is the outcome of the request.
func (s *slot) release(err error) {
	p, g := s.pool, s.group
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case objstore.Is(err, objstore.Throttled):
		now := time.Now()
		// The store's limit falls by the group's part in what is in flight, so that one
		// throttled prefix does not slow the others, and a throttled account slows all.
		share := float64(g.inFlight) / float64(p.inFlight)
		g.window.shrink(s.sent, now, 1)
		g.last = now
		p.all.shrink(s.sent, now, share)
	case err == nil:
		if s.fullGroup {
			g.window.grow()
		}
		if s.fullPool {
			p.all.grow()
		}
	}
	p.drop(s)
}

func (p *pool) snapshot() Slots {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := Slots{Limit: p.all.slots(), InFlight: p.inFlight, Throttled: p.all.throttled}
	for _, g := range p.groups {
		out.Groups = append(out.Groups, GroupSlots{Name: g.name, Limit: g.window.slots(), InFlight: g.inFlight,
			Throttled: g.window.throttled, LastThrottled: g.last})
		for i, q := range g.queue {
			out.Waiting[i] += len(q)
		}
	}
	slices.SortFunc(out.Groups, func(a, b GroupSlots) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
