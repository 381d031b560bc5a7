package cache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestChoose pins the order of eviction. Input: a line of the policy, then one usage a line.
func TestChoose(t *testing.T) {
	datadriven.RunTest(t, "testdata/choose", func(t *testing.T, d *datadriven.TestData) string {
		var p policy
		d.ScanArgs(t, "now", &p.now)
		d.ScanArgs(t, "capacity", &p.capacity)
		d.ScanArgs(t, "reach", &p.reach)
		var sample []Usage
		for line := range strings.Lines(d.Input) {
			var u Usage
			if _, err := fmt.Sscanf(strings.TrimSpace(line), "%d admitted=%d used=%d hits=%d", &u.ID, &u.Admitted, &u.LastUse, &u.Hits); err != nil {
				t.Fatalf("%s: %q: %v", d.Pos, line, err)
			}
			sample = append(sample, u)
		}
		var b strings.Builder
		for _, u := range p.choose(sample) {
			fmt.Fprintf(&b, "%d %s\n", u.ID, []string{"dead", "once", "reused", "spared"}[p.class(u)])
		}
		return b.String()
	})
}

// simulated is a cache of files of 1 byte that evicts as the real one does.
type simulated struct {
	capacity uint64
	now      uint64
	reach    reach
	sampler  sampler
	files    map[int]*Usage
	order    []ID // in the index; ID order
	names    map[ID]int
	last     ID
	r        *rand.Rand
}

func newSimulated(capacity int) *simulated {
	s := &simulated{capacity: uint64(capacity), now: 1, files: map[int]*Usage{}, names: map[ID]int{}, r: rand.New(rand.NewPCG(1, 2))}
	s.reach.start(int64(capacity), 1)
	return s
}

// SampleUsage picks a place by ID, as the real index does: gaps are hit too.
func (s *simulated) SampleUsage(pick float64, n int) (out []Usage, _ error) {
	if len(s.order) == 0 {
		return nil, nil
	}
	first, last := s.order[0], s.order[len(s.order)-1]
	at, _ := slices.BinarySearch(s.order, first+ID(pick*float64(last-first+1)))
	for i := range min(n, len(s.order)) {
		out = append(out, *s.files[s.names[s.order[(at+i)%len(s.order)]]])
	}
	return out, nil
}

func (s *simulated) access(f int) (hit bool) {
	if u := s.files[f]; u != nil {
		if s.now > u.LastUse {
			s.reach.hit(s.now, s.now-u.LastUse)
		}
		u.LastUse = s.now
		u.Hits++
		return true
	}
	for uint64(len(s.files)) >= s.capacity {
		sample, _ := s.sampler.sample(s, s.now, s.capacity)
		p := policy{now: s.now, capacity: s.capacity, reach: s.reach.get(s.now)}
		for _, u := range p.choose(sample)[:evictBatch] {
			i, _ := slices.BinarySearch(s.order, u.ID)
			s.order = slices.Delete(s.order, i, i+1)
			delete(s.files, s.names[u.ID])
			delete(s.names, u.ID)
		}
	}
	s.now++
	s.last++
	s.files[f] = &Usage{ID: s.last, Admitted: s.now, LastUse: s.now, Bytes: 1}
	s.names[s.last] = f
	s.order = append(s.order, s.last)
	s.sampler.admitted(s.last, s.now, s.capacity)
	return false
}

// epoch reads files [from, from+n) in random order and returns the hit ratio.
func (s *simulated) epoch(from, n int) float64 {
	hits := 0
	for _, f := range s.r.Perm(n) {
		if s.access(from + f) {
			hits++
		}
	}
	return float64(hits) / float64(n)
}

func TestHitRatioOfShuffledEpochs(t *testing.T) {
	const capacity = 1000
	for _, times := range []int{2, 4, 8} {
		t.Run(fmt.Sprintf("D=%dC", times), func(t *testing.T) {
			s := newSimulated(capacity)
			n := times * capacity
			best := 1 / float64(times)
			s.epoch(0, n)
			s.epoch(0, n)
			for e := 3; e <= 10; e++ {
				got := s.epoch(0, n)
				t.Logf("epoch %d: %.3f of %.3f", e, got, best)
				if got < 0.9*best {
					t.Errorf("epoch %d: hit ratio %.3f, want at least %.3f", e, got, 0.9*best)
				}
			}
			// Another set takes its place.
			var got float64
			adapted := 0
			for e := 1; e <= 8 && adapted == 0; e++ {
				if got = s.epoch(1<<20, n); got >= 0.9*best {
					adapted = e
				}
			}
			t.Logf("the new set reaches its hit ratio in epoch %d", adapted)
			if adapted == 0 {
				t.Errorf("after 8 epochs of a new set the hit ratio is %.3f, want at least %.3f", got, 0.9*best)
			}
		})
	}
}

func TestSetThatFitsStaysWhole(t *testing.T) {
	s := newSimulated(2000)
	s.epoch(0, 1900)
	for range 5 {
		if got := s.epoch(0, 1900); got != 1 {
			t.Fatalf("hit ratio %.3f, want 1", got)
		}
	}
	// One pass over something large does not throw it out.
	s.epoch(1<<20, 4000)
	if got := s.epoch(0, 1900); got < 0.8 {
		t.Errorf("after a scan the hit ratio is %.3f, want at least 0.8", got)
	}
}
