package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/test/link"
	"github.com/leatfs/leatfs/test/mountpoint"
)

// work is one row of the table.
type work struct {
	name, title string
	unit        unit
	goal        goal
	prepare     func(context.Context) error // untimed, once
	limit       func(context.Context) (sample, error)
	ours        func(context.Context) (sample, error)
}

// unit is what is compared. Of seconds the least is the best, of the others the most.
type unit string

const (
	mbPerSec unit = "MB/s"
	perSec   unit = "/s"
	seconds  unit = "s"
)

// goal is what the ratio of ours to the limit should be; for a work without a limit, what
// ours should be. A zero value is no goal.
type goal struct {
	AtLeast float64 `json:"at_least,omitempty"`
	AtMost  float64 `json:"at_most,omitempty"`
}

// sample is one measurement of one side.
type sample struct {
	Seconds float64 `json:"seconds"`
	Bytes   int64   `json:"bytes,omitempty"`
	Ops     int64   `json:"ops,omitempty"`
	// CPU is what all programs of this side used, in seconds; Daemon is leatfs' share.
	CPU    float64 `json:"cpu_s"`
	Daemon float64 `json:"daemon_cpu_s,omitempty"`
	// LinkBytes came over the link, from the start until the daemon was idle.
	LinkBytes int64 `json:"link_bytes,omitempty"`
	// DaemonOpens are the opens that the kernel could not read by itself (not of cold works).
	DaemonOpens int64 `json:"daemon_opens,omitempty"`

	// Of works that write, for that many Files: the requests of the kernel, those to the bucket,
	// and those to read it all back; what should not have been; and how long after the last
	// program had ended all of it was in the bucket.
	Files  int              `json:"files,omitempty"`
	Fuse   map[string]int64 `json:"fuse_requests,omitempty"`
	S3     map[string]int64 `json:"s3_requests,omitempty"`
	S3Read map[string]int64 `json:"s3_requests_read_back,omitempty"`
	Broken []string         `json:"broken,omitempty"`
	Lag    float64          `json:"lag_s,omitempty"`

	start int64 // when the first of its programs began
}

func (s sample) value(u unit) float64 {
	switch u {
	case mbPerSec:
		return float64(s.Bytes) / 1e6 / s.Seconds
	case perSec:
		return float64(s.Ops) / s.Seconds
	}
	return s.Seconds
}

func (w *world) works() []work {
	scale := w.cfg.scale
	n := func(full int) string { return strconv.Itoa(full / scale) }
	sizeOf := func(set string) string {
		_, sizes := w.set(set)
		return fmt.Sprintf("%d MiB", total(sizes)>>20)
	}
	ws := []work{
		{
			name: "cold-seq", title: "cold sequential, one object of " + sizeOf("seq"), unit: mbPerSec, goal: goal{AtLeast: 0.9},
			prepare: w.needs("seq"),
			limit:   w.download(w.wide, "seq"),
			ours:    w.coldRead(w.wide, "seq", 1),
		}, {
			name: "cold-shards", title: "cold, 32 shards of " + sizeOf("shards") + " in all, 8 processes", unit: mbPerSec, goal: goal{AtLeast: 0.9},
			prepare: w.needs("shards"),
			limit:   w.download(w.wide, "shards"),
			ours:    w.coldRead(w.wide, "shards", 8),
		}, {
			name: "cold-capped", title: "cold sequential, the link capped at 400 MB/s", unit: mbPerSec, goal: goal{AtLeast: 0.97},
			prepare: w.needs("seq"),
			limit:   w.download(w.capped, "seq"),
			ours:    w.coldRead(w.capped, "seq", 1),
		}, {
			name: "cold-rand-128k", title: "cold random 128 KiB, 8 threads", unit: perSec, goal: goal{AtLeast: 0.95},
			prepare: w.needs("seq"),
			limit:   w.downloadRandom(n(4000)),
			ours:    w.coldRandom(n(4000)),
		}, {
			name: "cold-images", title: n(imageCount) + " cold images of 110 KB, random order, 8 processes", unit: perSec, goal: goal{AtLeast: 0.8},
			prepare: w.needs("images"),
			limit:   w.downloadImages,
			ours:    w.coldImages,
		}, {
			name: "ls-cold", title: "ls -l of " + n(nameCount) + " names, cold; the limit is a serial LIST", unit: seconds, goal: goal{AtMost: 0.5},
			prepare: w.needs("names"),
			limit: func(ctx context.Context) (sample, error) {
				return w.programs(ctx, w.wide, []string{"sdk-list", "-bucket", bucket, "names/"})
			},
			ours: w.coldList,
		}, {
			name: "ls-warm", title: "ls -l of " + n(nameCount) + " names, the second time", unit: seconds, goal: goal{AtMost: 1.5},
			prepare: func(ctx context.Context) error {
				if _, err := w.copyOf("names"); err != nil {
					return err
				}
				return w.warmUp(ctx, "names")
			},
			limit: w.plainList,
			ours:  w.warmList,
		},
	}
	warm := func(name, title string, u unit, least float64, set string, hot bool, args ...string) {
		ws = append(ws, work{
			name: name, title: title, unit: u, goal: goal{AtLeast: least},
			prepare: w.both(set),
			limit:   w.onPlain(hot, set, args),
			ours:    w.onMount(hot, set, args),
		})
	}
	warm("warm-seq", "warm sequential, from the disk", mbPerSec, 0.95, "seq", false, "read-seq")
	warm("warm-rand-4k", "warm random 4 KiB, 8 threads, from the disk", perSec, 0.95, "seq", false,
		"read-rand", "-block", "4096", "-threads", "8", "-count", n(80_000))
	warm("warm-rand-128k", "warm random 128 KiB, 8 threads, from the disk", perSec, 0.95, "seq", false,
		"read-rand", "-block", "131072", "-threads", "8", "-count", n(8000))
	warm("hot-seq", "hot sequential, from the page cache", mbPerSec, 0.85, "seq", true, "read-seq", "-passes", "4")
	warm("hot-rand-4k", "hot random 4 KiB, 1 thread, from the page cache", perSec, 0.85, "seq", true,
		"read-rand", "-block", "4096", "-count", n(2_000_000))
	warm("warm-images-1", n(imageCount)+" warm images of 110 KB, 1 thread, from the disk", perSec, 0.9, "images", false, "read-files")
	warm("warm-images-8", n(imageCount)+" warm images of 110 KB, 8 threads, from the disk", perSec, 0.9, "images", false, "read-files", "-threads", "8")
	ws = append(ws, w.writeWorks()...)
	return append(ws, work{
		name: "first-byte", title: "mount to first byte of a warm file", unit: seconds, goal: goal{AtMost: 1},
		prepare: func(ctx context.Context) error { return w.warmUp(ctx, "names") },
		ours:    w.firstByte,
	}, work{
		name: "first-byte-1m", title: fmt.Sprintf("mount to first byte, %d objects in the index", million/scale), unit: seconds, goal: goal{AtMost: 1},
		prepare: w.prepareMillion,
		ours:    w.firstByteMillion,
	})
}

func (w *world) needs(set string) func(context.Context) error {
	return func(ctx context.Context) error { return w.fill(ctx, set) }
}

// programs runs helpers at the same time and adds up what they did.
func (w *world) programs(ctx context.Context, l *link.Link, argsets ...[]string) (sample, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ps := make([]*program, len(argsets))
	for i, args := range argsets {
		ps[i] = newProgram(w.helper(ctx, l, args...))
		if err := ps[i].cmd.Start(); err != nil {
			return sample{}, err
		}
	}
	var s sample
	var start, end int64
	var failed error
	for _, p := range ps {
		res, err := p.wait()
		if err != nil {
			cancel() // the others end; their errors say nothing
			if failed == nil {
				failed = err
			}
			continue
		}
		if start == 0 || res.Start < start {
			start = res.Start
		}
		end = max(end, res.End)
		s.Bytes += res.Bytes
		s.Ops += res.Ops
		s.CPU += p.cpu()
	}
	s.start, s.Seconds = start, float64(end-start)/1e9
	return s, failed
}

// download is the limit of reading a set cold: 32 requests of 8 MiB in flight.
func (w *world) download(l *link.Link, set string) func(context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		keys, _ := w.set(set)
		return w.stored(func(out string) (sample, error) {
			return w.programs(ctx, l, append([]string{"sdk-get", "-bucket", bucket, "-out", out, "-inflight", "32"}, keys...))
		})
	}
}

func (w *world) downloadRandom(count string) func(context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		keys, sizes := w.set("seq")
		return w.programs(ctx, w.wide, []string{"sdk-rand", "-bucket", bucket, "-inflight", "8", "-block", "131072",
			"-count", count, "-size", strconv.FormatInt(sizes[0], 10), keys[0]})
	}
}

func (w *world) downloadImages(ctx context.Context) (sample, error) {
	list, err := w.list("images")
	if err != nil {
		return sample{}, err
	}
	return w.stored(func(out string) (sample, error) {
		return w.programs(ctx, w.wide, []string{"sdk-objects", "-bucket", bucket, "-out", out, "-inflight", "64", "-list", list, "-prefix", "images/"})
	})
}

// stored gives f a directory on the disk, and empties its files afterwards.
func (w *world) stored(f func(out string) (sample, error)) (sample, error) {
	out := w.fresh("out")
	if err := os.Mkdir(out, 0o755); err != nil {
		return sample{}, err
	}
	s, err := f(out)
	if rerr := hollow(out); err == nil {
		err = rerr
	}
	unix.Sync()
	return s, err
}

// cold calls f with the bucket mounted through l on an empty cache, whose files are emptied
// afterwards.
func (w *world) cold(ctx context.Context, l *link.Link, f func(m *mountpoint.Mount) (sample, error)) (s sample, err error) {
	cache := w.fresh("cache")
	m, unmount, err := w.mount(ctx, l, cache)
	if err != nil {
		return s, err
	}
	defer func() {
		if uerr := unmount(); err == nil {
			err = uerr
		}
		w.cfg.complain(m.Complaints())
		if rerr := hollow(cache); err == nil {
			err = rerr
		}
		unix.Sync()
	}()
	return w.watched(m, l, func() (sample, error) { return f(m) })
}

// watched adds to f's sample what the daemon used meanwhile, and until it was idle again.
func (w *world) watched(m *mountpoint.Mount, l *link.Link, f func() (sample, error)) (sample, error) {
	before, err := m.Usage()
	if err != nil {
		return sample{}, err
	}
	down := l.Counters().BytesDown
	s, err := f()
	if err != nil {
		return s, err
	}
	after, err := m.Usage()
	for deadline := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(deadline); {
		time.Sleep(200 * time.Millisecond)
		was := after.CPU
		if after, err = m.Usage(); after.CPU-was <= 10*time.Millisecond {
			break
		}
	}
	s.Daemon = (after.CPU - before.CPU).Seconds()
	s.CPU += s.Daemon
	s.LinkBytes = l.Counters().BytesDown - down
	return s, err
}

// coldRead reads the files of a set from end to end, by some processes at the same time.
func (w *world) coldRead(l *link.Link, set string, processes int) func(context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		return w.cold(ctx, l, func(m *mountpoint.Mount) (sample, error) {
			keys, sizes := w.set(set)
			argsets := make([][]string, processes)
			for i := range argsets {
				argsets[i] = []string{"read-seq"}
			}
			for i, k := range keys {
				argsets[i%processes] = append(argsets[i%processes], filepath.Join(m.Dir, k))
			}
			s, err := w.programs(ctx, nil, argsets...)
			return s, wantBytes(s, total(sizes), err)
		})
	}
}

func wantBytes(s sample, want int64, err error) error {
	if err == nil && s.Bytes != want {
		err = fmt.Errorf("read %d bytes, want %d", s.Bytes, want)
	}
	return err
}

func (w *world) coldRandom(count string) func(context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		return w.cold(ctx, w.wide, func(m *mountpoint.Mount) (sample, error) {
			keys, _ := w.set("seq")
			return w.programs(ctx, nil, []string{"read-rand", "-block", "131072", "-threads", "8", "-count", count, filepath.Join(m.Dir, keys[0])})
		})
	}
}

// coldImages reads as the workers of a DataLoader do. The names were listed before, as
// ImageFolder does when it starts: that is not timed.
func (w *world) coldImages(ctx context.Context) (sample, error) {
	list, err := w.list("images")
	if err != nil {
		return sample{}, err
	}
	return w.cold(ctx, w.wide, func(m *mountpoint.Mount) (sample, error) {
		root := filepath.Join(m.Dir, "images")
		if err := walk(root); err != nil {
			return sample{}, err
		}
		var argsets [][]string
		for i := range 8 {
			argsets = append(argsets, []string{"read-files", "-root", root, "-list", list, "-part", strconv.Itoa(i), "-parts", "8"})
		}
		_, sizes := w.set("images")
		s, err := w.programs(ctx, nil, argsets...)
		return s, wantBytes(s, total(sizes), err)
	})
}

// walk lists a directory and those in it.
func walk(dir string) error {
	return filepath.WalkDir(dir, func(_ string, _ os.DirEntry, err error) error { return err })
}

// ls runs "ls -l" and times it.
func (w *world) ls(ctx context.Context, dir string) (sample, error) {
	cmd := exec.CommandContext(ctx, "ls", "-l", dir)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	start := time.Now()
	err := cmd.Run()
	s := sample{Seconds: time.Since(start).Seconds()}
	if err != nil {
		return s, fmt.Errorf("ls -l %s: %w", dir, err)
	}
	s.CPU = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	return s, nil
}

func (w *world) coldList(ctx context.Context) (sample, error) {
	return w.cold(ctx, w.wide, func(m *mountpoint.Mount) (sample, error) {
		return w.ls(ctx, filepath.Join(m.Dir, "names"))
	})
}
