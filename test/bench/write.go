package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/test/mountpoint"
)

// The works that write. Ours is done on a mount of its own, which is watched until all of it is in
// the bucket and was read back; the limit writes to a directory on the same disk, or uploads, with the
// bare SDK, files that lie there.

const (
	smallCount = 10_000
	smallSize  = 100_000
	partSize   = 16 << 20 // of leatfs by default, and of the bare uploads
)

// output is what a work writes: files of one size, by some processes at the same time.
type output struct {
	name    string // of its directory
	files   int
	size    int64
	writers int
	many    bool // small files, made without fsync and rename
}

func (w *world) writeWorks() []work {
	scale := w.cfg.scale
	one := output{name: "one", files: 1, size: (1 << 30) / int64(scale), writers: 1}
	eight := output{name: "eight", files: 8, size: (256 << 20) / int64(scale), writers: 8}
	small := func(writers int) output {
		return output{name: "small", files: smallCount / scale, size: smallSize, writers: writers, many: true}
	}
	mib := func(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }
	each := func(name, title string, u unit, o output, g goal, in goal) []work {
		return []work{{
			name: name, title: title, unit: u, goal: g,
			limit: w.onDisk(o), ours: w.onBucket(o, false),
		}, {
			name: name + "-s3", title: title + ": until all is in the bucket; the limit is a bare upload", unit: u, goal: in,
			prepare: func(ctx context.Context) error { return w.plainOutput(ctx, o) },
			limit:   w.upload(o), ours: w.onBucket(o, true),
		}}
	}
	ws := each("write-1g", mib(one.size)+" saved: written, fsync, renamed", seconds, one, goal{AtMost: 1.15}, goal{AtMost: 1.15})
	ws = append(ws, each("write-8x256m", "8 processes save "+mib(eight.size)+" each", seconds, eight, goal{AtMost: 1.15}, goal{AtMost: 1.15})...)
	title := fmt.Sprintf("%d files of 100 KB made in one directory, ", small(1).files)
	ws = append(ws, each("write-small-1", title+"1 process", perSec, small(1), goal{AtLeast: 0.5}, goal{AtLeast: 0.8})[0])
	return append(ws, each("write-small-4", title+"4 processes", perSec, small(4), goal{AtLeast: 0.5}, goal{AtLeast: 0.8})...)
}

// base is the name of a file.
func (o *output) base(i int) string {
	if o.many {
		return fileName(i)
	}
	return fmt.Sprintf("rank_%02d.pt", i)
}

// argsets are the programs that write it into a directory.
func (o *output) argsets(dir string) (all [][]string) {
	for i := range o.writers {
		size := strconv.FormatInt(o.size, 10)
		if o.many {
			all = append(all, []string{"write-files", "-dir", dir, "-size", size, "-count", strconv.Itoa(o.files),
				"-part", strconv.Itoa(i), "-parts", strconv.Itoa(o.writers)})
			continue
		}
		all = append(all, []string{"write-save", "-size", size, "-seed", strconv.Itoa(i), filepath.Join(dir, o.base(i))})
	}
	return all
}

// plainOutput writes it to the disk for the bare uploads, once. It stays in the page cache.
func (w *world) plainOutput(ctx context.Context, o output) error {
	dir := w.plainDir(o)
	if w.made[dir] {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if _, err := w.programs(ctx, nil, o.argsets(dir)...); err != nil {
		return err
	}
	w.made[dir] = true
	return nil
}

func (w *world) plainDir(o output) string { return filepath.Join(w.disk, "plain", "output-"+o.name) }

// onDisk writes to a fresh directory on the disk, which is removed afterwards.
func (w *world) onDisk(o output) func(context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		return w.stored(func(out string) (sample, error) { return w.programs(ctx, nil, o.argsets(out)...) })
	}
}

// upload uploads the plain files with the bare SDK.
func (w *world) upload(o output) func(context.Context) (sample, error) {
	return func(ctx context.Context) (s sample, err error) {
		prefix := "bare/" + o.name + "/"
		args := []string{"sdk-put", "-bucket", bucket, "-prefix", prefix, "-inflight", "16", "-part", strconv.Itoa(partSize)}
		if o.many {
			args = []string{"sdk-put-objects", "-bucket", bucket, "-prefix", prefix, "-inflight", "64", "-dir", w.plainDir(o)}
		} else {
			for i := range o.files {
				args = append(args, filepath.Join(w.plainDir(o), o.base(i)))
			}
		}
		if s, err = w.programs(ctx, w.wide, args); err != nil {
			return s, err
		}
		if err := w.inBucket(ctx, &o, prefix); err != nil {
			return s, err
		}
		return s, w.empty(prefix)
	}
}

// onBucket writes to a fresh mount and waits until all is in the bucket; with landed that is what
// is timed.
func (w *world) onBucket(o output, landed bool) func(context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		// The directory is the bucket's: what is in it must be asked.
		prefix := "ours/" + o.name + "/"
		if _, err := w.server.Client().PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String(prefix + ".keep")}); err != nil {
			return sample{}, err
		}
		unix.Sync()
		s, err := w.cold(ctx, w.wide, func(m *mountpoint.Mount) (sample, error) { return w.writeTo(ctx, m, &o, prefix, landed) })
		return s, errors.Join(err, w.empty(prefix))
	}
}

func (w *world) writeTo(ctx context.Context, m *mountpoint.Mount, o *output, prefix string, landed bool) (s sample, err error) {
	before, err := m.Status(ctx)
	if err != nil {
		return s, err
	}
	dir := filepath.Join(m.Dir, prefix)
	if s, err = w.programs(ctx, nil, o.argsets(dir)...); err != nil {
		return s, err
	}
	last, err := w.land(ctx, o, prefix)
	if err != nil {
		return s, err
	}
	s.Lag = max(0, float64(last-s.start)/1e9-s.Seconds)
	if landed {
		s.Seconds += s.Lag
	}
	// Nothing is left to be done, or comes later.
	time.Sleep(300 * time.Millisecond)
	after, err := m.Status(ctx)
	if err != nil {
		return s, err
	}
	s.Files = o.files
	s.Fuse, s.S3 = less(after.Files.Requests, before.Files.Requests), less(after.Origin.Requests, before.Origin.Requests)
	read, err := w.readBack(ctx, m, o, dir)
	if err != nil {
		return s, err
	}
	s.S3Read = less(read.Origin.Requests, after.Origin.Requests)
	s.DaemonOpens = read.Files.OpensDaemon - before.Files.OpensDaemon
	s.Broken = o.broken(&s, after.Passthrough)
	return s, w.inBucket(ctx, o, prefix)
}

// landPoll is how often it is looked whether all is in the bucket; landWait, how long.
const (
	landPoll = 5 * time.Millisecond
	landWait = 3 * time.Minute
)

// land waits until the bucket has all files and returns when that was. Large files are asked for past
// the link; many are counted in the server's directory, which costs it nothing.
func (w *world) land(ctx context.Context, o *output, prefix string) (int64, error) {
	missing := o.files
	for deadline := time.Now().Add(landWait); time.Now().Before(deadline); time.Sleep(landPoll) {
		if o.many {
			names, err := os.ReadDir(filepath.Join(w.server.Dir, bucket, prefix))
			if err != nil {
				return 0, err
			}
			if missing = o.files + 1 - len(names); missing <= 0 { // and .keep
				return clock(), nil
			}
			continue
		}
		for missing > 0 {
			_, err := w.server.Client().HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String(prefix + o.base(missing-1))})
			var none *types.NotFound
			if errors.As(err, &none) {
				break
			}
			if err != nil {
				return 0, err
			}
			missing--
		}
		if missing == 0 {
			return clock(), nil
		}
	}
	return 0, fmt.Errorf("%d files of %d are not in the bucket after %v", missing, o.files, landWait)
}

// inBucket compares names and sizes with what the bucket has.
func (w *world) inBucket(ctx context.Context, o *output, prefix string) error {
	want := map[string]bool{}
	for i := range o.files {
		want[prefix+o.base(i)] = true
	}
	in := &s3.ListObjectsV2Input{Bucket: aws.String(bucket), Prefix: &prefix}
	for p := s3.NewListObjectsV2Paginator(w.server.Client(), in); p.HasMorePages(); {
		page, err := p.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, obj := range page.Contents {
			switch key := aws.ToString(obj.Key); {
			case want[key] && aws.ToInt64(obj.Size) == o.size:
				delete(want, key)
			case strings.HasSuffix(key, "/") || strings.HasSuffix(key, "/.keep"):
			default:
				return fmt.Errorf("the bucket has %s with %d bytes", key, aws.ToInt64(obj.Size))
			}
		}
	}
	for key := range want {
		return fmt.Errorf("the bucket lacks %d objects, %s among them", len(want), key)
	}
	return nil
}

// empty removes a prefix from the bucket, which nobody has mounted.
func (w *world) empty(prefix string) error {
	return os.RemoveAll(filepath.Join(w.server.Dir, bucket, prefix))
}

// readBack reads all files through the mount.
func (w *world) readBack(ctx context.Context, m *mountpoint.Mount, o *output, dir string) (*mountpoint.Status, error) {
	args := []string{"read-seq"}
	for i := range o.files {
		args = append(args, filepath.Join(dir, o.base(i)))
	}
	s, err := w.programs(ctx, nil, args)
	if err := wantBytes(s, int64(o.files)*o.size, err); err != nil {
		return nil, fmt.Errorf("read back: %w", err)
	}
	return m.Status(ctx)
}

// less is what has been counted since.
func less(now, before map[string]int64) map[string]int64 {
	out := map[string]int64{}
	for k, n := range now {
		if n -= before[k]; n != 0 {
			out[k] = n
		}
	}
	return out
}

// asks is how often the bucket may be asked what is there: a HEAD and a LIST for each of the directories
// and names of a few files; of many files, one for a tenth.
func (o *output) asks() int64 {
	if o.many {
		return 4 + int64(o.files)/10
	}
	return 2 * (2 + 2*int64(o.files))
}

// broken is what the requests should not have been.
func (o *output) broken(s *sample, pass bool) (out []string) {
	add := func(bad bool, format string, args ...any) {
		if bad {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	puts := int64(o.files)
	if o.size > partSize {
		puts *= 2 + (o.size+partSize-1)/partSize
	}
	add(pass && s.Fuse["write"] > 0, "%d writes came to the daemon", s.Fuse["write"])
	add(s.S3["PUT"] != puts, "%d uploads, want %d", s.S3["PUT"], puts)
	add(s.S3["HEAD"]+s.S3["LIST"] > o.asks(), "%d HEADs and %d LISTs for %d files", s.S3["HEAD"], s.S3["LIST"], o.files)
	for _, class := range []string{"GET", "COPY", "DELETE"} {
		add(s.S3[class] > 0, "%d requests %s", s.S3[class], class)
	}
	add(s.S3Read["GET"] > 0, "%d GETs to read back what was just written", s.S3Read["GET"])
	add(pass && s.DaemonOpens > 0, "%d files were opened through the daemon", s.DaemonOpens)
	return out
}

// requests tells what a sample counted, for each file.
func (s *sample) requests() string {
	per := func(m map[string]int64) string {
		var b strings.Builder
		for _, k := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(&b, " %s %.4g,", k, float64(m[k])/float64(s.Files))
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	return fmt.Sprintf("kernel:%s; bucket:%s", per(s.Fuse), per(s.S3))
}
