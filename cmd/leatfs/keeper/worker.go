package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"
)

// start starts the worker that the state asks for.
func (k *keeper) start() {
	mode, args, blame := ModeTakeover, k.held.args, k.blame
	switch {
	case !k.held.has():
		mode = ModeMount
	case k.refuse:
		mode, blame = ModeRefuse, false // the next real worker is told
	}
	if args == nil {
		args = k.cfg.Args
	}
	w, err := k.spawn(k.bin, mode, args, blame)
	if err != nil && k.bin != k.self {
		k.log.Error("the worker's program does not start; the keeper's own is used", "error", err)
		w, err = k.spawn(k.self, mode, args, blame)
	}
	if err != nil {
		k.log.Error("no worker could be started", "error", err)
		if !k.held.has() {
			k.fail(err, false)
			return
		}
		k.mourn(err.Error())
		k.follow(death{refuser: k.refuse, ready: -1, said: true})
		return
	}
	k.cur = w
	k.workerText = ""
	k.say("worker started", "worker", w.pid(), "mode", mode, "blame", blame)
	if mode == ModeRefuse && k.retryAt == nil {
		k.retryAt = k.after(k.retry, k.tryReal)
	}
}

// say logs what is news of a mount that has been, and not while it comes about or when it never
// does: then the one line that says why is all.
func (k *keeper) say(msg string, args ...any) {
	level := slog.LevelInfo
	if !k.everReady {
		level = slog.LevelDebug
	}
	k.log.Log(context.Background(), level, msg, args...)
}

// tryReal has a real worker take the place of one that refuses.
func (k *keeper) tryReal() {
	k.retryAt = nil
	if k.up != nil { // tries one too
		k.retryAt = k.after(k.retry, k.tryReal)
		return
	}
	k.log.Info("a real worker is tried again", "deaths", k.backoff.row)
	k.refuse = false
	if w := k.cur; w != nil && w.mode == ModeRefuse && w.phase <= ready {
		k.command(w, kindDrain, k.times.LeaveWait)
	}
}

// stopRetry gives up the next try.
func (k *keeper) stopRetry() {
	k.retryAt.stop()
	k.retryAt = nil
}

// heard takes a message of a worker.
func (k *keeper) heard(w *worker, p *packet) {
	defer p.close()
	if w != k.cur && w != k.next {
		return
	}
	w.silent = 0
	switch p.Kind {
	case kindBeat:
	case kindTell:
		k.relayed(w, p.Data)
	case kindStatus:
		if w == k.cur && w.phase <= ready {
			k.workerText = oneLine(p.Text)
		}
	case kindAsk:
		if w == k.cur && w.phase <= ready {
			k.log.Info("the worker was told to stop", "worker", w.pid())
			k.stop()
		}
	case kindLog:
		if fd := p.take(nameLog); fd >= 0 && w == k.cur {
			k.moveLog(fd)
		} else {
			closeAll([]int{fd})
		}
	case kindMounted:
		k.mounted(w, p)
	case kindReady:
		k.ready(w, p.Args)
	case kindPrepared:
		k.prepared(w)
	case kindFailed:
		w.failed, w.failure, w.usage = true, oneLine(p.Text), p.Usage
		k.leaves(w)
	case kindDrained:
		w.drained = true
		k.leaves(w)
	case kindEnded:
		if w == k.cur {
			w.ended = true
			k.leaves(w)
		}
	default:
		k.log.Debug("a message of a kind that this keeper does not know", "worker", w.pid(), "kind", string(p.Kind))
	}
}

// leaves waits for the exit of a worker that is at its end.
func (k *keeper) leaves(w *worker) {
	if w.phase < leaving {
		w.phase = leaving
		k.set(w, k.times.LeaveWait, func() { k.terminate(w) })
	}
}

// mounted takes over what a worker hands over.
func (k *keeper) mounted(w *worker, p *packet) {
	if w != k.cur || w.phase > leaving {
		return
	}
	first := !k.held.has()
	if fd := p.take(nameLog); fd >= 0 {
		k.moveLog(fd)
	}
	k.log = newLogger(k.out, k.cfg.Level, p.LogJSON)
	for _, name := range p.Names {
		fd := p.take(name)
		if fd < 0 {
			continue
		}
		stored := k.held.stored(name, fd)
		if err := k.held.put(name, fd); err != nil {
			k.log.Warn("the worker hands over too much", "error", err)
			continue
		}
		if !stored {
			k.check(k.notify.store(name, fd))
		}
	}
	if k.held.socket = p.Socket; (first || k.adopted && k.held.socketFile == nil) && p.Socket != "" {
		// Only what the worker has just made is the mount's own: later, another mount may be at the
		// same place, and its socket at the same path. Of a mount that comes from systemd's store the
		// first look is as good: the service has no other.
		k.held.socketFile, _ = os.Lstat(p.Socket) // nil when it is not there
	}
	if p.Mountpoint != k.held.mountpoint || first {
		k.held.mountpoint = p.Mountpoint
		id, err := mountedAt(p.Mountpoint)
		if err != nil {
			k.log.Warn("what is mounted is not known", "error", err)
		}
		k.held.mount = id
	}
	if first && k.held.has() {
		k.log.Debug("the mount is kept", "mountpoint", p.Mountpoint, "worker", w.pid())
	}
}

// moveLog has the keeper, and workers from now on, log to a file, whose descriptor it takes over.
func (k *keeper) moveLog(fd int) {
	if !k.out.move(fd) {
		k.log.Warn("the keeper's log stays where it was: that does not take what waits for it")
	}
}

// ready is the word of a worker that it serves.
func (k *keeper) ready(w *worker, args []string) {
	if w != k.cur || w.phase != starting {
		return
	}
	w.phase, w.readyAt = ready, time.Now()
	k.say("worker ready", "worker", w.pid(), "mode", w.mode, "after", w.readyAt.Sub(w.since).Round(time.Millisecond))
	shed()
	if !k.notified {
		k.notified = true
		k.tell("READY=1", fmt.Sprintf("MAINPID=%d", os.Getpid()))
	}
	if w.mode == ModeRefuse {
		return
	}
	if len(args) > 0 {
		k.held.args = args
	}
	k.refuse = false
	k.stopRetry()
	k.everReady = true
	k.upgraded(w)
	k.report(nil, false)
}

// linkClosed is the end of what a worker says. Its process ends at the same time, or hangs.
func (k *keeper) linkClosed(w *worker) {
	if w != k.cur && w != k.next || w.phase > stopping {
		return
	}
	k.set(w, k.times.LinkGrace, func() { k.hang(w, "it closed its link to the keeper") })
}

// died is the end of a worker's process, after all that it said.
func (k *keeper) died(w *worker, state *os.ProcessState, err error) {
	w.deadline.stop()
	v := verdict{text: fmt.Sprintf("nobody knows how it died: %v", err)}
	if state != nil {
		v = judge(w, state.Sys().(syscall.WaitStatus), k.oom.grew())
	}
	k.say("worker gone", "worker", w.pid(), "mode", w.mode, "how", v.text, "blame", v.blame)
	if w == k.next {
		k.next = nil
		k.standbyDied(w, v)
		return
	}
	k.cur = nil
	k.workerText = ""
	if w.mode != ModeRefuse {
		k.blame = v.blame && !w.drained
	}
	switch {
	case w.ended:
		k.endedBy(w)
	case k.stopping:
	case !k.held.has() || !k.everReady && !k.adopted && !v.outside:
		k.startFailed(w, v)
	case k.up != nil && k.up.bin == w.bin:
		k.mourn(v.text)
		k.upgradeFailed(errors.New("the new worker took over and then died: " + v.text))
	case w.told:
		// By drain: what comes next was decided when it was told.
	default:
		k.mourn(v.text)
		d := death{refuser: w.mode == ModeRefuse, outside: v.outside, ready: -1, said: w.failed, took: time.Since(w.since)}
		if !w.readyAt.IsZero() {
			d.ready = time.Since(w.readyAt)
		}
		k.follow(d)
	}
}

// endedBy is the end of a mount. A dead connection out of systemd's store is none: then the mount
// is made anew.
func (k *keeper) endedBy(w *worker) {
	if k.adopted && !k.everReady && !k.stopping && w.mode == ModeTakeover {
		k.log.Warn("the mount that systemd kept is dead: mounting anew", "worker", w.pid())
		k.adopted = false
		k.blame = false
		k.forget()
		return
	}
	k.gone = true
	if !k.everReady && !k.adopted && !k.stopping {
		k.fail(errors.New("it was unmounted before it was ready"), false)
	}
	k.stop()
}

// startFailed is the end of a first start.
func (k *keeper) startFailed(w *worker, v verdict) {
	if w.failed {
		k.fail(errors.New(w.failure), w.usage)
		return
	}
	k.fail(fmt.Errorf("the worker died while it started: %s; its log says more", v.text), false)
}

// mourn tells of a death.
func (k *keeper) mourn(text string) {
	k.news.LastDeath, k.news.LastDeathAt = text, time.Now()
	k.news.Restarts++
}

// follow decides what follows a death.
func (k *keeper) follow(d death) {
	n := k.backoff.after(d)
	if n.refuse && !k.refuse {
		k.log.Error("workers keep dying: the mount answers EIO until one lives",
			"deaths", k.backoff.row, "last", k.news.LastDeath, "next try in", n.retry)
	}
	k.refuse, k.retry = n.refuse, n.retry
	if n.pause > 0 {
		k.log.Warn("pause before the next worker", "pause", n.pause, "deaths", k.backoff.row)
		k.pause = k.after(n.pause, func() { k.pause = nil })
	}
}

// tellNews tells the workers what has changed.
func (k *keeper) tellNews() {
	news := k.news
	for _, w := range []*worker{k.cur, k.next} {
		if w != nil && w.phase <= stopping {
			// One that does not read hears of it with its next news, or hangs.
			_ = send(w.conn, message{Kind: kindNews, News: &news}, nil, false)
		}
	}
}

// showStatus shows in one line what goes on.
func (k *keeper) showStatus() {
	if k.notify == nil || k.done {
		return
	}
	if s := k.status(); s != k.shown {
		k.shown = s
		k.tell("STATUS=" + oneLine(s))
	}
}

func (k *keeper) status() string {
	w := k.cur
	switch {
	case w != nil && w.phase == killed && k.workerText != "":
		return k.workerText // it does not die
	case k.stopping:
		return "stopping"
	case k.up != nil:
		return "upgrading"
	case w == nil:
		return "between workers; the last: " + k.news.LastDeath
	case w.mode == ModeRefuse:
		return fmt.Sprintf("answering EIO: %d workers died in a row; the last: %s", k.backoff.row, k.news.LastDeath)
	case w.phase > ready:
		return "replacing the worker"
	case w.phase == starting && w.mode == ModeMount:
		return "mounting"
	case w.phase == starting:
		return "taking over"
	case k.workerText != "":
		return k.workerText
	}
	return "serving " + k.held.mountpoint
}
