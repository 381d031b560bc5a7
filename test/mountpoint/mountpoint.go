// Package mountpoint runs the leatfs binary for programs that test, measure or demonstrate
// it: mount, status, unmount, and what its processes use of memory and CPU.
package mountpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Options say what to mount.
type Options struct {
	Bin    string // the leatfs binary
	Source string // "s3://BUCKET[/PREFIX]"
	Dir    string // where; made when missing
	Cache  string // --cache-dir; made by leatfs
	Log    string // the daemon's log file
	// Env holds the server's address and keys, as "NAME=value". Other AWS_* variables and
	// configuration files of the machine are not seen by the mount.
	Env  []string
	Args []string // more arguments of "leatfs mount"
}

// Mount is a mounted bucket. Its methods are not for parallel use, except Usage.
type Mount struct {
	Dir string
	opt Options
	bin string // absolute
}

// mountWait is how long "leatfs mount" may take. It is not ended early, also when the caller
// is: it would leave a daemon behind that nobody knows of.
const mountWait = 2 * time.Minute

// Start mounts, and returns when the mount answers.
func Start(ctx context.Context, opt Options) (*Mount, error) {
	bin, err := filepath.Abs(opt.Bin)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(opt.Dir, 0o755); err != nil {
		return nil, err
	}
	m := &Mount{Dir: opt.Dir, opt: opt, bin: bin}
	args := []string{"mount", opt.Source, opt.Dir, "--cache-dir", opt.Cache, "--log-file", opt.Log}
	mctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mountWait)
	defer cancel()
	if _, err := m.run(mctx, append(args, opt.Args...)...); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, errors.Join(ctx.Err(), m.Unmount())
	}
	return m, nil
}

// Unmount unmounts and waits until the daemon has ended. When that does not work, the
// mount is taken away by force, its processes are killed, and the error says why.
func (m *Mount) Unmount() error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	_, err := m.run(ctx, "umount", m.Dir)
	if err == nil {
		return nil
	}
	_ = unix.Unmount(m.Dir, unix.MNT_DETACH)
	for _, pid := range m.pids() {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return err
}

// Status is the part of "leatfs status --json" that is used here.
type Status struct {
	WorkerPID   int  `json:"worker_pid"`
	Passthrough bool `json:"passthrough"`
	Origin      struct {
		Requests map[string]int64 `json:"requests"`
		BytesIn  int64            `json:"bytes_in"`
	} `json:"origin"`
	Cache struct {
		UsedBytes   int64 `json:"used_bytes"`
		BytesOrigin int64 `json:"bytes_origin"`
		Mismatches  int64 `json:"mismatches"`
		WriteErrors int64 `json:"write_errors"`
	} `json:"cache"`
	Memory struct {
		Budget  int64 `json:"budget"`
		Counted int64 `json:"counted"`
	} `json:"memory"`
	Files struct {
		OpensPassthrough int64 `json:"opens_passthrough"`
		OpensDaemon      int64 `json:"opens_daemon"`
		FailedRequests   int64 `json:"failed_requests"`
		// Requests of the kernel, by name ("lookup", "write").
		Requests map[string]int64 `json:"requests"`
	} `json:"files"`
}

// Status asks the daemon.
func (m *Mount) Status(ctx context.Context) (*Status, error) {
	out, err := m.run(ctx, "status", m.Dir, "--json")
	if err != nil {
		return nil, err
	}
	var s Status
	if err := json.Unmarshal(out, &s); err != nil {
		return nil, fmt.Errorf("leatfs status --json: %w in %.200q", err, out)
	}
	return &s, nil
}

// Show is what "leatfs status" prints for people.
func (m *Mount) Show(ctx context.Context) (string, error) {
	out, err := m.run(ctx, "status", m.Dir)
	return string(out), err
}

// Complaints returns the warnings and errors in the daemon's log.
func (m *Mount) Complaints() []string {
	b, err := os.ReadFile(m.opt.Log)
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") || strings.Contains(line, "panic:") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

func (m *Mount) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, m.bin, args...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "AWS_") }),
		"AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null", "AWS_EC2_METADATA_DISABLED=true")
	cmd.Env = append(cmd.Env, m.opt.Env...)
	// A Ctrl-C is for the program that uses this package: it ends the mount in its own order.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && stderr.Len() > 0 {
			return nil, fmt.Errorf("leatfs %s: %s (%w)", args[0], strings.TrimSpace(stderr.String()), err)
		}
		return nil, fmt.Errorf("leatfs %s: %w", args[0], err)
	}
	return stdout.Bytes(), nil
}

// ForgetPages drops a tree's files from the page cache, so that the next read comes from
// the disk. Pages that are being written stay.
func ForgetPages(dir string) error {
	return filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return ignoreGone(err)
		}
		f, err := os.Open(path)
		if err != nil {
			return ignoreGone(err)
		}
		defer func() { _ = f.Close() }()
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
}

// ignoreGone lets a walk go on over what was removed under it.
func ignoreGone(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}
