package meta

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/dgraph-io/badger/v4"

	"github.com/leatfs/leatfs/cache"
)

// Tx is a change of the index that is made as a whole or not at all, see Do. What it read or
// wrote stays so until it ends: it holds the locks that guard it. Used by one goroutine, within the
// function that Do runs.
//
// Which locks those are shows only as the function goes on. The first is simply taken. A further one is
// taken when it is free; where it is not, or a transaction of badger that has writes in it is older than
// what the lock's last holder wrote, everything is undone, all locks known so far are taken in
// their order, and the function runs again.
type Tx struct {
	db *DB
	// b begins with the first access, after the first lock. commits is how many there were
	// then: as long as there are no more, b sees all that was written under any lock.
	b       *badger.Txn
	commits uint64
	wrote   bool

	held  []uint16     // stripes of DB.dirs
	want  []uint16     // known from earlier runs, and held
	apply applying     // how applyMu is held
	again applying     // and is to be held
	there Ino          // a directory that is there, and whose lock is held
	fresh map[Ino]bool // made by this transaction: nobody else knows them

	inside bool  // a method is under way
	err    error // ends the transaction, whatever the function says

	takes, gives bool // it takes room for something new; it is about what is removed, renamed or published

	result       Inode
	dirty, tombs int64 // more records
	gone         []cache.ID
}

type applying uint8

const (
	applyNot applying = iota
	applyShared
	applyAlone
)

// errAgain: the function is to run again.
var errAgain = errors.New("meta: the transaction begins again")

// Do runs fn in one transaction and makes what it did durable against the death of the process, or
// returns its error as it is and changes nothing. Other writers of what fn reads wait. fn may be run more than once, so
// it has no side effects that it does not undo at its start; it uses the index through tx only,
// keeps nothing of it, and passes errors of its methods on. It does not wait for anything.
// A transaction that does not fit is ErrTooBig. opts: see For; the inode is the one given to Tx.Result.
func (db *DB) Do(fn func(tx *Tx) error, opts ...Option) error { return db.do(false, fn, opts) }

// do is Do; alone: no other transaction runs meanwhile.
func (db *DB) do(alone bool, fn func(tx *Tx) error, opts []Option) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.life.RUnlock()
	if !db.space.allowSmall() {
		return ErrNoSpace
	}
	if alone {
		db.prune.Lock()
		defer db.prune.Unlock()
	} else {
		db.prune.RLock()
		defer db.prune.RUnlock()
	}
	t := &Tx{db: db}
	for {
		if err := t.attempt(fn, opts); err != errAgain {
			return err
		}
	}
}

// attempt runs the function once.
func (t *Tx) attempt(fn func(tx *Tx) error, opts []Option) (err error) {
	t.begin()
	defer t.end()
	defer func() {
		if t.inside {
			if p := recover(); p != nil {
				err = t.db.damaged(fmt.Errorf("panic: %v", p))
			}
		}
	}()
	err = fn(t)
	if t.err != nil {
		return t.err
	}
	if err != nil {
		return err
	}
	t.inside = true
	err = t.commit(opts)
	t.inside = false
	return err
}

// begin takes the locks that are known to be needed, in their order.
func (t *Tx) begin() {
	slices.Sort(t.want)
	t.want = slices.Compact(t.want)
	for _, s := range t.want {
		t.db.dirs[s].Lock()
		t.held = append(t.held, s)
	}
	switch t.apply = t.again; t.apply {
	case applyShared:
		t.db.applyMu.RLock()
	case applyAlone:
		t.db.applyMu.Lock()
	}
}

// end gives everything back.
func (t *Tx) end() {
	t.discard()
	switch t.apply {
	case applyShared:
		t.db.applyMu.RUnlock()
	case applyAlone:
		t.db.applyMu.Unlock()
	}
	for _, s := range t.held {
		t.db.dirs[s].Unlock()
	}
	*t = Tx{db: t.db, want: t.want, again: t.again, held: t.held[:0]}
}

func (t *Tx) discard() {
	if t.b != nil {
		t.b.Discard()
		t.b = nil
	}
}

// commit writes. The counts are never too small: others skip work when they are 0.
func (t *Tx) commit(opts []Option) (err error) {
	db := t.db
	o := optionOf(opts)
	var gone []Request
	if o.req != (Request{}) {
		if gone, err = db.putResult(t.txn(), &o, &t.result); err != nil {
			return t.check(err)
		}
	}
	if t.wrote || o.req != (Request{}) {
		if (t.takes || !t.gives) && !db.space.allow() {
			return ErrNoSpace
		}
		db.dirty.Add(max(t.dirty, 0))
		db.tombs.Add(max(t.tombs, 0))
		db.writes.Add(1)
		err = t.b.Commit()
		db.snaps.committed()
		if err != nil {
			db.dirty.Add(-max(t.dirty, 0))
			db.tombs.Add(-max(t.tombs, 0))
			db.results.putBack(gone)
			return t.check(err)
		}
		db.dirty.Add(min(t.dirty, 0))
		db.tombs.Add(min(t.tombs, 0))
	}
	if o.req != (Request{}) {
		db.results.add(o.req)
	}
	db.dropExtents(t.gone)
	return nil
}

// Result says which inode the Result of For is about: its number and generation stand in it, and its
// data are made of it. When it is not called, the Result has inode 0.
func (t *Tx) Result(in *Inode) { t.result = *in }

// txn is the transaction of badger, which sees all that was written under the locks held.
func (t *Tx) txn() *badger.Txn {
	if t.b == nil {
		t.commits = t.db.snaps.commits.Load()
		t.b = t.db.b.NewTransaction(true)
	}
	return t.b
}

// call runs a method. Whatever ends the transaction is kept: fn may not hide it.
func (t *Tx) call(fn func() error) error {
	if t.err != nil {
		return t.err
	}
	t.inside = true
	err := fn()
	t.inside = false
	return t.check(err)
}

// check turns an error into one of this package's.
func (t *Tx) check(err error) error {
	var c *callerError
	switch {
	case err == nil, errors.Is(err, ErrNotFound), errors.Is(err, ErrExist), errors.Is(err, ErrInvalid):
		return err
	case errors.As(err, &c):
		t.err = c.error
	default:
		t.db.guard(&err)
		t.err = err
	}
	return t.err
}

func (t *Tx) set(key, v []byte) error {
	t.txn()
	t.wrote = true
	return t.b.Set(key, v)
}

func (t *Tx) delete(key []byte) error {
	t.txn()
	t.wrote = true
	return t.b.Delete(key)
}

// restart has the function run again, with the locks known by now.
func (t *Tx) restart() error { return &callerError{errAgain} }

// lock takes the lock of a directory or inode.
func (t *Tx) lock(ino Ino) error {
	if t.fresh[ino] {
		return nil
	}
	return t.lockStripe(stripe(uint64(ino)))
}

// lockKey takes the lock of an object key.
func (t *Tx) lockKey(key string) error {
	return t.lockStripe(stripe(maphash.String(t.db.seed, key)))
}

func (t *Tx) lockStripe(s uint16) error {
	if slices.Contains(t.held, s) {
		return nil
	}
	t.want = append(t.want, s)
	mu := &t.db.dirs[s]
	if len(t.held) == 0 && t.apply == applyNot && t.b == nil {
		mu.Lock()
	} else if !mu.TryLock() {
		return t.restart()
	}
	t.held = append(t.held, s)
	return t.locked()
}

// locked makes sure, once a lock was taken, that badger's transaction is younger than what was
// written under it before.
func (t *Tx) locked() error {
	if t.b == nil || t.db.snaps.commits.Load() == t.commits {
		return nil
	}
	if t.wrote {
		return t.restart()
	}
	t.discard() // what was read is under locks, and so is still true
	return nil
}

// lockApply takes the lock of the cache's records.
func (t *Tx) lockApply(how applying) error {
	if t.apply >= how {
		return nil
	}
	t.again = how
	if t.apply != applyNot {
		return t.restart()
	}
	if how == applyAlone && !t.db.applyMu.TryLock() || how == applyShared && !t.db.applyMu.TryRLock() {
		return t.restart()
	}
	t.apply = how
	return t.locked()
}

// place finds where an inode's body is, and takes the lock that guards it.
func (t *Tx) place(ino Ino) (p place, err error) {
	if ino == 0 || ino > MaxIno {
		return p, ErrNotFound
	}
	for {
		if t.b == nil && len(t.held) == 0 {
			s := t.db.snaps.acquire(t.db.b)
			p, err = readPlace(s.tx, ino)
			t.db.snaps.release(s)
		} else {
			p, err = readPlace(t.txn(), ino)
		}
		if err != nil {
			return p, err
		}
		guard := ino
		if p.at == nil {
			guard = p.parent
		}
		n := len(t.held)
		if err := t.lock(guard); err != nil || len(t.held) == n {
			return p, err
		}
	}
}

// body reads an inode, with the lock that guards its body.
func (t *Tx) body(ino Ino) (p place, in Inode, err error) {
	if p, err = t.place(ino); err == nil {
		err = readBody(t.txn(), ino, &p, &in)
	}
	return p, in, err
}
