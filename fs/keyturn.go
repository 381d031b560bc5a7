package fs

import (
	"context"
	"sync"
)

// keyTurns let one at a time change what is under a key, and note in the index what came of that. A request is sent on the
// condition that a certain ETag is there: that says nothing of what happened in between where a content comes back, as empty files
// and zeros do. The queue sees to that for the first names of files only; a copy to a further name is made by the item of the
// first.
//
// Who has the turn of a key waits for no other turn, and for nothing in the queue but a deletion under that key that is under way,
// which takes none.
type keyTurns struct {
	mu    sync.Mutex // a leaf lock
	taken map[string]*keyTurn
}

// keyTurn is of a key that is being changed.
type keyTurn struct {
	turn  chan struct{} // holds one while somebody has it
	users int           // who has it and who waits for it; by keyTurns.mu
}

// take returns when it is the caller's turn to change what is under a key, which lasts until release is called, once; or with
// ctx's error.
func (t *keyTurns) take(ctx context.Context, key string) (release func(), err error) {
	t.mu.Lock()
	k := t.taken[key]
	if k == nil {
		if t.taken == nil {
			t.taken = make(map[string]*keyTurn)
		}
		k = &keyTurn{turn: make(chan struct{}, 1)}
		t.taken[key] = k
	}
	k.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(t.taken, key)
		}
	}
	select {
	case k.turn <- struct{}{}:
		return func() { <-k.turn; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
