package stack_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/memstore"
	"github.com/leatfs/leatfs/objstore/retry"
	"github.com/leatfs/leatfs/objstore/stack"
	"github.com/leatfs/leatfs/objstore/storetest"
)

// bad is an origin on a bad day: it throttles, resets, stalls, is late and cuts bodies.
type bad struct{ objstore.Store }

func (b bad) Get(ctx context.Context, key string, opt objstore.GetOptions) (*objstore.Reader, error) {
	fail := func(k objstore.Kind) (*objstore.Reader, error) {
		return nil, &objstore.Error{Op: "GET", Key: key, Kind: k}
	}
	late := 20 * time.Millisecond
	switch rand.N(20) {
	case 0:
		return fail(objstore.Throttled)
	case 1:
		return fail(objstore.Network)
	case 2:
		late = time.Hour
	case 3:
		late = 3 * time.Second
	}
	select {
	case <-time.After(late):
	case <-ctx.Done():
		return fail(objstore.Canceled)
	}
	r, err := b.Store.Get(ctx, key, opt)
	if err != nil {
		return nil, err
	}
	out := *r
	out.Body = &badBody{ReadCloser: r.Body, ctx: ctx}
	return &out, nil
}

type badBody struct {
	io.ReadCloser
	ctx context.Context
}

func (b *badBody) Read(p []byte) (int, error) {
	switch rand.N(50) {
	case 0:
		return 0, &objstore.Error{Kind: objstore.Network}
	case 1:
		<-b.ctx.Done()
		return 0, &objstore.Error{Kind: objstore.Canceled, Err: b.ctx.Err()}
	}
	time.Sleep(time.Millisecond)
	return b.ReadCloser.Read(p[:min(len(p), 32<<10)])
}

// Whatever the origin does, what is read is right, and nothing is left behind.
func TestBadDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		data := storetest.Bytes(1, 1<<20)
		mem.Set("d/k", data)
		var opt stack.Options
		opt.Retry.Tries, opt.Retry.Elapsed = 50, time.Hour
		s := stack.New(bad{mem}, opt)
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range 5 {
					off := rand.N(int64(len(data)))
					r, err := s.Get(t.Context(), "d/k", objstore.GetOptions{Offset: off, Length: -1})
					if err != nil {
						t.Error(err)
						return
					}
					got, err := io.ReadAll(r.Body)
					if err != nil || !bytes.Equal(got, data[off:]) {
						t.Errorf("%d of %d bytes: %v", len(got), int64(len(data))-off, err)
					}
					_ = r.Body.Close()
				}
			})
		}
		wg.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		snap := s.Snapshot()
		t.Logf("%d retries, %d resumed, %d hedges, %d won, %d timeouts, limit %d", snap.Retry.Retries, snap.Retry.Resumed,
			snap.Hedge.Hedges, snap.Hedge.Wins, snap.Timeouts, snap.Limit.Data.Limit)
		if snap.Retry.Resumed == 0 || snap.Timeouts == 0 || snap.Retry.GaveUp != 0 {
			t.Errorf("got %+v", snap.Retry)
		}
		if n := snap.Limit.Data.InFlight; n != 0 {
			t.Errorf("%d slots are not back", n)
		}
		if n := snap.Metrics.Classes[objstore.ClassGet].InFlight; n != 0 {
			t.Errorf("%d requests are in flight", n)
		}
	})
}

func TestCollectors(t *testing.T) {
	s := stack.New(memstore.New(), stack.Options{})
	reg := prometheus.NewPedanticRegistry()
	for _, c := range s.Collectors() {
		reg.MustRegister(c)
	}
	if _, err := reg.Gather(); err != nil {
		t.Error(err)
	}
}

// TestSilenceIsSeen: a store that never answers is not one of which nothing is known.
func TestSilenceIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := objstore.Around(memstore.New(), func(ctx context.Context, op objstore.Op, _ func(context.Context) error) error {
			<-ctx.Done()
			return &objstore.Error{Op: op.Name, Key: op.Key, Kind: objstore.Canceled, Err: ctx.Err()}
		})
		s := stack.New(mem, stack.Options{Retry: retry.Options{Elapsed: 30 * time.Second}})
		for _, call := range []func() error{
			func() error { _, err := s.Get(t.Context(), "k", objstore.GetOptions{}); return err },
			func() error { _, err := s.Head(t.Context(), "k", objstore.HeadOptions{}); return err },
		} {
			before := s.Snapshot().Metrics.Health.Consecutive
			if err := call(); !objstore.Is(err, objstore.Timeout) {
				t.Errorf("error %v", err)
			}
			h := s.Snapshot().Metrics.Health
			if h.Consecutive <= before || !strings.Contains(h.LastError, "no answer") {
				t.Errorf("health %+v", h)
			}
		}
		// A caller that goes away says nothing of the store.
		before := s.Snapshot().Metrics.Health.Consecutive
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = s.Head(ctx, "k", objstore.HeadOptions{})
		if n := s.Snapshot().Metrics.Health.Consecutive; n != before {
			t.Errorf("a caller that went away counts as a failure (%d, before %d)", n, before)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
