package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/leatfs/leatfs/objstore"
)

// ErrNotKept: the object was read but could not be stored (the disk is full or failing, or the
// object is larger than the cache). It can be read all the same.
var ErrNotKept = errors.New("not kept in the cache")

// ErrIncomplete: the object's file may not be lent.
var ErrIncomplete = errors.New("not complete in the cache")

// fetchPasses is how often Fetch goes over an object that loses blocks as fast as it gains them.
const fetchPasses = 4

// fetchParallel is how many GETs Fetch has under way for one object.
const fetchParallel = 8

// Fetch makes the whole object resident and complete. A small object comes by one GET and
// is in the page cache afterwards. The priority is that of ctx (objstore.PriorityOf); ctx ends
// the waiting, not the downloads under way.
//
// Errors are those of Read, and ErrNotKept.
func (o *Object) Fetch(ctx context.Context) error {
	p := objstore.PriorityOf(ctx)
	if o.blockN == 0 {
		return nil
	}
	if o.ident.Size > o.c.largest() {
		return fmt.Errorf("%s: %d bytes are more than the cache holds: %w", o.name(), o.ident.Size, ErrNotKept)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if p == objstore.Demand && o.small() && !o.state.Complete() {
		for _, b := range o.blocks {
			if b.fetch != nil {
				b.fetch.raise()
			}
		}
	}
	o.keepErr = nil
	for pass := 0; ; {
		switch {
		case o.state.Complete() && !o.suspect:
			return nil
		case o.state.Complete():
			o.busy++
			o.mu.Unlock()
			err := o.verify(ctx, p, nil)
			o.mu.Lock()
			o.busy--
			if err != nil && (ctx.Err() != nil || o.state.Complete() && o.suspect) {
				return err
			}
			continue
		case o.corrupt != nil:
			return o.corrupt
		}
		o.finish()
		// The index may count more as resident than is here, of what was being written to it when a process was killed.
		if o.ending || o.heading || o.resident == o.blockN && o.loose == 0 {
			if !o.ending && !o.heading { // finish was refused
				return ErrClosed
			}
			o.endErr = nil
			if err := o.waitChange(ctx); err != nil {
				return err
			}
			if err := o.endErr; err != nil && !errors.Is(err, errChanged) {
				return err
			}
			continue
		}
		if o.gone != nil {
			return o.gone
		}
		absent, err := o.fetchAbsent(ctx, p)
		if err != nil {
			return err
		}
		if absent > 0 {
			pass++
			if pass >= fetchPasses || pass > 1 && o.keepErr != nil {
				return fmt.Errorf("%s: %w: %w", o.name(), ErrNotKept, errors.Join(o.keepErr))
			}
			continue
		}
		if o.loose > 0 || o.fetches > 0 { // on its way here or to the disk
			if !o.moving() {
				if pass++; pass >= fetchPasses || pass > 1 && o.keepErr != nil {
					return fmt.Errorf("%s: %w: %w", o.name(), ErrNotKept, errors.Join(o.keepErr))
				}
				o.storeAgain()
				continue
			}
			if err := o.waitChange(ctx); err != nil {
				return err
			}
			continue
		}
		if o.resident != o.blockN {
			if pass++; pass >= fetchPasses {
				return fmt.Errorf("%s: %w", o.name(), ErrNotKept)
			}
			o.recount()
		}
	}
}

// storeAgain hands blocks that are in memory and could not be stored to the writers once more;
// o.mu is held, and released meanwhile.
func (o *Object) storeAgain() {
	var list []*block
	for _, b := range o.blocks {
		if b.fetch == nil && !b.stored && !b.queued && !b.writing {
			list = append(list, b)
		}
	}
	slices.SortFunc(list, func(a, b *block) int { return cmp.Compare(a.n, b.n) })
	for _, b := range list {
		b.queued = true
		o.settle(b)
	}
	o.mu.Unlock()
	for len(list) > 0 {
		n := 1
		for n < len(list) && n < o.c.runMax && list[n].n == list[n-1].n+1 {
			n++
		}
		o.keep(list[:n:n])
		list = list[n:]
	}
	o.mu.Lock()
}

// moving tells whether any block is on its way; o.mu is held.
func (o *Object) moving() bool {
	if o.fetches > 0 {
		return true
	}
	for _, b := range o.blocks {
		if b.queued || b.writing {
			return true
		}
	}
	return false
}

// waitChange waits for the next change of o; o.mu is held, and released meanwhile.
func (o *Object) waitChange(ctx context.Context) error {
	ch := o.change()
	o.mu.Unlock()
	err := wait(ctx, ch)
	o.mu.Lock()
	return err
}

// fetchAbsent fetches the blocks that are neither on disk nor in memory nor on their way, a
// few GETs at a time, and waits for these. It returns how many blocks there were. o.mu is held,
// and released meanwhile.
func (o *Object) fetchAbsent(ctx context.Context, p objstore.Priority) (absent int, err error) {
	var under []*fetch
	reap := func(leave int) error {
		for len(under) > leave {
			f := under[0]
			under = under[1:]
			o.mu.Unlock()
			err := wait(ctx, f.done)
			o.mu.Lock()
			if err == nil {
				err = f.err
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	for n := uint32(0); n < o.blockN; {
		if o.resident == 0 && len(o.blocks) == 0 && o.small() {
			fs, err := o.start(0, o.blockN, p, false, o.blockN)
			if err != nil {
				return absent, err
			}
			under, absent = append(under, fs...), int(o.blockN)
			break
		}
		end := min(n+o.c.maxGet, o.blockN)
		fs, err := o.start(n, end, p, false, o.c.maxGet)
		if err != nil {
			return absent, err
		}
		for _, f := range fs {
			absent += int(f.hi - f.lo)
		}
		under = append(under, fs...)
		n = end
		if err := reap(fetchParallel - 1); err != nil {
			return absent, err
		}
	}
	return absent, reap(0)
}

// NoRoom is Prefetch's answer when memory is too short for what was asked.
const NoRoom = -1

// Prefetch begins to fetch what is absent of [off, off+n), and returns how many bytes that
// is; it waits for nothing. When memory is too short for all of it, it starts nothing and
// returns NoRoom, so that the same range can be asked for again. Errors show when the bytes are
// read.
func (o *Object) Prefetch(off, n int64, p objstore.Priority) (started int64) {
	lo, hi := o.blockRange(off, n)
	room := o.c.prefetchRoom(p)
	o.mu.Lock()
	defer o.mu.Unlock()
	if lo == hi || o.state.Complete() || o.gone != nil || o.corrupt != nil {
		return 0
	}
	absent := int64(0)
	for at := lo; at < hi; at++ {
		if o.blocks[at] == nil && !o.present(at) {
			absent++
		}
	}
	if absent == 0 {
		return 0
	}
	if absent > room {
		return NoRoom
	}
	fs, err := o.start(lo, hi, p, true, o.c.maxGet)
	for _, f := range fs {
		started += o.span(f.lo, f.hi)
	}
	if err != nil && started == 0 {
		return NoRoom
	}
	return started
}
