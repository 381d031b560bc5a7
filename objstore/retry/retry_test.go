package retry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/memstore"
	"github.com/leatfs/leatfs/objstore/retry"
	"github.com/leatfs/leatfs/objstore/storetest"
)

func fail(k objstore.Kind) error { return &objstore.Error{Op: "TEST", Key: "k", Kind: k} }

// scripted fails requests with the kinds of its script, one a request, before or after they
// were carried out; Unknown lets one pass.
type scripted struct {
	objstore.Store
	asked atomic.Int64
}

func script(inner objstore.Store, after bool, kinds ...objstore.Kind) *scripted {
	s := &scripted{}
	s.Store = objstore.Around(inner, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
		n := int(s.asked.Add(1)) - 1
		if n >= len(kinds) || kinds[n] == objstore.Unknown {
			return call(ctx)
		}
		if after {
			if err := call(ctx); err != nil {
				return err
			}
		}
		return fail(kinds[n])
	})
	return s
}

func filled(data []byte) *memstore.Store {
	m := memstore.New()
	m.Set("k", data)
	return m
}

// bubble runs f with a clock of its own.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func TestTemporaryErrorsPass(t *testing.T) {
	bubble(t, func(t *testing.T) {
		inner := script(filled([]byte("x")), false, objstore.Throttled, objstore.Unavailable, objstore.Timeout, objstore.Network)
		s := retry.New(inner, retry.Options{})
		if _, err := s.Head(t.Context(), "k", objstore.HeadOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := s.Snapshot(); got.Retries != 4 || got.GaveUp != 0 {
			t.Errorf("got %+v, want 4 retries", got)
		}
	})
}

func TestFinalErrorsAreNotRetried(t *testing.T) {
	for k := objstore.Unknown + 1; k <= objstore.Canceled; k++ {
		if k.Temporary() {
			continue
		}
		bubble(t, func(t *testing.T) {
			inner := script(filled([]byte("x")), false, k)
			_, err := retry.New(inner, retry.Options{}).Head(t.Context(), "k", objstore.HeadOptions{})
			if !objstore.Is(err, k) || inner.asked.Load() != 1 {
				t.Errorf("%v: got %v after %d requests", k, err, inner.asked.Load())
			}
		})
	}
}

func always(k objstore.Kind) (objstore.Store, *atomic.Int64) {
	n := new(atomic.Int64)
	return objstore.Around(memstore.New(), func(context.Context, objstore.Op, func(context.Context) error) error {
		n.Add(1)
		return fail(k)
	}), n
}

func TestGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		inner, n := always(objstore.Unavailable)
		s := retry.New(inner, retry.Options{})
		start := time.Now()
		_, err := s.Head(t.Context(), "k", objstore.HeadOptions{})
		if !objstore.Is(err, objstore.Unavailable) || n.Load() != 8 || time.Since(start) > time.Minute {
			t.Errorf("got %v after %d requests and %v", err, n.Load(), time.Since(start))
		}
		if !strings.Contains(err.Error(), "gave up after 8 tries in") {
			t.Errorf("the error does not say so: %v", err)
		}
		if s.Snapshot().GaveUp != 1 {
			t.Errorf("got %+v", s.Snapshot())
		}
	})
}

func TestElapsed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		slow := objstore.Around(memstore.New(), func(context.Context, objstore.Op, func(context.Context) error) error {
			time.Sleep(10 * time.Second)
			return fail(objstore.Timeout)
		})
		start := time.Now()
		_, err := retry.New(slow, retry.Options{Tries: 1000}).Head(t.Context(), "k", objstore.HeadOptions{})
		if d := time.Since(start); err == nil || d < 50*time.Second || d > 70*time.Second {
			t.Errorf("gave up after %v, want about a minute: %v", d, err)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	for _, tc := range []struct{ asked, least, most time.Duration }{
		{3 * time.Second, 3 * time.Second, 9 * time.Second},
		{5 * time.Minute, 30 * time.Second, 36 * time.Second}, // capped
	} {
		bubble(t, func(t *testing.T) {
			n := 0
			inner := objstore.Around(filled([]byte("x")), func(ctx context.Context, _ objstore.Op, call func(context.Context) error) error {
				if n++; n == 1 {
					return &objstore.Error{Kind: objstore.Throttled, RetryAfter: tc.asked}
				}
				return call(ctx)
			})
			start := time.Now()
			_, err := retry.New(inner, retry.Options{}).Head(t.Context(), "k", objstore.HeadOptions{})
			if d := time.Since(start); err != nil || d < tc.least || d > tc.most {
				t.Errorf("asked for %v, waited %v: %v", tc.asked, d, err)
			}
		})
	}
}

// A dead origin is asked at the pace of the budget, whatever the number of readers.
func TestBudget(t *testing.T) {
	bubble(t, func(t *testing.T) {
		inner, n := always(objstore.Network)
		s := retry.New(inner, retry.Options{Elapsed: 30 * time.Second})
		start := time.Now()
		done := make(chan time.Duration, 500)
		for range cap(done) {
			go func() {
				_, _ = s.Head(t.Context(), "k", objstore.HeadOptions{})
				done <- time.Since(start)
			}()
		}
		for range cap(done) {
			if d := <-done; d > 31*time.Second {
				t.Errorf("a request took %v", d)
			}
		}
		// 500 first tries, 100 saved, 50 earned, 10 a second.
		if most := int64(500 + 100 + 50 + 310); n.Load() > most {
			t.Errorf("%d requests, want at most %d", n.Load(), most)
		}
		if s.Snapshot().Waited == 0 {
			t.Error("nothing waited for the budget")
		}
	})
}

func TestCancelWhileWaiting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		inner, _ := always(objstore.Throttled)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := retry.New(inner, retry.Options{Base: time.Hour, ThrottleBase: time.Hour, Cap: time.Hour,
			Elapsed: 24 * time.Hour}).Head(ctx, "k", objstore.HeadOptions{})
		if !objstore.Is(err, objstore.Canceled) || time.Since(start) != 100*time.Millisecond {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
	})
}

// Requests that may report their own success as a failure are not repeated when it is not
// known whether they were carried out.
func TestOnce(t *testing.T) {
	src := storetest.NewSource([]byte("new"))
	for name, f := range map[string]func(ctx context.Context, s objstore.Store) error{
		"Put": func(ctx context.Context, s objstore.Store) error {
			_, err := s.Put(ctx, "new", src, objstore.PutOptions{IfNoneMatch: true})
			return err
		},
		"Copy": func(ctx context.Context, s objstore.Store) error {
			_, err := s.Copy(ctx, "k", "new", objstore.CopyOptions{IfNoneMatch: true})
			return err
		},
		"CompleteMultipart": func(ctx context.Context, s objstore.Store) error {
			_, err := s.CompleteMultipart(ctx, "k", "u", nil, objstore.PutOptions{})
			return err
		},
		"Delete": func(ctx context.Context, s objstore.Store) error {
			return s.Delete(ctx, "k", objstore.DeleteOptions{IfMatch: "9dd4e461268c8034f5c8564e155c67a6"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, k := range []objstore.Kind{objstore.Unavailable, objstore.Timeout, objstore.Network} {
				bubble(t, func(t *testing.T) {
					inner := script(filled([]byte("x")), name != "CompleteMultipart", k)
					if err := f(t.Context(), retry.New(inner, retry.Options{})); !objstore.Is(err, k) || inner.asked.Load() != 1 {
						t.Errorf("%v: got %v after %d requests, want the error after 1", k, err, inner.asked.Load())
					}
				})
			}
			bubble(t, func(t *testing.T) { // refused, so not carried out
				inner := script(filled([]byte("x")), false, objstore.Throttled)
				_ = f(t.Context(), retry.New(inner, retry.Options{}))
				if inner.asked.Load() != 2 {
					t.Errorf("throttled: %d requests, want 2", inner.asked.Load())
				}
			})
		})
	}
	bubble(t, func(t *testing.T) { // a plain PUT may be repeated
		inner := script(filled([]byte("x")), true, objstore.Network)
		if _, err := retry.New(inner, retry.Options{}).Put(t.Context(), "new", src, objstore.PutOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func TestExpired(t *testing.T) {
	bubble(t, func(t *testing.T) {
		renewed := 0
		inner := script(filled([]byte("x")), false, objstore.Expired)
		s := retry.New(inner, retry.Options{Refresh: func(context.Context) error { renewed++; return nil }})
		if _, err := s.Head(t.Context(), "k", objstore.HeadOptions{}); err != nil || renewed != 1 {
			t.Errorf("renewed %d times: %v", renewed, err)
		}
		why := errors.New("no role")
		inner = script(filled([]byte("x")), false, objstore.Expired)
		s = retry.New(inner, retry.Options{Refresh: func(context.Context) error { return why }})
		if _, err := s.Head(t.Context(), "k", objstore.HeadOptions{}); !errors.Is(err, why) || !objstore.Is(err, objstore.Expired) {
			t.Errorf("got %v", err)
		}
	})
}

// breaking cuts every body after a number of bytes, with a kind of error, or with a plain
// end where it is Unknown.
type breaking struct {
	objstore.Store
	after int64
	kind  objstore.Kind
	gets  []objstore.GetOptions
	onGet func(n int)
}

func (b *breaking) Get(ctx context.Context, key string, opt objstore.GetOptions) (*objstore.Reader, error) {
	b.gets = append(b.gets, opt)
	if b.onGet != nil {
		b.onGet(len(b.gets))
	}
	r, err := b.Store.Get(ctx, key, opt)
	if err != nil || r.Length <= b.after {
		return r, err
	}
	out := *r
	out.Body = &broken{Reader: io.LimitReader(r.Body, b.after), Closer: r.Body, kind: b.kind}
	return &out, nil
}

type broken struct {
	io.Reader
	io.Closer
	kind objstore.Kind
}

func (b *broken) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF && b.kind != objstore.Unknown {
		err = fail(b.kind)
	}
	return n, err
}

func TestResume(t *testing.T) {
	data := storetest.Bytes(1, 1<<20)
	for _, k := range []objstore.Kind{objstore.Unavailable, objstore.Network, objstore.Timeout, objstore.Unknown} {
		for _, opt := range []objstore.GetOptions{{Length: -1}, {Offset: 1000, Length: 500_000}, {Offset: 70_000, Length: -1}} {
			bubble(t, func(t *testing.T) {
				inner := &breaking{Store: filled(data), after: 150_000, kind: k}
				s := retry.New(inner, retry.Options{})
				r, err := s.Get(t.Context(), "k", opt)
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(r.Body)
				if err != nil || !bytes.Equal(got, data[opt.Offset:opt.Offset+r.Length]) {
					t.Errorf("%v: got %d bytes, %v", k, len(got), err)
				}
				if err := r.Body.Close(); err != nil {
					t.Error(err)
				}
				for i, g := range inner.gets[1:] {
					if g.IfMatch != r.Object.ETag || g.Offset != opt.Offset+int64(i+1)*150_000 {
						t.Errorf("resumed by %+v", g)
					}
				}
				if whole := opt == (objstore.GetOptions{Length: -1}); whole && r.Object.Checksum != storetest.Sum(objstore.CRC64NVME, data) {
					t.Error("the checksum of the whole is lost")
				}
			})
		}
	}
}

// An object that changes under a body is an error, never a mixture.
func TestResumeChanged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		old, now := storetest.Bytes(1, 300_000), storetest.Bytes(2, 300_000)
		mem := filled(old)
		inner := &breaking{Store: mem, after: 100_000, kind: objstore.Network}
		inner.onGet = func(n int) {
			if n == 2 {
				mem.Set("k", now)
			}
		}
		r, err := retry.New(inner, retry.Options{}).Get(t.Context(), "k", objstore.GetOptions{Length: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		got, err := io.ReadAll(r.Body)
		if !objstore.Is(err, objstore.PreconditionFailed) || !bytes.Equal(got, old[:len(got)]) {
			t.Errorf("%d bytes, %v; want precondition failed", len(got), err)
		}
		if _, again := r.Body.Read(make([]byte, 1)); again != err {
			t.Errorf("the error does not stay: %v", again)
		}
	})
}

// deaf ignores IfMatch, and answers other ranges than asked.
type deaf struct {
	objstore.Store
	whole bool
}

func (d *deaf) Get(ctx context.Context, key string, opt objstore.GetOptions) (*objstore.Reader, error) {
	opt.IfMatch = ""
	if d.whole {
		opt.Offset, opt.Length = 0, -1
	}
	return d.Store.Get(ctx, key, opt)
}

func TestDeafStores(t *testing.T) {
	old, now := storetest.Bytes(1, 300_000), storetest.Bytes(2, 300_000)
	for _, whole := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			mem := filled(old)
			inner := &breaking{Store: &deaf{mem, whole}, after: 100_000, kind: objstore.Network}
			inner.onGet = func(n int) {
				if n == 2 && !whole {
					mem.Set("k", now)
				}
			}
			r, err := retry.New(inner, retry.Options{}).Get(t.Context(), "k", objstore.GetOptions{Length: -1})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			got, err := io.ReadAll(r.Body)
			if err == nil || objstore.KindOf(err).Temporary() || !bytes.Equal(got, old[:len(got)]) {
				t.Errorf("%d bytes, %v; want an error", len(got), err)
			}
		})
	}
	bubble(t, func(t *testing.T) {
		_, err := retry.New(&deaf{Store: filled(old)}, retry.Options{}).Get(t.Context(), "k", objstore.GetOptions{Length: -1, IfMatch: "other"})
		if !objstore.Is(err, objstore.PreconditionFailed) {
			t.Errorf("got %v, want precondition failed", err)
		}
	})
}

// A body that breaks again and again without progress ends.
func TestResumeGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		inner := &breaking{Store: filled(storetest.Bytes(1, 300_000)), after: 10, kind: objstore.Network}
		s := retry.New(inner, retry.Options{})
		r, err := s.Get(t.Context(), "k", objstore.GetOptions{Length: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		got, err := io.ReadAll(r.Body)
		if !objstore.Is(err, objstore.Network) || len(got) != 80 || len(inner.gets) != 8 {
			t.Errorf("%d bytes in %d requests, %v", len(got), len(inner.gets), err)
		}
	})
}

// The time a reader spends elsewhere does not use up the time for resuming.
func TestSlowReader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		inner := &breaking{Store: filled(storetest.Bytes(1, 1000)), after: 300, kind: objstore.Network}
		r, err := retry.New(inner, retry.Options{}).Get(t.Context(), "k", objstore.GetOptions{Length: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		for n := 0; n < 1000; n++ {
			time.Sleep(time.Hour)
			if _, err := io.ReadFull(r.Body, make([]byte, 1)); err != nil {
				t.Fatalf("byte %d: %v", n, err)
			}
		}
	})
}

// TestOneTry: what may do harm when it is sent later is sent once.
func TestOneTry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		inner := script(filled([]byte("x")), false, objstore.Unavailable)
		s := retry.New(inner, retry.Options{})
		err := s.Delete(objstore.WithOneTry(t.Context()), "k", objstore.DeleteOptions{})
		if !objstore.Is(err, objstore.Unavailable) || inner.asked.Load() != 1 {
			t.Errorf("%v after %d requests, want Unavailable after 1", err, inner.asked.Load())
		}
		if err := s.Delete(t.Context(), "k", objstore.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}
