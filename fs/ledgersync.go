package fs

import (
	"context"
	"errors"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
)

// SyncResult is what came of Sync.
type SyncResult struct {
	// Left is what the origin had not of what was there when Sync was called: files that were open for
	// writing, held ones, deletions that wait for who has the object open, and, when the context ended before all was done, those that wait or fail.
	Left Ledger `json:"left"`
}

const (
	// syncTick is how often Sync tells how it goes on.
	syncTick = 500 * time.Millisecond
	// syncHasten is how often what failed, or waits for a better name, is tried though its time has not
	// come: somebody waits for it.
	syncHasten = 5 * time.Second
	// syncClosing is how long Sync waits for the close of a file that is open for writing: the kernel
	// tells of a close after the program has returned from it.
	syncClosing = 500 * time.Millisecond
	// syncMapped is how long it waits for a closed file that somebody has mapped, or seems to: the kernel
	// gives the staging file back a moment after the last close.
	syncMapped = 1500 * time.Millisecond
	// syncEntries is how many entries SyncResult has at most.
	syncEntries = 1000
)

// Sync returns when the origin has all that was closed when it was called, and nothing is left to be
// deleted that was deleted then. What fails is tried again until ctx ends; then the result says what
// is left, and the error is that of ctx. progress, which may be nil, is called now and then from
// the caller's goroutine, with few entries.
func (f *FS) Sync(ctx context.Context, progress func(Ledger)) (SyncResult, error) {
	now := time.Now()
	s := syncing{f: f, ctx: ctx, progress: progress, seq: f.db.NextSeq(), began: f.now(), open: now.Add(syncClosing), mapped: now.Add(syncMapped), told: now,
		waited: make(map[meta.Ino]uint64)}
	f.publisher.hurried.Add(1)
	err := s.run()
	f.publisher.hurried.Add(-1)
	if err == nil {
		f.abortUploads(ctx) // those that nobody needs any more are not to stay behind when the mount ends
	}
	left, lerr := f.ledgerNow(syncEntries, func(e *LedgerEntry) bool {
		if e.delete {
			return e.order <= s.seq
		}
		return e.Since.UnixNano() <= s.began
	})
	return SyncResult{Left: left}, errors.Join(err, lerr)
}

// syncing is one Sync.
type syncing struct {
	f        *FS
	ctx      context.Context
	progress func(Ledger)
	seq      uint64 // grows with what becomes complete that was there at began
	began    int64
	open     time.Time           // until then files may still turn out to be closed
	mapped   time.Time           // and until then not to be mapped
	told     time.Time           // when progress was called last
	waited   map[meta.Ino]uint64 // the Seq of what the queue was waited for
	hastened time.Time
}

// run goes through the ledger until nothing is left that only takes time.
func (s *syncing) run() error {
	for {
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		s.f.completeClosed()
		pending, queued, err := s.look()
		if err != nil {
			return err
		}
		if queued {
			if err := s.waitQueue(); err != nil {
				return err
			}
		}
		if !pending && !queued {
			return nil
		}
		if err := s.pause(20 * time.Millisecond); err != nil {
			return err
		}
	}
}

// look tells whether something of what was there at the beginning is about to become complete, and
// whether something of it is complete.
func (s *syncing) look() (pending, queued bool, err error) {
	f := s.f
	if f.db.DirtyCount()+f.db.TombCount() == 0 {
		return false, false, nil
	}
	now := time.Now()
	var walk error
	err = f.db.WalkDirty(0, func(d meta.Dirty) bool {
		if d.Since > s.began || d.Held {
			return true
		}
		in, err := f.db.Inode(d.Ino)
		if errors.Is(err, meta.ErrNotFound) || err == nil && in.Flags&meta.Removed != 0 {
			return true
		}
		if walk = err; err != nil {
			return false
		}
		switch {
		case d.Seq == 0 && f.open.writers(d.Ino) > 0:
			pending = pending || now.Before(s.open)
		case d.Seq == 0 && f.mapped(d.Ino):
			if now.Before(s.mapped) {
				pending = true
				f.completeSoon(d.Ino)
			}
		case d.Seq == 0:
			pending = true // the completer's, for a moment
		default:
			if s.waited[d.Ino] == d.Seq {
				// The queue has carried out all up to this, and so does not know of it.
				f.enqueue(d.Ino)
			}
			s.waited[d.Ino] = d.Seq
			s.seq = max(s.seq, d.Seq)
			queued = true
		}
		return true
	})
	if err = errors.Join(err, walk); err != nil || queued {
		return pending, queued, err
	}
	err = f.db.WalkTombs("", "", func(t meta.Tomb) bool {
		queued = t.Done == 0 && t.Seq <= s.seq && !f.stays(&t)
		return !queued
	})
	return pending, queued, err
}

// stays tells whether an object that is to be deleted stays until somebody does something, which can take for ever: closes it, or
// closes or releases the file that is to take its place or that is still to be copied from it.
func (f *FS) stays(t *meta.Tomb) bool {
	if f.publisher.isRead(t) || t.Needed != 0 && f.unfinished(t.Needed) {
		return true
	}
	ino, err := f.follower(t.Key)
	return err == nil && ino != 0 && f.unfinished(ino)
}

// unfinished tells whether a file is not published before somebody has closed it, or has said that it is whole.
func (f *FS) unfinished(ino meta.Ino) bool {
	d, err := f.db.Dirty(ino)
	return err == nil && (d.Held || d.Seq == 0 && f.written(ino))
}

// readOnly tells whether all that is left waits for somebody to close what was removed: that can take for ever.
func (s *syncing) readOnly() bool {
	f := s.f
	only, some := true, false
	if err := f.db.WalkDirty(0, func(d meta.Dirty) bool {
		only = d.Held || d.Seq == 0 || d.Seq > s.seq
		return only
	}); err != nil || !only {
		return false
	}
	err := f.db.WalkTombs("", "", func(t meta.Tomb) bool {
		if t.Done == 0 && t.Seq <= s.seq {
			some = true
			only = f.stays(&t)
		}
		return only
	})
	return err == nil && only && some
}

// waitQueue waits until the queue has carried out all up to seq, but what waits for a close.
func (s *syncing) waitQueue() error {
	q := s.f.publisher.queue
	for s.hastened = (time.Time{}); ; {
		if time.Since(s.hastened) > syncHasten {
			q.HastenAll()
			s.hastened = time.Now()
		}
		ctx, cancel := context.WithTimeout(s.ctx, syncTick)
		err := q.WaitAll(ctx, s.seq)
		cancel()
		s.tell()
		if err == nil || s.ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if s.readOnly() {
			return nil
		}
	}
}

// tell reports, if it is time to.
func (s *syncing) tell() {
	if s.progress == nil || time.Since(s.told) < syncTick {
		return
	}
	s.told = time.Now()
	if l, err := s.f.Ledger(3); err == nil {
		s.progress(l)
	}
}

func (s *syncing) pause(d time.Duration) error {
	s.tell()
	select {
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	case <-s.f.ctx.Done():
		return context.Cause(s.f.ctx)
	case <-time.After(d):
		return nil
	}
}
