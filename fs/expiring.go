package fs

import "sync"

// expiring is a bounded map from a string to a time and a count, for facts that may be
// forgotten at any moment without harm. When it is full it is emptied: the facts are cheap
// to learn again, and that bounds it without a list beside it. Safe for parallel use.
type expiring struct {
	max int
	mu  sync.Mutex
	m   map[string]fact // guarded by mu
}

type fact struct {
	at    int64 // nanoseconds since 1970
	count int
}

func newExpiring(max int) *expiring {
	return &expiring{max: max, m: make(map[string]fact)}
}

// set records that key was true at at.
func (e *expiring) set(key string, at int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.put(key, fact{at: at})
}

func (e *expiring) put(key string, f fact) {
	if len(e.m) >= e.max {
		clear(e.m)
	}
	e.m[key] = f
}

// since tells whether key was recorded at or after at.
func (e *expiring) since(key string, at int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	f, ok := e.m[key]
	return ok && f.at >= at
}

// add counts an event of key at now, and returns how many there were since `since`.
func (e *expiring) add(key string, now, since int64) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	f, ok := e.m[key]
	if !ok || f.at < since {
		f = fact{at: now}
	}
	f.count++
	e.put(key, f)
	return f.count
}

func (e *expiring) forget(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.m, key)
}
