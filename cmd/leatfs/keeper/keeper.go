package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Exit codes of Run.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// keeper is the state of Run. Its loop owns every field; other goroutines send it functions.
type keeper struct {
	cfg      Config
	times    Times
	out      *logout
	log      *slog.Logger // to out
	env      []string     // of the workers
	null     *os.File
	oomScore string // of the workers; empty to leave it
	oom      *oomCounter
	notify   *notifier // nil when this is no service

	events     chan func()    // what happened elsewhere, to be run by the loop
	quit       chan struct{}  // closed by Run at its end: nobody takes events any more
	goroutines sync.WaitGroup // the readers and waiters of workers

	held  held
	relay *relay // to the held device; nil until there is something to say
	news  News
	self  *binary // as it was when the keeper started
	bin   *binary // what workers are started from: self, or the last that was upgraded to

	cur     *worker // on the mount, or dying there; nil between workers
	next    *worker // the standby of an upgrade, until Go
	up      *upgrade
	again   bool // another upgrade was asked for meanwhile
	backoff backoff
	pause   *alarm        // before the next start; nil for none
	refuse  bool          // the next to start refuses
	retry   time.Duration // for how long, before a real one is tried
	retryAt *alarm
	blame   bool // the last real worker's death was its own

	adopted   bool // the mount came from systemd's store
	everReady bool // a real worker was
	notified  bool // systemd was told READY
	reported  bool
	signal    bool // a signal told to stop
	stopping  bool // told to stop, or the mount is gone: start nothing any more
	gone      bool // the mount is gone: nothing to unmount
	detached  bool // the mount was taken out of sight while its worker would not die
	terminal  bool // standard input was one at the start
	done      bool // Run returns
	code      int
	err       error

	workerText string // what the worker wants shown
	shown      string // the status that systemd has
}

// Run keeps a mount until it ends, and returns the exit code: 0 after an end that was wanted, 1
// or 2 with an error when the mount never was ready (2 for an error of usage) or could not be
// taken away. ctx ends it as SIGTERM does. A process may call it once, alone: it uses the
// process's signals, standard error and OOM score.
func Run(ctx context.Context, cfg Config) (int, error) {
	k, err := newKeeper(cfg)
	if err != nil {
		if cfg.Report != nil {
			cfg.Report(err, false)
		}
		return exitError, err
	}
	defer k.close()
	k.loop(ctx)
	return k.code, k.err
}

func newKeeper(cfg Config) (*keeper, error) {
	if cfg.Self == "" {
		cfg.Self = "/proc/self/exe"
	}
	if cfg.Stderr == nil {
		cfg.Stderr = os.Stderr
	}
	if cfg.Report == nil {
		cfg.Report = func(error, bool) {}
	}
	k := &keeper{
		cfg:    cfg,
		times:  cfg.Times.or(DefaultTimes()),
		out:    newLogout(cfg.Stderr),
		env:    cfg.Env,
		events: make(chan func()),
		quit:   make(chan struct{}),
		news:   News{KeeperPID: os.Getpid(), Since: time.Now()},
	}
	k.log = newLogger(k.out, cfg.Level, false)
	k.backoff.times = &k.times
	if k.env == nil {
		k.env = os.Environ()
	}
	k.env = WorkerEnv(k.env)
	var err error
	if k.self, err = openBinary(cfg.Self); err != nil {
		k.out.close()
		return nil, err
	}
	k.bin = k.self
	if k.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
		k.self.close()
		k.out.close()
		return nil, err
	}
	if k.notify, err = newNotifier(); err != nil {
		k.log.Warn("systemd is told nothing", "error", err)
	}
	k.oom = newOOMCounter()
	if !cfg.Shared {
		if err := os.Chdir("/"); err != nil { // which is no mount of ours
			k.log.Warn("the keeper stays in its working directory", "error", err)
		}
		slim()
		k.oomScore = protectFromOOM()
	}
	for name, fd := range storedFiles() {
		if err := k.held.put(name, fd); err != nil {
			k.log.Warn("a descriptor of the store is dropped", "error", err)
		}
	}
	k.adopted = k.held.has()
	if !cfg.Shared {
		// What the caller had open, a lock of its shell say, is not for the workers.
		_ = CloseOnExec()
	}
	k.terminal = isTerminal(0)
	return k, nil
}

// newLogger makes the keeper's logger.
func newLogger(w io.Writer, level slog.Level, json bool) *slog.Logger {
	opt := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewTextHandler(w, opt)
	if json {
		h = slog.NewJSONHandler(w, opt)
	}
	return slog.New(h).With("process", "keeper")
}

// close puts everything away. No worker lives.
func (k *keeper) close() {
	close(k.quit)
	k.goroutines.Wait()
	for _, a := range []*alarm{k.pause, k.retryAt} {
		a.stop()
	}
	k.relay.close()
	k.held.drop()
	if k.bin != k.self {
		k.bin.close()
	}
	k.self.close()
	k.oom.close()
	k.notify.close()
	_ = k.null.Close()
	k.sayDropped()
	k.out.close()
}

// sayDropped logs that lines of the log were lost.
func (k *keeper) sayDropped() {
	if n := k.out.dropped(); n > 0 {
		k.log.Warn("the log did not take all of the keeper's lines", "lost", n)
	}
}

// loop runs until the end. It alone touches the keeper.
func (k *keeper) loop(ctx context.Context) {
	signals := k.cfg.Signals
	if signals == nil {
		c := make(chan os.Signal, 8)
		signal.Notify(c, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
		defer signal.Stop(c)
		signals = c
	}
	// A log that is a pipe without a reader must not kill the keeper. Nobody reads this channel,
	// and to ignore the signal would be inherited by the workers.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, unix.SIGPIPE)
	defer signal.Stop(pipe)

	tick := time.NewTicker(k.times.Tick)
	defer tick.Stop()
	var watchdog <-chan time.Time
	if d := watchdogInterval(); d > 0 && k.notify != nil {
		t := time.NewTicker(d)
		defer t.Stop()
		watchdog = t.C
	}
	stop := ctx.Done()
	for k.step(); !k.done; k.step() {
		select {
		case f := <-k.events:
			f()
		case s := <-signals:
			k.signalled(s)
		case <-tick.C:
			k.tick()
		case <-watchdog:
			k.tell("WATCHDOG=1")
		case <-stop:
			stop = nil
			k.stop()
		}
	}
}

// post has the loop run f. It returns false when the loop has ended: f does not run then.
func (k *keeper) post(f func()) bool {
	select {
	case k.events <- f:
		return true
	case <-k.quit:
		return false
	}
}

// alarm is a timer of the loop. A nil one never rings.
type alarm struct {
	timer *time.Timer
	off   bool // the loop's: a timer that was stopped too late does nothing
}

// after runs f in the loop after d.
func (k *keeper) after(d time.Duration, f func()) *alarm {
	a := &alarm{}
	a.timer = time.AfterFunc(d, func() {
		k.post(func() {
			if !a.off {
				f()
			}
		})
	})
	return a
}

func (a *alarm) stop() {
	if a != nil {
		a.off = true
		a.timer.Stop()
	}
}

// set replaces a worker's deadline.
func (k *keeper) set(w *worker, d time.Duration, f func()) {
	w.deadline.stop()
	w.deadline = k.after(d, f)
}

// step does what is to be done now, until there is nothing more.
func (k *keeper) step() {
	for !k.done && k.act() {
	}
	k.showStatus()
}

// act does the one next thing that the state asks for; false when there is none.
func (k *keeper) act() bool {
	if k.stopping {
		return k.actStop()
	}
	if k.actUpgrade() {
		return true
	}
	if k.cur == nil && k.pause == nil {
		k.start()
		return true
	}
	return false
}

// actStop goes on with the end: no standby, no worker, no mount.
func (k *keeper) actStop() bool {
	switch {
	case k.next != nil && k.next.phase != killed:
		k.kill(k.next)
	case k.cur != nil && (k.cur.phase == starting || k.cur.phase == ready):
		k.command(k.cur, kindStop, k.times.StopWait)
		return false
	case k.cur == nil && k.next == nil:
		k.finish()
	default:
		return false
	}
	return true
}

// signalled does what a signal asks for.
func (k *keeper) signalled(s os.Signal) {
	if s == unix.SIGHUP {
		if k.terminal && !isTerminal(0) {
			k.terminal = false
			k.log.Info("the terminal was closed; the mount goes on")
			return
		}
		k.reload()
		return
	}
	k.log.Info("told to stop", "signal", s.String())
	// The first may come after the worker's own had it ask: who stops both does not stop twice.
	again := k.signal
	k.signal = true
	if again && k.stopping && k.cur != nil && k.cur.phase == stopping {
		k.log.Warn("told to stop again: the worker is not waited for", "worker", k.cur.pid())
		k.terminate(k.cur)
	}
	k.stop()
}

// stop begins the end.
func (k *keeper) stop() {
	if k.stopping {
		return
	}
	k.stopping = true
	k.pause.stop()
	k.stopRetry()
	k.tell("STOPPING=1")
	// A keeper that is killed from here on leaves nothing that the next one could go on with.
	for _, name := range k.held.names {
		k.check(k.notify.remove(name))
	}
	if k.up != nil {
		k.upgradeFailed(errors.New("the keeper was told to stop"))
	}
}

// fail is the end of a mount that never was ready.
func (k *keeper) fail(err error, usage bool) {
	k.err, k.code = err, exitError
	if usage {
		k.code = exitUsage
	}
	k.stop()
}

// finish ends the loop: no process lives.
func (k *keeper) finish() {
	if !k.gone && !k.detached && k.held.has() {
		if err := k.takeAway(); err != nil && k.err == nil {
			k.err, k.code = err, exitError
		}
	}
	if err := k.held.removeSocket(); err != nil {
		k.log.Warn("the control socket stays", "error", err)
	}
	k.forget()
	if !k.everReady && !k.adopted && k.err == nil {
		k.err, k.code = errors.New("it was told to stop before the mount was ready"), exitError
	}
	if k.err != nil {
		k.report(k.err, k.code == exitUsage)
	}
	k.say("the keeper ends", "restarts", k.news.Restarts, "upgrades", k.news.Upgrades)
	k.done = true
}

// takeAway unmounts.
func (k *keeper) takeAway() error {
	k.say("the mount is taken away without a worker", "mountpoint", k.held.mountpoint)
	if err := k.held.unmount(); err != nil {
		k.log.Error("the mount could not be taken away", "error", err)
		return err
	}
	k.detached = true
	return nil
}

// forget drops the descriptors, in systemd's store too.
func (k *keeper) forget() {
	k.endRelay()
	for _, name := range k.held.names {
		k.check(k.notify.remove(name))
	}
	k.held.drop()
}

// report reports once.
func (k *keeper) report(err error, usage bool) {
	if !k.reported {
		k.reported = true
		k.cfg.Report(err, usage)
	}
}

// tick looks at the workers. Time is counted in ticks: those do not pass while the machine, or
// the keeper, is suspended.
func (k *keeper) tick() {
	k.oom.tick()
	k.sayDropped()
	k.sayCaughtUp()
	k.reapOrphans()
	for _, w := range []*worker{k.cur, k.next} {
		if w == nil || !w.watched() || w == k.next {
			continue
		}
		w.silent++
		if time.Duration(w.silent)*k.times.Tick > k.times.HangAfter {
			k.hang(w, "it gave no sign of life for "+k.times.HangAfter.String())
		}
	}
}

// hang replaces a worker that lives but does not work: its goroutines go to the log first.
func (k *keeper) hang(w *worker, why string) {
	k.log.Error("the worker hangs and is replaced", "worker", w.pid(), "why", why)
	w.hung = why
	w.phase = dying
	_ = w.proc.Signal(unix.SIGQUIT)
	k.set(w, k.times.QuitWait, func() { k.kill(w) })
}

// terminate ends a worker that was told to end and did not. It is not asked again: by SIGTERM a
// worker is told to end the mount, and its state survives SIGKILL by design.
func (k *keeper) terminate(w *worker) {
	k.log.Warn("the worker does not end in time and is killed", "worker", w.pid())
	k.kill(w)
}

// kill kills a worker. Then it is waited for, however long it takes: no other may be on the mount.
func (k *keeper) kill(w *worker) {
	w.ordered = true
	w.phase = killed
	_ = w.proc.Kill()
	k.set(w, k.times.QuitWait, func() { k.stuck(w) })
}

// stuck says that a worker that was killed lives on.
func (k *keeper) stuck(w *worker) {
	wait := ""
	if processState(w.pid()) == 'D' {
		wait = ", in uninterruptible wait"
	}
	k.log.Error("waiting for the old worker"+wait, "worker", w.pid(),
		"hint", "see /proc/"+fmt.Sprint(w.pid())+"/stack; the disk or network file system it waits for must answer")
	k.workerText = fmt.Sprintf("waiting for the old worker %d%s", w.pid(), wait)
	if k.stopping && !k.gone && !k.detached && k.held.has() {
		// Who looks there from now on need not wait for it too.
		k.takeAway()
	}
	k.set(w, k.times.StuckLog, func() { k.stuck(w) })
}

// command tells a worker to drain or to stop, and gives it a time for it.
func (k *keeper) command(w *worker, c kind, wait time.Duration) {
	w.phase, w.told = draining, w.told || c == kindDrain
	if c == kindStop {
		w.phase = stopping
	}
	err := send(w.conn, message{Kind: c}, nil, false)
	switch {
	case errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed):
		k.linkClosed(w) // it has just died, and the loop has not heard of it yet
	case err != nil:
		k.log.Warn("the worker cannot be told", "worker", w.pid(), "error", err)
		k.terminate(w)
	default:
		k.set(w, wait, func() { k.terminate(w) })
	}
}

// tell tells systemd.
func (k *keeper) tell(lines ...string) { k.check(k.notify.send(nil, lines...)) }

// check logs an error of systemd's socket.
func (k *keeper) check(err error) {
	if err != nil {
		k.log.Warn("systemd does not listen", "error", err)
	}
}
