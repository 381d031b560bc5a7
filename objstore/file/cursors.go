package file

import (
	"strconv"
	"sync"
)

// keptCursors bounds the cursors that wait for their next page, and with them the
// memory: each holds one window of names per level of directories.
const keptCursors = 8

// cursors keeps what listings know between two pages. A listing whose cursor is gone
// goes on from its last name, which the token holds too.
type cursors struct {
	mu   sync.Mutex // guards all
	next uint64
	kept []keptCursor // oldest first
}

type keptCursor struct {
	id string
	c  *cursor
}

// keep keeps a cursor for its next page and returns the token.
func (cs *cursors) keep(c *cursor) string {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.next++
	id := strconv.FormatUint(cs.next, 36)
	if len(cs.kept) == keptCursors {
		copy(cs.kept, cs.kept[1:])
		cs.kept = cs.kept[:keptCursors-1]
	}
	cs.kept = append(cs.kept, keptCursor{id, c})
	return "leatfs:" + id + ":" + c.last
}

// take takes the cursor id out, if it is kept and stands at last: two requests with one
// token (a retry) must not move one cursor.
func (cs *cursors) take(id, last string) *cursor {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for i, k := range cs.kept {
		if k.id == id && k.c.last == last {
			cs.kept = append(cs.kept[:i], cs.kept[i+1:]...)
			return k.c
		}
	}
	return nil
}

func (cs *cursors) clear() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.kept = nil
}
