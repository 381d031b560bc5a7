package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/cache/buf"
	"github.com/leatfs/leatfs/cmd/leatfs/keeper"
	"github.com/leatfs/leatfs/fs"
	"github.com/leatfs/leatfs/fs/fuse"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/session"
	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/stack"
	"github.com/leatfs/leatfs/prefetch"
)

// daemon is a running mount. The fields are made by begin in this order, and put away by
// close in the reverse.
type daemon struct {
	cfg  *mountConfig
	link *keeper.Link
	from keeper.Start // what it was started for, and with
	// commands is what the keeper wants; closed when it is gone.
	commands <-chan keeper.Command
	beats    *beater
	budget   budget
	started  time.Time
	log      *slog.Logger
	logFile  *logFile // nil in the foreground
	dirs     []cacheDir
	memory   *session.Session // what the next process will want to know
	info     session.Info     // what the last one said of the mount, when it is taken over
	origin   objstore.Store   // bare; store closes it, once there is one
	stack    *stack.Store     // for its counters
	store    objstore.Store   // what everybody asks
	db       *meta.DB
	pool     *buf.Pool
	cache    *cache.Cache
	engine   *prefetch.Engine
	session  *fuse.Session
	fs       *fs.FS
	control  net.Listener
	listens  bool // control was made here, not taken over
	metrics  *prometheus.Registry
	serving  bool        // requests are answered; endMount ends that
	told     bool        // the log says that it serves
	leaving  bool        // close leaves the mount to another process
	orphan   atomic.Bool // the keeper has died
	drainer  drainer
	asked    <-chan struct{} // closed when a signal says that the mount is to end; set by wait

	closers []func() error // in the order made
	served  chan struct{}  // closed when the mount has ended, or was left
}

// begin brings a mount up, or takes one over. When it fails nothing is left behind that was not
// there, and the error is one line that says what and what to do. nil and no error: it was told
// to stop before it had begun.
func begin(ctx context.Context, c *mountConfig, link *keeper.Link, beats *beater, commands <-chan keeper.Command) (d *daemon, err error) {
	d = &daemon{cfg: c, link: link, from: link.Start(), beats: beats, commands: commands, started: time.Now(), served: make(chan struct{})}
	defer func() {
		if err != nil {
			d.leaving = d.from.Mode != keeper.ModeMount
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
	steps := []func(context.Context) error{
		d.checkDirs, d.openOrigin, d.openLog, d.openSession, d.openStore, d.openCache, d.mountAndServe,
	}
	if d.from.Mode != keeper.ModeMount {
		steps = []func(context.Context) error{
			d.inspect, d.openOrigin, d.standBy, d.checkDirs, d.openLog, d.openSession, d.openStore, d.openCache, d.takeOver,
		}
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			if errors.Is(err, errStopped) {
				return nil, d.close()
			}
			return d, err
		}
	}
	return d, nil
}

// errStopped: the keeper wants this process no more.
var errStopped = errors.New("stopped")

// inspect makes sure that this program understands the mount.
func (d *daemon) inspect(context.Context) error {
	if d.from.Device == nil || d.from.Session == nil {
		return errors.New("the keeper holds no mount to go on with")
	}
	if err := session.Check(d.from.Session); err != nil {
		return fmt.Errorf("this version cannot go on with the mount: %w; unmount it and mount it again", err)
	}
	var err error
	if d.info, err = session.Read(d.from.Session); err != nil {
		return fmt.Errorf("this version cannot go on with the mount: %w; unmount it and mount it again", err)
	}
	log, err := newLogger(os.Stderr, d.cfg.logLevel, d.cfg.logJSON)
	if err != nil {
		return err
	}
	return fuse.Check(d.fuseOptions(log), &d.info)
}

// standBy waits, for an upgrade, until the old process has left.
func (d *daemon) standBy(ctx context.Context) error {
	if d.from.Mode != keeper.ModeStandby {
		return nil
	}
	if err := d.link.Prepared(); err != nil {
		return err
	}
	for {
		select {
		case c, ok := <-d.commands:
			if !ok || c != keeper.Go {
				return errStopped
			}
			d.from.Blame = d.link.Start().Blame
			return nil
		case <-ctx.Done():
			return errStopped
		}
	}
}

// openSession makes the memory that outlives this process, or takes it over.
func (d *daemon) openSession(context.Context) (err error) {
	if d.from.Mode == keeper.ModeMount {
		d.memory, err = session.Create()
	} else {
		d.memory, err = session.Attach(d.from.Session)
	}
	if err == nil {
		d.onClose(d.memory.Close)
	}
	return err
}

// mountAndServe mounts where nobody else has mounted since the mount point was looked at.
func (d *daemon) mountAndServe(ctx context.Context) error {
	unlock, err := lockRunDir(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	removed, err := removeDead(d.cfg.mountpoint)
	if err != nil {
		return err
	}
	if removed {
		d.log.Warn("removed a mount whose processes were all gone", "mountpoint", d.cfg.mountpoint)
	}
	if err := d.cfg.checkMountpoint(); err != nil {
		return err
	}
	if err := d.mount(ctx); err != nil {
		return err
	}
	if err := d.serve(ctx); err != nil {
		return err
	}
	if _, err := os.Stat(d.cfg.mountpoint); err != nil {
		return fmt.Errorf("the mount does not answer: %w", err)
	}
	if err := d.session.SetReadAhead(); err != nil {
		d.log.Info("the kernel's readahead stays as it is; reads of files not yet whole in the cache are slower", "err", err)
	}
	d.told = true
	d.log.Info("mounted", "source", d.cfg.url.String(), "mountpoint", d.cfg.mountpoint, "version", version,
		"passthrough", d.session.Passthrough(), "memory", humanBytes(d.budget.total), "go", runtime.Version())
	return nil
}

// takeOver goes on with a mount.
func (d *daemon) takeOver(ctx context.Context) error {
	var err error
	if d.session, err = fuse.TakeOver(d.fuseOptions(d.log), d.from.Device, d.memory, d.from.Blame); err != nil {
		return err
	}
	d.onClose(d.session.Close)
	if d.from.Control != nil {
		if d.control, err = takeListener(d.from.Control); err != nil {
			return err
		}
	} else if err := d.listen(); err != nil {
		return err
	}
	if err := d.handOver(); err != nil {
		return err
	}
	if err := d.openFS(); err != nil {
		return err
	}
	if err := d.serve(ctx); err != nil {
		return err
	}
	d.told = true
	d.log.Info("goes on with the mount", "mountpoint", d.cfg.mountpoint, "version", version, "process", os.Getpid(),
		"number", d.memory.Epoch(), "after", time.Since(d.started).Round(time.Millisecond))
	return nil
}

func (d *daemon) onClose(f func() error) { d.closers = append(d.closers, f) }

func (d *daemon) close() error {
	d.beats.unwatch()
	var errs []error
	for i := len(d.closers) - 1; i >= 0; i-- {
		errs = append(errs, d.closers[i]())
	}
	d.closers = nil
	err := errors.Join(errs...)
	if d.told && !d.leaving {
		d.log.Info("ended")
	}
	if d.logFile != nil {
		err = errors.Join(err, d.logFile.Close())
	}
	return err
}

// cacheWait is how long a mount that has just been unmounted may take to put its cache away. By umount(8) it is given
// drainDefault before that to publish.
const cacheWait = 5 * time.Second

// checkDirs looks at the cache directories, which are made only when the bucket has answered.
func (d *daemon) checkDirs(ctx context.Context) error {
	for _, p := range d.cfg.cacheDirs {
		dir, err := checkCacheDir(p, d.cfg.ownCacheDir)
		var used cacheInUseError
		if errors.As(err, &used) {
			check := func() (cacheDir, error) { return checkCacheDir(p, d.cfg.ownCacheDir) }
			dir, err = waitFree(ctx, cacheWait, check)
			// Asked only now: a mount that was coming about serves by now.
			if errors.As(err, &used) && !servesMount(ctx, used.pid) {
				dir, err = waitFree(ctx, drainDefault, check)
			}
		}
		if err != nil {
			return err
		}
		d.dirs = append(d.dirs, dir)
	}
	return nil
}

// waitFree waits until what check looks at is not in use any more.
func waitFree(ctx context.Context, patience time.Duration, check func() (cacheDir, error)) (dir cacheDir, err error) {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		dir, err = check()
		if !errors.As(err, new(cacheInUseError)) || ctx.Err() != nil || time.Now().After(end) {
			return dir, err
		}
	}
}

// servesMount tells whether a process serves a mount that is there, and so will not end by itself.
func servesMount(ctx context.Context, pid int) bool {
	all, err := sockets()
	if err != nil {
		return false
	}
	for _, socket := range all {
		s, err := askStatus(ctx, socket)
		if err != nil || s.WorkerPID != pid {
			continue
		}
		fstype, err := fuse.MountedAt(s.Mountpoint)
		return err != nil || fstype == "fuse.leatfs"
	}
	return false
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
	if d.logFile, err = openLog(c.logPath()); err == nil {
		d.logFile.moved = d.link.Log
		d.log, err = newLogger(d.logFile, c.logLevel, c.logJSON)
		return err
	}
	if d.from.Mode == keeper.ModeMount {
		return err
	}
	// The mount is worth more than its log: standard error is the keeper's, which still has it open.
	d.logFile = nil
	unwritable := err
	if d.log, err = newLogger(os.Stderr, c.logLevel, c.logJSON); err != nil {
		return err
	}
	d.log.Warn("the log cannot be opened any more; this process goes on in the one that was open before", "err", unwritable)
	return nil
}

// openCache opens the index and the cache on it.
func (d *daemon) openCache(ctx context.Context) error {
	c := d.cfg
	var dirs []cache.DirConfig
	for _, p := range c.cacheDirs {
		dirs = append(dirs, cache.DirConfig{Path: p, Size: int64(c.cacheSize)})
	}
	var err error
	// A mount that ends lets go of its cache directory before its index.
	for end := time.Now().Add(cacheWait); ; time.Sleep(20 * time.Millisecond) {
		d.db, err = meta.Open(meta.Options{Dir: filepath.Join(c.cacheDirs[0], cacheIndex), Log: d.log, Memory: d.budget.index,
			Killed: d.from.Mode != keeper.ModeMount && !d.from.Blame})
		if err == nil {
			break
		}
		if !errors.Is(err, meta.ErrInUse) || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
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

func (d *daemon) fuseOptions(log *slog.Logger) fuse.Options {
	c := d.cfg
	o := fuse.Options{
		Mount: fuse.MountOptions{Mountpoint: c.mountpoint, Source: c.url.String(), AllowOther: c.allowOther,
			ReadOnly: c.readOnly, Extra: c.fuseOptions},
		Log:          log,
		Passthrough:  c.passthrough == "auto",
		ReadAheadKiB: int(c.readAhead >> 10),
		Debug:        c.fuseDebug,
		NoResend:     c.noResend,
		Tell:         d.link.Tell,
	}
	if d.cache != nil {
		o.StackedCache = d.cache.Stacked()
	}
	return o
}

func (d *daemon) mount(context.Context) error {
	c := d.cfg
	known, err := d.remember()
	if err != nil {
		return err
	}
	if d.session, err = fuse.Mount(d.fuseOptions(d.log), d.memory, known); err != nil {
		return err
	}
	d.onClose(func() error {
		if d.serving {
			return d.session.Close() // endMount has unmounted
		}
		return errors.Join(fuse.UnmountOwn(c.mountpoint, d.device(), true), d.session.Close())
	})
	if err := d.listen(); err != nil {
		return err
	}
	if err := d.handOver(); err != nil {
		return err
	}
	return d.openFS()
}

// listen makes the control socket.
func (d *daemon) listen() (err error) {
	d.control, err = listenControl(d.cfg.mountpoint)
	d.listens = err == nil
	return err
}

// handOver gives the keeper what it needs for the mount to outlive this process.
func (d *daemon) handOver() error {
	m := keeper.Mount{Device: d.session.Device(), Session: d.memory.File(), Mountpoint: d.cfg.mountpoint,
		Socket: socketPath(d.cfg.mountpoint), LogJSON: d.cfg.logJSON}
	if d.logFile != nil {
		m.Log = d.cfg.logPath()
	}
	control, err := d.control.(*net.UnixListener).File()
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	m.Control = control
	return errors.Join(d.link.Mounted(m), control.Close())
}

func (d *daemon) openFS() (err error) {
	c := d.cfg
	d.fs, err = fs.New(fs.Config{Options: c.fsOptions(), Log: d.log, DB: d.db, Cache: d.cache, Store: d.store,
		Prefix: d.cfg.url.Prefix, Engine: d.engine, Backing: d.session.Backing(), Notifier: d.session, Session: d.memory})
	if err != nil {
		return err
	}
	// Requests of connections that are no more do not come again.
	if err := d.db.PurgeResults(d.memory.ID()); err != nil {
		d.log.Warn("records of requests of earlier mounts stay in the index", "err", err)
	}
	d.onClose(func() error {
		if d.leaving {
			return d.fs.Leave()
		}
		return d.fs.Close()
	})
	return nil
}

// serve answers requests from here on.
func (d *daemon) serve(context.Context) error {
	c := d.cfg
	d.metrics = prometheus.NewRegistry()
	d.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	d.metrics.MustRegister(d.stack.Collectors()...)
	d.metrics.MustRegister(d.cache.Collector(), d.engine.Collector(), d.collector())
	d.serving = true
	go func() {
		defer close(d.served)
		d.session.Serve(d.fs)
	}()
	var ctl *control
	stopControl := sync.OnceFunc(func() { ctl.stop(d.leaving) })
	// Who unmounts is told how it ends; who asks during an upgrade is answered by the next process.
	d.onClose(func() error { stopControl(); return nil })
	d.onClose(d.endMount)
	d.onClose(func() error {
		if d.leaving {
			stopControl()
		}
		return nil
	})
	d.beats.watch(d)
	ctl = startControl(d.control, d.listens, func() any { return d.status() }, d.metrics, d.handlers(), d.log)
	if c.metricsAddr != "" {
		stop, err := serveMetrics(c.metricsAddr, d.metrics, d.log)
		if err != nil {
			if d.from.Mode == keeper.ModeMount {
				return err
			}
			// The mount is worth more than its metrics.
			d.log.Error("metrics are on the control socket only", "err", err)
			return nil
		}
		d.onClose(func() error { stop(); return nil })
	}
	return nil
}
