package meta

import (
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"
)

// snapshots lends one read-only transaction to many readers for as long as nothing is
// written. To begin one costs badger a message to a goroutine, and so waking a thread, which is
// several times what a read costs; and an index that is read at every open of a file is
// written ten times a second at most.
//
// A reader that begins after a commit has returned sees it. mu is a leaf.
type snapshots struct {
	commits atomic.Uint64 // see committed

	mu  sync.Mutex
	cur *snapshot // by mu
}

type snapshot struct {
	tx      *badger.Txn
	commits uint64 // that it certainly holds
	refs    int    // readers, and one for being cur; by snapshots.mu
}

// acquire returns a transaction for reading only, to be given back by release.
func (s *snapshots) acquire(b *badger.DB) *snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Read before the transaction begins: it holds at least these.
	if n := s.commits.Load(); s.cur == nil || s.cur.commits != n {
		s.retire()
		s.cur = &snapshot{tx: b.NewTransaction(false), commits: n, refs: 1}
	}
	s.cur.refs++
	return s.cur
}

// committed is called after each commit, before its writer returns. What it has made old is
// let go at once: an old snapshot keeps badger from dropping what was overwritten.
func (s *snapshots) committed() {
	s.commits.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retire()
}

func (s *snapshots) release(x *snapshot) {
	s.mu.Lock()
	x.refs--
	last := x.refs == 0
	s.mu.Unlock()
	if last {
		x.tx.Discard()
	}
}

// retire takes cur out of use; s.mu is held.
func (s *snapshots) retire() {
	if s.cur == nil {
		return
	}
	s.cur.refs--
	if s.cur.refs == 0 {
		s.cur.tx.Discard()
	}
	s.cur = nil
}

// close gives back the last snapshot, when there are no readers any more.
func (s *snapshots) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retire()
}
