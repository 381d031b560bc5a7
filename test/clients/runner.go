package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/leatfs/leatfs/test/load"
	"github.com/leatfs/leatfs/test/mountpoint"
	"github.com/leatfs/leatfs/test/s3test"
	"github.com/leatfs/leatfs/test/upload"
)

// runner runs one client through all its phases.
type runner struct {
	*config
	name   string
	server *s3test.Server
	work   string // a directory of its own

	phases []phase // those that were begun
}

type phase struct {
	name string
	took time.Duration
}

func (r *runner) run(ctx context.Context) error {
	data := mustDir(r.work, "data")
	manifest := filepath.Join(r.work, "manifest.json")
	err := r.timed("generate", func() error { return r.script(ctx, "generate", data, manifest) })
	if err != nil {
		return err
	}
	bucket := "client-" + r.name
	if err := r.server.CreateBucket(ctx, bucket); err != nil {
		return err
	}
	err = r.timed("upload", func() error {
		_, _, err := upload.Tree(ctx, r.server.Client(), bucket, "data/", data)
		return err
	})
	if err != nil {
		return err
	}
	// What a client should have read through the mount must not be found elsewhere.
	if err := os.RemoveAll(data); err != nil {
		return err
	}

	source := "s3://" + bucket + "/data"
	err = r.mounted(ctx, source, "cache", nil, func(m *mountpoint.Mount) error {
		if err := r.check(ctx, "cold", m, manifest); err != nil {
			return err
		}
		if err := mountpoint.ForgetPages(filepath.Join(r.work, "cache")); err != nil {
			return err
		}
		return r.check(ctx, "warm", m, manifest)
	})
	if err != nil {
		return err
	}
	err = r.mounted(ctx, source, "cache", nil, func(m *mountpoint.Mount) error {
		if err := r.check(ctx, "remounted", m, manifest); err != nil {
			return err
		}
		s, err := m.Status(ctx)
		if err == nil && s.Origin.Requests["GET"] != 0 {
			err = fmt.Errorf("remounted: %d GETs of %d bytes, though everything was in the cache",
				s.Origin.Requests["GET"], s.Origin.BytesIn)
		}
		return err
	})
	if err != nil {
		return err
	}
	err = r.mounted(ctx, source, "cache-daemon", []string{"--passthrough=off"}, func(m *mountpoint.Mount) error {
		if err := r.check(ctx, "daemon", m, manifest); err != nil {
			return err
		}
		s, err := m.Status(ctx)
		if err == nil && s.Files.OpensPassthrough != 0 {
			err = fmt.Errorf("daemon: %d opens by passthrough, with --passthrough=off", s.Files.OpensPassthrough)
		}
		return err
	})
	if err != nil || !slices.Contains(killedClients, r.name) {
		return err
	}
	return r.mounted(ctx, source, "cache-killed", nil, func(m *mountpoint.Mount) error { return r.killed(ctx, m, manifest) })
}

// killedClients are those that also run while the mount's process is killed: PyTorch's DataLoader,
// whose workers are forked with files of the mount open. make torture does more of it.
var killedClients = []string{"imagefolder"}

// killEvery is the time between kills.
const killEvery = 2 * time.Second

// killed checks, from an empty cache, while the process that serves the mount is killed again and
// again.
func (r *runner) killed(ctx context.Context, m *mountpoint.Mount, manifest string) error {
	before, err := m.Status(ctx)
	if err != nil {
		return err
	}
	keeper, err := load.Keeper(before.WorkerPID)
	if err != nil {
		return err
	}
	done, kills := make(chan struct{}), make(chan error, 1)
	go func() {
		t := time.NewTicker(killEvery)
		defer t.Stop()
		for {
			select {
			case <-done:
				kills <- nil
				return
			case <-t.C:
				if _, err := load.KillWorker(keeper, m.Dir, false); err != nil {
					kills <- err
					return
				}
			}
		}
	}()
	err = r.check(ctx, "killed", m, manifest)
	close(done)
	if err = errors.Join(err, <-kills); err != nil {
		return err
	}
	after, err := m.Status(ctx)
	if err == nil && after.WorkerPID == before.WorkerPID {
		err = fmt.Errorf("killed: the check was over before the first kill, after %v", killEvery)
	}
	return err
}

// mounted calls f with the bucket mounted, and unmounts whatever f says.
func (r *runner) mounted(ctx context.Context, source, cache string, args []string, f func(*mountpoint.Mount) error) (err error) {
	m, err := mountpoint.Start(ctx, mountpoint.Options{
		Bin: r.leatfs, Source: source, Dir: filepath.Join(r.work, "mnt"), Cache: filepath.Join(r.work, cache),
		Log: filepath.Join(r.work, cache+".log"), Env: r.server.Env(),
		Args: append([]string{"--cache-size", "8GiB", "--memory", "512MiB"}, args...),
	})
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, m.Unmount())
		if c := m.Complaints(); err == nil && len(c) > 0 {
			err = fmt.Errorf("the daemon complained %d times, first: %s", len(c), c[0])
		}
	}()
	return f(m)
}

// check runs the script on the mount and looks at the daemon afterwards.
func (r *runner) check(ctx context.Context, name string, m *mountpoint.Mount, manifest string) error {
	err := r.timed(name, func() error { return r.script(ctx, "check", m.Dir, manifest) })
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	s, err := m.Status(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if s.Cache.Mismatches != 0 {
		return fmt.Errorf("%s: %d objects did not have the checksum that the bucket told", name, s.Cache.Mismatches)
	}
	if s.Memory.Counted > s.Memory.Budget {
		return fmt.Errorf("%s: the daemon uses %d MiB of memory, its budget is %d MiB", name, s.Memory.Counted>>20, s.Memory.Budget>>20)
	}
	return nil
}

// script runs the client's script. Its output goes to a log; an error quotes the end of it.
func (r *runner) script(ctx context.Context, mode, dir, manifest string) error {
	return r.execute(ctx, []string{"PYTHONDONTWRITEBYTECODE=1"}, filepath.Join(r.scripts, "read_"+r.name+".py"), mode, dir, manifest)
}

// execute runs Python with more environment than there is, without that of AWS. What it prints
// goes to a log that is named after the phase.
func (r *runner) execute(ctx context.Context, env []string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.python, args...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "AWS_") }),
		"TMPDIR="+mustDir(r.work, "tmp"))
	cmd.Env = append(cmd.Env, env...)
	// Clients start processes of their own: a client that hangs ends with all of them.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	log := filepath.Join(r.work, fmt.Sprintf("%d-%s.log", len(r.phases), r.phases[len(r.phases)-1].name))
	if werr := appendTo(log, out); werr != nil {
		return werr
	}
	switch {
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("not done after %v (%s):\n%s", r.limit, log, tail(out, 12))
	case err != nil:
		return fmt.Errorf("%w (%s):\n%s", err, log, tail(out, 12))
	}
	return nil
}

func appendTo(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

func (r *runner) timed(name string, f func() error) error {
	r.phases = append(r.phases, phase{name: name})
	start := time.Now()
	err := f()
	r.phases[len(r.phases)-1].took = time.Since(start)
	return err
}

func (r *runner) times() string {
	var b strings.Builder
	for _, p := range r.phases {
		fmt.Fprintf(&b, "%s %.1f s  ", p.name, p.took.Seconds())
	}
	return strings.TrimSpace(b.String())
}

// tail is the last n lines.
func tail(out []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
