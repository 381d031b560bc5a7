// Package stall bounds how long an origin may be silent: until the answer, between the bytes
// of a body, and below a minimum rate. What takes longer is an error of kind Timeout, which
// package retry repeats or resumes.
//
// It belongs inside package limit, so that waiting for a slot is not a stall of the origin.
package stall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync/atomic"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// Options are the limits; zero means the default, negative means none.
type Options struct {
	// FirstByte is how long GET, HEAD, DELETE and the small multipart calls may take to
	// answer. Default 10 s.
	FirstByte time.Duration
	// Listing is how long one page of a LIST may take. Default 30 s: a store that walks a
	// directory of millions, or skips as many deleted versions, is slow at its first page.
	Listing time.Duration
	// Commit is how long COPY, COPY PART and COMPLETE MULTIPART may take: the store moves
	// gigabytes. Default 5 min.
	Commit time.Duration
	// Idle is the longest wait for the next bytes of a body. Default 10 s.
	Idle time.Duration
	// UploadIdle is the longest time without progress in sending, or between the last byte
	// sent and the answer. Default 60 s: what was taken from us may still stand in the
	// kernel's socket buffer, and a store acknowledges only what it has made durable.
	UploadIdle time.Duration
	// MinRate is the least bytes per second that a body must yield over each Window that
	// was spent waiting for it. Defaults 16 KiB/s over 15 s: below that the connection is
	// sick even where 64 of them share 8 Mbit/s.
	MinRate int64
	Window  time.Duration
}

func (o Options) withDefaults() Options {
	d := func(v *time.Duration, def time.Duration) {
		if *v == 0 {
			*v = def
		}
	}
	d(&o.FirstByte, 10*time.Second)
	d(&o.Listing, 30*time.Second)
	d(&o.Commit, 5*time.Minute)
	d(&o.Idle, 10*time.Second)
	d(&o.UploadIdle, time.Minute)
	d(&o.Window, 15*time.Second)
	if o.MinRate == 0 {
		o.MinRate = 16 << 10
	}
	return o
}

// Store bounds the silence of the Store it wraps.
type Store struct {
	objstore.Store
	inner    objstore.Store
	opt      Options
	timeouts atomic.Uint64
}

// New wraps inner.
func New(inner objstore.Store, opt Options) *Store {
	s := &Store{inner: inner, opt: opt.withDefaults()}
	s.Store = objstore.Around(inner, s.request)
	return s
}

// Timeouts is how many requests and bodies were given up.
func (s *Store) Timeouts() uint64 { return s.timeouts.Load() }

// silence is the cause of a context that this package canceled. Whoever is further in and sees
// its request canceled (package metrics) finds in the cause that it was the origin's fault.
type silence struct{ err error }

func (e *silence) Error() string { return e.err.Error() }
func (e *silence) Unwrap() error { return e.err }

func silent(op, key, what string, after time.Duration) *silence {
	return &silence{&objstore.Error{Op: op, Key: key, Kind: objstore.Timeout, Err: fmt.Errorf("%s for %v", what, after)}}
}

// broken tells whether this package canceled ctx.
func broken(ctx context.Context) bool {
	var q *silence
	return errors.As(context.Cause(ctx), &q)
}

func (s *Store) timeout(op, key, what string, after time.Duration) error {
	s.timeouts.Add(1)
	return silent(op, key, what, after).err
}

func (s *Store) bound(op objstore.Op) time.Duration {
	switch {
	case op.Class == objstore.ClassList:
		return s.opt.Listing
	case op.Class == objstore.ClassCopy, op.Name == "COMPLETE MULTIPART":
		return s.opt.Commit
	}
	return s.opt.FirstByte
}

// request bounds everything but GET, PUT and PUT PART.
func (s *Store) request(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
	return s.within(ctx, op.Name, op.Key, s.bound(op), func(ctx context.Context, _ *time.Timer) error { return call(ctx) })
}

// within calls call under a context that ends when the timer does, which call may reset.
func (s *Store) within(ctx context.Context, op, key string, d time.Duration, call func(context.Context, *time.Timer) error) error {
	if d < 0 {
		return call(ctx, nil)
	}
	sub, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(d, func() { cancel(silent(op, key, "no answer", d)) })
	defer timer.Stop()
	err := call(sub, timer)
	if err != nil && ctx.Err() == nil && broken(sub) {
		return s.timeout(op, key, "no answer", d)
	}
	return err
}

// source resets the timer of an upload whenever more of it is read.
type source struct {
	objstore.Source
	timer *time.Timer
	d     time.Duration
}

func (s *source) ReadAt(p []byte, off int64) (int, error) {
	n, err := s.Source.ReadAt(p, off)
	s.timer.Reset(s.d)
	return n, err
}

func (s *Store) watched(src objstore.Source, timer *time.Timer) objstore.Source {
	if timer == nil {
		return src
	}
	return &source{Source: src, timer: timer, d: s.opt.UploadIdle}
}

// Put is bounded by UploadIdle.
func (s *Store) Put(ctx context.Context, key string, src objstore.Source, opt objstore.PutOptions) (o objstore.Object, err error) {
	err = s.within(ctx, "PUT", key, s.opt.UploadIdle, func(ctx context.Context, t *time.Timer) (err error) {
		o, err = s.inner.Put(ctx, key, s.watched(src, t), opt)
		return err
	})
	return o, err
}

// PutPart is bounded by UploadIdle.
func (s *Store) PutPart(ctx context.Context, key, uploadID string, number int, src objstore.Source, sum objstore.Checksum) (p objstore.Part, err error) {
	err = s.within(ctx, "PUT PART", key, s.opt.UploadIdle, func(ctx context.Context, t *time.Timer) (err error) {
		p, err = s.inner.PutPart(ctx, key, uploadID, number, s.watched(src, t), sum)
		return err
	})
	return p, err
}

// Get is bounded by FirstByte until it answers, then its body by Idle and MinRate.
func (s *Store) Get(ctx context.Context, key string, opt objstore.GetOptions) (*objstore.Reader, error) {
	sub, cancel := context.WithCancelCause(ctx)
	var first *time.Timer
	if s.opt.FirstByte > 0 {
		first = time.AfterFunc(s.opt.FirstByte, func() { cancel(silent("GET", key, "no answer", s.opt.FirstByte)) })
	}
	r, err := s.inner.Get(sub, key, opt)
	late := first != nil && !first.Stop()
	if err == nil && late {
		_ = r.Body.Close() // its context is gone
		err = context.Canceled
	}
	if err != nil {
		if late && ctx.Err() == nil {
			err = s.timeout("GET", key, "no answer", s.opt.FirstByte)
		}
		cancel(nil)
		return nil, err
	}
	b := &body{inner: r.Body, s: s, key: key, ctx: sub, cancel: cancel, base: time.Now()}
	if s.opt.Idle > 0 {
		// Started when the field is set, since check reads it.
		b.timer = time.AfterFunc(math.MaxInt64, b.check)
		b.timer.Reset(s.opt.Idle)
	}
	out := *r
	out.Body = b
	return &out, nil
}

// body watches the reads of a GET. Only time spent inside Read counts: a reader that does
// not read is not the origin's fault.
//
// One timer per body looks now and then whether a Read has been waiting too long; a Read
// that is answered costs two clock readings and two atomic stores.
type body struct {
	inner  io.ReadCloser
	s      *Store
	key    string
	ctx    context.Context
	cancel context.CancelCauseFunc
	base   time.Time
	timer  *time.Timer  // nil: no idle limit
	began  atomic.Int64 // since base, plus one, of the Read under way; 0 outside
	closed atomic.Bool
	err    error // sticky; of the reading goroutine, as the rest

	waited time.Duration // in this window
	got    int64
}

// check is the timer's function.
func (b *body) check() {
	if b.closed.Load() {
		return
	}
	idle, next := b.s.opt.Idle, b.s.opt.Idle
	if began := b.began.Load(); began != 0 {
		waited := time.Since(b.base) - time.Duration(began-1)
		if waited >= idle {
			b.cancel(silent("GET", b.key, "no data", idle))
			return
		}
		next = idle - waited
	}
	b.timer.Reset(next)
}

func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	start := time.Since(b.base)
	b.began.Store(int64(start) + 1)
	n, err := b.inner.Read(p)
	b.began.Store(0)
	if err == nil {
		err = b.rate(n, time.Since(b.base)-start)
	} else if err != io.EOF && broken(b.ctx) {
		err = b.s.timeout("GET", b.key, "no data", b.s.opt.Idle)
	}
	if err != nil {
		b.err = err
		if err != io.EOF {
			_ = b.Close() // the error that matters is err
		}
	}
	return n, err
}

// rate judges a window when it is over.
func (b *body) rate(n int, d time.Duration) error {
	b.waited += d
	b.got += int64(n)
	if b.s.opt.Window <= 0 || b.waited < b.s.opt.Window {
		return nil
	}
	got, waited := b.got, b.waited
	b.got, b.waited = 0, 0
	if b.s.opt.MinRate > 0 && float64(got) < float64(b.s.opt.MinRate)*waited.Seconds() {
		return b.s.timeout("GET", b.key, fmt.Sprintf("only %d bytes", got), waited.Round(time.Second))
	}
	return nil
}

func (b *body) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	if b.timer != nil {
		b.timer.Stop()
	}
	err := b.inner.Close()
	b.cancel(nil)
	return err
}
