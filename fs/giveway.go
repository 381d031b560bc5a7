package fs

import (
	"context"
	"runtime"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
)

// Who makes one file after the other has the processors to itself: what was closed is made complete, and is
// published, when none was made for between, but after giveWay at the latest. Then it goes step by step, one
// publication in pace for each processor, and what has waited for giveWayMost goes at once. Whoever asks for the
// former in between gets it (completeClosed).
const (
	between = 25 * time.Millisecond
	giveWay = 5 * time.Second
	// giveWayMost bounds how much later than it was made a file gets to the bucket for the sake of those that are
	// made meanwhile.
	giveWayMost = 30 * time.Second
	// pace leaves those that make files most of the processors: to publish a small one takes 2 ms of one here, and
	// as much of the server where that is on the same machine.
	pace = 16 * time.Millisecond
)

// making notes that a file is being made, until done is called.
func (p *publisher) making() (done func()) {
	p.makers.Add(1)
	return func() {
		p.made.Store(int64(time.Since(p.start)))
		p.makers.Add(-1)
	}
}

// busy is how long those that make files are still given way by what has waited since then, not positive if
// they are not.
func (p *publisher) busy(since time.Time) time.Duration {
	if p.hurried.Load() > 0 {
		return 0
	}
	left := between
	if p.makers.Load() == 0 {
		made := p.made.Load()
		if made == 0 {
			return 0
		}
		left += time.Duration(made) - time.Since(p.start)
	}
	return min(left, giveWay-time.Since(since))
}

// giveWay returns when nobody makes files any more, or the inode has waited long enough.
func (f *FS) giveWay(ctx context.Context, ino meta.Ino) {
	p := &f.publisher
	if p.busy(time.Now()) <= 0 {
		return
	}
	d, err := f.db.Dirty(ino)
	if err != nil {
		return
	}
	since := time.Now().Add(time.Duration(d.Since - f.now()))
	for wait := p.busy(since); wait > 0; wait = p.busy(since) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
	paced := func() bool { return p.busy(time.Now()) > 0 && time.Since(since) < giveWayMost }
	if !paced() {
		return
	}
	for wait := p.step(); wait > 0 && paced(); wait -= between {
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(wait, between)):
		}
	}
}

// step tells how long what is to be published while files are made waits for its turn.
func (p *publisher) step() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	wait := p.next.Sub(now)
	p.next = p.next.Add(pace / time.Duration(runtime.NumCPU()))
	return wait
}
