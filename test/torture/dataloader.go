package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/leatfs/leatfs/test/load"
	"github.com/leatfs/leatfs/test/upload"
)

// dataloader has PyTorch read an ImageFolder with four workers, pixel by pixel compared with what
// was made, while the worker of the mount is killed every two seconds.
func (t *torture) dataloader(ctx context.Context) error {
	if t.python == "" {
		fmt.Println("dataloader: NOT RUN: no -python was given")
		return nil
	}
	script := func(args ...string) error {
		cmd := exec.CommandContext(ctx, t.python, append([]string{filepath.Join(t.scripts, "read_imagefolder.py")}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("read_imagefolder.py %s: %w: %s", args[0], err, out)
		}
		return nil
	}
	local, manifest := t.path("dataloader", "local"), t.path("dataloader", "manifest.json")
	if err := os.MkdirAll(local, 0o755); err != nil {
		return err
	}
	if err := script("generate", local, manifest); err != nil {
		return err
	}
	w, err := t.newWorld(ctx, "dataloader", t.leatfs, load.Data{}, "--cache-size=1GiB")
	if err != nil {
		return err
	}
	defer w.close()
	if _, _, err := upload.Tree(ctx, w.server.Client(), bucket, "", local); err != nil {
		return err
	}
	began := time.Now()
	epochs, kills := 0, 0
	// The first epoch is cold; more follow until some workers were killed.
	for kills < 10 && ctx.Err() == nil {
		done := make(chan error, 1)
		go func() { done <- script("check", w.mount.Dir, manifest) }()
		for running := true; running; {
			select {
			case err := <-done:
				if err != nil {
					return err
				}
				running = false
			case <-time.After(2 * time.Second):
				if _, err := w.kill(false); err != nil {
					return errors.Join(err, <-done)
				}
				kills++
			}
		}
		epochs++
	}
	fmt.Printf("dataloader: %d epochs right, %d kills in %v\n", epochs, kills, time.Since(began).Round(time.Second))
	if err := w.free(); err != nil {
		return err
	}
	return w.finish()
}
