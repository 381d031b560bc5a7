package deadline_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/deadline"
	"github.com/leatfs/leatfs/objstore/memstore"
	"github.com/leatfs/leatfs/objstore/storetest"
)

const limit = time.Minute

func TestSuite(t *testing.T) {
	storetest.Run(t, func(*testing.T) objstore.Store {
		return deadline.New(memstore.New(), limit, func() uint64 { return 0 })
	}, storetest.Features{KeyBesidePrefix: true})
}

// late answers after d, or says that it was canceled.
type late struct {
	objstore.Store
	d time.Duration
}

func (l late) wait(ctx context.Context) error {
	select {
	case <-time.After(l.d):
		return nil
	case <-ctx.Done():
		return &objstore.Error{Op: "X", Kind: objstore.Canceled, Err: ctx.Err()}
	}
}

func (l late) Get(ctx context.Context, key string, opt objstore.GetOptions) (*objstore.Reader, error) {
	if err := l.wait(ctx); err != nil {
		return nil, err
	}
	r, err := l.Store.Get(ctx, key, opt)
	if err == nil {
		out := *r
		out.Body = &watched{ReadCloser: r.Body, ctx: ctx}
		r = &out
	}
	return r, err
}

func (l late) Head(ctx context.Context, key string, opt objstore.HeadOptions) (objstore.Object, error) {
	if err := l.wait(ctx); err != nil {
		return objstore.Object{}, err
	}
	return l.Store.Head(ctx, key, opt)
}

// watched fails once the context of its GET is done, as a real body does.
type watched struct {
	io.ReadCloser
	ctx context.Context
}

func (w *watched) Read(p []byte) (int, error) {
	if w.ctx.Err() != nil {
		return 0, w.ctx.Err()
	}
	return w.ReadCloser.Read(p)
}

func newLate(t *testing.T, d time.Duration) late {
	t.Helper()
	mem := memstore.New()
	if _, err := mem.Put(t.Context(), "k", storetest.NewSource([]byte("data")), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	return late{mem, d}
}

func ask(ctx context.Context, s objstore.Store) map[string]error {
	out := map[string]error{}
	_, out["HEAD"] = s.Head(ctx, "k", objstore.HeadOptions{})
	r, err := s.Get(ctx, "k", objstore.GetOptions{})
	if out["GET"] = err; err == nil {
		_ = r.Body.Close()
	}
	return out
}

// TestNothingMoves: a store that does nothing for anybody is not waited for.
func TestNothingMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := deadline.New(newLate(t, time.Hour), limit, func() uint64 { return 7 })
		start := time.Now()
		for what, err := range ask(t.Context(), s) {
			if !objstore.Is(err, objstore.Timeout) || !strings.Contains(err.Error(), "no answer within 1m0s") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if d := time.Since(start); d != 2*limit {
			t.Errorf("it took %v", d)
		}
	})
}

// TestOthersMove: as long as something moves, one waits for one's turn.
func TestOthersMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		moves := func() uint64 { return uint64(time.Now().Unix()) }
		s := deadline.New(newLate(t, 30*time.Minute), limit, moves)
		for what, err := range ask(t.Context(), s) {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// TestBodyHasTime: once a GET has answered, its body is not bounded here.
func TestBodyHasTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := deadline.New(newLate(t, limit/2), limit, func() uint64 { return 7 })
		r, err := s.Get(t.Context(), "k", objstore.GetOptions{Length: -1})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if b, err := io.ReadAll(r.Body); err != nil || string(b) != "data" {
			t.Errorf("%q %v", b, err)
		}
		if err := r.Body.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestCallerLeaves: an end that was the caller's wish is told as such.
func TestCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := deadline.New(newLate(t, time.Hour), limit, func() uint64 { return 7 })
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), limit/2)
			for what, err := range ask(ctx, s) {
				if !objstore.Is(err, objstore.Canceled) {
					t.Errorf("%s: %v", what, err)
				}
			}
			cancel()
		}
		// And one that was not, is not taken for it.
		for what, err := range ask(t.Context(), s) {
			if errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}
