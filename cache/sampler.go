package cache

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
)

// The evictor looks at sampleRun files in a row at each of samplePlaces places of the index
// for a choice, and removes up to evictBatch of them before it looks again. Neighbours were
// admitted at about the same time, so one place would show files of one age only.
const (
	samplePlaces = 8
	sampleRun    = 8
	evictBatch   = 8
)

// sampler chooses the places. Half of them go through the whole index in order, so that each
// file comes up once in a while wherever IDs are dense or sparse; the other half are among the
// files that were admitted lately, where those are that are to go when nothing is dead.
type sampler struct {
	hand ID // the last file seen in order; the evictor's alone

	mu    sync.Mutex
	last  ID // the newest file
	marks []mark
}

// mark says what the newest file was at a time of the clock.
type mark struct {
	clock uint64
	id    ID
}

// The spans of the marks as parts of the capacity: one each 1/200, none older than 1/8.
const (
	markEvery = 200
	markSpan  = 8
)

// admitted notes a new file.
func (s *sampler) admitted(id ID, now, capacity uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = max(s.last, id)
	if n := len(s.marks); n > 0 && now-s.marks[n-1].clock < capacity/markEvery {
		return
	}
	old := 0
	for old < len(s.marks) && s.marks[old].clock+capacity/markSpan < now {
		old++
	}
	s.marks = append(slices.Delete(s.marks, 0, old), mark{now, id})
}

// lately returns the newest file of a random time between justAdmitted and markSpan ago; 0
// when that is not known.
func (s *sampler) lately(now, capacity uint64, r float64) (at, last ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lo, hi := float64(capacity)/justAdmitted, float64(capacity)/markSpan
	age := uint64(lo + r*r*(hi-lo)) // rather the newer ones
	for i := len(s.marks) - 1; i >= 0; i-- {
		if s.marks[i].clock+age <= now {
			return s.marks[i].id, s.last
		}
	}
	return 0, s.last
}

// usageSource is the part of Index that is sampled.
type usageSource interface {
	SampleUsage(pick float64, n int) ([]Usage, error)
}

// sample returns usages, each at most once, in ID order.
func (s *sampler) sample(ix usageSource, now, capacity uint64) ([]Usage, error) {
	first, err := ix.SampleUsage(0, 1)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	lo := first[0].ID
	var all []Usage
	for i := range samplePlaces {
		at, last := s.lately(now, capacity, rand.Float64())
		if last == 0 { // nothing was admitted since Open
			end, err := ix.SampleUsage(1-1e-9, 1)
			if err != nil || len(end) == 0 {
				return nil, err
			}
			last = end[0].ID
			s.mu.Lock()
			s.last = max(s.last, last)
			s.mu.Unlock()
		}
		sweep := i%2 == 0 || at == 0
		if sweep {
			at = s.hand + 1
		}
		pick := 0.0
		if at > lo && last > lo {
			pick = min(float64(at-lo)/float64(last-lo+1), 1)
		}
		got, err := ix.SampleUsage(pick, sampleRun)
		if err != nil {
			return nil, err
		}
		if len(got) == 0 {
			break
		}
		if sweep {
			if s.hand = got[len(got)-1].ID; s.hand >= last {
				s.hand = 0
			}
		}
		all = append(all, got...)
	}
	slices.SortFunc(all, func(a, b Usage) int { return cmp.Compare(a.ID, b.ID) })
	return slices.CompactFunc(all, func(a, b Usage) bool { return a.ID == b.ID }), nil
}
