package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// memoryLimit is what all processes of the mount may have, pages of the cache files included; the
// worker alone is told to keep below memoryTold.
const (
	memoryLimit = 320 << 20
	memoryTold  = "--memory=224MiB"
)

// memory is a campaign in a control group with little memory: pages of everything are taken away
// all the time.
func (t *torture) memory(ctx context.Context) error {
	group, err := makeGroup()
	if err != nil {
		fmt.Printf("memory: NOT RUN: %v\n", err)
		return nil
	}
	defer func() { _ = os.Remove(group) }()
	bin, err := filepath.Abs(t.leatfs)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(t.path("memory"), 0o755); err != nil {
		return err
	}
	enter := t.path("memory", "leatfs")
	script := fmt.Sprintf("#!/bin/sh\necho $$ >%s/cgroup.procs && exec %s \"$@\"\n", group, bin)
	if err := os.WriteFile(enter, []byte(script), 0o755); err != nil {
		return err
	}
	n := max(t.kills/5, 1)
	fmt.Printf("memory: %d kills in %v, with %d MiB\n", n, t.duration/5, memoryLimit>>20)
	return t.kill(ctx, "memory", enter, t.duration/5, n, "--cache-size=256MiB", "--ttl=5s", memoryTold)
}

// makeGroup makes a control group with a limit, in whichever hierarchy there is.
func makeGroup() (string, error) {
	var errs []error
	for _, h := range []struct{ dir, limit string }{
		{"/sys/fs/cgroup", "memory.max"},
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
	} {
		group := filepath.Join(h.dir, fmt.Sprintf("leatfs-torture-%d", os.Getpid()))
		if _, err := os.Stat(filepath.Join(h.dir, "cgroup.procs")); err != nil {
			errs = append(errs, err)
			continue
		}
		if err := os.Mkdir(group, 0o755); err != nil {
			errs = append(errs, err)
			continue
		}
		// Without O_CREAT: a group without the controller has no such file.
		f, err := os.OpenFile(filepath.Join(group, h.limit), os.O_WRONLY, 0)
		if err == nil {
			_, err = fmt.Fprint(f, memoryLimit)
			err = errors.Join(err, f.Close())
		}
		if err == nil {
			return group, nil
		}
		errs = append(errs, err, os.Remove(group))
	}
	return "", fmt.Errorf("no control group for memory: %w", errors.Join(errs...))
}
