package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/test/link"
	"github.com/leatfs/leatfs/test/mountpoint"
	"github.com/leatfs/leatfs/test/s3test"
)

const bucket = "bench"

// world is the server, the links to it, the disk, and the data. What a work needs is made
// when it is first asked for.
type world struct {
	cfg    *config
	self   string // this binary
	disk   string // a directory on the disk under test
	server *s3test.Server
	wide   *link.Link // FirstByte and PerConn
	capped *link.Link // the same, and capMBs in total

	ram   string            // the server's directory
	made  map[string]bool   // data sets in the bucket ("seq"), and their copies on the disk ("plain seq")
	lists map[string]string // files with the names of data sets
	seq   int               // number of the last fresh directory
	noise []byte
	warm  *warmth // nil until a work wants it

	peak     atomic.Int64 // of leatfs' counted memory, bytes
	peakFile atomic.Int64 // of its mapped files
}

// capBytes is what the capped link carries in all.
const capBytes = 400e6

func newWorld(ctx context.Context, cfg *config) (*world, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &world{cfg: cfg, self: self, made: map[string]bool{}, lists: map[string]string{}, noise: make([]byte, 16<<20)}
	_, _ = rand.NewChaCha8([32]byte{1}).Read(w.noise) // never fails
	fail := func(err error) (*world, error) {
		w.close()
		return nil, err
	}
	if w.disk, err = os.MkdirTemp(cfg.dir, "leatfs-bench-"); err != nil {
		return fail(err)
	}
	if w.ram, err = os.MkdirTemp(cfg.serverDir, "leatfs-bench-"); err != nil {
		return fail(err)
	}
	w.server, err = s3test.Start(ctx, s3test.Options{Kind: s3test.Versitygw, Dir: w.ram})
	if err != nil {
		return fail(err)
	}
	if err := w.server.CreateBucket(ctx, bucket); err != nil {
		return fail(err)
	}
	opt := link.Options{Target: w.server.Addr, FirstByte: cfg.firstByte, PerConn: cfg.perConn}
	if w.wide, err = link.Start(opt); err != nil {
		return fail(err)
	}
	opt.Total = capBytes
	if w.capped, err = link.Start(opt); err != nil {
		return fail(err)
	}
	return w, nil
}

// close ends and removes everything.
func (w *world) close() {
	w.closeWarm()
	for _, l := range []*link.Link{w.wide, w.capped} {
		if l != nil {
			_ = l.Close()
		}
	}
	if w.server != nil {
		w.server.Stop()
	}
	for _, d := range []string{w.disk, w.ram} {
		if d != "" {
			_ = os.RemoveAll(d)
		}
	}
}

// env is the server's address through a link, and its keys.
func (w *world) env(l *link.Link) []string {
	return append(w.server.Env(), "AWS_ENDPOINT_URL=http://"+l.Addr())
}

// fresh is a new directory on the disk.
func (w *world) fresh(name string) string {
	w.seq++
	return filepath.Join(w.disk, fmt.Sprintf("%s-%d", name, w.seq))
}

// mount mounts the bucket through a link. Its memory is watched until it is unmounted.
func (w *world) mount(ctx context.Context, l *link.Link, cache string, args ...string) (*mountpoint.Mount, func() error, error) {
	args = append([]string{"--cache-size", w.cfg.cacheSize, "--memory", "512MiB"}, args...)
	args = append(args, w.cfg.mountArgs...)
	return w.start(ctx, mountpoint.Options{Source: "s3://" + bucket, Cache: cache, Env: w.env(l), Args: args})
}

func (w *world) start(ctx context.Context, opt mountpoint.Options) (*mountpoint.Mount, func() error, error) {
	opt.Bin, opt.Dir, opt.Log = w.cfg.leatfs, w.fresh("mnt"), w.fresh("log")
	m, err := mountpoint.Start(ctx, opt)
	if err != nil {
		return nil, nil, err
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(100 * time.Millisecond)
		defer t.Stop()
		for {
			if u, err := m.Usage(); err == nil {
				raise(&w.peak, u.Memory)
				raise(&w.peakFile, u.Files)
			}
			select {
			case <-stop:
				return
			case <-t.C:
			}
		}
	})
	return m, func() error {
		close(stop)
		wg.Wait()
		return m.Unmount()
	}, nil
}

func raise(v *atomic.Int64, n int64) {
	for {
		old := v.Load()
		if n <= old || v.CompareAndSwap(old, n) {
			return
		}
	}
}

// The data sets. Sizes are the full ones; cfg.scale divides them.
const (
	seqBytes   = 2 << 30
	shards     = 32
	shardBytes = 64 << 20
	imageCount = 10_000
	imageDirs  = 100
	nameCount  = 20_000
)

// set is a data set: its objects in order.
func (w *world) set(name string) (keys []string, sizes []int64) {
	rng := rand.New(rand.NewPCG(1, 1))
	add := func(size int64, format string, args ...any) {
		keys = append(keys, fmt.Sprintf(format, args...))
		sizes = append(sizes, size)
	}
	switch name {
	case "seq":
		add(seqBytes/int64(w.cfg.scale), "seq/data.bin")
	case "shards":
		for i := range shards {
			add(shardBytes/int64(w.cfg.scale), "shards/shard-%06d.tar", i)
		}
	case "images":
		for i := range imageCount / w.cfg.scale {
			add(80_000+rng.Int64N(60_000), "images/n%04d/img_%06d.jpg", i%imageDirs, i)
		}
	case "names":
		for i := range nameCount / w.cfg.scale {
			add(1024, "names/sample_%08d.json", i)
		}
	}
	return keys, sizes
}

func total(sizes []int64) (n int64) {
	for _, s := range sizes {
		n += s
	}
	return n
}

// fill puts a data set into the bucket, past the link.
func (w *world) fill(ctx context.Context, name string) error {
	if w.made[name] {
		return nil
	}
	keys, sizes := w.set(name)
	w.cfg.say("fill the bucket: %s, %d objects of %.0f MB in all", name, len(keys), float64(total(sizes))/1e6)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, key := range keys {
		g.Go(func() error {
			_, err := w.server.Client().PutObject(gctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: w.content(i, sizes[i])})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("fill the bucket with %s: %w", name, err)
	}
	w.made[name] = true
	return nil
}

// copyOf writes a data set to the disk too, as plain files, and returns their directory.
func (w *world) copyOf(name string) (string, error) {
	root := filepath.Join(w.disk, "plain")
	if w.made["plain "+name] {
		return root, nil
	}
	w.cfg.say("copy to the disk: %s", name)
	keys, sizes := w.set(name)
	for i, key := range keys {
		path := filepath.Join(root, key)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return "", err
		}
		f, err := os.Create(path)
		if err != nil {
			return "", err
		}
		_, err = io.CopyBuffer(struct{ io.Writer }{f}, w.content(i, sizes[i]), make([]byte, 1<<20))
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return "", err
		}
	}
	unix.Sync()
	w.made["plain "+name] = true
	return root, nil
}

// list writes the keys of a set to a file, without the set's name in front.
func (w *world) list(name string) (string, error) {
	if p := w.lists[name]; p != "" {
		return p, nil
	}
	keys, _ := w.set(name)
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(strings.TrimPrefix(k, name+"/") + "\n")
	}
	p := filepath.Join(w.disk, name+".list")
	w.lists[name] = p
	return p, os.WriteFile(p, []byte(b.String()), 0o644)
}

// content is the bytes of the i-th object of a set: they do not compress.
func (w *world) content(i int, size int64) io.ReadSeeker {
	return io.NewSectionReader(&endless{noise: w.noise, start: int64(i) * 7919 * 64}, 0, size)
}

// endless is a repetition of noise, read from a place in it.
type endless struct {
	noise []byte
	start int64
}

func (e *endless) ReadAt(b []byte, off int64) (n int, err error) {
	for n < len(b) {
		n += copy(b[n:], e.noise[(e.start+off+int64(n))%int64(len(e.noise)):])
	}
	return n, nil
}

// hollow empties all files of a tree, which goes at the end of the run. Removed now, they would be in the
// way: ext4 does not use inodes again that were freed in the last minutes, and whoever makes files then has it
// search past them, which can take it longer than all the rest.
func hollow(dir string) error {
	return filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			err = os.Truncate(path, 0)
		}
		return err
	})
}

// dropCaches empties the page cache, and that of names.
func dropCaches() error {
	unix.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}

// helper starts a program of this binary.
func (w *world) helper(ctx context.Context, l *link.Link, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, w.self, args...)
	if l != nil {
		cmd.Env = append(os.Environ(), w.env(l)...)
	}
	return cmd
}
