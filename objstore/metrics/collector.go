package metrics

import (
	"github.com/leatfs/leatfs/objstore"
	"github.com/prometheus/client_golang/prometheus"
)

// Collector hands the counters of one Store to Prometheus.
type Collector struct {
	store                                       *Store
	requests, bytes, seconds, inFlight, broken  *prometheus.Desc
	up, consecutive, lastSuccess, lastErrorSecs *prometheus.Desc
}

// Collector returns a collector of the store's counters. Several origins in one registry
// need labels that tell them apart (prometheus.WrapRegistererWith).
func (s *Store) Collector() *Collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("leatfs_origin_"+name, help, labels, nil)
	}
	return &Collector{
		store:         s,
		requests:      d("requests_total", "Requests sent to the origin, retries and hedges included, by result (ok or the kind of error).", "class", "result"),
		bytes:         d("bytes_total", "Bytes of object data exchanged with the origin.", "class", "direction"),
		seconds:       d("request_seconds", "Latency of requests to the origin; of a GET to its first byte.", "class"),
		inFlight:      d("in_flight", "Requests under way, GETs until their body is closed.", "class"),
		broken:        d("broken_bodies_total", "GET bodies that ended with an error."),
		up:            d("up", "1 when the origin answers, 0.5 when it often fails, 0 when it is down."),
		consecutive:   d("consecutive_failures", "Failures since the last request that succeeded."),
		lastSuccess:   d("last_success_timestamp_seconds", "When a request last succeeded, 0 for never."),
		lastErrorSecs: d("last_error_timestamp_seconds", "When a request last failed, 0 for never."),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.requests, c.bytes, c.seconds, c.inFlight, c.broken, c.up,
		c.consecutive, c.lastSuccess, c.lastErrorSecs} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	snap := c.store.Snapshot()
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for i, k := range snap.Classes {
		class := objstore.Class(i).String()
		counter(c.requests, k.OK, class, "ok")
		for kind, n := range k.Errors {
			counter(c.requests, n, class, kind.String())
		}
		counter(c.bytes, k.BytesIn, class, "in")
		counter(c.bytes, k.BytesOut, class, "out")
		gauge(c.inFlight, float64(k.InFlight), class)
		cumulative := map[float64]uint64{}
		var n uint64
		for j, b := range bounds {
			n += k.Buckets[j]
			cumulative[b] = n
		}
		ch <- prometheus.MustNewConstHistogram(c.seconds, n+k.Buckets[len(bounds)], k.Seconds, cumulative, class)
	}
	counter(c.broken, snap.Classes[objstore.ClassGet].Broken)
	h := snap.Health
	gauge(c.up, map[State]float64{Idle: 1, OK: 1, Degraded: 0.5, Down: 0}[h.State])
	gauge(c.consecutive, float64(h.Consecutive))
	unix := func(ok bool, t int64) float64 {
		if !ok {
			return 0
		}
		return float64(t)
	}
	gauge(c.lastSuccess, unix(!h.LastSuccess.IsZero(), h.LastSuccess.Unix()))
	gauge(c.lastErrorSecs, unix(!h.LastErrorAt.IsZero(), h.LastErrorAt.Unix()))
}
