package stall_test

import (
	"bytes"
	"context"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/memstore"
	"github.com/leatfs/leatfs/objstore/retry"
	"github.com/leatfs/leatfs/objstore/stall"
	"github.com/leatfs/leatfs/objstore/storetest"
)

// slow answers after a delay, and its bodies yield chunk bytes per delay between, until
// silent bytes were read; then nothing more comes.
type slow struct {
	objstore.Store
	answer, between time.Duration
	chunk           int
	silent          int
	closed          atomic.Int64 // bodies
}

func newSlow(inner objstore.Store, answer time.Duration) *slow {
	s := &slow{answer: answer, chunk: 1 << 20, silent: 1 << 40}
	s.Store = objstore.Around(inner, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
		if err := wait(ctx, s.answer); err != nil {
			return err
		}
		return call(ctx)
	})
	return s
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return &objstore.Error{Kind: objstore.Canceled, Err: ctx.Err()}
	}
}

func (s *slow) Get(ctx context.Context, key string, opt objstore.GetOptions) (*objstore.Reader, error) {
	r, err := s.Store.Get(ctx, key, opt)
	if err != nil {
		return nil, err
	}
	out := *r
	out.Body = &slowBody{ReadCloser: r.Body, s: s, ctx: ctx}
	return &out, nil
}

type slowBody struct {
	io.ReadCloser
	s    *slow
	ctx  context.Context
	read int
}

func (b *slowBody) Read(p []byte) (int, error) {
	if b.read >= b.s.silent {
		return 0, wait(b.ctx, time.Hour)
	}
	if err := wait(b.ctx, b.s.between); err != nil {
		return 0, err
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.s.chunk, b.s.silent-b.read)])
	b.read += n
	return n, err
}

func (b *slowBody) Close() error {
	b.s.closed.Add(1)
	return b.ReadCloser.Close()
}

func filled(n int) (*memstore.Store, []byte) {
	m, data := memstore.New(), storetest.Bytes(1, n)
	m.Set("k", data)
	return m, data
}

// readAll reads by large reads.
func readAll(r *objstore.Reader) ([]byte, error) {
	p := make([]byte, r.Length)
	n, err := io.ReadFull(r.Body, p)
	return p[:n], err
}

func TestNoAnswer(t *testing.T) {
	mem, _ := filled(10)
	src := storetest.NewSource([]byte("x"))
	for name, tc := range map[string]struct {
		f    func(ctx context.Context, s objstore.Store) error
		want time.Duration
	}{
		"GET": {func(ctx context.Context, s objstore.Store) error {
			_, err := s.Get(ctx, "k", objstore.GetOptions{Length: -1})
			return err
		}, 10 * time.Second},
		"HEAD": {func(ctx context.Context, s objstore.Store) error {
			_, err := s.Head(ctx, "k", objstore.HeadOptions{})
			return err
		}, 10 * time.Second},
		"LIST": {func(ctx context.Context, s objstore.Store) error {
			_, err := s.List(ctx, objstore.ListOptions{})
			return err
		}, 30 * time.Second},
		"PUT": {func(ctx context.Context, s objstore.Store) error {
			_, err := s.Put(ctx, "p", src, objstore.PutOptions{})
			return err
		}, time.Minute},
		"COPY": {func(ctx context.Context, s objstore.Store) error {
			_, err := s.Copy(ctx, "k", "c", objstore.CopyOptions{})
			return err
		}, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := stall.New(newSlow(mem, time.Hour), stall.Options{})
				start := time.Now()
				err := tc.f(t.Context(), s)
				if !objstore.Is(err, objstore.Timeout) || time.Since(start) != tc.want || s.Timeouts() != 1 {
					t.Errorf("after %v: %v", time.Since(start), err)
				}
				// The caller's own end is not a stall.
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := tc.f(ctx, s); !objstore.Is(err, objstore.Canceled) {
					t.Errorf("canceled: got %v", err)
				}
			})
		})
	}
}

func TestSlowEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, data := filled(1 << 20)
		inner := newSlow(mem, 9*time.Second)
		inner.chunk, inner.between = 256<<10, 9*time.Second // 28 KiB/s
		r, err := stall.New(inner, stall.Options{}).Get(t.Context(), "k", objstore.GetOptions{Length: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if got, err := readAll(r); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
}

func TestSilentBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, data := filled(1 << 20)
		inner := newSlow(mem, 0)
		inner.silent = 1000
		inner.chunk = 1000
		s := stall.New(inner, stall.Options{})
		r, err := s.Get(t.Context(), "k", objstore.GetOptions{Length: -1})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(17 * time.Hour / 7) // a reader elsewhere is not a stall
		start := time.Now()
		got, err := readAll(r)
		if !objstore.Is(err, objstore.Timeout) || !bytes.Equal(got, data[:1000]) || time.Since(start) != 10*time.Second {
			t.Errorf("%d bytes after %v: %v", len(got), time.Since(start), err)
		}
		if inner.closed.Load() != 1 {
			t.Error("the body was not closed")
		}
		if err := r.Body.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestTrickle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, _ := filled(1 << 20)
		inner := newSlow(mem, 0)
		inner.chunk, inner.between = 1000, time.Second
		r, err := stall.New(inner, stall.Options{}).Get(t.Context(), "k", objstore.GetOptions{Length: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		start := time.Now()
		if _, err := readAll(r); !objstore.Is(err, objstore.Timeout) || time.Since(start) != 15*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// taking reads an upload's source slowly, then answers.
type taking struct {
	*memstore.Store
	between time.Duration
}

func (s *taking) Put(ctx context.Context, key string, src objstore.Source, opt objstore.PutOptions) (objstore.Object, error) {
	for off := int64(0); off < src.Size(); off++ {
		if err := wait(ctx, s.between); err != nil {
			return objstore.Object{}, err
		}
		if _, err := src.ReadAt(make([]byte, 1), off); err != nil {
			return objstore.Object{}, err
		}
	}
	return s.Store.Put(ctx, key, src, opt)
}

func TestUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		put := func(between time.Duration) error {
			s := stall.New(&taking{memstore.New(), between}, stall.Options{})
			_, err := s.Put(t.Context(), "k", storetest.NewSource(make([]byte, 100)), objstore.PutOptions{})
			return err
		}
		if err := put(50 * time.Second); err != nil {
			t.Errorf("a slow upload: %v", err)
		}
		if err := put(70 * time.Second); !objstore.Is(err, objstore.Timeout) {
			t.Errorf("a stalled upload: got %v", err)
		}
	})
}

// A stalled body is resumed by package retry.
func TestRetryResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, data := filled(1 << 20)
		inner := newSlow(mem, 0)
		inner.silent, inner.chunk = 300_000, 100_000
		s := retry.New(stall.New(inner, stall.Options{}), retry.Options{})
		r, err := s.Get(t.Context(), "k", objstore.GetOptions{Length: -1})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := readAll(r); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if err := r.Body.Close(); err != nil || inner.closed.Load() != 4 {
			t.Errorf("%d of 4 bodies closed, %v", inner.closed.Load(), err)
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
func (zeros) Close() error               { return nil }

type endless struct{ objstore.Store }

func (endless) Get(context.Context, string, objstore.GetOptions) (*objstore.Reader, error) {
	return &objstore.Reader{Length: 1 << 60, Body: zeros{}}, nil
}

// What watching costs per Read.
func BenchmarkRead(b *testing.B) {
	r, err := stall.New(endless{memstore.New()}, stall.Options{}).Get(b.Context(), "k", objstore.GetOptions{Length: -1})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Body.Close()
	p := make([]byte, 1)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = r.Body.Read(p)
	}
}
