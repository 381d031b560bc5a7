package hedge_test

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/hedge"
	"github.com/leatfs/leatfs/objstore/memstore"
	"github.com/leatfs/leatfs/objstore/storetest"
)

// answer is what the store does with one GET.
type answer struct {
	after time.Duration
	err   error
	etag  string // "": the object's
}

// server answers GETs by next, 20 ms late by default, and counts bodies open.
type server struct {
	objstore.Store
	mu   sync.Mutex
	next []answer
	gets int
	open int
}

func newServer(data []byte) *server {
	m := memstore.New()
	m.Set("k", data)
	return &server{Store: m}
}

func (s *server) script(a ...answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next, s.gets = a, 0
}

func (s *server) Get(ctx context.Context, key string, opt objstore.GetOptions) (*objstore.Reader, error) {
	s.mu.Lock()
	a := answer{after: 20 * time.Millisecond}
	if s.gets++; len(s.next) > 0 {
		a, s.next = s.next[0], s.next[1:]
	}
	s.mu.Unlock()
	select {
	case <-time.After(a.after):
	case <-ctx.Done():
		return nil, &objstore.Error{Kind: objstore.Canceled, Err: ctx.Err()}
	}
	if a.err != nil {
		return nil, a.err
	}
	r, err := s.Store.Get(ctx, key, opt)
	if err != nil {
		return nil, err
	}
	if a.etag != "" {
		r.Object.ETag = a.etag
	}
	s.add(1)
	out := *r
	out.Body = &body{ReadCloser: r.Body, s: s}
	return &out, nil
}

func (s *server) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open += n
}

func (s *server) counts() (gets, open int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gets, s.open
}

type body struct {
	io.ReadCloser
	s    *server
	once sync.Once
}

func (b *body) Close() error {
	b.once.Do(func() { b.s.add(-1) })
	return b.ReadCloser.Close()
}

var data = storetest.Bytes(1, 1000)

// get reads the object and tells how long the answer took.
func get(t *testing.T, s objstore.Store, opt objstore.GetOptions) (time.Duration, *objstore.Reader, error) {
	t.Helper()
	start := time.Now()
	opt.Length = -1
	r, err := s.Get(t.Context(), "k", opt)
	took := time.Since(start)
	if err != nil {
		return took, nil, err
	}
	got, err := io.ReadAll(r.Body)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	_ = r.Body.Close()
	return took, r, nil
}

// warm gives the store what it needs to know of latency and budget.
func warm(t *testing.T, s objstore.Store) {
	t.Helper()
	for range 30 {
		if _, _, err := get(t, s, objstore.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// test runs f in a bubble over a warm store, then checks that nothing is left behind.
func test(t *testing.T, f func(t *testing.T, srv *server, s *hedge.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(data)
		s := hedge.New(srv, hedge.Options{})
		warm(t, s)
		f(t, srv, s)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if _, open := srv.counts(); open != 0 {
			t.Errorf("%d bodies are open", open)
		}
	})
}

func TestHedgeWins(t *testing.T) {
	test(t, func(t *testing.T, srv *server, s *hedge.Store) {
		srv.script(answer{after: 5 * time.Second})
		took, _, err := get(t, s, objstore.GetOptions{})
		if want := 70 * time.Millisecond; err != nil || took != want { // 50 ms, then 20 ms
			t.Errorf("answered after %v, %v; want %v", took, err, want)
		}
		if got := s.Snapshot(); got.Hedges != 1 || got.Wins != 1 {
			t.Errorf("got %+v", got)
		}
	})
}

func TestFirstWins(t *testing.T) {
	test(t, func(t *testing.T, srv *server, s *hedge.Store) {
		srv.script(answer{after: 60 * time.Millisecond}, answer{after: 5 * time.Second})
		took, _, err := get(t, s, objstore.GetOptions{})
		if err != nil || took != 60*time.Millisecond {
			t.Errorf("answered after %v, %v", took, err)
		}
		if got := s.Snapshot(); got.Hedges != 1 || got.Wins != 0 {
			t.Errorf("got %+v", got)
		}
	})
}

func TestBothAtOnce(t *testing.T) {
	for range 50 {
		test(t, func(t *testing.T, srv *server, s *hedge.Store) {
			srv.script(answer{after: 70 * time.Millisecond})
			if _, _, err := get(t, s, objstore.GetOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	late := 60 * time.Millisecond
	reset := &objstore.Error{Kind: objstore.Network}
	gone := &objstore.Error{Kind: objstore.NotFound}
	for name, tc := range map[string]struct {
		first, second answer
		want          error
	}{
		"the first breaks, the hedge answers":   {answer{after: late, err: reset}, answer{after: time.Second}, nil},
		"the hedge breaks, the first answers":   {answer{after: time.Second}, answer{err: reset}, nil},
		"both break":                            {answer{after: late, err: reset}, answer{after: time.Second, err: gone}, reset},
		"the first has a final error":           {answer{after: late, err: gone}, answer{after: time.Second}, gone},
		"the hedge has another version":         {answer{after: time.Second}, answer{etag: "other"}, nil},
		"only another version, the first fails": {answer{after: late, err: reset}, answer{etag: "other"}, reset},
	} {
		t.Run(name, func(t *testing.T) {
			test(t, func(t *testing.T, srv *server, s *hedge.Store) {
				o, err := srv.Head(t.Context(), "k", objstore.HeadOptions{})
				if err != nil {
					t.Fatal(err)
				}
				srv.script(tc.first, tc.second)
				_, r, err := get(t, s, objstore.GetOptions{IfMatch: o.ETag})
				if err != tc.want {
					t.Errorf("got %v, want %v", err, tc.want)
				}
				if err == nil && r.Object.ETag != o.ETag {
					t.Errorf("got version %q", r.Object.ETag)
				}
			})
		})
	}
}

func TestCancel(t *testing.T) {
	test(t, func(t *testing.T, srv *server, s *hedge.Store) {
		srv.script(answer{after: time.Hour}, answer{after: time.Hour})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := s.Get(ctx, "k", objstore.GetOptions{Length: -1})
		if !objstore.Is(err, objstore.Canceled) || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// The body of a winner outlives the race.
func TestBodyContext(t *testing.T) {
	test(t, func(t *testing.T, srv *server, s *hedge.Store) {
		for _, first := range []time.Duration{time.Second, 60 * time.Millisecond, 0} {
			srv.script(answer{after: first})
			r, err := s.Get(t.Context(), "k", objstore.GetOptions{Length: -1})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			if got, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			_ = r.Body.Close()
		}
	})
}

// At most one in twenty requests is sent twice, however slow the store becomes.
func TestBudget(t *testing.T) {
	test(t, func(t *testing.T, srv *server, s *hedge.Store) {
		slow := make([]answer, 500)
		for i := range slow {
			slow[i].after = time.Second
		}
		srv.script(slow...)
		for range 200 {
			if _, _, err := get(t, s, objstore.GetOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if got := s.Snapshot().Hedges; got > 13 || got < 2 {
			t.Errorf("%d hedges in 200 requests", got)
		}
		if d := s.Snapshot().Delay; d != 2*time.Second {
			t.Errorf("the delay did not follow the store: %v", d)
		}
	})
}

func TestNotWhileThrottled(t *testing.T) {
	test(t, func(t *testing.T, srv *server, s *hedge.Store) {
		srv.script(answer{err: &objstore.Error{Kind: objstore.Throttled}}, answer{after: time.Second})
		_, _, _ = get(t, s, objstore.GetOptions{})
		_, _, _ = get(t, s, objstore.GetOptions{})
		if n := s.Snapshot().Hedges; n != 0 {
			t.Errorf("%d hedges right after a throttle", n)
		}
		time.Sleep(10 * time.Second)
		srv.script(answer{after: time.Second})
		_, _, _ = get(t, s, objstore.GetOptions{})
		if n := s.Snapshot().Hedges; n != 1 {
			t.Errorf("%d hedges later, want 1", n)
		}
	})
}

func TestNotBeforeItKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(data)
		s := hedge.New(srv, hedge.Options{})
		srv.script(answer{after: 5 * time.Second})
		if took, _, err := get(t, s, objstore.GetOptions{}); err != nil || took != 5*time.Second {
			t.Errorf("%v, %v", took, err)
		}
		if got := s.Snapshot(); got.Hedges != 0 || got.Delay != 0 {
			t.Errorf("got %+v", got)
		}
	})
}
