package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leatfs/leatfs/test/link"
	"github.com/leatfs/leatfs/test/load"
	"github.com/leatfs/leatfs/test/mountpoint"
	"github.com/leatfs/leatfs/test/s3test"
)

// world is a bucket with files of load, mounted over a link that is as slow as a real one.
type world struct {
	t      *torture
	part   string
	server *s3test.Server
	link   *link.Link
	mount  *mountpoint.Mount
	keeper int
	cache  string
	rss    int64 // the most that the keeper had resident, in bytes
}

const bucket = "torture"

// newWorld starts a server, fills a bucket and mounts it with binary and args.
func (t *torture) newWorld(ctx context.Context, part, binary string, data load.Data, args ...string) (w *world, err error) {
	w = &world{t: t, part: part, cache: t.path(part, "cache")}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.server, err = s3test.Start(ctx, s3test.Options{Kind: s3test.Versitygw, Dir: t.path(part, "server")}); err != nil {
		return w, err
	}
	if err = w.server.CreateBucket(ctx, bucket); err != nil {
		return w, err
	}
	if err = w.fill(ctx, data); err != nil {
		return w, err
	}
	if w.link, err = link.Start(link.Options{Target: w.server.Addr, FirstByte: 10 * time.Millisecond, Total: 500 << 20}); err != nil {
		return w, err
	}
	return w, w.start(ctx, binary, "s3://"+bucket, append(w.server.Env(), "AWS_ENDPOINT_URL=http://"+w.link.Addr()), args...)
}

// start mounts.
func (w *world) start(ctx context.Context, binary, source string, env []string, args ...string) (err error) {
	w.mount, err = mountpoint.Start(ctx, mountpoint.Options{Bin: binary, Source: source, Dir: w.t.path(w.part, "mnt"), Cache: w.cache,
		Log: w.t.path(w.part, "log"), Env: env, Args: args})
	if err != nil {
		return err
	}
	s, err := w.mount.Status(ctx)
	if err != nil {
		return err
	}
	w.keeper, err = load.Keeper(s.WorkerPID)
	return err
}

// fill stores the files.
func (w *world) fill(ctx context.Context, data load.Data) error {
	files := make(chan load.File)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	name := bucket
	for range 8 {
		wg.Go(func() {
			for f := range files {
				_, err := w.server.Client().PutObject(ctx, &s3.PutObjectInput{Bucket: &name, Key: &f.Key, Body: bytes.NewReader(load.Content(f.Key, f.Size))})
				if err != nil {
					mu.Lock()
					first = errors.Join(first, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, f := range data.Files() {
		files <- f
	}
	close(files)
	wg.Wait()
	return first
}

// kill kills the worker.
func (w *world) kill(answered bool) (load.Kill, error) {
	k, err := load.KillWorker(w.keeper, w.mount.Dir, answered)
	if kb, cerr := strconv.ParseInt(strings.TrimSuffix(field(w.keeper, "VmRSS"), " kB"), 10, 64); cerr == nil {
		w.rss = max(w.rss, kb<<10)
	}
	return k, err
}

// field is a line of /proc/PID/status.
func field(pid int, name string) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// leaked waits until no file of the cache is in use, and returns how many still are.
func (w *world) leaked() (inUse, files int, err error) {
	if _, err := w.kill(true); err != nil { // the next gives back what this one merely kept
		return 0, 0, err
	}
	var names []string
	for deadline := time.Now().Add(30 * time.Second); ; {
		if names, files, err = load.InUse(w.cache); err != nil || len(names) == 0 || time.Now().After(deadline) {
			return len(names), files, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// finish unmounts, and sees that nothing is left.
func (w *world) finish() error {
	err := w.mount.Unmount()
	w.mount = nil
	// A zombie is one that nobody has reaped.
	if n, state := len(load.Workers(w.keeper)), field(w.keeper, "State"); n > 0 || state != "" && state[0] != 'Z' {
		err = errors.Join(err, fmt.Errorf("the keeper %d, or %d workers, are left after the unmount", w.keeper, n))
	}
	b, rerr := os.ReadFile(w.t.path(w.part, "log"))
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "panic") || strings.Contains(line, "DATA RACE") || strings.Contains(line, "given up") {
			err = errors.Join(err, fmt.Errorf("in the log: %s", strings.TrimSpace(line)))
		}
	}
	return errors.Join(err, rerr)
}

// close ends everything.
func (w *world) close() {
	if w.mount != nil {
		_ = w.mount.Unmount()
	}
	if w.link != nil {
		_ = w.link.Close()
	}
	if w.server != nil {
		w.server.Stop()
	}
	_ = os.RemoveAll(filepath.Join(w.t.work, w.part, "server"))
	_ = os.RemoveAll(w.cache)
}
