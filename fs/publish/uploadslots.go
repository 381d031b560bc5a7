package publish

import (
	"context"
	"slices"
	"sync"
)

// slots are the parts that may be under way, shared between jobs: a free one goes to the job
// that has the fewest, of those to the one that has waited longest.
type slots struct {
	mu    sync.Mutex // a leaf lock; guards all of it, the lanes too
	free  int
	lanes []*lane // those that wait, longest first
}

// lane is one job's share.
type lane struct {
	s    *slots
	used int
	wait []chan struct{} // closed when granted
}

func (s *slots) lane() *lane { return &lane{s: s} }

// acquire waits for a slot; release gives it back.
func (l *lane) acquire(ctx context.Context) error {
	s := l.s
	s.mu.Lock()
	ch := make(chan struct{})
	l.wait = append(l.wait, ch)
	if len(l.wait) == 1 {
		s.lanes = append(s.lanes, l)
	}
	s.grant()
	s.mu.Unlock()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(l.wait, ch)
	if i < 0 { // granted at this moment
		l.used--
		s.free++
		s.grant()
		return ctx.Err()
	}
	l.wait = slices.Delete(l.wait, i, i+1)
	if len(l.wait) == 0 {
		s.leave(l)
	}
	return ctx.Err()
}

func (l *lane) release() {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.used--
	l.s.free++
	l.s.grant()
}

func (s *slots) leave(l *lane) {
	i := slices.Index(s.lanes, l)
	s.lanes = slices.Delete(s.lanes, i, i+1)
}

// grant gives free slots away.
func (s *slots) grant() {
	for s.free > 0 && len(s.lanes) > 0 {
		l := slices.MinFunc(s.lanes, func(a, b *lane) int { return a.used - b.used })
		close(l.wait[0])
		l.wait = l.wait[1:]
		l.used++
		s.free--
		s.leave(l)
		if len(l.wait) > 0 {
			s.lanes = append(s.lanes, l)
		}
	}
}
