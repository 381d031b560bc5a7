package fs

import (
	"sync"
	"time"
)

// A READ that fails was often the kernel's readahead, and the kernel then asks once more for
// the page that is really wanted. A request that has just used up all its tries is answered from
// here then: the application would otherwise wait twice as long as it was promised. Only through
// the same handle: who has opened the file since then gets tries of its own.
const (
	failureFor  = time.Second
	maxFailures = 256 // handles of one node
)

// failure remembers the last failed read of each handle of an open node. The zero value is ready
// to use. Safe for parallel use.
type failure struct {
	mu sync.Mutex
	of map[uint64]failedRead // by handle; guarded by mu
}

// failedRead is a read of [off, end) that failed.
type failedRead struct {
	off, end int64
	at       int64 // nanoseconds since 1970
	err      error
}

// set notes that the read of [off, off+n) through fh has failed now.
func (l *failure) set(fh uint64, off, n, now int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for fh, r := range l.of {
		if r.past(now) {
			delete(l.of, fh)
		}
	}
	if l.of == nil || len(l.of) >= maxFailures {
		l.of = make(map[uint64]failedRead)
	}
	l.of[fh] = failedRead{off: off, end: off + n, at: now, err: err}
}

func (r failedRead) past(now int64) bool { return now-r.at > int64(failureFor) }

// get returns the error of a read through fh that failed just now around off, nil if there is none.
func (l *failure) get(fh uint64, off, now int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.of[fh]
	if !ok || r.past(now) || off < r.off || off >= r.end {
		return nil
	}
	return r.err
}
