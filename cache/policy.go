package cache

import (
	"cmp"
	"math"
	"slices"
	"sync"
)

// The eviction policy suits training: each sample is read once per epoch, in another order each
// time. On a set larger than the cache LRU then never hits, because what was read longest
// ago is what comes next. Keeping any fixed part of the set hits in proportion to its size.
// So, among a random sample of the files:
//
//  1. What was not used for longer than anything is reused in (see reach) is dead: the oldest goes
//     first. That is how a data set that is no longer read makes room.
//  2. Else of those never reused the newest goes: the older ones have proven to be the part that
//     stays. Those admitted just now are spared, as they are still being read, and what prefetch
//     brought and nobody has used yet is spared for longer.
//  3. Else the one with the most time since its last use per hit goes.
//
// Time is the cache's clock: bytes admitted.

// policy holds what a choice depends on beside the sample; all in bytes.
type policy struct {
	now      uint64 // the clock
	capacity uint64 // of the directory
	reach    uint64 // ages up to this are still reused
}

// The spans of the policy as parts of the capacity.
const (
	justAdmitted = 50 // 1/50: spared in class 2
	notYetUsed   = 4  // 1/4: spared in class 2 when never used
	deadCapacity = 2  // × capacity: dead only beyond that, whatever reach says
)

// The classes, in order of eviction.
const (
	classDead = iota
	classOnce
	classReused
	classSpared
)

// lastUse is the last use, or the admission of what was never used.
func lastUse(u Usage) uint64 { return max(u.LastUse, u.Admitted) }

func (p policy) age(u Usage) uint64 {
	if l := lastUse(u); l < p.now {
		return p.now - l
	}
	return 0
}

func (p policy) class(u Usage) int {
	admitted := uint64(0)
	if u.Admitted < p.now {
		admitted = p.now - u.Admitted
	}
	switch {
	case p.age(u) > max(deadCapacity*p.capacity, p.reach):
		return classDead
	case u.Hits > 0:
		return classReused
	case admitted < p.capacity/justAdmitted, u.LastUse == 0 && admitted < p.capacity/notYetUsed:
		return classSpared
	}
	return classOnce
}

// compare orders u before v when u should go first.
func (p policy) compare(u, v Usage) int {
	c := p.class(u)
	if d := cmp.Compare(c, p.class(v)); d != 0 {
		return d
	}
	switch c {
	case classDead:
		return cmp.Compare(lastUse(u), lastUse(v))
	case classOnce, classSpared:
		return cmp.Compare(v.Admitted, u.Admitted)
	}
	// age/hits, larger first, without rounding
	return cmp.Compare(float64(p.age(v))/float64(v.Hits), float64(p.age(u))/float64(u.Hits))
}

// choose sorts sample by what should go first. Ties go by ID, so that the result is a function
// of the arguments.
func (p policy) choose(sample []Usage) []Usage {
	out := slices.Clone(sample)
	slices.SortFunc(out, func(u, v Usage) int {
		if d := p.compare(u, v); d != 0 {
			return d
		}
		return cmp.Compare(u.ID, v.ID)
	})
	return out
}

// reach learns at what ages files are reused: the largest age seen at a hit, forgotten
// slowly as the clock goes on. With a set of D bytes in a cache of C, shuffled at each
// epoch, ages go up to 2(D−C). It starts high, as nothing is known.
type reach struct {
	mu       sync.Mutex
	max      float64 // bytes, at the time of at
	at       uint64
	capacity float64
}

// How reach behaves, in capacities.
const (
	reachStart  = 16  // until hits were seen
	reachDecay  = 0.9 // left after a capacity's worth of admissions
	reachMargin = 1.5 // over the largest age seen
)

func (r *reach) decayed(now uint64) float64 {
	if now <= r.at || r.capacity <= 0 {
		return r.max
	}
	return r.max * math.Pow(reachDecay, float64(now-r.at)/r.capacity)
}

// hit notes a use after age bytes.
func (r *reach) hit(now, age uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.max, r.at = max(r.decayed(now), reachMargin*float64(age)), max(now, r.at)
}

// get returns the age beyond which reuse is not expected.
func (r *reach) get(now uint64) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return uint64(r.decayed(now))
}

func (r *reach) save() (hi, at uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return uint64(r.max), r.at
}

func (r *reach) restore(hi, at uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.max, r.at = float64(hi), at
}

// start sets the capacity, and the first guess where nothing was restored.
func (r *reach) start(capacity int64, now uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.capacity = float64(capacity)
	if r.max == 0 {
		r.max, r.at = reachStart*r.capacity, now
	}
}
