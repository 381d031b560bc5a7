// Package deadline bounds how long a request may be without an answer, whatever it waits for:
// its turn, its tries, or the store.
//
// Package retry bounds the tries of a request, and package stall the silence of each. But
// where a hundred readers meet a dead store, most of them wait for a slot that others hold
// until they fail, and one after the other would wait many times what one request may take.
// So what waits is ended once its time is over, unless the store moves: on a slow wire, or
// under a throttle that lets some through, a long wait for one's turn is no failure.
//
// It belongs outside all other wrappers.
package deadline

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

// Store bounds the GETs (until they answer), HEADs and LISTs on the Store it wraps. Uploads,
// copies and deletions pass.
type Store struct {
	objstore.Store
	inner    objstore.Store
	limit    time.Duration
	progress func() uint64
}

// New wraps inner. A request that has had no answer after limit fails with kind Timeout when
// progress, a number that changes whenever the store does anything for anybody, has not
// changed for as long. It may be called at any time, from any goroutine.
func New(inner objstore.Store, limit time.Duration, progress func() uint64) *Store {
	s := &Store{inner: inner, limit: limit, progress: progress}
	s.Store = objstore.Around(inner, s.request)
	return s
}

// errLate is the cause of contexts that this package ends.
var errLate = errors.New("the store does nothing for anybody")

func (s *Store) request(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
	if op.Class != objstore.ClassHead && op.Class != objstore.ClassList {
		return call(ctx)
	}
	sub, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := s.watch(cancel)
	err := call(sub)
	stop()
	return s.judge(ctx, sub, op.Name, op.Key, err)
}

// Get is bounded until it answers.
func (s *Store) Get(ctx context.Context, key string, opt objstore.GetOptions) (*objstore.Reader, error) {
	sub, cancel := context.WithCancelCause(ctx)
	stop := s.watch(cancel)
	r, err := s.inner.Get(sub, key, opt)
	if inTime := stop(); err == nil && !inTime {
		_ = r.Body.Close() // its context is gone, or about to be
		<-sub.Done()
		err = errLate
	}
	if err != nil {
		err = s.judge(ctx, sub, "GET", key, err)
		cancel(nil)
		return nil, err
	}
	out := *r
	out.Body = &body{ReadCloser: r.Body, cancel: cancel}
	return &out, nil
}

// watch ends the context by cancel when the time is over, until stop is called; stop tells
// whether it was in time.
func (s *Store) watch(cancel context.CancelCauseFunc) (stop func() bool) {
	last := s.progress()
	var over atomic.Bool // by whoever is first
	var timer *time.Timer
	timer = time.AfterFunc(math.MaxInt64, func() { // not before Reset: it uses timer
		if now := s.progress(); now != last {
			last = now
			timer.Reset(s.limit)
		} else if over.CompareAndSwap(false, true) {
			cancel(errLate)
		}
	})
	timer.Reset(s.limit)
	return func() bool {
		timer.Stop()
		return over.CompareAndSwap(false, true)
	}
}

// judge tells an end by this package from others.
func (s *Store) judge(ctx, sub context.Context, op, key string, err error) error {
	if err == nil || ctx.Err() != nil || !errors.Is(context.Cause(sub), errLate) {
		return err
	}
	// Not wrapped: nobody shall take it for a request that its caller canceled.
	return &objstore.Error{Op: op, Key: key, Kind: objstore.Timeout,
		Err: fmt.Errorf("no answer within %v, and none to other requests (last: %v)", s.limit, err)}
}

// body lets go of the context of its GET.
type body struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}
