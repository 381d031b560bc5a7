package session

import (
	"errors"
	"sync"
	"sync/atomic"
)

// slots gives out the numbers of records: the one freed last first, so that little memory is
// touched. Which are free is known from the records themselves; the list is made anew by
// every process.
type slots struct {
	mu   sync.Mutex
	free []uint32 // by mu
	high *uint32  // in the header: all numbers below were in use once; stored by mu
	max  uint32
}

// ErrFull: more is open, at the same time, than there is room to remember.
var ErrFull = errors.New("too many open files on this mount")

// scan finds the records that are free.
func (s *slots) scan(high *uint32, max uint32, used func(i uint32) bool) {
	s.high, s.max = high, max
	if *high > max {
		*high = max // garbage; every record is looked at
	}
	for i := *high; i > 0; i-- {
		if !used(i - 1) {
			s.free = append(s.free, i-1)
		}
	}
}

func (s *slots) take() (uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 {
		i := s.free[n-1]
		s.free = s.free[:n-1]
		return i, nil
	}
	if *s.high == s.max {
		return 0, ErrFull
	}
	i := *s.high
	// Before the record is written: what is in use always lies below.
	atomic.StoreUint32(s.high, i+1)
	return i, nil
}

func (s *slots) give(i uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, i)
}
