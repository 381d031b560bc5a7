// Package hedge asks a second time when the first answer is late.
//
// Of many GETs a few take many times longer than the rest, for reasons that a second try
// does not meet. When the first byte has not come after what 95 of 100 requests need, the
// same request is sent again, and the one that answers first is used.
package hedge

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// Options shape the hedging; zero means the default.
type Options struct {
	// MinDelay and MaxDelay bound the wait for the first answer. Defaults 50 ms and 2 s.
	MinDelay, MaxDelay time.Duration
	// Share is the most hedges, as a part of all GETs. Default 0.05.
	Share float64
	// Quiet is how long after a throttle no hedge is sent. Default 10 s.
	Quiet time.Duration
}

func (o Options) withDefaults() Options {
	for v, def := range map[*time.Duration]time.Duration{&o.MinDelay: 50 * time.Millisecond,
		&o.MaxDelay: 2 * time.Second, &o.Quiet: 10 * time.Second} {
		if *v == 0 {
			*v = def
		}
	}
	if o.Share == 0 {
		o.Share = 0.05
	}
	return o
}

// Store hedges the GETs of the Store it wraps.
//
// One answer is given out whole: two are never mixed. Close waits for hedges under way.
type Store struct {
	objstore.Store
	opt       Options
	latency   latency
	throttled atomic.Int64 // unix nanoseconds of the last throttle
	hedges    atomic.Uint64
	wins      atomic.Uint64

	mu     sync.Mutex
	closed bool           // no hedge may start
	under  sync.WaitGroup // hedges under way
}

// New wraps inner.
func New(inner objstore.Store, opt Options) *Store {
	s := &Store{Store: inner, opt: opt.withDefaults()}
	s.latency.credit = 1
	return s
}

// Snapshot is what was done since the start.
type Snapshot struct {
	Hedges, Wins uint64
	Delay        time.Duration // of the next hedge; 0 while too few requests were seen
}

// Snapshot reads the counters.
func (s *Store) Snapshot() Snapshot {
	d, _ := s.delay()
	return Snapshot{Hedges: s.hedges.Load(), Wins: s.wins.Load(), Delay: d}
}

// Close waits for hedges under way, which end soon, and closes the inner store.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	err := s.Store.Close()
	s.under.Wait()
	return err
}

// enter counts a hedge that starts, unless the store is being closed.
func (s *Store) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.under.Add(1)
	}
	return !s.closed
}

func (s *Store) delay() (time.Duration, bool) {
	d := s.latency.p95()
	if d == 0 {
		return 0, false
	}
	return max(s.opt.MinDelay, min(late*d, s.opt.MaxDelay)), true
}

// late is how many times the 95th percentile a request must take to count as lost in the tail.
// At the percentile itself one request in twenty would be sent twice by definition, which on a
// machine or a store that is merely busy makes it busier.
const late = 2

// Get asks once, and again if the answer is late.
func (s *Store) Get(ctx context.Context, key string, opt objstore.GetOptions) (*objstore.Reader, error) {
	s.latency.earn(s.opt.Share)
	rc := &race{s: s, ctx: ctx, key: key, opt: opt, answered: make(chan struct{})}
	sub, cancel := context.WithCancelCause(ctx)
	rc.cancelFirst = cancel
	var timer *time.Timer
	if d, ok := s.delay(); ok {
		timer = time.AfterFunc(d, rc.hedge)
	}
	start := time.Now()
	r, err := s.Store.Get(sub, key, opt)
	if timer != nil {
		timer.Stop() // a hedge that starts nevertheless finds the race decided
	}
	s.note(err)
	return rc.first(start, r, err)
}

func (s *Store) note(err error) {
	if objstore.Is(err, objstore.Throttled) {
		s.throttled.Store(time.Now().UnixNano())
	}
}

// errBeaten is the cause of the context of the request that lost.
var errBeaten = errors.New("the other request answered first")

// Lock order: race.mu, then Store.mu or latency.mu.

// race is one GET with its hedge. The caller's goroutine runs the first request; the hedge,
// if there is one, has a goroutine that Store.under counts.
type race struct {
	s           *Store
	ctx         context.Context
	key         string
	opt         objstore.GetOptions
	cancelFirst context.CancelCauseFunc

	mu           sync.Mutex
	decided      bool // the answer is chosen
	running      bool // the hedge is under way, or was
	cancelSecond context.CancelCauseFunc
	second       *objstore.Reader // the hedge's answer, when it won
	answered     chan struct{}    // closed when the hedge has ended, if it was running
}

// hedge is the timer's function; it sends the second request.
func (rc *race) hedge() {
	s := rc.s
	quiet := time.Since(time.Unix(0, s.throttled.Load())) < s.opt.Quiet
	rc.mu.Lock()
	if rc.decided || rc.ctx.Err() != nil || quiet || !s.latency.spend() || !s.enter() {
		rc.mu.Unlock()
		return
	}
	rc.running = true
	sub, cancel := context.WithCancelCause(rc.ctx)
	rc.cancelSecond = cancel
	rc.mu.Unlock()
	defer s.under.Done()
	defer close(rc.answered)
	s.hedges.Add(1)
	r, err := s.Store.Get(sub, rc.key, rc.opt)
	s.note(err)
	if err != nil {
		cancel(nil)
		return // the first will tell
	}
	rc.mu.Lock()
	won := !rc.decided && (rc.opt.IfMatch == "" || r.Object.ETag == rc.opt.IfMatch)
	if won {
		rc.decided, rc.second = true, with(r, cancel)
	}
	rc.mu.Unlock()
	if won {
		s.wins.Add(1)
		rc.cancelFirst(errBeaten)
		return
	}
	cancel(errBeaten)
	_ = r.Body.Close() // not wanted
}

// first takes the outcome of the first request and returns the answer of the race.
func (rc *race) first(start time.Time, r *objstore.Reader, err error) (*objstore.Reader, error) {
	took := time.Since(start)
	rc.mu.Lock()
	if !rc.decided && (err == nil || !rc.running || !objstore.KindOf(err).Temporary()) {
		rc.decided = true
		rc.mu.Unlock()
		if rc.cancelSecond != nil {
			rc.cancelSecond(errBeaten)
		}
		if err != nil {
			rc.cancelFirst(nil)
			return nil, err
		}
		rc.s.latency.add(took)
		return with(r, rc.cancelFirst), nil
	}
	decided := rc.decided
	rc.mu.Unlock()
	if decided {
		rc.s.latency.add(took) // it would have taken longer still
	}
	if err == nil {
		_ = r.Body.Close() // beaten at the last moment
	}
	<-rc.answered
	rc.cancelFirst(nil)
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if rc.second != nil {
		return rc.second, nil
	}
	return nil, err
}

// with ties the context of a request to its body.
func with(r *objstore.Reader, cancel context.CancelCauseFunc) *objstore.Reader {
	out := *r
	out.Body = &body{ReadCloser: r.Body, cancel: cancel}
	return &out
}

type body struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}
