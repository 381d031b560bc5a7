package session

import (
	"sync"
	"unsafe"
)

// large are the places of requests that do not fit in a record: a few, since what is in them is
// memory. A WRITE is the largest.
type large struct {
	all *[maxLarge][largeSize]byte

	mu   sync.Mutex
	free []uint32 // by mu; the one freed last is taken first, so that little memory is touched
}

// open finds the places that are free. The records of requests must have been opened before.
func (l *large) open(s *Session) {
	l.all = (*[maxLarge][largeSize]byte)(unsafe.Pointer(&s.mem[largeAt]))
	var used [maxLarge]bool
	for i := range *s.requests.high {
		if r := &s.requests.all[i]; r.unique != 0 && r.large > 0 && r.large <= maxLarge {
			used[r.large-1] = true
		}
	}
	for i := uint32(maxLarge); i > 0; i-- {
		if !used[i-1] {
			l.free = append(l.free, i-1)
		}
	}
}

func (l *large) take() (i uint32, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.free)
	if n == 0 {
		return 0, false
	}
	i = l.free[n-1]
	l.free = l.free[:n-1]
	return i, true
}

func (l *large) give(i uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = append(l.free, i)
}
