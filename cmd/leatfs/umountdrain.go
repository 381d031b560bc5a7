package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/leatfs/leatfs/fs"
)

// drained is the publishing at the end of a mount, as who unmounts it sees it.
type drained struct {
	status   *Status
	progress *progress
	stderr   io.Writer
	quiet    bool // to keep what is left was asked for
	cancel   func()
	done     chan struct{} // closed when the daemon has ended, or said what is left
	known    bool          // the daemon is one that says it. Read after done
	last     *fs.Ledger    // before the end of the mount; nil: not known
	final    *fs.Ledger    // after it; nil: not known. Read after done
}

// drainLate is the least time for what is written until the mount is gone.
const drainLate = 10 * time.Second

// drainBefore publishes what is there, while the mount is, and tells the daemon how long it may go on
// after that. A mount that is in use cannot be unmounted, and one that is lazily goes on anyway: then only the latter
// is done. nil: the daemon cannot be told.
func drainBefore(ctx context.Context, s *Status, lazy bool, wait time.Duration, stderr io.Writer) (*drained, error) {
	d := &drained{status: s, progress: newProgress(stderr), stderr: stderr, quiet: wait == 0, done: make(chan struct{})}
	socket := socketPath(s.Mountpoint)
	began := time.Now()
	if wait > 0 && !lazy && s.Files.Handles == 0 {
		left, err := waitSync(ctx, socket, wait, d.progress.show)
		d.progress.end()
		switch {
		case ctx.Err() != nil:
			return nil, staysMounted(ctx, s.Mountpoint)
		case err != nil && !errors.Is(err, errNotAnswered):
			fmt.Fprintf(stderr, "leatfs: %s: what is not in the bucket yet could not be waited for (%s)\n", s.Mountpoint, singleLine(err))
		}
		d.last = left
	}
	if wait > 0 && !lazy {
		wait = max(wait-time.Since(began), drainLate)
	}
	if d.last != nil && d.last.Total() > 0 {
		wait = min(wait, time.Second) // it had its time
	}
	query := url.Values{"timeout": {wait.String()}}
	if lazy {
		query.Set("keep", "1") // it is not waited for
	}
	told := make(chan struct{})
	ctx, d.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(d.done)
		m, err := streamFrom(ctx, socket, "/drain", query, told, func(m *syncMessage) { d.progress.show(m.Progress) })
		d.known = !errors.Is(err, errNotAnswered)
		if err == nil {
			d.final = m.Result
		}
	}()
	select {
	case <-told:
	case <-d.done:
	}
	return d, nil
}

// after waits until the daemon says what is left, and returns an error that says so when something is.
func (d *drained) after(ctx context.Context) error {
	if d == nil {
		return nil
	}
	select {
	case <-d.done:
	case <-ctx.Done():
	}
	d.end()
	d.progress.end()
	left := d.final
	if left == nil {
		left = d.last
	}
	switch {
	case left == nil && d.known:
		fmt.Fprintf(d.stderr, "leatfs: %s is unmounted; whether all that was written is in the bucket is not known: its log says so, and what is not is published by the next mount with its cache directory\n", d.status.Mountpoint)
		return nil
	case left == nil || left.Total() == 0:
		return nil
	}
	dir := "its cache directory"
	if len(d.status.Cache.Dirs) > 0 {
		dir = d.status.Cache.Dirs[0].Path
	}
	why := ""
	if e := left.FirstError(); e != "" {
		why = " (" + singleLine(errors.New(e)) + ")"
	}
	text := fmt.Sprintf("%s is unmounted; not in the bucket yet: %s%s, kept in %s; the next mount of %s with that cache directory publishes it",
		d.status.Mountpoint, amount(left), why, dir, d.status.Source)
	if d.quiet {
		fmt.Fprintln(d.stderr, "leatfs: "+text)
		return nil
	}
	return keptError{errors.New(text)}
}

// end stops listening to the daemon.
func (d *drained) end() {
	if d == nil {
		return
	}
	d.cancel()
	<-d.done
}
