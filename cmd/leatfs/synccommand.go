package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs"
)

func syncCommand() *cobra.Command {
	var timeout time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "sync MOUNTPOINT",
		Short: "Wait until all that was written is in the bucket",
		Long: `Wait until the bucket has all that was closed before, and all that was removed is deleted there.

The exit code is 0 when nothing is left. It is 1 otherwise, and what is left is listed: files that are open
for writing, files that may not be whole since the machine stopped or leatfs was killed ("held", see leatfs retry), and after --timeout
what the bucket does not take. What fails is tried again as long as the command waits.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return syncMount(cmd.Context(), args[0], timeout, asJSON, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait (default: as long as it takes)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func syncMount(ctx context.Context, mountpoint string, timeout time.Duration, asJSON bool, stdout, stderr io.Writer) error {
	if timeout < 0 {
		return usageError{fmt.Errorf("--timeout %v: it cannot be negative", timeout)}
	}
	s, err := servingStatus(ctx, mountpoint)
	if err != nil {
		return err
	}
	p := newProgress(stderr)
	left, err := waitSync(ctx, socketPath(s.Mountpoint), timeout, p.show)
	p.end()
	if err != nil {
		return fmt.Errorf("%s: %w", s.Mountpoint, err)
	}
	if asJSON {
		if err := json.NewEncoder(stdout).Encode(left); err != nil {
			return err
		}
	}
	if left.Total() == 0 {
		return nil
	}
	if !asJSON {
		if err := list(stdout, left); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: not in the bucket yet: %s", s.Mountpoint, amount(left))
}

// servingStatus is the status of a mount that answers requests.
func servingStatus(ctx context.Context, mountpoint string) (*Status, error) {
	s, err := statusOf(ctx, mountpoint)
	if err != nil {
		return nil, err
	}
	if s.State != stateServing {
		return nil, fmt.Errorf("%s: its daemon keeps dying; see its log", s.Mountpoint)
	}
	return s, nil
}

// workerWait is how long the next worker may take to answer, after one has died.
const workerWait = 30 * time.Second

// waitSync has the daemon behind a socket sync, and returns what is left. A worker that dies, or is
// upgraded, meanwhile is followed by the next. timeout 0: as long as it takes.
func waitSync(ctx context.Context, socket string, timeout time.Duration, progress func(*fs.Ledger)) (*fs.Ledger, error) {
	began, answered := time.Now(), time.Now()
	for {
		query := url.Values{}
		if timeout > 0 {
			query.Set("timeout", max(timeout-time.Since(began), 0).String())
		}
		last, err := stream(ctx, socket, "/sync", query, func(m *syncMessage) {
			answered = time.Now()
			progress(m.Progress)
		})
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("not waited for: %w", context.Cause(ctx))
		case err != nil && (!errors.Is(err, errBrokenOff) && !errors.Is(err, errNoDaemon) || time.Since(answered) > workerWait):
			return nil, err
		case err != nil: // between two workers
			time.Sleep(50 * time.Millisecond)
			continue
		case last.Error != "":
			return nil, errors.New(last.Error)
		}
		return last.Result, nil
	}
}

// errBrokenOff: an answer ended before its end.
var errBrokenOff = errors.New("its daemon ended before it had answered")

// stream asks for something that takes time, passes progress on, and returns the last message.
func stream(ctx context.Context, socket, path string, query url.Values, progress func(*syncMessage)) (*syncMessage, error) {
	return streamFrom(ctx, socket, path, query, make(chan struct{}), progress)
}

// streamFrom is stream, and closes told when the daemon has begun to answer.
func streamFrom(ctx context.Context, socket, path string, query url.Values, told chan<- struct{}, progress func(*syncMessage)) (*syncMessage, error) {
	resp, err := ask(ctx, socket, http.MethodPost, path, query)
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
			err = errBrokenOff
		}
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	close(told)
	in := json.NewDecoder(resp.Body)
	for {
		var m syncMessage
		if err := in.Decode(&m); err != nil {
			return nil, errBrokenOff
		}
		if m.Result != nil {
			return &m, nil
		}
		if m.Progress != nil {
			progress(&m)
		}
	}
}

// amount says how much a ledger holds.
func amount(l *fs.Ledger) string {
	switch {
	case l.Deletes == 0:
		return fmt.Sprintf("%d files (%s)", l.Files(), humanBytes(l.Bytes))
	case l.Files() == 0:
		return fmt.Sprintf("%d deletions", l.Deletes)
	}
	return fmt.Sprintf("%d files (%s) and %d deletions", l.Files(), humanBytes(l.Bytes), l.Deletes)
}

// list prints the entries of a ledger.
func list(w io.Writer, l *fs.Ledger) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i := range l.Entries {
		e := &l.Entries[i]
		size := humanBytes(e.Bytes)
		if e.Kind != "file" {
			size = e.Kind
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", e.State, size, e.Path, tries(e))
	}
	if more := l.Total() - len(l.Entries); more > 0 {
		fmt.Fprintf(t, "and %d more\n", more)
	}
	return t.Flush()
}

// tries says what came of an entry's tries.
func tries(e *fs.LedgerEntry) string {
	if e.Error == "" || e.State == fs.LedgerHeld {
		return e.Error
	}
	next := ""
	if d := time.Until(e.Next); !e.Next.IsZero() && d > 0 {
		next = fmt.Sprintf(", the next in %v", d.Round(time.Second))
	}
	return fmt.Sprintf("%d tries%s: %s", e.Tries, next, singleLine(errors.New(e.Error)))
}

// progress shows how a sync goes on, in one line of a terminal; elsewhere nothing.
type progress struct {
	w     io.Writer
	shown bool
}

func newProgress(w io.Writer) *progress {
	if f, ok := w.(*os.File); ok {
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err == nil {
			return &progress{w: w}
		}
	}
	return &progress{}
}

func (p *progress) show(l *fs.Ledger) {
	if p.w == nil || l == nil {
		return
	}
	line := amount(l) + " to go"
	if l.Failing+l.DeletesFailing > 0 {
		line += fmt.Sprintf(", %d failing: %s", l.Failing+l.DeletesFailing, singleLine(errors.New(l.FirstError())))
	}
	if len(line) > 100 {
		line = line[:97] + "..."
	}
	p.shown = true
	fmt.Fprintf(p.w, "\r\033[K%s", line)
}

// end takes the line away.
func (p *progress) end() {
	if p.shown {
		fmt.Fprint(p.w, "\r\033[K")
	}
}
