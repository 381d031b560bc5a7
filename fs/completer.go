package fs

import (
	"context"
	"errors"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
)

// completeBatch is how many files are made complete in one transaction.
const completeBatch = 64

// unwaiting is a context under which nothing is waited for.
type unwaiting struct{ context.Context }

// NoWait: see noWait.
func (unwaiting) NoWait() bool { return true }

var errStillWritten = errors.New("somebody has it mapped for writing")

// completion is a file that is made complete: nobody can write to it, nor open it until end is called.
type completion struct {
	in  meta.Inode
	d   meta.Dirty // as it is then; Seq is 0 if there was nothing to note
	end func(error)
}

// completeEach makes files complete, in this order, if nobody can write to them any more, and returns those that it has not
// come to when ctx ends. All but the first n were looked at before. By turn.
func (f *FS) completeEach(ctx context.Context, todo []meta.Ino, n int) (rest []meta.Ino) {
	batch := make([]completion, 0, min(len(todo), completeBatch))
	i := 0
	for i < len(todo) && ctx.Err() == nil {
		// Only of the first is waited for who opens it: those before it are held.
		wait := ctx
		if len(batch) > 0 {
			wait = unwaiting{ctx}
		}
		c, ok, err := f.closing(wait, todo[i])
		switch {
		case errors.Is(err, ErrWouldWait):
			f.completeAll(&batch)
			continue
		case err != nil:
			f.completeLater(todo[i], err, i >= n)
		case ok:
			batch = append(batch, c)
		}
		if i++; len(batch) == completeBatch {
			f.completeAll(&batch)
		}
	}
	f.completeAll(&batch)
	return todo[i:]
}

// completeLater has a file looked at again. One that is mapped still when it was looked at before counts as open: should both processes
// of the mount be killed, and who writes to it, it may be torn. (Right after a close the kernel may not be done with it.)
func (f *FS) completeLater(ino meta.Ino, err error, before bool) {
	p := &f.publisher
	if !errors.Is(err, errStillWritten) {
		f.log.Error("a file that was closed cannot be noted as complete; tried again", "inode", ino, "err", err)
	}
	p.mu.Lock()
	p.again[ino] = time.Now().Add(mappedPoll)
	if !before || !errors.Is(err, errStillWritten) {
		f.noteClosed(ino)
	} else if err := f.db.Closes().Opened(ino); err != nil {
		f.log.Error("should both processes of the mount be killed now, a file that is mapped for writing counts as closed", "inode", ino, "err", err)
	}
	p.mu.Unlock()
	p.poke() // the completer may wait for something later
}

// completeAgain has a file looked at again of which what was published as w is not all. One that somebody has made
// complete since has its place in the order: what was complete after it comes after it.
func (f *FS) completeAgain(w *work) {
	d, err := f.db.Dirty(w.in.Ino)
	if err == nil && d.Seq != 0 && d.Seq != w.dirty.Seq {
		return
	}
	f.completeSoon(w.in.Ino)
}

// closing keeps who would open a file away, if it is one that is to become complete.
func (f *FS) closing(ctx context.Context, ino meta.Ino) (c completion, ok bool, err error) {
	c.in, err = f.db.Inode(ino)
	if errors.Is(err, meta.ErrNotFound) || err == nil && (c.in.Stage == 0 || c.in.Flags&meta.Removed != 0) {
		return c, false, nil
	}
	if err != nil {
		return c, false, err
	}
	node := f.nodeOf(&c.in)
	if c.end, err = f.open.begin(ctx, node); err != nil {
		return c, false, err
	}
	defer func() {
		if !ok {
			c.end(nil)
		}
	}()
	if f.open.writers(ino) > 0 {
		return c, false, nil // at its last close
	}
	if o := f.open.peek(node); o != nil {
		o.closeStage()
	}
	writers, err := f.stillWritten(c.in.Stage)
	if err != nil {
		if _, gone := f.unstaged(&c.in, err); gone {
			err = nil
		}
		return c, false, err
	}
	if writers {
		return c, false, errStillWritten
	}
	return c, true, nil
}

// completeAll notes in one transaction that files are complete, in this order, and has them published.
func (f *FS) completeAll(batch *[]completion) {
	all := *batch
	if len(all) == 0 {
		return
	}
	*batch = all[:0]
	err := f.db.Do(func(tx *meta.Tx) error {
		for i := range all {
			c := &all[i]
			c.d = meta.Dirty{}
			now, err := tx.Inode(c.in.Ino)
			if errors.Is(err, meta.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			d, err := tx.Dirty(c.in.Ino)
			if errors.Is(err, meta.ErrNotFound) || now.Stage != c.in.Stage || now.Flags&meta.Removed != 0 {
				continue
			}
			if err != nil {
				return err
			}
			if d.Held {
				continue
			}
			d.Seq, d.Early = f.db.NextSeq(), false
			d.Token = outdated(d.Token)
			d.Tries, d.Error, d.Next = 0, "", 0
			if err := tx.SetDirty(&d); err != nil {
				return err
			}
			c.in, c.d = now, d
		}
		return nil
	})
	for i := range all {
		c := &all[i]
		switch {
		case err != nil:
			f.completeLater(c.in.Ino, err, false)
		case c.d.Seq != 0:
			f.enqueueAs(&c.in, &c.d)
		}
		c.end(nil)
	}
}
