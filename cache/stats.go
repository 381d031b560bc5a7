package cache

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leatfs/leatfs/cache/buf"
)

// counters are what the cache counts; each only grows.
type counters struct {
	hits, misses                        atomic.Uint64
	memoryBytes, diskBytes, originBytes atomic.Uint64
	fetches, fetchErrors                atomic.Uint64
	filledBytes, fillErrors, notKept    atomic.Uint64
	dropped                             atomic.Uint64
	crcMismatches, diskReadErrors       atomic.Uint64
	lostFiles                           atomic.Uint64
	proven, unverifiable, sumMismatches atomic.Uint64
	evicted, evictedBytes, punchedBytes atomic.Uint64
	aheadBytes, aheadUsed, aheadWasted  atomic.Uint64
	adopted, reconcileRemoved           atomic.Uint64
}

// Stats is the state of a cache and what it counted since Open.
type Stats struct {
	Hits, Misses uint64 // calls of Read answered without, and with, waiting for the origin
	// Bytes given to readers from memory and from disk, and bytes that came from the origin.
	MemoryBytes, DiskBytes, OriginBytes uint64
	Fetches, FetchErrors                uint64 // GETs that ended well, and not
	FilledBytes                         uint64 // written to disk
	FillErrors                          uint64 // failed writes
	NotKept                             uint64 // blocks not stored for lack of space, or after a failure
	Dropped                             uint64 // blocks given up before they were stored, for lack of memory
	CRCMismatches, DiskReadErrors       uint64 // blocks on disk found bad or unreadable
	LostFiles                           uint64 // records without a file
	Proven, Unverifiable                uint64 // objects completed, by state
	SumMismatches                       uint64 // objects that did not match the origin's checksum
	Evicted, EvictedBytes, PunchedBytes uint64
	// Prefetched bytes: all, those read later, those dropped unread.
	PrefetchedBytes, PrefetchUsed, PrefetchWasted uint64
	Adopted, ReconcileRemoved                     uint64 // files taken in and removed by Reconcile

	InFlight    int64 // bytes on their way from the origin
	Active      int   // objects in use
	Unnoted     int   // objects of which the index does not have all yet: what it lacks is lost when the process is killed
	ExtentBytes int64 // memory for the residency of objects in use
	Memory      buf.Stats
	Dirs        []DirStats
}

// DirStats is the state of one cache directory; sizes in bytes.
type DirStats struct {
	Path                    string
	Number                  uint32
	Size, Used, Free        int64 // Free is that of the disk
	Staged, StagedFiles     int64 // bytes on disk of what is not published yet; counted every few seconds
	Ballast                 int64 // kept for that, beside what is free
	Full                    bool  // there is no room for more of it
	Direct, Stacked, Usable bool
}

// Stats returns a snapshot.
func (c *Cache) Stats() Stats {
	n := &c.n
	s := Stats{
		Hits: n.hits.Load(), Misses: n.misses.Load(),
		MemoryBytes: n.memoryBytes.Load(), DiskBytes: n.diskBytes.Load(), OriginBytes: n.originBytes.Load(),
		Fetches: n.fetches.Load(), FetchErrors: n.fetchErrors.Load(),
		FilledBytes: n.filledBytes.Load(), FillErrors: n.fillErrors.Load(), NotKept: n.notKept.Load(), Dropped: n.dropped.Load(),
		CRCMismatches: n.crcMismatches.Load(), DiskReadErrors: n.diskReadErrors.Load(), LostFiles: n.lostFiles.Load(),
		Proven: n.proven.Load(), Unverifiable: n.unverifiable.Load(), SumMismatches: n.sumMismatches.Load(),
		Evicted: n.evicted.Load(), EvictedBytes: n.evictedBytes.Load(), PunchedBytes: n.punchedBytes.Load(),
		PrefetchedBytes: n.aheadBytes.Load(), PrefetchUsed: n.aheadUsed.Load(), PrefetchWasted: n.aheadWasted.Load(),
		Adopted: n.adopted.Load(), ReconcileRemoved: n.reconcileRemoved.Load(),
		InFlight: c.flying.Load() * BlockSize, ExtentBytes: c.extentBytes.Load(), Memory: c.pool.Stats(),
	}
	c.mu.Lock()
	s.Active = len(c.active)
	c.mu.Unlock()
	s.Unnoted = c.ledger.unnoted()
	for _, d := range c.dirs {
		s.Dirs = append(s.Dirs, DirStats{Path: d.path, Number: d.format.Number, Size: d.size, Used: d.used.Load() + d.doomed.Load(),
			Free: d.free.Load(), Direct: d.direct, Stacked: d.stacked, Usable: d.usable(),
			Staged: d.stage.bytes.Load(), StagedFiles: max(d.stage.files.Load(), 0), Ballast: d.ballast.bytes.Load(), Full: d.stage.full.Load()})
	}
	return s
}

// metric is one line of the metrics.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*Stats) float64
}

// dirMetric is one of each directory.
type dirMetric struct {
	desc  *prometheus.Desc
	value func(*DirStats) int64
}

// Collector shows the Stats to Prometheus.
type Collector struct {
	c       *Cache
	metrics []metric
	dirs    []dirMetric
	source  *prometheus.Desc
}

// Collector returns a prometheus.Collector of the cache.
func (c *Cache) Collector() *Collector {
	k := &Collector{c: c,
		source: prometheus.NewDesc("leatfs_cache_read_bytes_total", "Bytes by where they came from: memory and disk to readers, origin into the cache.", []string{"source"}, nil),
	}
	for _, m := range []struct {
		name, help string
		value      func(*DirStats) int64
	}{
		{"used_bytes", "Bytes of object files.", func(d *DirStats) int64 { return d.Used }},
		{"size_bytes", "Capacity.", func(d *DirStats) int64 { return d.Size }},
		{"staged_bytes", "Bytes of files that are not published yet.", func(d *DirStats) int64 { return d.Staged }},
		{"staged_files", "Files that are not published yet.", func(d *DirStats) int64 { return d.StagedFiles }},
		{"ballast_bytes", "Disk space kept for files that are not published yet.", func(d *DirStats) int64 { return d.Ballast }},
	} {
		k.dirs = append(k.dirs, dirMetric{prometheus.NewDesc("leatfs_cache_"+m.name, m.help, []string{"dir"}, nil), m.value})
	}
	add := func(kind prometheus.ValueType, name, help string, value func(*Stats) float64) {
		k.metrics = append(k.metrics, metric{prometheus.NewDesc("leatfs_cache_"+name, help, nil, nil), kind, value})
	}
	counter := func(name, help string, v func(*Stats) uint64) {
		add(prometheus.CounterValue, name, help, func(s *Stats) float64 { return float64(v(s)) })
	}
	gauge := func(name, help string, v func(*Stats) int64) {
		add(prometheus.GaugeValue, name, help, func(s *Stats) float64 { return float64(v(s)) })
	}
	counter("hits_total", "Reads answered without waiting for the origin.", func(s *Stats) uint64 { return s.Hits })
	counter("misses_total", "Reads that waited for the origin.", func(s *Stats) uint64 { return s.Misses })
	counter("fetches_total", "GETs that ended well.", func(s *Stats) uint64 { return s.Fetches })
	counter("fetch_errors_total", "GETs that failed, after the store's own retries.", func(s *Stats) uint64 { return s.FetchErrors })
	counter("filled_bytes_total", "Bytes written to cache directories.", func(s *Stats) uint64 { return s.FilledBytes })
	counter("fill_errors_total", "Failed writes to cache directories.", func(s *Stats) uint64 { return s.FillErrors })
	counter("not_kept_blocks_total", "Blocks not stored for lack of space or after failed writes.", func(s *Stats) uint64 { return s.NotKept })
	counter("dropped_blocks_total", "Blocks given up before they were stored, for lack of memory.", func(s *Stats) uint64 { return s.Dropped })
	counter("crc_mismatches_total", "Blocks on disk that were not what was written.", func(s *Stats) uint64 { return s.CRCMismatches })
	counter("disk_read_errors_total", "Blocks on disk that could not be read.", func(s *Stats) uint64 { return s.DiskReadErrors })
	counter("lost_files_total", "Object files that were missing.", func(s *Stats) uint64 { return s.LostFiles })
	counter("proven_total", "Objects completed that match the origin's checksum.", func(s *Stats) uint64 { return s.Proven })
	counter("unverifiable_total", "Objects completed for which the origin has no checksum.", func(s *Stats) uint64 { return s.Unverifiable })
	counter("checksum_mismatches_total", "Objects that did not match the origin's checksum.", func(s *Stats) uint64 { return s.SumMismatches })
	counter("evicted_total", "Object files evicted.", func(s *Stats) uint64 { return s.Evicted })
	counter("evicted_bytes_total", "Bytes of object files evicted.", func(s *Stats) uint64 { return s.EvictedBytes })
	counter("punched_bytes_total", "Bytes taken from objects that were being read.", func(s *Stats) uint64 { return s.PunchedBytes })
	counter("prefetched_bytes_total", "Bytes fetched before they were asked for.", func(s *Stats) uint64 { return s.PrefetchedBytes })
	counter("prefetch_used_bytes_total", "Prefetched bytes that were read.", func(s *Stats) uint64 { return s.PrefetchUsed })
	counter("prefetch_wasted_bytes_total", "Prefetched bytes dropped unread.", func(s *Stats) uint64 { return s.PrefetchWasted })
	gauge("in_flight_bytes", "Bytes on their way from the origin.", func(s *Stats) int64 { return s.InFlight })
	gauge("active_objects", "Objects in use.", func(s *Stats) int64 { return int64(s.Active) })
	gauge("unnoted_objects", "Objects of which the index does not have all yet.", func(s *Stats) int64 { return int64(s.Unnoted) })
	gauge("extent_bytes", "Memory for the residency of objects in use.", func(s *Stats) int64 { return s.ExtentBytes })
	gauge("memory_cap_bytes", "Cap of the buffer pool.", func(s *Stats) int64 { return int64(s.Memory.Cap) * buf.Size })
	gauge("memory_used_bytes", "Buffers in use.", func(s *Stats) int64 { return int64(s.Memory.InUse) * buf.Size })
	gauge("memory_resident_bytes", "Memory that the buffer pool holds.", func(s *Stats) int64 { return int64(s.Memory.Resident) * buf.Size })
	return k
}

// Describe implements prometheus.Collector.
func (k *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range k.metrics {
		ch <- m.desc
	}
	ch <- k.source
	for _, m := range k.dirs {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (k *Collector) Collect(ch chan<- prometheus.Metric) {
	s := k.c.Stats()
	for _, m := range k.metrics {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&s))
	}
	for name, v := range map[string]uint64{"memory": s.MemoryBytes, "disk": s.DiskBytes, "origin": s.OriginBytes} {
		ch <- prometheus.MustNewConstMetric(k.source, prometheus.CounterValue, float64(v), name)
	}
	for _, d := range s.Dirs {
		for _, m := range k.dirs {
			ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, float64(m.value(&d)), d.Path)
		}
	}
}
