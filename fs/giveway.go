package fs

import (
	"context"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
)

// Who makes one file after the other has the processors to itself: what was closed is made complete, and is
// published, when none was made for between, but after giveWay at the latest. Whoever asks for the
// former in between gets it (completeClosed).
const (
	between = 25 * time.Millisecond
	giveWay = 5 * time.Second
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
}
