package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/cache/buf"
	"github.com/leatfs/leatfs/fs"
	"github.com/leatfs/leatfs/fs/fuse"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/stack"
	"github.com/leatfs/leatfs/prefetch"
)

// daemon is a running mount. The fields are made by start in this order, and put away by
// close in the reverse.
type daemon struct {
	cfg     *mountConfig
	budget  budget
	started time.Time
	log     *slog.Logger
	logFile *logFile // nil in the foreground
	dirs    []cacheDir
	origin  objstore.Store // bare; store closes it, once there is one
	stack   *stack.Store   // for its counters
	store   objstore.Store // what everybody asks
	db      *meta.DB
	pool    *buf.Pool
	cache   *cache.Cache
	engine  *prefetch.Engine
	session *fuse.Session
	fs      *fs.FS
	metrics *prometheus.Registry
	serving bool // requests are answered; endMount ends that

	closers []func() error // in the order made
	served  chan struct{}  // closed when the mount has ended
}

// start brings a mount up. When it fails nothing is left behind, and the error is one line
// that says what and what to do.
func start(ctx context.Context, c *mountConfig) (d *daemon, err error) {
	d = &daemon{cfg: c, started: time.Now(), served: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
			for _, dir := range d.dirs {
				dir.undo()
			}
			d = nil
		}
	}()
	if d.budget, err = divide(int64(c.memory)); err != nil {
		return d, err
	}
	d.budget.apply()
	for _, step := range []func(context.Context) error{
		d.checkDirs, d.openOrigin, d.openLog, d.openStore, d.openCache, d.mountAndServe,
	} {
		if err := step(ctx); err != nil {
			return d, err
		}
	}
	return d, nil
}

// mountAndServe mounts where nobody else has mounted since the mount point was looked at.
func (d *daemon) mountAndServe(ctx context.Context) error {
	unlock, err := lockRunDir(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := d.cfg.checkMountpoint(); err != nil {
		return err
	}
	if err := d.mount(ctx); err != nil {
		return err
	}
	return d.serve(ctx)
}

func (d *daemon) onClose(f func() error) { d.closers = append(d.closers, f) }

func (d *daemon) close() error {
	var errs []error
	for i := len(d.closers) - 1; i >= 0; i-- {
		errs = append(errs, d.closers[i]())
	}
	d.closers = nil
	err := errors.Join(errs...)
	if d.serving {
		d.log.Info("ended")
	}
	if d.logFile != nil {
		err = errors.Join(err, d.logFile.Close())
	}
	return err
}

// checkDirs looks at the cache directories, which are made only when the bucket has answered.
func (d *daemon) checkDirs(context.Context) error {
	for _, p := range d.cfg.cacheDirs {
		dir, err := checkCacheDir(p, d.cfg.ownCacheDir)
		if err != nil {
			return err
		}
		d.dirs = append(d.dirs, dir)
	}
	return nil
}

// openLog opens the log, which by default lies in the first cache directory.
func (d *daemon) openLog(context.Context) (err error) {
	c := d.cfg
	for i := range d.dirs {
		if err := d.dirs[i].make(); err != nil {
			return err
		}
	}
	if c.foreground {
		d.log, err = newLogger(os.Stderr, c.logLevel, c.logJSON)
		return err
	}
	path := c.logFile
	if path == "" {
		path = filepath.Join(c.cacheDirs[0], cacheLog)
	}
	if d.logFile, err = openLog(path); err != nil {
		return err
	}
	d.log, err = newLogger(d.logFile, c.logLevel, c.logJSON)
	return err
}

// openCache opens the index and the cache on it.
func (d *daemon) openCache(context.Context) error {
	c := d.cfg
	var dirs []cache.DirConfig
	for _, p := range c.cacheDirs {
		dirs = append(dirs, cache.DirConfig{Path: p, Size: int64(c.cacheSize)})
	}
	var err error
	if d.db, err = meta.Open(meta.Options{Dir: filepath.Join(c.cacheDirs[0], cacheIndex), Log: d.log, Memory: d.budget.index}); err != nil {
		return err
	}
	d.onClose(d.db.Close)
	if d.db.Rebuilt() {
		d.log.Warn("the index was lost or damaged and is built anew from the cached files", "dir", c.cacheDirs[0])
	}
	if d.pool, err = buf.New(buf.Options{Cap: d.budget.pool}); err != nil {
		return err
	}
	d.onClose(d.pool.Close)
	if d.cache, err = cache.Open(cache.Config{Dirs: dirs, Index: d.db, Pool: d.pool, Log: d.log,
		// The index stops writing when its disk has less than its floor free; stay well above.
		ReserveFree: 2 * d.db.Floor()}); err != nil {
		return err
	}
	d.onClose(d.cache.Close)
	d.maintain()
	d.engine = prefetch.New(prefetch.Options{Budget: d.budget.pool / 2})
	return nil
}

// maintain checks what a crash or a power loss left in doubt, in the background.
func (d *daemon) maintain() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := d.cache.Maintain(ctx); err != nil && ctx.Err() == nil {
			d.log.Warn("the cache could not be checked to the end; it goes on with what is known", "err", err)
		}
	}()
	d.onClose(func() error { cancel(); <-done; return nil })
}

func (d *daemon) mount(context.Context) error {
	c := d.cfg
	var err error
	d.session, err = fuse.Mount(fuse.Options{
		Mount: fuse.MountOptions{Mountpoint: c.mountpoint, Source: d.cfg.url.String(), AllowOther: c.allowOther,
			ReadOnly: true, Extra: c.fuseOptions},
		Log:          d.log,
		Passthrough:  c.passthrough == "auto",
		StackedCache: d.cache.Stacked(),
		ReadAheadKiB: int(c.readAhead >> 10),
		Debug:        c.fuseDebug,
	})
	if err != nil {
		return err
	}
	d.onClose(func() error {
		if d.serving {
			return d.session.Close() // endMount has unmounted
		}
		return errors.Join(fuse.Unmount(c.mountpoint, true), d.session.Close())
	})
	d.fs, err = fs.New(fs.Config{Options: c.fsOptions(), Log: d.log, DB: d.db, Cache: d.cache, Store: d.store,
		Prefix: d.cfg.url.Prefix, Engine: d.engine, Backing: d.session.Backing(), Notifier: d.session})
	if err != nil {
		return err
	}
	d.onClose(func() error { d.fs.Close(); return nil })
	return nil
}

// serve answers requests from here on, and returns once the mount answers.
func (d *daemon) serve(context.Context) error {
	c := d.cfg
	d.metrics = prometheus.NewRegistry()
	d.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	d.metrics.MustRegister(d.stack.Collectors()...)
	d.metrics.MustRegister(d.cache.Collector(), d.engine.Collector(), d.collector())
	ctl, err := startControl(c.mountpoint, d.status, d.metrics, d.log)
	if err != nil {
		return err
	}
	d.onClose(func() error { ctl.stop(); return nil })
	if c.metricsAddr != "" {
		stop, err := serveMetrics(c.metricsAddr, d.metrics, d.log)
		if err != nil {
			return err
		}
		d.onClose(func() error { stop(); return nil })
	}
	d.serving = true
	go func() {
		defer close(d.served)
		d.session.Serve(d.fs)
	}()
	d.onClose(func() error { return d.endMount() })
	if _, err := os.Stat(c.mountpoint); err != nil {
		return fmt.Errorf("the mount does not answer: %w", err)
	}
	if err := d.session.SetReadAhead(); err != nil {
		d.log.Info("the kernel's readahead stays as it is; reads of files not yet whole in the cache are slower", "err", err)
	}
	d.log.Info("mounted", "source", d.cfg.url.String(), "mountpoint", c.mountpoint, "version", version,
		"passthrough", d.session.Passthrough(), "memory", humanBytes(d.budget.total), "go", runtime.Version())
	return nil
}

// endMount unmounts, if it was not somebody else who did, and waits for the last request.
func (d *daemon) endMount() error {
	defer func() { time.AfterFunc(closeWait, d.abandon) }() // the process ends, and the timer with it
	select {
	case <-d.served:
		return nil
	default:
	}
	err := fuse.Unmount(d.cfg.mountpoint, false)
	if err != nil {
		d.log.Warn("the mount is in use; it is out of sight now and ends when its last user does", "err", err)
		if err := fuse.Unmount(d.cfg.mountpoint, true); err != nil {
			return err
		}
	}
	<-d.served
	return nil
}

// closeWait is how long the daemon may take, after the mount has ended, to put its state away.
// It takes a second on a busy disk.
const closeWait = 10 * time.Second

// abandon ends the process. A disk that fails can keep the index from being closed for ever;
// what it has not written is found in its log at the next start, as after kill -9.
func (d *daemon) abandon() {
	d.log.Error("a cache directory cannot be written, so the daemon ends without closing it", "dirs", d.cfg.cacheDirs)
	os.Exit(exitError)
}

// wait returns when the mount has ended, from outside or because ctx is done.
func (d *daemon) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		d.log.Info("asked to end")
	case <-d.served:
	}
	return d.close()
}
