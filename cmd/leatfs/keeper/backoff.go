package keeper

import "time"

// backoff decides what to start after a worker has died. It is a pure value: the keeper's loop
// owns it.
type backoff struct {
	times    *Times
	row      int           // deaths in a row of real workers that count
	failures int           // those of them that said nothing
	fails    int           // and those that said that their start did not work
	failing  time.Duration // the time that those took, with the pauses after them
	refusals int           // deaths in a row of workers that refused
	retry    time.Duration // the pause before the next real worker while one refuses
}

// death is what backoff needs to know of one.
type death struct {
	refuser bool          // it was of a worker in ModeRefuse
	outside bool          // somebody else killed the worker
	said    bool          // it said that its start did not work, or it could not be started
	took    time.Duration // how long it lived
	ready   time.Duration // for how long it had been ready; negative when it never was
}

// next is what to start after a death, and after which pause.
type next struct {
	pause  time.Duration
	refuse bool          // start a worker in ModeRefuse,
	retry  time.Duration // and a real one in its place after this time
}

// after counts a death. A worker that had been ready for a while, or was killed from outside, is
// replaced at once; others after pauses that double. After RefuseAfter of those in a row the
// answer is a refuser and a time for the next try, which doubles with each try that fails. A start
// that said why it did not work did not die of a request, and the cause may pass (a bucket or a disk
// that is away for a moment): those are tried again for FailFor first, FailPause apart at most.
func (b *backoff) after(d death) next {
	if d.refuser {
		if !d.outside {
			b.refusals++
		}
		n := next{refuse: true, retry: b.retry}
		if !d.outside {
			n.pause = min(double(b.times.PauseMin, b.refusals-1), b.times.RetryMin)
		}
		return n
	}
	b.refusals = 0
	if d.ready >= b.times.StableAfter {
		*b = backoff{times: b.times}
		return next{}
	}
	if d.outside {
		return next{}
	}
	b.row++
	if d.said {
		b.fails++
		pause := min(double(b.times.PauseMin, b.fails-1), b.times.FailPause)
		b.failing += d.took + pause
		if b.retry == 0 && b.failing < b.times.FailFor {
			return next{pause: pause}
		}
	} else {
		b.failures++
		if b.retry == 0 && b.failures < b.times.RefuseAfter {
			return next{pause: double(b.times.PauseMin, b.failures-1)}
		}
	}
	b.retry = min(max(2*b.retry, b.times.RetryMin), b.times.RetryMax)
	return next{refuse: true, retry: b.retry}
}

// double is d doubled n times, and does not overflow.
func double(d time.Duration, n int) time.Duration {
	return d << min(max(n, 0), 20)
}
