package prefetch

import (
	"container/list"

	"github.com/prometheus/client_golang/prometheus"
)

// Stats are the engine's sums since New, and its present state. Prefetched is Used + Wasted +
// Waiting, to the rounding of parts of a chunk. Bytes but where it says otherwise.
type Stats struct {
	Prefetched int64 // that targets began to fetch
	Used       int64 // of those, read
	Wasted     int64 // of those, passed over or never read before the handle was closed
	Waiting    int64 // of those and of asks not answered yet, not read yet
	Dropped    int64 // told by Unused
	Asks       int64 // calls of Target.Prefetch, count
	Refused    int64 // calls answered Refused, count
	Evicted    int64 // streams forgotten because the table was full, count

	Handles int   // with streams
	Streams int   // remembered
	Active  int   // that prefetch and were read in the last seconds
	Windows int64 // sum of the windows of those
	Ahead   int64 // Waiting without what was prefetched long ago: what counts against the Budget
}

// Stats returns a snapshot.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats
	s.Handles, s.Streams, s.Active, s.Ahead = len(e.handles), len(e.entries), e.active.Len(), e.ahead
	for _, l := range []*list.List{e.active, e.idle} {
		for el := l.Front(); el != nil; el = el.Next() {
			en := el.Value.(*entry)
			s.Waiting += en.ledger.waiting()
			if en.active {
				s.Windows += en.window
			}
		}
	}
	return s
}

// metric is one line of the collector.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(Stats) float64
}

func metrics() []metric {
	counter := func(name, help string, f func(Stats) float64) metric {
		return metric{prometheus.NewDesc("leatfs_prefetch_"+name, help, nil, nil), prometheus.CounterValue, f}
	}
	gauge := func(name, help string, f func(Stats) float64) metric {
		return metric{prometheus.NewDesc("leatfs_prefetch_"+name, help, nil, nil), prometheus.GaugeValue, f}
	}
	return []metric{
		counter("bytes_total", "Bytes that were fetched before they were asked for.", func(s Stats) float64 { return float64(s.Prefetched) }),
		counter("used_bytes_total", "Prefetched bytes that were then read.", func(s Stats) float64 { return float64(s.Used) }),
		counter("wasted_bytes_total", "Prefetched bytes that were passed over or never read.", func(s Stats) float64 { return float64(s.Wasted) }),
		counter("dropped_bytes_total", "Prefetched bytes whose fetch failed or that the cache dropped unread.", func(s Stats) float64 { return float64(s.Dropped) }),
		counter("asks_total", "Ranges that were asked for ahead.", func(s Stats) float64 { return float64(s.Asks) }),
		counter("refused_total", "Ranges that there was no room for at the time.", func(s Stats) float64 { return float64(s.Refused) }),
		gauge("waiting_bytes", "Prefetched bytes that may still be read.", func(s Stats) float64 { return float64(s.Waiting) }),
		gauge("streams", "Places in files that are remembered.", func(s Stats) float64 { return float64(s.Streams) }),
		gauge("active_streams", "Streams that prefetch now.", func(s Stats) float64 { return float64(s.Active) }),
		gauge("window_bytes", "Sum of the windows of the active streams.", func(s Stats) float64 { return float64(s.Windows) }),
	}
}

// Collector returns the engine's metrics for Prometheus, leatfs_prefetch_….
func (e *Engine) Collector() prometheus.Collector { return &collector{e, metrics()} }

type collector struct {
	e *Engine
	m []metric
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.m {
		ch <- m.desc
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.e.Stats()
	for _, m := range c.m {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(s))
	}
}
