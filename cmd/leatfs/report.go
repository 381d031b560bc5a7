package main

import (
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/cache/buf"
	"github.com/leatfs/leatfs/cmd/leatfs/keeper"
	"github.com/leatfs/leatfs/objstore"
)

// status gathers what every package knows.
func (d *daemon) status() Status {
	s := Status{
		Mountpoint: d.cfg.mountpoint, Source: d.cfg.url.String(), Version: version, WorkerPID: os.Getpid(),
		Started: d.started, State: stateServing, ReadOnly: d.cfg.isReadOnly(), Passthrough: d.session.Passthrough(),
		Keeper: keeperStatus(d.link.News()),
	}
	s.Keeper.Gone = d.orphan.Load()
	s.Keeper.GivenUp, s.Keeper.LastGivenUp = d.session.GivenUp()
	o := d.stack.Snapshot()
	h := o.Metrics.Health
	s.Origin = OriginStatus{State: string(h.State), LastError: h.LastError, ConsecutiveFailures: int64(h.Consecutive),
		LastErrorTime: known(h.LastErrorAt), LastSuccess: known(h.LastSuccess),
		Requests: map[string]int64{}, Retries: int64(o.Retry.Retries), Hedges: int64(o.Hedge.Hedges)}
	for c, n := range o.Metrics.Classes {
		s.Origin.Requests[objstore.Class(c).String()] = int64(n.Requests())
		s.Origin.BytesIn += int64(n.BytesIn)
	}

	c := d.cache.Stats()
	s.Cache = CacheStatus{BytesMemory: int64(c.MemoryBytes), BytesDisk: int64(c.DiskBytes), BytesOrigin: int64(c.OriginBytes),
		BytesUncached: int64(c.NotKept) * cache.BlockSize, Proven: int64(c.Proven), Unverifiable: int64(c.Unverifiable),
		Mismatches: int64(c.SumMismatches + c.CRCMismatches), Evicted: int64(c.Evicted), WriteErrors: int64(c.FillErrors)}
	for _, x := range c.Dirs {
		s.Cache.Dirs = append(s.Cache.Dirs, DirStatus{Path: x.Path, UsedBytes: x.Used, CapacityBytes: x.Size, Uncached: !x.Usable || diskFull(x.Path)})
		s.Cache.UsedBytes += x.Used
		s.Cache.CapacityBytes += x.Size
	}

	p := d.pool.Stats()
	s.Memory = MemoryStatus{Budget: d.budget.total, PoolSize: int64(p.Cap) * buf.Size, PoolUsed: int64(p.InUse) * buf.Size,
		PoolHeld: int64(p.InUse-d.cache.CleanBlocks()) * buf.Size}
	s.Memory.Counted, s.Memory.Files = rss()

	f := d.fs.Stats()
	s.Files = FilesStatus{Open: f.OpenFiles, Handles: f.Handles, KeptBackings: f.KeptBackings, Lookups: f.Lookups,
		Opens: f.Opens, OpensPass: f.OpensPassthrough, OpensDaemon: f.OpensDaemon, Reads: f.Reads, Lists: f.Lists,
		FailedRequests: d.session.Failed(), NotificationsNo: f.NotifyDropped, Requests: d.session.Requests(), Stale: f.Stale}

	e := d.engine.Stats()
	s.Prefetch = PrefetchStatus{Asked: e.Prefetched, Used: e.Used, Wasted: e.Wasted}
	s.Writes = d.writes()
	return s
}

// diskFull tells whether others have taken so much of a disk that the cache keeps nothing new
// on it: it leaves 1 GiB, or a fiftieth of the disk, free, and comes near to that by itself.
func diskFull(path string) bool {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return true
	}
	reserve := min(1<<30, int64(st.Blocks)*st.Bsize/50)
	return int64(st.Bavail)*st.Bsize < reserve/2
}

// known turns the zero time into nil, so that it is left out.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// collector hands what has no collector of its own to Prometheus: the files, and the budget.
func (d *daemon) collector() prometheus.Collector {
	g := &gauges{d: d, requests: prometheus.NewDesc("leatfs_fuse_requests_total", "Requests of the kernel.", []string{"op"}, nil)}
	add := func(name, help string, kind prometheus.ValueType, v func(*Status) float64) {
		g.all = append(g.all, gauge{prometheus.NewDesc("leatfs_"+name, help, nil, nil), kind, v})
	}
	const c, v = prometheus.CounterValue, prometheus.GaugeValue
	add("files_open", "Files that applications have open.", v, func(s *Status) float64 { return float64(s.Files.Open) })
	add("file_handles", "Handles that applications have open.", v, func(s *Status) float64 { return float64(s.Files.Handles) })
	add("stale_names_total", "Names shown as they were last confirmed, since the bucket did not answer.", c, func(s *Status) float64 { return float64(s.Files.Stale) })
	add("lookups_total", "LOOKUP requests.", c, func(s *Status) float64 { return float64(s.Files.Lookups) })
	add("opens_passthrough_total", "Opens after which the kernel reads the cache file itself.", c, func(s *Status) float64 { return float64(s.Files.OpensPass) })
	add("opens_daemon_total", "Opens served by the daemon.", c, func(s *Status) float64 { return float64(s.Files.OpensDaemon) })
	add("reads_total", "READ requests.", c, func(s *Status) float64 { return float64(s.Files.Reads) })
	add("directory_listings_total", "Listings of directories.", c, func(s *Status) float64 { return float64(s.Files.Lists) })
	add("failed_requests_total", "FUSE requests answered with EIO or another unusual errno.", c, func(s *Status) float64 { return float64(s.Files.FailedRequests) })
	add("unpublished_files", "Files, directories and symlinks that are not in the bucket yet.", v, func(s *Status) float64 { return float64(s.Writes.Files()) })
	add("unpublished_bytes", "Bytes of files that are not in the bucket yet.", v, func(s *Status) float64 { return float64(s.Writes.Bytes) })
	add("unpublished_failing", "Files and deletions that the bucket did not take at their last try.", v, func(s *Status) float64 { return float64(s.Writes.Failing + s.Writes.DeletesFailing) })
	add("unpublished_held", "Files that may not be whole since the machine stopped or the mount was killed, and are not published.", v, func(s *Status) float64 { return float64(s.Writes.Held) })
	add("unpublished_deletes", "Objects that are still to be deleted.", v, func(s *Status) float64 { return float64(s.Writes.Deletes) })
	add("unpublished_age_seconds", "Since when the oldest file waits to be published.", v, func(s *Status) float64 {
		if s.Writes.Oldest.IsZero() {
			return 0
		}
		return time.Since(s.Writes.Oldest).Seconds()
	})
	add("published_replaced_total", "Objects published here that somebody else has replaced since.", c, func(s *Status) float64 { return float64(s.Writes.Replaced) })
	add("published_removed_total", "Objects published here that somebody else has removed since.", c, func(s *Status) float64 { return float64(s.Writes.Removed) })
	add("reused_bytes_total", "Bytes that were not sent because the bucket had them (--reuse-parts).", c, func(s *Status) float64 { return float64(s.Writes.Reuse.Bytes) })
	add("conflicts_total", "Files that somebody else changed too.", c, func(s *Status) float64 { return float64(s.Writes.Conflicts) })
	add("memory_budget_bytes", "Memory that the daemon may use.", v, func(s *Status) float64 { return float64(s.Memory.Budget) })
	add("memory_counted_bytes", "RssAnon and RssShmem of the daemon.", v, func(s *Status) float64 { return float64(s.Memory.Counted) })
	add("pool_used_bytes", "Block buffers in use.", v, func(s *Status) float64 { return float64(s.Memory.PoolUsed) })
	return g
}

type gauges struct {
	d        *daemon
	all      []gauge
	requests *prometheus.Desc
}

type gauge struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*Status) float64
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, x := range g.all {
		ch <- x.desc
	}
	ch <- g.requests
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	s := g.d.status()
	for _, x := range g.all {
		ch <- prometheus.MustNewConstMetric(x.desc, x.kind, x.value(&s))
	}
	for op, n := range s.Files.Requests {
		ch <- prometheus.MustNewConstMetric(g.requests, prometheus.CounterValue, float64(n), op)
	}
}

// The states of a mount.
const (
	stateServing  = "serving"
	stateRefusing = "refusing"
	stateSilent   = "silent"
)

func keeperStatus(n keeper.News) KeeperStatus {
	return KeeperStatus{PID: n.KeeperPID, Since: n.Since, Restarts: n.Restarts, LastDeath: n.LastDeath, LastDeathAt: known(n.LastDeathAt),
		Upgrades: n.Upgrades, UpgradesAsked: n.UpgradesAsked, UpgradeTries: n.UpgradeTries, UpgradeError: n.UpgradeError}
}
