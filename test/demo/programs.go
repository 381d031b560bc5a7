package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// epoch is a line of train.py.
type epoch struct {
	Samples int     `json:"samples"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
	Saved   int64   `json:"saved"`  // bytes of the checkpoint, if one was written after it
	Saving  float64 `json:"saving"` // seconds
}

// command is a program that ends with this one, its children too.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}

// script runs a Python script to its end.
func (d *demo) script(ctx context.Context, name string, args ...string) error {
	cmd := command(ctx, d.python, append([]string{filepath.Join(d.scripts, name)}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

// download is the time the SDK takes for a data set, with nothing else done than to store
// the bytes: ranges of 8 MiB, or whole objects where they are small.
func (d *demo) download(ctx context.Context, s *dataset) (time.Duration, error) {
	var keys []string
	root := filepath.Join(d.path("local"), s.dir)
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			rel, rerr := filepath.Rel(root, path)
			keys = append(keys, s.dir+"/"+filepath.ToSlash(rel))
			return rerr
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	out := d.path("download")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(out) }()
	args := append([]string{"sdk-get", "-bucket", bucket, "-out", out, "-inflight", "32"}, keys...)
	if s.size/int64(len(keys)) < 1<<20 {
		list := d.path("keys")
		if err := os.WriteFile(list, []byte(strings.Join(keys, "\n")+"\n"), 0o644); err != nil {
			return 0, err
		}
		args = []string{"sdk-objects", "-bucket", bucket, "-out", out, "-inflight", "64", "-list", list}
	}
	cmd := command(ctx, d.bench, args...)
	cmd.Env = append(cmd.Env, d.server.Env()...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("%s: %w: %s", args[0], err, &stderr)
	}
	var res struct{ Bytes, Start, End int64 }
	if err := json.Unmarshal(stdout.Bytes(), &res); err != nil {
		return 0, fmt.Errorf("%s: %w", args[0], err)
	}
	if res.Bytes != s.size {
		return 0, fmt.Errorf("%s: got %d bytes of %d", args[0], res.Bytes, s.size)
	}
	return time.Duration(res.End - res.Start), nil
}

// train runs epochs of train.py. The page cache is dropped before each. more are further arguments.
func (d *demo) train(ctx context.Context, s *dataset, root string, epochs int, more ...string) (es []epoch, err error) {
	args := append([]string{filepath.Join(d.scripts, "train.py"), s.kind, root, fmt.Sprint(epochs)}, more...)
	cmd := command(ctx, d.python, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && err == nil {
		if lines.Text() == "ready" {
			dropCaches()
			_, err = io.WriteString(in, "go\n")
			continue
		}
		var e epoch
		if err = json.Unmarshal(lines.Bytes(), &e); err != nil {
			err = fmt.Errorf("train.py said %q", lines.Text())
		}
		es = append(es, e)
	}
	if werr := cmd.Wait(); werr != nil {
		err = fmt.Errorf("train.py %s: %w\n%s", s.kind, werr, &stderr)
	}
	if err == nil && len(es) != epochs {
		err = errors.New("train.py ended early")
	}
	for _, e := range es {
		if err == nil && e.Samples == 0 {
			err = fmt.Errorf("train.py read nothing from %s", root)
		}
	}
	return es, err
}
