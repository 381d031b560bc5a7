package fs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/publish"
)

// awaited is a file whose publication somebody waits for.
type awaited struct {
	waiters int
	landed  uint64 // the largest place in the order as of which its content has landed meanwhile
}

// await has what lands of a file be noted until leave is called.
func (p *publisher) await(ino meta.Ino) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.awaited[ino]
	if a == nil {
		a = &awaited{}
		p.awaited[ino] = a
	}
	a.waiters++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if a.waiters--; a.waiters == 0 {
			delete(p.awaited, ino)
		}
	}
}

// hasLanded notes that the origin has what a file held when it got a place in the order, or later.
func (p *publisher) hasLanded(ino meta.Ino, seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.awaited[ino]; a != nil {
		a.landed = max(a.landed, seq)
	}
}

func (p *publisher) landedSince(ino meta.Ino, seq uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.awaited[ino]
	return a != nil && a.landed >= seq
}

const (
	// nowTries is how often a publication that somebody waits for is begun, where others open the file for writing or
	// write to it; nowPause is how long it is waited before another.
	nowTries = 20
	nowPause = 20 * time.Millisecond
)

// publishNow publishes what a file holds now, and returns when the origin has it. What is written meanwhile may or may
// not be in it. An error is that of the next try; the file is tried again in the background.
func (f *FS) publishNow(ctx context.Context, node NodeID) error {
	p := &f.publisher
	p.hurried.Add(1)
	defer p.hurried.Add(-1)
	defer p.await(node.Ino())()
	var first uint64
	for try := range nowTries {
		in, err := f.inode(node)
		if err != nil || in.Stage == 0 || in.Flags&meta.Removed != 0 {
			return err
		}
		seq, kept, err := f.orderNow(in.Ino)
		if err != nil {
			return &PathError{Op: "publish", Path: f.PathOf(node), Err: err}
		}
		if seq == 0 {
			return nil
		}
		if first == 0 {
			first = seq
		}
		if !kept || try > 0 {
			f.enqueue(in.Ino)
		}
		p.queue.Hasten(uint64(in.Ino))
		for n := 0; n < 2; n++ {
			// It leaves the queue also when somebody opens it for writing, or asks for the same.
			err := p.queue.WaitOrFail(ctx, uint64(in.Ino))
			if errors.Is(err, errLater) && f.inDoubt() {
				n-- // what a process that was killed had under way ends in a moment; that is no failure
			} else if err != nil || p.landedSince(in.Ino, first) {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-f.ctx.Done():
				return publish.ErrClosed
			case <-time.After(nowPause):
			}
		}
	}
	return &PathError{Op: "publish", Path: f.PathOf(node), Err: publish.ErrChanged}
}

// errHeld: nobody has said yet that a file is whole.
var errHeld = errors.New("it is held, and not published until \"leatfs retry\" says that it is good")

// orderNow gives a file the next place in the order, as it is; 0 when there is nothing to publish of it. One that is complete keeps
// the place that it has: what was complete after it may say that it is there.
func (f *FS) orderNow(ino meta.Ino) (seq uint64, kept bool, err error) {
	written := f.open.writers(ino) > 0
	d, err := f.db.Dirty(ino)
	if err == nil && !d.Held && d.Seq != 0 && !written && !d.Early {
		return d.Seq, true, nil
	}
	f.unqueue(ino)
	err = f.db.Do(func(tx *meta.Tx) error {
		seq = 0
		d, err := tx.Dirty(ino)
		if err != nil {
			return absent(err)
		}
		if d.Held {
			return fmt.Errorf("%w: %s", errHeld, d.Error)
		}
		d.Seq, d.Early = f.db.NextSeq(), true
		d.Token = outdated(d.Token)
		seq = d.Seq
		return tx.SetDirty(&d)
	})
	if err != nil {
		f.enqueue(ino) // it has the place that it had
	}
	return seq, false, err
}
