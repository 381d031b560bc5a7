package main

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/leatfs/leatfs/fs"
)

// What a mount has not published at its end stays in its cache directory, and the next mount of that
// publishes it. Before the daemon ends it goes on to publish for a while.

const (
	// drainDefault is how long that is when a signal or umount(8) ends the mount.
	drainDefault = 30 * time.Second
	// drainStop is how long after it was told to stop a daemon is done with that, at the latest, also
	// when the mount was in use until then: the keeper's patience ends after 75 s.
	drainStop = 60 * time.Second
)

// drainer is the last publishing of a mount. Safe for parallel use.
type drainer struct {
	mu    sync.Mutex
	asked *drainAsker // by mu; nil: nobody said how long
	begun bool        // by mu
	until time.Time   // by mu; zero: not told to stop
	cut   func()      // by mu; while it drains: ends it
}

// drainAsker is somebody who unmounts, and is told what is left.
type drainAsker struct {
	wait time.Duration
	news chan syncMessage // has room for the last one; closed then
}

// ask says how long the draining may take; false when it has begun.
func (d *drainer) ask(a *drainAsker) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.begun {
		return false
	}
	d.asked = a
	return true
}

// unask is for an asker who is gone.
func (d *drainer) unask(a *drainAsker) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.asked == a && !d.begun {
		d.asked = nil
	}
}

// stop says that the mount is to end soon.
func (d *drainer) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.until.IsZero() {
		d.until = time.Now().Add(drainStop)
	}
	if d.cut != nil {
		time.AfterFunc(drainDefault, d.cut) // which does nothing once it is over
	}
}

// begin returns how long to drain, and who is to be told, which may be nobody.
func (d *drainer) begin(cut func()) (time.Duration, *drainAsker) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.begun, d.cut = true, cut
	wait := drainDefault
	if d.asked != nil {
		wait = d.asked.wait
	}
	if !d.until.IsZero() {
		wait = min(wait, time.Until(d.until))
	}
	return wait, d.asked
}

// drain publishes what is left, for a while, once nobody uses the mount any more.
func (d *daemon) drain() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	wait, asker := d.drainer.begin(cancel)
	ctx, stop := context.WithTimeout(ctx, max(wait, 0))
	defer stop()
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { d.watchStop(over) })
	began := time.Now()
	res, err := d.fs.Sync(ctx, func(l fs.Ledger) {
		if asker != nil {
			select {
			case asker.news <- syncMessage{Progress: &l}:
			default:
			}
		}
	})
	close(over)
	watch.Wait()
	var last syncMessage
	last.finish(&res, err)
	if n := res.Left.Total(); n > 0 {
		d.log.Warn("the mount ends, and not all of it is in the bucket yet; it is kept, and published by the next mount with this cache directory",
			"files", res.Left.Files(), "bytes", res.Left.Bytes, "deletions", res.Left.Deletes, "dir", d.cfg.cacheDirs[0],
			"after", time.Since(began).Round(time.Millisecond), "err", res.Left.FirstError())
	}
	if asker == nil {
		return
	}
	select {
	case <-asker.news: // old news
	default:
	}
	asker.news <- last
	close(asker.news)
}

// watchStop looks whether somebody wants this process to end meanwhile.
func (d *daemon) watchStop(over <-chan struct{}) {
	commands, asked := d.commands, d.asked
	for {
		select {
		case <-over:
			return
		case <-asked:
			asked = nil
			d.drainer.stop()
		case _, ok := <-commands:
			if !ok {
				commands = nil
				continue
			}
			d.drainer.stop()
		}
	}
}

// handleDrain takes the word of somebody who is about to unmount, and tells him how it ends.
func (d *daemon) handleDrain(w http.ResponseWriter, r *http.Request) {
	wait, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a := &drainAsker{wait: wait, news: make(chan syncMessage, 1)}
	if !d.drainer.ask(a) {
		http.Error(w, "the mount has ended", http.StatusConflict)
		return
	}
	if r.URL.Query().Get("keep") != "" {
		return // his word stays
	}
	defer d.drainer.unask(a)
	out := json.NewEncoder(w)
	send := func(m syncMessage) {
		_ = out.Encode(m) // he may be gone
		_ = http.NewResponseController(w).Flush()
	}
	send(syncMessage{})
	done := r.Context().Done()
	for {
		select {
		case m, ok := <-a.news:
			if !ok {
				return
			}
			send(m)
		case <-done:
			select {
			case m, ok := <-a.news: // the last is told
				if ok {
					send(m)
				}
			default:
			}
			return
		}
	}
}
