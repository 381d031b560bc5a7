package metrics_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/memstore"
	"github.com/leatfs/leatfs/objstore/metrics"
	"github.com/leatfs/leatfs/objstore/storetest"
)

func TestCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		s := metrics.New(objstore.Around(mem, func(ctx context.Context, _ objstore.Op, call func(context.Context) error) error {
			time.Sleep(20 * time.Millisecond)
			return call(ctx)
		}))
		if got := s.Snapshot().Health.State; got != metrics.Idle {
			t.Errorf("at first the origin is %q", got)
		}
		if _, err := s.Put(t.Context(), "k", storetest.NewSource(make([]byte, 1000)), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		r, err := s.Get(t.Context(), "k", objstore.GetOptions{Offset: 100, Length: 200})
		if err != nil {
			t.Fatal(err)
		}
		if n := s.Snapshot().Classes[objstore.ClassGet].InFlight; n != 1 {
			t.Errorf("%d GETs in flight while a body is open", n)
		}
		if _, err := io.ReadAll(r.Body); err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		_ = r.Body.Close()
		_, _ = s.Head(t.Context(), "none", objstore.HeadOptions{})
		snap := s.Snapshot()
		get, put, head := snap.Classes[objstore.ClassGet], snap.Classes[objstore.ClassPut], snap.Classes[objstore.ClassHead]
		if get.OK != 1 || get.BytesIn != 200 || get.InFlight != 0 || get.Seconds != .02 || get.Buckets[4] != 1 {
			t.Errorf("GET: %+v", get)
		}
		if put.OK != 1 || put.BytesOut != 1000 || put.Requests() != 1 {
			t.Errorf("PUT: %+v", put)
		}
		if head.OK != 0 || head.Errors[objstore.NotFound] != 1 || head.Requests() != 1 {
			t.Errorf("HEAD: %+v", head)
		}
		if snap.Health.State != metrics.OK {
			t.Errorf("an object that is not there makes the origin %q", snap.Health.State)
		}
	})
}

func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var err error
		s := metrics.New(objstore.Around(memstore.New(), func(context.Context, objstore.Op, func(context.Context) error) error { return err }))
		ask := func(n int, k objstore.Kind) {
			err = nil
			if k != objstore.Unknown {
				err = &objstore.Error{Op: "HEAD", Key: "k", Kind: k}
			}
			for range n {
				_, _ = s.Head(t.Context(), "k", objstore.HeadOptions{})
				time.Sleep(100 * time.Millisecond)
			}
		}
		state := func(want metrics.State, consecutive int) {
			t.Helper()
			if h := s.Snapshot().Health; h.State != want || h.Consecutive != consecutive {
				t.Errorf("got %+v, want %s after %d failures", h, want, consecutive)
			}
		}
		ask(1, objstore.Network)
		state(metrics.Down, 1) // it never worked
		ask(10, objstore.Unknown)
		state(metrics.OK, 0)
		ask(2, objstore.Unavailable)
		state(metrics.OK, 2)
		ask(1, objstore.Canceled)
		state(metrics.OK, 2)
		ask(8, objstore.Timeout)
		state(metrics.Degraded, 10)
		ask(50, objstore.Network)
		state(metrics.Down, 60)
		if h := s.Snapshot().Health; !strings.Contains(h.LastError, "network error") || time.Since(h.LastErrorAt) != 100*time.Millisecond {
			t.Errorf("the last error is %+v", h)
		}
		ask(1, objstore.NotFound)
		state(metrics.Degraded, 0) // works again, but most of late failed
		ask(200, objstore.Unknown)
		state(metrics.OK, 0)
	})
}

func TestCollector(t *testing.T) {
	s := metrics.New(memstore.New())
	_, _ = s.Head(t.Context(), "k", objstore.HeadOptions{})
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s.Collector())
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, f := range families {
		found[f.GetName()] = true
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == "leatfs_origin_requests_total" && labels["class"] == "HEAD" && labels["result"] == "not found" && m.GetCounter().GetValue() != 1 {
				t.Errorf("%v: got %v, want 1", labels, m.GetCounter().GetValue())
			}
		}
	}
	for _, name := range []string{"requests_total", "bytes_total", "request_seconds", "in_flight", "up"} {
		if !found["leatfs_origin_"+name] {
			t.Errorf("leatfs_origin_%s is missing", name)
		}
	}
}
