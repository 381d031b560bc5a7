package prefetch

import "slices"

// ledger is what a stream asked for and its reader has not read yet. It is as long as a
// window has chunks. Not for parallel use.
type ledger struct {
	pieces []piece
}

// piece is one ask.
type piece struct {
	Range
	settled bool  // the target has answered
	started int64 // bytes that it began to fetch; the whole range until it answers
	read    int64 // bytes of the range that were read
	parked  bool  // on disk for long, no longer counted as ahead
}

// waiting is how many of the started bytes are not read yet, taking them to be spread evenly.
func (p *piece) waiting() int64 {
	return p.started - p.part(p.read)
}

func (p *piece) part(n int64) int64 {
	return int64(float64(p.started) * (float64(n) / float64(p.Len)))
}

// add enters an ask.
func (l *ledger) add(r Range) { l.pieces = append(l.pieces, piece{Range: r, started: r.Len}) }

// settle enters the target's answer to the ask at off. used is how much of it was read
// meanwhile; found is false when the piece is gone.
func (l *ledger) settle(off, started int64) (used int64, found bool) {
	i := slices.IndexFunc(l.pieces, func(p piece) bool { return p.Off == off && !p.settled })
	if i < 0 {
		return 0, false
	}
	p := &l.pieces[i]
	p.started, p.settled = min(started, p.Len), true
	used = p.started - p.waiting()
	if p.waiting() == 0 {
		l.pieces = slices.Delete(l.pieces, i, i+1)
	}
	return used, true
}

// consume enters a read of [off, end) and drops the pieces that end before passed: what of
// them was not read by now never will be. It returns the started bytes that were read now
// and those that were passed over.
func (l *ledger) consume(off, end, passed int64) (used, wasted int64) {
	keep := l.pieces[:0]
	for _, p := range l.pieces {
		if n := min(end, p.End()) - max(off, p.Off); n > 0 {
			before := p.waiting()
			p.read = min(p.read+n, p.Len)
			if p.settled {
				used += before - p.waiting()
			}
		}
		switch {
		case p.settled && p.read == p.Len:
		case p.settled && p.End() <= passed:
			wasted += p.waiting()
		default:
			keep = append(keep, p)
		}
	}
	l.pieces = keep
	return used, wasted
}

// sums adds up what is waiting: all of it; what counts as ahead, which is without the parked
// pieces; and what a target has answered.
func (l *ledger) sums() (waiting, ahead, answered int64) {
	for i := range l.pieces {
		p := &l.pieces[i]
		n := p.waiting()
		waiting += n
		if !p.parked {
			ahead += n
		}
		if p.settled {
			answered += n
		}
	}
	return waiting, ahead, answered
}

func (l *ledger) waiting() int64 {
	n, _, _ := l.sums()
	return n
}

func (l *ledger) ahead() int64 {
	_, n, _ := l.sums()
	return n
}

// wasted is what is waiting and was answered: it is never read if the stream goes.
func (l *ledger) wasted() int64 {
	_, _, n := l.sums()
	return n
}

// park takes all pieces out of ahead.
func (l *ledger) park() {
	for i := range l.pieces {
		l.pieces[i].parked = true
	}
}
