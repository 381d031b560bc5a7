package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/leatfs/leatfs/test/mountpoint"
)

// million is how many objects there are in the index when a mount is timed. They come from
// a directory (file://) and not from an S3 server, which would take long to fill: for the
// index it is the same.
const million = 1_000_000

const millionDirs = 1000

func (w *world) millionCache() string { return filepath.Join(w.disk, "cache-million") }
func (w *world) millionRoot() string  { return filepath.Join(w.ram, "million") }

func (w *world) millionMount(ctx context.Context) (*mountpoint.Mount, func() error, error) {
	return w.start(ctx, mountpoint.Options{
		Source: "file://" + w.millionRoot(), Cache: w.millionCache(), Env: w.server.Env(),
		Args: append([]string{"--cache-size", "1GiB", "--memory", "512MiB", "--ttl", warmTTL}, w.cfg.mountArgs...),
	})
}

// prepareMillion makes the objects, lists them all through a mount and reads one.
func (w *world) prepareMillion(ctx context.Context) error {
	n := million / w.cfg.scale
	w.cfg.say("make and list %d objects", n)
	for d := range millionDirs {
		dir := filepath.Join(w.millionRoot(), fmt.Sprintf("d%04d", d))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for i := range n / millionDirs {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("o%07d", i)), nil, 0o644); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := os.WriteFile(filepath.Join(w.millionRoot(), "d0500", "first"), make([]byte, 1<<20), 0o644); err != nil {
		return err
	}
	m, unmount, err := w.millionMount(ctx)
	if err != nil {
		return err
	}
	if err = walk(m.Dir); err == nil {
		err = firstByteOf(filepath.Join(m.Dir, "d0500", "first"))
	}
	if uerr := unmount(); err == nil {
		err = uerr
	}
	w.cfg.complain(m.Complaints())
	return err
}

func (w *world) firstByteMillion(ctx context.Context) (s sample, err error) {
	if err := dropCaches(); err != nil {
		return s, err
	}
	start := time.Now()
	m, unmount, err := w.millionMount(ctx)
	if err != nil {
		return s, err
	}
	err = firstByteOf(filepath.Join(m.Dir, "d0500", "first"))
	s.Seconds = time.Since(start).Seconds()
	if uerr := unmount(); err == nil {
		err = uerr
	}
	w.cfg.complain(m.Complaints())
	return s, err
}
