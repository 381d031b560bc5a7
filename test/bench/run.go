package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// config is the command line of "bench run".
type config struct {
	leatfs, dir, serverDir string

	only      []string
	mountArgs []string
	cacheSize string
	jsonPath  string
	rounds    int
	median    bool
	scale     int // all sizes are divided by it
	firstByte time.Duration
	perConn   int64

	progress   io.Writer
	complaints []string
}

// say tells what is going on.
func (c *config) say(format string, args ...any) {
	fmt.Fprintf(c.progress, "bench: "+format+"\n", args...)
}

// complain keeps what a daemon's log held of warnings, for the report.
func (c *config) complain(lines []string) { c.complaints = append(c.complaints, lines...) }

func parse(args []string) (*config, bool, error) {
	c := &config{progress: os.Stderr, scale: 1}
	var only, mountArgs string
	var quick, list bool
	fs := flag.NewFlagSet("bench run", flag.ContinueOnError)
	fs.StringVar(&c.leatfs, "leatfs", "bin/leatfs", "the `binary` to measure")
	fs.StringVar(&c.dir, "dir", "/var/tmp", "`directory` on the disk under test: caches, copies and downloads")
	fs.StringVar(&c.serverDir, "server-dir", "/dev/shm", "`directory` of the S3 server's data, not on that disk")
	fs.StringVar(&only, "only", "", "only the works whose names begin with one of these, separated by commas")
	fs.StringVar(&mountArgs, "mount-args", "", "more arguments for every \"leatfs mount\", separated by spaces")
	fs.StringVar(&c.cacheSize, "cache-size", "20GiB", "--cache-size of every mount")
	fs.StringVar(&c.jsonPath, "json", "", "write the results to this `file` too")
	fs.IntVar(&c.rounds, "rounds", 3, "how often each side is measured; the best counts")
	fs.BoolVar(&c.median, "median", false, "the median of the rounds counts, not the best: for a machine that is busy with other work")
	fs.BoolVar(&quick, "quick", false, "an eighth of the size and two rounds: to see that it works, not for figures")
	fs.BoolVar(&list, "list", false, "list the works and do nothing")
	fs.DurationVar(&c.firstByte, "first-byte", 20*time.Millisecond, "the link's time to the first byte")
	perConn := fs.String("per-conn", "90MB", "the link's `bytes` per second on one connection, 0 for no limit")
	if err := fs.Parse(args); err != nil {
		return nil, false, err
	}
	n, err := humanize.ParseBytes(*perConn)
	if err != nil {
		return nil, false, fmt.Errorf("-per-conn: %w", err)
	}
	c.perConn = int64(n)
	if only != "" {
		c.only = strings.Split(only, ",")
	}
	c.mountArgs = strings.Fields(mountArgs)
	if quick {
		c.scale, c.rounds = 8, min(c.rounds, 2)
	}
	if c.rounds < 1 {
		return nil, false, errors.New("-rounds must be at least 1")
	}
	if c.leatfs, err = filepath.Abs(c.leatfs); err != nil {
		return nil, false, err
	}
	return c, list, nil
}

func (c *config) wants(name string) bool {
	for _, o := range c.only {
		if strings.HasPrefix(name, o) {
			return true
		}
	}
	return len(c.only) == 0
}

func runBench(ctx context.Context, args []string, out io.Writer) error {
	c, list, err := parse(args)
	if err != nil {
		return err
	}
	if list {
		for _, k := range (&world{cfg: c}).works() {
			fmt.Fprintf(out, "%-16s %s\n", k.name, k.title)
		}
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("it mounts and drops the page cache: run it as root")
	}
	w, err := newWorld(ctx, c)
	if err != nil {
		return err
	}
	defer w.close()

	rep := newReport(ctx, c)
	for _, k := range w.works() {
		if !c.wants(k.name) {
			continue
		}
		row, err := w.measure(ctx, k)
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		if err != nil {
			row.Error = err.Error()
			c.say("%s: %v", k.name, err)
		}
		rep.Works = append(rep.Works, row)
	}
	w.closeWarm()
	rep.Memory = w.peak.Load()
	rep.MappedFiles = w.peakFile.Load()
	rep.Complaints = c.complaints
	if c.jsonPath != "" {
		if err := rep.writeJSON(c.jsonPath); err != nil {
			return err
		}
	}
	if err := rep.table(out); err != nil {
		return err
	}
	return rep.failed()
}

// measure does a work: both sides by turns, the first turn changing sides too.
func (w *world) measure(ctx context.Context, k work) (row Row, err error) {
	row = Row{Name: k.name, Title: k.title, Unit: k.unit, Goal: k.goal}
	if k.prepare != nil {
		if err := k.prepare(ctx); err != nil {
			return row, fmt.Errorf("prepare: %w", err)
		}
	}
	for round := range w.cfg.rounds {
		sides := []struct {
			name string
			f    func(context.Context) (sample, error)
			to   *Side
		}{{"limit", k.limit, &row.Limit}, {"leatfs", k.ours, &row.Ours}}
		if round%2 == 1 {
			sides[0], sides[1] = sides[1], sides[0]
		}
		for _, side := range sides {
			if side.f == nil {
				continue
			}
			s, err := side.f(ctx)
			if err != nil {
				return row, fmt.Errorf("%s: %w", side.name, err)
			}
			side.to.add(s, k.unit)
			w.cfg.say("%-15s %-6s %s  (CPU %.2f s)", k.name, side.name, format(s.value(k.unit), k.unit), s.CPU)
		}
	}
	if w.cfg.median {
		row.Ours.median(k.unit)
		row.Limit.median(k.unit)
	}
	row.judge()
	return row, nil
}
