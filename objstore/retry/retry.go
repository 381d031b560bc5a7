// Package retry repeats requests that failed for a reason that may pass, and resumes bodies
// that broke off.
//
// What bounds it: tries and time per request, and a budget over all requests, so that a
// dead origin is asked a few times a second and not tens of thousands of times.
package retry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// Options are the bounds; zero means the default.
type Options struct {
	// Tries is the most tries of one request, the first included. Default 8.
	Tries int
	// Elapsed is how long a request may have taken, waits included, and still be tried
	// again. Of a body, the time that its reader spends elsewhere does not count. Default 60 s.
	Elapsed time.Duration
	// The wait before try n is random in [0, min(Cap, Base·2ⁿ)): full jitter. A throttled
	// request uses ThrottleBase. Defaults 50 ms, 250 ms and 5 s.
	Base, ThrottleBase, Cap time.Duration
	// RetryAfterCap is the longest wait a store may ask for; beyond it, it is asked sooner.
	// Default 30 s.
	RetryAfterCap time.Duration
	// BudgetShare is how many retries one request pays for, BudgetFloor how many may be
	// made each second besides, BudgetBurst how many may be saved up. A retry for which
	// there is no budget waits. Defaults 0.1, 10 and 100.
	BudgetShare, BudgetFloor, BudgetBurst float64
	// Refresh, if set, renews credentials after an error of kind Expired.
	Refresh func(context.Context) error
	// Log gets one line per request that was given up, and per retry at debug level.
	// Default none.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Tries == 0 {
		o.Tries = 8
	}
	for v, def := range map[*time.Duration]time.Duration{&o.Elapsed: time.Minute, &o.Base: 50 * time.Millisecond,
		&o.ThrottleBase: 250 * time.Millisecond, &o.Cap: 5 * time.Second, &o.RetryAfterCap: 30 * time.Second} {
		if *v == 0 {
			*v = def
		}
	}
	for v, def := range map[*float64]float64{&o.BudgetShare: 0.1, &o.BudgetFloor: 10, &o.BudgetBurst: 100} {
		if *v == 0 {
			*v = def
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Store retries requests on the Store it wraps.
//
// A request that failed in a way that leaves open whether it was carried out is repeated
// only when repeating is harmless (objstore.Op.Once is false); else its error is returned,
// and the caller finds out what happened.
//
// The context of a Get is used again whenever its body is resumed.
type Store struct {
	objstore.Store
	inner  objstore.Store
	opt    Options
	budget budget
	stats  struct{ retries, resumed, gaveUp, waited atomic.Uint64 }
}

// New wraps inner.
func New(inner objstore.Store, opt Options) *Store {
	s := &Store{inner: inner, opt: opt.withDefaults()}
	s.budget = newBudget(s.opt)
	s.Store = objstore.Around(inner, s.request)
	return s
}

// Snapshot is what was done since the start.
type Snapshot struct {
	Retries uint64 // tries after the first
	Resumed uint64 // of them, those that went on with a body
	GaveUp  uint64 // requests and bodies that failed for good after more than one try
	Waited  uint64 // retries that had to wait for the budget
	Budget  float64
}

// Snapshot reads the counters.
func (s *Store) Snapshot() Snapshot {
	return Snapshot{Retries: s.stats.retries.Load(), Resumed: s.stats.resumed.Load(),
		GaveUp: s.stats.gaveUp.Load(), Waited: s.stats.waited.Load(), Budget: s.budget.left()}
}

// attempts is the history of one request, or of one body since it last made progress.
type attempts struct {
	tries int
	spent time.Duration
}

func (s *Store) request(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
	s.budget.earn()
	if objstore.OneTry(ctx) {
		return call(ctx)
	}
	return s.try(ctx, op, &attempts{}, call)
}

// try calls call until it succeeds or the bounds are met.
func (s *Store) try(ctx context.Context, op objstore.Op, a *attempts, call func(context.Context) error) error {
	for {
		a.tries++
		start := time.Now()
		err := call(ctx)
		a.spent += time.Since(start)
		if err == nil {
			return nil
		}
		if err := s.pause(ctx, op, a, err); err != nil {
			return err
		}
	}
}

// pause waits until the next try, or says why there is none.
func (s *Store) pause(ctx context.Context, op objstore.Op, a *attempts, err error) error {
	kind := objstore.KindOf(err)
	if ctx.Err() != nil {
		return s.canceled(ctx, op, err)
	}
	if !kind.Temporary() || op.Once && kind != objstore.Throttled && kind != objstore.Expired {
		return err
	}
	if a.tries >= s.opt.Tries {
		return s.giveUp(op, a, err, "")
	}
	wait := s.backoff(a.tries, err)
	paid := s.budget.spend()
	if paid > wait {
		s.stats.waited.Add(1)
		wait = paid
	}
	if a.spent+wait > s.opt.Elapsed {
		s.budget.refund()
		why := ""
		if paid == wait && paid > 0 {
			why = " (too many requests fail to retry them all)"
		}
		return s.giveUp(op, a, err, why)
	}
	if kind == objstore.Expired && s.opt.Refresh != nil {
		if rerr := s.opt.Refresh(ctx); rerr != nil {
			return &objstore.Error{Op: op.Name, Key: op.Key, Kind: objstore.Expired,
				Err: fmt.Errorf("credentials could not be renewed: %w", rerr)}
		}
	}
	s.opt.Log.Debug("retrying a request", "op", op.Name, "key", op.Key, "try", a.tries+1, "wait", wait, "err", err)
	s.stats.retries.Add(1)
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		a.spent += wait
		return nil
	case <-ctx.Done():
		return s.canceled(ctx, op, err)
	}
}

func (s *Store) canceled(ctx context.Context, op objstore.Op, err error) error {
	if objstore.Is(err, objstore.Canceled) {
		return err
	}
	return &objstore.Error{Op: op.Name, Key: op.Key, Kind: objstore.Canceled,
		Err: fmt.Errorf("%w (last try: %v)", ctx.Err(), err)}
}

func (s *Store) giveUp(op objstore.Op, a *attempts, err error, why string) error {
	s.stats.gaveUp.Add(1)
	elapsed := a.spent.Round(time.Millisecond)
	s.opt.Log.Warn("origin request failed for good", "op", op.Name, "key", op.Key, "tries", a.tries, "elapsed", elapsed, "err", err)
	return &objstore.Error{Op: op.Name, Key: op.Key, Kind: objstore.KindOf(err),
		Err: fmt.Errorf("gave up after %d tries in %v%s: %w", a.tries, elapsed, why, err)}
}

// backoff is the wait after the given number of tries.
func (s *Store) backoff(tries int, err error) time.Duration {
	base := s.opt.Base
	if objstore.Is(err, objstore.Throttled) {
		base = s.opt.ThrottleBase
	}
	top := min(s.opt.Cap, base<<min(tries-1, 20))
	wait := rand.N(max(top, 1))
	return max(wait, min(retryAfter(err), s.opt.RetryAfterCap))
}

// Get resumes its body where it broke off.
func (s *Store) Get(ctx context.Context, key string, opt objstore.GetOptions) (*objstore.Reader, error) {
	s.budget.earn()
	b := &body{s: s, ctx: ctx, op: objstore.Op{Class: objstore.ClassGet, Name: "GET", Key: key}}
	var first *objstore.Reader
	err := s.try(ctx, b.op, &b.attempts, func(ctx context.Context) (err error) {
		first, err = s.inner.Get(ctx, key, opt)
		return err
	})
	if err != nil {
		return nil, err
	}
	if opt.IfMatch != "" && first.Object.ETag != opt.IfMatch {
		_ = first.Body.Close()
		return nil, changed(key, opt.IfMatch, first.Object.ETag)
	}
	b.cur, b.off, b.end = first.Body, first.Offset, first.Offset+first.Length
	b.version = objstore.GetOptions{IfMatch: first.Object.ETag, VersionID: first.Object.VersionID}
	if b.version.VersionID == "" {
		b.version.VersionID = opt.VersionID
	}
	out := *first
	out.Body = b
	return &out, nil
}

func changed(key, want, got string) error {
	return &objstore.Error{Op: "GET", Key: key, Kind: objstore.PreconditionFailed,
		Err: fmt.Errorf("asked for ETag %q, the store answered with %q", want, got)}
}

// progress is how many bytes a resumed body must yield to be granted all tries again: else
// a body that breaks after each byte would never end.
const progress = 64 << 10

// body reads [off, end) of one version, over as many requests as it takes.
type body struct {
	s        *Store
	ctx      context.Context
	op       objstore.Op
	version  objstore.GetOptions // IfMatch and VersionID
	off, end int64
	cur      io.ReadCloser // nil: broke off, or closed
	cause    error         // why it broke off
	attempts attempts
	gained   int64 // bytes since attempts began
	err      error // sticky
}

func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if b.cur == nil {
			if b.err = b.resume(); b.err != nil {
				return 0, b.err
			}
		}
		start := time.Now()
		n, err := b.cur.Read(p[:min(int64(len(p)), max(b.end-b.off, 1))])
		b.attempts.spent += time.Since(start)
		if b.off+int64(n) > b.end {
			b.err = &objstore.Error{Op: "GET", Key: b.op.Key, Kind: objstore.Corrupt,
				Err: fmt.Errorf("the body is longer than the %d bytes announced", b.end)}
			return 0, b.err
		}
		b.off += int64(n)
		if b.gained += int64(n); b.gained >= progress {
			b.attempts, b.gained = attempts{}, 0
		}
		if err == nil {
			if n == 0 {
				continue
			}
			return n, nil
		}
		if b.off == b.end { // all came, whatever happened then
			b.err = io.EOF
			return n, io.EOF
		}
		b.breakOff(err)
		if n > 0 {
			return n, nil
		}
	}
}

// breakOff closes what cannot be read any more and notes why.
func (b *body) breakOff(err error) {
	_ = b.cur.Close() // err says it all
	b.cur = nil
	if err == io.EOF {
		err = &objstore.Error{Op: "GET", Key: b.op.Key, Kind: objstore.Unavailable, Err: io.ErrUnexpectedEOF}
	}
	b.cause = err
}

// resume opens the rest of the same version, or returns the error that the reader gets.
func (b *body) resume() error {
	if b.version.IfMatch == "" && b.version.VersionID == "" {
		return b.cause // the rest might be another version's
	}
	if b.attempts.tries == 0 { // progress since the last: the try that broke off is the first
		b.attempts.tries = 1
	}
	if err := b.s.pause(b.ctx, b.op, &b.attempts, b.cause); err != nil {
		return err
	}
	b.s.stats.resumed.Add(1)
	opt := b.version
	opt.Offset, opt.Length = b.off, b.end-b.off
	var r *objstore.Reader
	err := b.s.try(b.ctx, b.op, &b.attempts, func(ctx context.Context) (err error) {
		r, err = b.s.inner.Get(ctx, b.op.Key, opt)
		return err
	})
	if err != nil {
		return err
	}
	switch {
	case r.Object.ETag != b.version.IfMatch:
		err = changed(b.op.Key, b.version.IfMatch, r.Object.ETag)
	case r.Offset != b.off || r.Length != b.end-b.off:
		err = &objstore.Error{Op: "GET", Key: b.op.Key, Kind: objstore.Corrupt,
			Err: fmt.Errorf("asked for %d bytes at %d, the store answered with %d at %d", b.end-b.off, b.off, r.Length, r.Offset)}
	}
	if err != nil {
		_ = r.Body.Close()
		return err
	}
	b.cur = r.Body
	return nil
}

func (b *body) Close() error {
	if b.err == nil {
		b.err = &objstore.Error{Op: "GET", Key: b.op.Key, Kind: objstore.Canceled, Err: io.ErrClosedPipe}
	}
	if b.cur == nil {
		return nil
	}
	err := b.cur.Close()
	b.cur = nil
	return err
}
