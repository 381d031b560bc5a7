package meta

import (
	"container/list"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/dgraph-io/badger/v4"
)

// A change that was carried out for a request of the kernel, but not answered because the
// process was killed, is sent again to the next process. So that it is not carried out twice,
// what came of it is written in the same transaction as the change itself, under the request,
// and looked up when a request is said to be sent again. Once the answer has left, it is
// forgotten, not at once: in the transaction of some later change, or many together.
//
// What changed nothing is not recorded: it can be carried out again.

// Request names a request of the kernel. The zero Request is none.
type Request struct {
	// Session is a number that the caller gives a connection with the kernel: no two have the
	// same. Unique is the kernel's number of the request in it, without the bit that marks one
	// as sent again; no two requests of a connection have the same.
	Session, Unique uint64
}

// Result is what came of a change.
type Result struct {
	Op   uint32 // as given to For
	Ino  Ino    // of the inode that was made, altered or removed
	Gen  uint32 // its generation after the change
	Data []byte // as given to For; at most MaxResult bytes
}

const (
	// MaxResult is the longest Result.Data, in bytes.
	MaxResult = 256
	// MaxResults is how many Results are kept. What is beyond is dropped, oldest first: a request
	// can be answered twice only when that many later ones were carried out and none of
	// them answered.
	MaxResults = 64 << 10

	// forgetWith is how many answered results a change deletes on its way, forgetAt how many there
	// must be to be deleted by themselves.
	forgetWith = 16
	forgetAt   = 1024
)

// Option says more about a change. There is only For.
type Option struct {
	req  Request
	op   uint32
	data func(*Inode) []byte
}

// For records the Result of a change under req, in the same transaction: both are there after a
// death of the process, or neither is. With the zero Request nothing is recorded. op is
// the caller's own. data, when not nil, makes Result.Data from the inode as it is after the
// change; it may be called more than once, runs under a lock of the index and must not call
// it; more than MaxResult bytes are ErrInvalid, and nothing is changed.
//
// A change that fails is not recorded, nor is RemoveIf where its function says no. Update is,
// also when the inode stays as it is. One Request is recorded once, for one change.
func For(req Request, op uint32, data func(*Inode) []byte) Option {
	return Option{req: req, op: op, data: data}
}

// results knows which results are in the database. mu is a leaf.
type results struct {
	mu sync.Mutex
	// By mu. Every request with a result is in exactly one of open and forget, but for those
	// whose transaction is under way.
	open   list.List // of Request, oldest first
	at     map[Request]*list.Element
	forget map[Request]struct{} // answered, and still in the database
	max    int
}

// load finds what earlier processes left. Called by Open.
func (r *results) load(db *DB) error {
	r.max = MaxResults
	r.at, r.forget = make(map[Request]*list.Element), make(map[Request]struct{})
	return db.view(func(tx *badger.Txn) error {
		prefix := []byte{keyResult}
		it := tx.NewIterator(badger.IteratorOptions{Prefix: prefix})
		defer it.Close()
		for it.Seek(prefix); it.Valid(); it.Next() {
			k := it.Item().Key()
			if len(k) != 1+8+8 {
				return errMalformed
			}
			r.add(Request{Session: be64(k[1:]), Unique: be64(k[9:])})
		}
		return nil
	})
}

// add notes that req has a result in the database.
func (r *results) add(req Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.forget, req)
	if e := r.at[req]; e != nil {
		r.open.Remove(e)
	}
	r.at[req] = r.open.PushBack(req)
}

// give moves requests from open to forget, and returns how many are there then.
func (r *results) give(reqs ...Request) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, req := range reqs {
		if e := r.at[req]; e != nil {
			r.open.Remove(e)
			delete(r.at, req)
			r.forget[req] = struct{}{}
		}
	}
	return len(r.forget)
}

// others returns the open requests of other sessions.
func (r *results) others(keep []uint64) (reqs []Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for req := range r.at {
		if !slices.Contains(keep, req.Session) {
			reqs = append(reqs, req)
		}
	}
	return reqs
}

// oldest returns the open requests that must go for one more to have room.
func (r *results) oldest() (reqs []Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.open.Front()
	for n := r.open.Len() + 1 - r.max; n > 0; n-- {
		reqs = append(reqs, e.Value.(Request))
		e = e.Next()
	}
	return reqs
}

// take takes up to n requests out of forget: the caller deletes them, or puts them back.
func (r *results) take(n int) (reqs []Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for req := range r.forget {
		if len(reqs) == n {
			break
		}
		reqs = append(reqs, req)
		delete(r.forget, req)
	}
	return reqs
}

func (r *results) putBack(reqs []Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, req := range reqs {
		r.forget[req] = struct{}{}
	}
}

func deleteResults(tx *badger.Txn, reqs []Request) error {
	for _, req := range reqs {
		if err := tx.Delete(resultKey(req)); err != nil {
			return err
		}
	}
	return nil
}

// optionOf returns the option that counts.
func optionOf(opts []Option) (o Option) {
	for _, opt := range opts {
		if opt.req != (Request{}) {
			o = opt
		}
	}
	return o
}

// putResult writes the result of a change of in, and takes some that were answered out: gone is to be
// put back when the transaction comes to nothing.
func (db *DB) putResult(tx *badger.Txn, o *Option, in *Inode) (gone []Request, err error) {
	res := Result{Op: o.op, Ino: in.Ino, Gen: in.Gen}
	if o.data != nil {
		res.Data = o.data(in)
	}
	if len(res.Data) > MaxResult {
		return nil, fmt.Errorf("%w: result of %d bytes for inode %d", ErrInvalid, len(res.Data), in.Ino)
	}
	r := &db.results
	r.give(r.oldest()...)
	gone = r.take(forgetWith)
	if err = deleteResults(tx, gone); err == nil {
		err = tx.Set(resultKey(o.req), encodeResult(&res))
	}
	if err != nil {
		r.putBack(gone)
		gone = nil
	}
	return gone, err
}

// Result returns what came of a request; false when nothing was recorded, or it was forgotten.
func (db *DB) Result(req Request) (res Result, found bool, err error) {
	if req == (Request{}) {
		return res, false, nil
	}
	if err := db.enter(); err != nil {
		return res, false, err
	}
	defer db.life.RUnlock()
	err = db.view(func(tx *badger.Txn) error {
		return get(tx, resultKey(req), func(v []byte) error {
			res, err = decodeResult(v)
			return err
		})
	})
	if errors.Is(err, ErrNotFound) {
		return Result{}, false, nil
	}
	return res, err == nil, err
}

// Answered says that the answers to these requests have been given to the kernel: their results
// may be forgotten. Those without a result are ignored. It costs next to nothing: what is to be
// forgotten goes with later changes, or, when there is much of it, in one write. Until then it
// stays, also when the process ends; nobody will ask for it.
func (db *DB) Answered(reqs ...Request) {
	if db.results.give(reqs...) < forgetAt {
		return
	}
	if err := db.enter(); err != nil {
		return
	}
	defer db.life.RUnlock()
	if err := db.forgetResults(); err != nil {
		// They wait for the next one.
		db.log.Debug("index: results of answered requests remain", "err", err)
	}
}

// forgetResults deletes what is to be forgotten. Caller has entered.
func (db *DB) forgetResults() error {
	for {
		reqs := db.results.take(forgetAt)
		if len(reqs) == 0 {
			return nil
		}
		if err := db.updateSmall(func(tx *badger.Txn) error { return deleteResults(tx, reqs) }); err != nil {
			db.results.putBack(reqs)
			return err
		}
	}
}

// PurgeResults forgets the results of all sessions but those given, and those that were
// answered. It is for the start: requests of a connection that is no more do not come again.
func (db *DB) PurgeResults(keep ...uint64) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.life.RUnlock()
	db.results.give(db.results.others(keep)...)
	return db.forgetResults()
}

func encodeResult(r *Result) []byte {
	b := append(make([]byte, 0, 16+len(r.Data)), codecVersion)
	b = binary.AppendUvarint(b, uint64(r.Op))
	b = binary.AppendUvarint(b, uint64(r.Ino))
	b = binary.AppendUvarint(b, uint64(r.Gen))
	return append(b, r.Data...)
}

func decodeResult(v []byte) (r Result, err error) {
	d := decoder{b: v}
	d.version()
	r.Op = uint32(d.uintMax(1<<32 - 1))
	r.Ino = Ino(d.uintMax(uint64(MaxIno)))
	r.Gen = uint32(d.uintMax(maxGen))
	if len(d.b) > MaxResult {
		d.fail()
	}
	if rest := d.rest(); rest != "" {
		r.Data = []byte(rest)
	}
	return r, d.done()
}
