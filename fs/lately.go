package fs

import (
	"sync"
	"time"
)

// A READ that fails was often the kernel's readahead, and the kernel then asks once more for
// the page that is really wanted. A request that has just used up all its tries is answered from
// here then: the application would otherwise wait twice as long as it was promised.
const (
	failureFor  = time.Second
	failureSpan = 1 << 20 // bytes, the kernel's largest READ
)

// failure is the last failed read of an open node. Safe for parallel use.
type failure struct {
	mu  sync.Mutex
	off int64
	at  int64 // nanoseconds since 1970
	err error
}

func (l *failure) set(off, now int64, err error) {
	l.mu.Lock()
	l.off, l.at, l.err = off, now, err
	l.mu.Unlock()
}

// get returns the error of a read that failed just now around off, nil if there is none.
func (l *failure) get(off, now int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil || now-l.at > int64(failureFor) || off < l.off || off >= l.off+failureSpan {
		return nil
	}
	return l.err
}
