// Package stack puts the wrappers around an origin in the order that works.
//
// From the caller to the store:
//
//	retry    repeats and resumes. Outermost, so that a try that waits for its turn holds
//	         no slot, and each try passes all the rest anew.
//	limit    gives out slots. Outside stall: waiting for a slot is not the origin's silence.
//	         Outside hedge: a request and its hedge take one slot, and what hedge learns of
//	         latency holds no queueing.
//	hedge    asks a second time.
//	stall    ends what is silent, each request of a hedged pair by itself.
//	metrics  counts what the store is really asked; innermost.
package stack

import (
	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/hedge"
	"github.com/leatfs/leatfs/objstore/limit"
	"github.com/leatfs/leatfs/objstore/metrics"
	"github.com/leatfs/leatfs/objstore/retry"
	"github.com/leatfs/leatfs/objstore/stall"
	"github.com/prometheus/client_golang/prometheus"
)

// Options are those of the wrappers; the zero value means the defaults of all.
type Options struct {
	Retry retry.Options
	Limit limit.Options
	Hedge hedge.Options
	Stall stall.Options
}

// Store is an origin with everything around it. The fields are the layers, for status.
type Store struct {
	objstore.Store // the outermost
	Retry          *retry.Store
	Limit          *limit.Store
	Hedge          *hedge.Store
	Stall          *stall.Store
	Metrics        *metrics.Store
}

// New wraps origin. Closing the result closes origin.
func New(origin objstore.Store, opt Options) *Store {
	s := &Store{}
	s.Metrics = metrics.New(origin)
	s.Stall = stall.New(s.Metrics, opt.Stall)
	s.Hedge = hedge.New(s.Stall, opt.Hedge)
	s.Limit = limit.New(s.Hedge, opt.Limit)
	s.Retry = retry.New(s.Limit, opt.Retry)
	s.Store = s.Retry
	return s
}

// Snapshot is the state of all layers.
type Snapshot struct {
	Origin   string
	Metrics  metrics.Snapshot
	Retry    retry.Snapshot
	Limit    limit.Snapshot
	Hedge    hedge.Snapshot
	Timeouts uint64
}

// Snapshot reads the counters of all layers.
func (s *Store) Snapshot() Snapshot {
	return Snapshot{Origin: s.String(), Metrics: s.Metrics.Snapshot(), Retry: s.Retry.Snapshot(),
		Limit: s.Limit.Snapshot(), Hedge: s.Hedge.Snapshot(), Timeouts: s.Stall.Timeouts()}
}

// Collectors returns what hands the counters of all layers to Prometheus.
func (s *Store) Collectors() []prometheus.Collector {
	counter := func(name, help string, f func() uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "leatfs", Subsystem: "origin", Name: name, Help: help},
			func() float64 { return float64(f()) })
	}
	gauge := func(name, help, slots string, f func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "leatfs", Subsystem: "origin", Name: name, Help: help,
			ConstLabels: prometheus.Labels{"slots": slots}}, func() float64 { return float64(f()) })
	}
	waiting := func(l limit.Slots) int { return l.Waiting[0] + l.Waiting[1] + l.Waiting[2] }
	const limitHelp, waitHelp = "Requests that may be in flight now.", "Requests that wait for a slot."
	return []prometheus.Collector{
		s.Metrics.Collector(),
		counter("retries_total", "Tries after the first.", func() uint64 { return s.Retry.Snapshot().Retries }),
		counter("resumed_total", "Bodies that were resumed where they broke off.", func() uint64 { return s.Retry.Snapshot().Resumed }),
		counter("gave_up_total", "Requests that failed for good after several tries.", func() uint64 { return s.Retry.Snapshot().GaveUp }),
		counter("timeouts_total", "Requests and bodies given up for silence or slowness.", s.Stall.Timeouts),
		counter("hedges_total", "Second requests sent because the first was late.", func() uint64 { return s.Hedge.Snapshot().Hedges }),
		counter("hedge_wins_total", "Second requests that answered first.", func() uint64 { return s.Hedge.Snapshot().Wins }),
		gauge("limit", limitHelp, "data", func() int { return s.Limit.Snapshot().Data.Limit }),
		gauge("limit", limitHelp, "meta", func() int { return s.Limit.Snapshot().Meta.Limit }),
		gauge("waiting", waitHelp, "data", func() int { return waiting(s.Limit.Snapshot().Data) }),
		gauge("waiting", waitHelp, "meta", func() int { return waiting(s.Limit.Snapshot().Meta) }),
	}
}
