package cache

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// The bounds of one Batch. An extent is up to 8 KiB; badger wants transactions of a few
// hundred KiB at most. What comes together while the index is slow, or much is evicted, is more than one: a Batch
// that is too large would never be taken, however often it is tried.
const (
	batchExtents = 32
	batchObjects = 256
	batchDeletes = 256
)

// ledger collects changes and writes them to the index in batches; one goroutine (run) does
// all the writing. Objects that changed are only remembered here: what is written is their
// state at that time, under their lock. An object stays in the cache's table until its changes
// are in the index, so nobody can miss them; only deletions must be looked up here.
//
// If the index cannot be written, changes stay and are tried again; meanwhile broken is set
// and the cache stores nothing new.
type ledger struct {
	index Index
	log   *slog.Logger
	every time.Duration
	vars  func() map[string][]byte // small values to write with each batch
	done  func(*Object)            // called without locks when an object's changes are written

	broken atomic.Bool
	kick   chan struct{}

	mu      sync.Mutex
	dirty   map[*Object]struct{}
	deletes map[ID][]func() // with what to do afterwards
	dying   map[ID][]func() // being written
	writing int             // how many of dirty are being written
	urgent  bool            // somebody waits
	gen     uint64          // number of the flush that will write what is collected now
	written uint64          // flushes up to this one have ended
	err     error           // of the last flush
	ended   chan struct{}   // closed at the end of a flush, then replaced
}

func newLedger(index Index, every time.Duration, log *slog.Logger) *ledger {
	return &ledger{index: index, log: log, every: every, kick: make(chan struct{}, 1), gen: 1, ended: make(chan struct{}),
		dirty: map[*Object]struct{}{}, deletes: map[ID][]func(){}}
}

// run writes batches until stop is closed, then a last one.
func (l *ledger) run(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			l.flush()
			return
		case <-l.kick:
		}
		// Let more changes come together, unless somebody is waiting.
		t := time.NewTimer(l.every)
	collect:
		for {
			l.mu.Lock()
			hurry := l.hurry()
			l.mu.Unlock()
			if hurry {
				break
			}
			select {
			case <-t.C:
				break collect
			case <-stop:
				break collect
			case <-l.kick:
			}
		}
		t.Stop()
		l.flush()
		if l.broken.Load() {
			select {
			case <-stop:
			case <-time.After(time.Second):
				l.wake()
			}
		}
	}
}

// hurry tells whether to write without waiting for more; mu is held.
func (l *ledger) hurry() bool {
	return l.urgent || len(l.dirty) >= batchObjects || len(l.deletes) >= batchObjects
}

func (l *ledger) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// mark remembers that o changed; o.mu is held.
func (l *ledger) mark(o *Object) {
	if o.dirty {
		return
	}
	o.dirty = true
	l.mu.Lock()
	l.dirty[o] = struct{}{}
	n := len(l.dirty)
	l.mu.Unlock()
	if n == 1 || n == batchObjects {
		l.wake()
	}
}

// touch has the variables written soon.
func (l *ledger) touch() { l.wake() }

// remove has the index forget id, then calls after, from the ledger's goroutine. The file may
// be unlinked only then: a record without a file is worse than the reverse.
func (l *ledger) remove(id ID, after func()) {
	l.mu.Lock()
	l.deletes[id] = append(l.deletes[id], after)
	l.mu.Unlock()
	l.wake()
}

// deleted tells whether id is being forgotten, whatever the index still says.
func (l *ledger) deleted(id ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.deletes[id]; ok {
		return true
	}
	_, ok := l.dying[id]
	return ok
}

// unnoted is how many objects have changes, or are deleted, that are not in the index yet.
func (l *ledger) unnoted() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.dirty) + l.writing + len(l.deletes) + len(l.dying)
}

// sync returns when all that was changed before it is in the index, or the error that kept
// it out. The variables are written too.
func (l *ledger) sync(ctx context.Context) error {
	l.mu.Lock()
	for want := l.gen; l.written < want; {
		ended := l.ended
		l.urgent = true
		l.mu.Unlock()
		l.wake()
		select {
		case <-ended:
		case <-ctx.Done():
			return ctx.Err()
		}
		l.mu.Lock()
	}
	defer l.mu.Unlock()
	return l.err
}

// flush writes what is collected.
func (l *ledger) flush() {
	l.mu.Lock()
	gen := l.gen
	l.gen++
	dirty, dying := l.dirty, l.deletes
	l.dirty, l.deletes, l.dying = map[*Object]struct{}{}, map[ID][]func(){}, dying
	l.urgent = false
	l.writing = len(dirty)
	l.mu.Unlock()

	var err error
	var b Batch
	var inBatch []*Object
	apply := func() {
		if err == nil {
			err = l.index.Apply(b)
		}
		for _, o := range inBatch {
			o.mu.Lock()
			o.flushing = false
			if err != nil {
				o.recordDirty, o.usageDirty = true, true
				for _, e := range o.extents {
					e.dirty = e.dirty || e.flushing
				}
				o.dirty = false // of one that did not fit in one Batch
				l.mark(o)
			}
			for _, e := range o.extents {
				e.flushing = false
			}
			o.mu.Unlock()
		}
		b, inBatch = Batch{}, inBatch[:0]
	}
	for id := range dying {
		if len(b.Delete) == batchDeletes {
			apply()
		}
		b.Delete = append(b.Delete, id)
	}
	if len(b.Delete) > 0 { // first, and alone: a new file of the same identity may follow
		apply()
	}
	deleted := err == nil // an index on a full disk takes this, and perhaps nothing else
	written := make([]*Object, 0, len(dirty))
	for o := range dirty {
		if err == nil && (len(b.Extents) >= batchExtents || len(inBatch) >= batchObjects) {
			apply()
		}
		for more := true; more; {
			o.mu.Lock()
			more = o.collect(&b) && err == nil
			o.dirty, o.flushing = more, true
			o.mu.Unlock()
			inBatch = append(inBatch, o)
			if more {
				apply()
				more = err == nil
			}
		}
		written = append(written, o)
	}
	if l.vars != nil {
		b.Vars = l.vars()
	}
	apply()

	if err != nil && !l.broken.Swap(true) {
		l.log.Error("the index cannot be written; nothing new is kept until it can", "err", err)
	} else if err == nil && l.broken.Swap(false) {
		l.log.Info("the index can be written again")
	}
	l.mu.Lock()
	l.written, l.err = gen, err
	if !deleted {
		for id, fns := range dying {
			l.deletes[id] = append(l.deletes[id], fns...)
		}
	}
	l.dying, l.writing = nil, 0
	close(l.ended)
	l.ended = make(chan struct{})
	l.mu.Unlock()
	if deleted {
		for _, fns := range dying {
			for _, fn := range fns {
				fn()
			}
		}
	}
	for _, o := range written {
		l.done(o)
	}
}

// The variables of the cache in the index.
const (
	varClock  = "cache/clock"     // bytes ever admitted
	varReach  = "cache/reach"     // see policy
	varDir    = "cache/dir/"      // + UUID: number and bytes used
	varBoot   = "cache/boot"      // boot id of the machine when the index was last opened
	varEpoch  = "cache/epoch"     // the current sync epoch
	varSynced = "cache/synced"    // files of epochs up to this one are on the disk
	varDoubt  = "cache/suspect"   // files of epochs in (lo, hi) may not be what the index says
	varBegan  = "cache/began"     // first epoch after the machine last went down
	varClean  = "cache/clean"     // 1 when the cache was closed properly
	varNumber = "cache/dirnumber" // highest directory number given out
)

// uints packs numbers for a variable.
func uints(v ...uint64) []byte {
	b := make([]byte, 0, 8*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

// getUints reads n numbers; ok is false when the variable is not there or of another length.
func getUints(index Index, name string, n int) (v []uint64, ok bool, err error) {
	b, err := index.Var(name)
	if errors.Is(err, ErrNoRecord) {
		return make([]uint64, n), false, nil
	}
	if err != nil || len(b) != 8*n {
		return make([]uint64, n), false, err
	}
	for i := range n {
		v = append(v, binary.LittleEndian.Uint64(b[8*i:]))
	}
	return v, true, nil
}
