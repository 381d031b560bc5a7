package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/test/mountpoint"
)

// warmth is a mount whose cache holds the sets that warm works read. It lives from the
// first of them to the end of the run.
type warmth struct {
	m       *mountpoint.Mount
	unmount func() error
	cache   string
	filled  map[string]bool
}

// warmTTL keeps the bucket out of warm works: what they measure is reading, and ext4, with
// which they are compared, has nobody to ask.
const warmTTL = "1h"

// warmUp puts a set into the cache of the warm mount, and waits until all of it is there.
func (w *world) warmUp(ctx context.Context, set string) error {
	if err := w.fill(ctx, set); err != nil {
		return err
	}
	if w.warm == nil {
		if err := w.startWarm(ctx, w.fresh("cache")); err != nil {
			return err
		}
	}
	if w.warm.filled[set] {
		return nil
	}
	w.cfg.say("fill the cache: %s", set)
	root := filepath.Join(w.warm.m.Dir, set)
	if set == "names" { // listed and statted; one file is read
		if _, err := w.ls(ctx, root); err != nil {
			return err
		}
		keys, _ := w.set(set)
		if _, err := os.ReadFile(filepath.Join(w.warm.m.Dir, keys[0])); err != nil {
			return err
		}
		w.warm.filled[set] = true
		return nil
	}
	list, err := w.list(set)
	if err != nil {
		return err
	}
	// A file that is opened while it is not yet whole is served by the daemon.
	for try := range 100 {
		before, err := w.warm.m.Status(ctx)
		if err != nil {
			return err
		}
		if _, err := w.programs(ctx, nil, []string{"read-files", "-root", root, "-list", list, "-threads", "8"}); err != nil {
			return err
		}
		after, err := w.warm.m.Status(ctx)
		if err != nil {
			return err
		}
		if !after.Passthrough && try > 0 || after.Files.OpensDaemon == before.Files.OpensDaemon {
			w.warm.filled[set] = true
			return w.verify(ctx, set)
		}
		time.Sleep(200 * time.Millisecond)
	}
	return fmt.Errorf("the cache does not become complete: files of %s are still read through the daemon", set)
}

// verify compares what the mount gives with what was put into the bucket.
func (w *world) verify(ctx context.Context, set string) error {
	keys, sizes := w.set(set)
	got, want := make([]byte, 1<<20), make([]byte, 1<<20)
	for i, key := range keys {
		f, err := os.Open(filepath.Join(w.warm.m.Dir, key))
		if err != nil {
			return err
		}
		source := w.content(i, sizes[i])
		for off := int64(0); off < sizes[i] && err == nil; off += int64(len(got)) {
			n := min(int64(len(got)), sizes[i]-off)
			_, err = io.ReadFull(f, got[:n])
			if _, serr := io.ReadFull(source, want[:n]); err == nil {
				err = serr
			}
			if err == nil && !bytes.Equal(got[:n], want[:n]) {
				err = fmt.Errorf("wrong bytes in %s after offset %d", key, off)
			}
		}
		if err := errors.Join(err, f.Close(), ctx.Err()); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) startWarm(ctx context.Context, cache string) error {
	m, unmount, err := w.mount(ctx, w.wide, cache, "--ttl", warmTTL)
	if err != nil {
		return err
	}
	filled := map[string]bool{}
	if w.warm != nil {
		filled = w.warm.filled
	}
	w.warm = &warmth{m: m, unmount: unmount, cache: cache, filled: filled}
	return nil
}

func (w *world) closeWarm() {
	if w.warm == nil || w.warm.m == nil {
		return
	}
	if err := w.warm.unmount(); err != nil {
		w.cfg.complain([]string{err.Error()})
	}
	w.cfg.complain(w.warm.m.Complaints())
	w.warm.m = nil
}

// both prepares a set in the warm mount and as plain files on the same disk.
func (w *world) both(set string) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := w.warmUp(ctx, set); err != nil {
			return err
		}
		_, err := w.copyOf(set)
		return err
	}
}

// onPlain runs a reader on the plain files; onMount on the mount. Hot: it has run before.
func (w *world) onPlain(hot bool, set string, args []string) func(context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		root, err := w.copyOf(set)
		if err != nil {
			return sample{}, err
		}
		return w.read(ctx, hot, root, set, args)
	}
}

func (w *world) onMount(hot bool, set string, args []string) func(context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		m := w.warm.m
		before, err := m.Status(ctx)
		if err != nil {
			return sample{}, err
		}
		s, err := w.read(ctx, hot, m.Dir, set, args)
		if err != nil {
			return s, err
		}
		after, err := m.Status(ctx)
		if err == nil {
			s.DaemonOpens = after.Files.OpensDaemon - before.Files.OpensDaemon
		}
		return s, err
	}
}

// read runs a reader on a set below root: after dropping the page cache, or (hot) after
// filling it.
func (w *world) read(ctx context.Context, hot bool, root, set string, args []string) (sample, error) {
	keys, _ := w.set(set)
	var all []string
	if args[0] == "read-files" {
		list, err := w.list(set)
		if err != nil {
			return sample{}, err
		}
		all = append(append(all, args...), "-root", filepath.Join(root, set), "-list", list)
	} else {
		all = append(append(all, args...), filepath.Join(root, keys[0]))
	}
	if err := dropCaches(); err != nil {
		return sample{}, err
	}
	if hot { // filled by reading, so that both sides have pages of the same size
		if _, err := w.programs(ctx, nil, []string{"read-seq", filepath.Join(root, keys[0])}); err != nil {
			return sample{}, err
		}
	}
	run := func() (sample, error) { return w.programs(ctx, nil, all) }
	if w.warm != nil && root == w.warm.m.Dir {
		return w.watched(w.warm.m, w.wide, run)
	}
	return run()
}

// plainList and warmList are the second of two "ls -l".
func (w *world) plainList(ctx context.Context) (sample, error) {
	root, err := w.copyOf("names")
	if err != nil {
		return sample{}, err
	}
	return w.secondList(ctx, filepath.Join(root, "names"))
}

func (w *world) warmList(ctx context.Context) (sample, error) {
	return w.watched(w.warm.m, w.wide, func() (sample, error) {
		return w.secondList(ctx, filepath.Join(w.warm.m.Dir, "names"))
	})
}

func (w *world) secondList(ctx context.Context, dir string) (sample, error) {
	if _, err := w.ls(ctx, dir); err != nil {
		return sample{}, err
	}
	return w.ls(ctx, dir)
}

// firstByte mounts again what the warm mount had, and reads one byte of a cached file.
func (w *world) firstByte(ctx context.Context) (s sample, err error) {
	cache := w.warm.cache
	w.closeWarm()
	if err := dropCaches(); err != nil {
		return s, err
	}
	keys, _ := w.set("names")
	start := time.Now()
	if err := w.startWarm(ctx, cache); err != nil {
		return s, err
	}
	if err := firstByteOf(filepath.Join(w.warm.m.Dir, keys[0])); err != nil {
		return s, err
	}
	return sample{Seconds: time.Since(start).Seconds()}, nil
}

func firstByteOf(path string) error {
	fd, err := openFile(path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	n, err := retry(func() (int, error) { return unix.Pread(fd, make([]byte, 1), 0) })
	if err == nil && n != 1 {
		err = errors.New("it is empty")
	}
	if err != nil {
		err = fmt.Errorf("first byte of %s: %w", path, err)
	}
	return errors.Join(err, unix.Close(fd))
}
