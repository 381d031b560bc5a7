package keeper

import (
	"errors"
	"fmt"
	"time"
)

// upgrade is a hot upgrade that goes on.
type upgrade struct {
	bin      *binary
	asked    int    // News.UpgradesAsked when it began
	patience *alarm // rings when a worker that is still starting is not waited for any more
	over     bool   // it rang
}

// reload begins an upgrade, or remembers that another is wanted.
func (k *keeper) reload() {
	switch {
	case k.stopping:
		k.log.Warn("no upgrade: the mount ends")
	case !k.held.has():
		k.log.Warn("no upgrade: the mount is not there yet")
	case k.up != nil:
		k.asked()
		k.log.Info("another upgrade follows the one that goes on")
		k.again = true
	default:
		k.asked()
		k.beginUpgrade()
	}
}

// asked counts an upgrade that was asked for.
func (k *keeper) asked() {
	k.news.UpgradesAsked++
	k.tellNews()
}

// beginUpgrade starts a standby from what is at the program's path now.
func (k *keeper) beginUpgrade() {
	k.again = false
	k.log.Info("upgrade begins", "program", k.cfg.Exe)
	k.tell("RELOADING=1", monotonicUsec())
	k.up = &upgrade{asked: k.news.UpgradesAsked}
	var err error
	if k.up.bin, err = openBinary(k.cfg.Exe); err != nil {
		k.upgradeFailed(err)
		return
	}
	w, err := k.spawn(k.up.bin, ModeStandby, k.cfg.Args, false)
	if err != nil {
		k.upgradeFailed(err)
		return
	}
	k.next = w
	k.log.Info("standby started", "worker", w.pid())
	k.set(w, k.times.PrepareWait, func() {
		k.log.Error("the standby is not prepared in time", "worker", w.pid(), "bound", k.times.PrepareWait)
		w.failed, w.failure = true, "it was not prepared within "+k.times.PrepareWait.String()
		k.kill(w)
	})
}

// prepared is the word of a standby that it can go.
func (k *keeper) prepared(w *worker) {
	if w != k.next || w.phase != starting || w.prepared || k.up == nil {
		return
	}
	w.prepared = true
	w.deadline.stop()
	up := k.up
	up.patience = k.after(k.times.DrainWait, func() { up.over = true })
	k.log.Info("standby prepared", "worker", w.pid(), "after", time.Since(w.since).Round(time.Millisecond))
}

// actUpgrade goes on with an upgrade: the old worker drains and exits, then the standby goes.
func (k *keeper) actUpgrade() bool {
	if k.up == nil && k.again && k.cur != nil && k.cur.phase == ready {
		k.beginUpgrade()
		return true
	}
	if k.up == nil || k.next == nil || !k.next.prepared || k.next.phase != starting {
		return false
	}
	switch w := k.cur; {
	case w == nil:
		k.goNext()
		return true
	case w.phase == ready || w.phase == starting && k.up.over:
		wait := k.times.DrainWait
		if w.mode == ModeRefuse {
			wait = k.times.LeaveWait // it has nothing in flight
		}
		k.log.Info("the old worker drains", "worker", w.pid())
		k.command(w, kindDrain, wait)
	}
	return false
}

// goNext lets the standby on the mount: the old worker is dead.
func (k *keeper) goNext() {
	w := k.next
	k.pause.stop()
	k.pause = nil
	k.stopRetry()
	news := k.news
	if err := send(w.conn, message{Kind: kindGo, Blame: k.blame, News: &news}, nil, false); err != nil {
		k.log.Error("the standby cannot be told", "worker", w.pid(), "error", err)
		w.failed, w.failure = true, "it did not hear the command"
		k.kill(w)
		return
	}
	k.up.patience.stop()
	k.cur, k.next = w, nil
	w.silent = 0
	k.log.Info("the standby goes", "worker", w.pid(), "blame", k.blame)
}

// standbyDied is the death of a standby before Go: the old worker, or its program, goes on.
func (k *keeper) standbyDied(w *worker, v verdict) {
	if k.up == nil || k.up.bin != w.bin {
		if w.bin != k.bin && w.bin != k.self { // of an upgrade that was given up
			w.bin.close()
		}
		return
	}
	if w.failed {
		k.upgradeFailed(errors.New("the new worker refuses: " + w.failure))
	} else {
		k.upgradeFailed(errors.New("the new worker died before it took over: " + v.text))
	}
}

// upgradeFailed ends an upgrade that did not work.
func (k *keeper) upgradeFailed(err error) {
	up := k.up
	k.up = nil
	up.patience.stop()
	if k.next == nil && (k.cur == nil || k.cur.bin != up.bin) {
		up.bin.close()
	}
	k.log.Error("the upgrade did not work; the old program goes on", "program", k.cfg.Exe, "error", err)
	k.news.UpgradeTries = up.asked
	k.news.UpgradeError = oneLine(fmt.Sprintf("upgrade to %s: %v; the old program goes on", k.cfg.Exe, err))
	k.tellNews()
	if k.notified && !k.stopping {
		k.tell("READY=1")
	}
}

// upgraded ends an upgrade if w, which is ready now, is the new worker.
func (k *keeper) upgraded(w *worker) {
	if k.up == nil || k.up.bin != w.bin {
		return
	}
	if k.bin != k.self {
		k.bin.close()
	}
	k.bin = w.bin
	k.news.UpgradeTries = k.up.asked
	k.up = nil
	k.backoff = backoff{times: &k.times}
	k.news.Upgrades++
	k.news.LastUpgrade = time.Now()
	k.news.UpgradeError = ""
	k.log.Info("upgrade done", "worker", w.pid())
	k.tellNews()
	k.tell("READY=1")
}
