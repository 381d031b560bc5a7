package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/leatfs/leatfs/test/load"
)

// millionDirs is how many directories the objects are in.
const millionDirs = 1000

// million fills the index from a directory, which for the index is like a bucket, and measures
// takeovers.
func (t *torture) million(ctx context.Context) error {
	root := t.path("million", "source")
	per := t.objects / millionDirs
	began := time.Now()
	for d := range millionDirs {
		dir := filepath.Join(root, fmt.Sprintf("d%04d", d))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for i := range per {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("o%07d", i)), nil, 0o644); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	w := &world{t: t, part: "million", cache: t.path("million", "cache")}
	defer w.close()
	if err := w.start(ctx, t.leatfs, "file://"+root, nil, "--cache-size=1GiB", "--ttl=24h"); err != nil {
		return err
	}
	seen := 0
	for d := range millionDirs {
		names, err := os.ReadDir(filepath.Join(w.mount.Dir, fmt.Sprintf("d%04d", d)))
		if err != nil {
			return err
		}
		seen += len(names)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if seen != per*millionDirs {
		t.wrong("million: %d names were listed, not %d", seen, per*millionDirs)
	}
	fmt.Printf("million: %d objects made and listed in %v\n", seen, time.Since(began).Round(time.Second))
	time.Sleep(time.Second) // the index writes in batches
	var answers, lookups []time.Duration
	for i := range 30 {
		k, err := w.kill(true)
		if err != nil {
			return err
		}
		answers = append(answers, k.Answer)
		if _, err := w.kill(false); err != nil {
			return err
		}
		at := time.Now()
		name := filepath.Join(w.mount.Dir, fmt.Sprintf("d%04d/o%07d", (i*37)%millionDirs, (i*7919)%per))
		if _, err := os.Stat(name); err != nil {
			return err
		}
		if _, err := os.Lstat(name + "x"); !os.IsNotExist(err) { // never in the kernel's memory
			return fmt.Errorf("a missing name: %w", err)
		}
		lookups = append(lookups, time.Since(at))
		time.Sleep(200 * time.Millisecond)
	}
	for name, d := range map[string][]time.Duration{"first answer after": answers, "first lookup after": lookups} {
		load.Sorted(d)
		fmt.Printf("  %-22s p50 %s, p99 %s, max %s\n", name, ms(load.Rank(d, 0.5)), ms(load.Rank(d, 0.99)), ms(load.Rank(d, 1)))
	}
	fmt.Printf("  %-22s %.1f MiB resident at most\n", "keeper", float64(w.rss)/(1<<20))
	own, err := w.takeovers()
	if err != nil {
		return err
	}
	fmt.Printf("  %-22s p50 %s, max %s, by the worker's own log\n", "from start to serving", ms(load.Rank(own, 0.5)), ms(load.Rank(own, 1)))
	return w.finish()
}

// takeovers are the times that workers took to go on with the mount, sorted.
func (w *world) takeovers() (out []time.Duration, err error) {
	b, err := os.ReadFile(w.t.path(w.part, "log"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		if _, rest, ok := strings.Cut(line, "goes on with the mount"); ok {
			_, rest, _ = strings.Cut(rest, " after=")
			text, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			d, err := time.ParseDuration(text)
			if err != nil {
				return nil, fmt.Errorf("in the log: %s: %w", line, err)
			}
			out = append(out, d)
		}
	}
	return load.Sorted(out), nil
}
