package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cmd/leatfs/keeper"
)

// work is the worker: the process that serves a mount, started by its keeper.
func work(ctx context.Context, c *mountConfig, flags *pflag.FlagSet, args []string, link *keeper.Link) error {
	signal.Ignore(syscall.SIGHUP) // the keeper's
	// Started from a descriptor, it would be named by its number in ps and top.
	_ = os.WriteFile("/proc/self/comm", []byte("leatfs"), 0)
	b := newBeater(link)
	defer b.stop()
	orders := newOrders(link)
	defer orders.stop()
	start := link.Start()
	whole := ctx
	if start.Mode != keeper.ModeMount {
		// Told to stop while it takes over, it does so first: who uses the mount is waited for.
		whole = context.WithoutCancel(ctx)
	}
	starting, started := orders.during(whole)
	defer started()
	c.mounted = start.Mode != keeper.ModeMount
	if start.Mode == keeper.ModeRefuse {
		// The command line is not looked at: it may not be understood any more, name another place, or
		// paths on a disk that hangs. Somebody must answer.
		started()
		return refuse(ctx, link, orders.commands)
	}
	d, err := func() (*daemon, error) {
		if err := c.complete(flags, args); err != nil {
			return nil, err
		}
		return begin(starting, c, link, b, orders.commands)
	}()
	started()
	if err != nil {
		var usage usageError
		link.Failed(errors.New(singleLine(err)), errors.As(err, &usage))
		return toldError{err}
	}
	if d == nil {
		return nil // told to stop before it served
	}
	if err := link.Ready(c.again(flags)); err != nil {
		d.log.Error("the keeper does not listen", "err", err)
	}
	link.StatusText(fmt.Sprintf("%s on %s", c.url.String(), c.mountpoint))
	return d.wait(ctx)
}

// orders passes on what the keeper wants. While this process starts, it looks whether that is for
// it to stop.
type orders struct {
	commands chan keeper.Command // closed by the goroutine when the keeper is gone
	quit     chan struct{}       // closed by stop
	done     chan struct{}       // closed by the goroutine

	mu     sync.Mutex
	cancel context.CancelFunc // by mu; nil: it has started
	gone   bool               // by mu: stop was said, or the keeper is gone
}

func newOrders(link *keeper.Link) *orders {
	// Each command comes once at most: there is room for all.
	o := &orders{commands: make(chan keeper.Command, 3), quit: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(o.done)
		for {
			select {
			case <-o.quit:
				return
			case c, ok := <-link.Commands():
				if c == keeper.Stop || !ok && link.Start().Mode == keeper.ModeMount {
					o.stopStarting()
				}
				if !ok {
					close(o.commands)
					return
				}
				select {
				case o.commands <- c:
				case <-o.quit:
					return
				}
			}
		}
	}()
	return o
}

// during returns a context that ends when the keeper wants this process to stop, until started
// is called.
func (o *orders) during(ctx context.Context) (starting context.Context, started func()) {
	starting, cancel := context.WithCancel(ctx)
	o.mu.Lock()
	o.cancel = cancel
	if o.gone {
		cancel()
	}
	o.mu.Unlock()
	return starting, func() {
		o.mu.Lock()
		o.cancel = nil
		o.mu.Unlock()
		cancel()
	}
}

func (o *orders) stopStarting() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gone = true
	if o.cancel != nil {
		o.cancel()
	}
}

func (o *orders) stop() {
	close(o.quit)
	<-o.done
}

// beater tells the keeper, once a second, that this process is well.
type beater struct {
	link *keeper.Link
	end  chan struct{} // closed by stop
	done chan struct{}

	mu     sync.Mutex
	health func() error // by mu; nil: well
	ill    bool         // by mu: it was said
	daemon *daemon      // by mu
}

func newBeater(link *keeper.Link) *beater {
	b := &beater{link: link, end: make(chan struct{}), done: make(chan struct{})}
	link.Beat()
	go func() {
		defer close(b.done)
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for {
			select {
			case <-b.end:
				return
			case <-t.C:
				b.beat()
			}
		}
	}()
	return b
}

// watch makes the beats depend on the health of a daemon.
func (b *beater) watch(d *daemon) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.daemon = d
	limit := 2*d.cfg.originWait + 30*time.Second
	b.health = func() error { return d.session.Health(limit) }
}

// unwatch makes the beats depend on nothing again: the daemon is being put away.
func (b *beater) unwatch() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.health, b.daemon = nil, nil
}

func (b *beater) beat() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.health != nil {
		if err := b.health(); err != nil {
			if !b.ill {
				b.daemon.log.Error("this process is not well, and will be replaced if it does not recover", "err", err)
			}
			b.ill = true
			return
		}
		b.ill = false
	}
	b.link.Beat()
}

func (b *beater) stop() {
	close(b.end)
	<-b.done
}

// wait returns when the mount has ended, from outside or because the keeper said so, or when it
// was left to another process.
func (d *daemon) wait(ctx context.Context) error {
	commands := d.commands
	asked := ctx.Done()
	d.asked = asked
	for {
		select {
		case <-asked:
			// To end the mount is the keeper's to do, if there is one.
			asked = nil
			if commands != nil && d.askStop() {
				continue
			}
			d.log.Info("asked to end")
			d.drainer.stop()
			return d.end()
		case <-d.served:
			return d.end()
		case c, ok := <-commands:
			switch {
			case !ok:
				commands = nil
				d.orphan.Store(true)
				d.log.Error("the keeper of this mount has died: the mount goes on, but nobody will go on with it when this process dies; unmount it and mount it again when you can",
					"mountpoint", d.cfg.mountpoint, "process", os.Getpid())
				if ctx.Err() != nil {
					return d.end()
				}
			case c == keeper.Stop:
				d.log.Info("asked to end")
				d.drainer.stop()
				return d.end()
			case c == keeper.Drain:
				d.log.Info("another process goes on with the mount")
				d.leaving = true
				err := d.close()
				d.link.Drained()
				return err
			}
		}
	}
}

// askStop asks the keeper to end the mount; false when nobody is there to be asked.
func (d *daemon) askStop() bool {
	err := d.link.AskStop()
	if !errors.Is(err, errors.ErrUnsupported) {
		return err == nil
	}
	// An older keeper takes a signal only, and a second one to mean that nobody is waited for.
	if len(d.commands) > 0 {
		return true
	}
	pid := d.link.News().KeeperPID
	return pid > 0 && unix.Kill(pid, unix.SIGTERM) == nil
}

// end ends the mount.
func (d *daemon) end() error {
	err := d.close()
	d.link.Ended()
	return err
}
