// Package systemd tests the service as an operator runs it: each test boots a small machine,
// with a real systemd as its first process, in namespaces of its own.
//
// A machine has its own files (an overlay on a tree that tree.sh makes once), processes,
// mounts and control groups. It shares the network with the test, where the S3 server is, and
// the kernel. It ends with the test, whatever state it is in, and with the test's process.
package systemd

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds that only a machine which hangs exceeds.
const (
	bootTime    = 90 * time.Second
	commandTime = 60 * time.Second
	endTime     = 30 * time.Second
)

// machine is a booted machine. Its methods may be called in parallel.
type machine struct {
	t     *testing.T
	pid   int           // its first process
	cache string        // where the test finds its /var/cache/leatfs, also when it has ended
	done  chan struct{} // closed when the machine has ended
	trash *bytes.Buffer // what its first process said; read it after done
}

// boot starts a machine and waits until systemd has started everything, and all of it well.
// Its files are those that prepare writes below a directory, on top of Debian's.
func boot(t *testing.T, prepare func(root string)) *machine {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"upper/etc/systemd/system", "work", "root", "cache"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	upper := filepath.Join(dir, "upper")
	if err := quieten(upper); err != nil {
		t.Fatal(err)
	}
	prepare(upper)
	m := &machine{t: t, cache: filepath.Join(dir, "cache"), done: make(chan struct{}), trash: new(bytes.Buffer)}
	m.start(dir)
	started := time.Now()
	for {
		out, err := m.run("systemctl", "is-system-running")
		state := strings.TrimSpace(out)
		if err == nil {
			t.Logf("booted in %v", time.Since(started).Round(time.Millisecond))
			return m
		}
		select {
		case <-m.done:
			t.Fatalf("the machine ended while it booted; it said:\n%s", m.trash)
		case <-time.After(100 * time.Millisecond):
		}
		if state == "degraded" || time.Since(started) > bootTime {
			failed, _ := m.run("systemctl", "--no-pager", "--failed")
			t.Fatalf("the machine does not boot: %q after %v\n%s", state, time.Since(started), failed)
		}
	}
}

// quieten takes out what has no business in a machine that shares a kernel.
func quieten(root string) error {
	var errs []error
	for _, unit := range []string{
		"systemd-networkd.service", "systemd-networkd.socket", "systemd-logind.service",
		"systemd-sysctl.service", "systemd-modules-load.service", "systemd-remount-fs.service",
		"systemd-journald-audit.socket", "systemd-random-seed.service", "sys-kernel-debug.mount",
		"sys-kernel-tracing.mount", "console-getty.service", "getty.target",
	} {
		errs = append(errs, os.Symlink("/dev/null", filepath.Join(root, "etc/systemd/system", unit)))
	}
	// Without a name of its own a machine would think that it boots for the first time, and
	// enable all that is installed.
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	errs = append(errs, os.WriteFile(filepath.Join(root, "etc/machine-id"), fmt.Appendf(nil, "%x\n", id), 0o444))
	return errors.Join(errs...)
}

// start runs boot.sh. The machine's first process is the child itself, so that killing it
// kills all that runs there.
func (m *machine) start(dir string) {
	m.t.Helper()
	group, cgroup := makeCgroup(m.t)
	cmd := exec.Command("unshare", "--cgroup", "--", "./boot.sh", tree, dir)
	cmd.Stdout, cmd.Stderr = m.trash, m.trash
	cmd.WaitDelay = endTime
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Setsid:     true, UseCgroupFD: true, CgroupFD: int(group.Fd()), Pdeathsig: syscall.SIGKILL,
	}
	started := make(chan error)
	go func() { // ends with the machine; end waits for it
		runtime.LockOSThread() // Pdeathsig is about this thread
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(m.done)
		}
	}()
	err := <-started
	if cerr := group.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		removeCgroup(m.t, cgroup)
		m.t.Fatalf("start the machine: %v", err)
	}
	m.pid = cmd.Process.Pid
	m.t.Cleanup(func() { m.end(cmd.Process, cgroup) })
}

// end kills the machine and checks that nothing of it is left.
func (m *machine) end(init *os.Process, cgroup string) {
	if m.t.Failed() {
		out, _ := m.run("journalctl", "--no-pager", "-n", "80", "-o", "short-precise")
		m.t.Logf("the machine's journal:\n%s", out)
	}
	_ = init.Kill()
	select {
	case <-m.done:
	case <-time.After(endTime):
		m.t.Errorf("the machine did not end within %v of being killed", endTime)
		return
	}
	removeCgroup(m.t, cgroup)
}

var machines atomic.Int64 // numbers the control groups of this process

// makeCgroup makes a control group under that of the test.
func makeCgroup(t *testing.T) (dir *os.File, path string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		left, right, _ := strings.Cut(line, " - ")
		if f := strings.Fields(left); len(f) > 4 && strings.HasPrefix(right, "cgroup2 ") {
			path = f[4]
		}
	}
	if path == "" {
		t.Fatal("these tests need the second version of control groups: mount -t cgroup2 cgroup2 /sys/fs/cgroup")
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(own)) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			path = filepath.Join(path, p)
		}
	}
	path = filepath.Join(path, fmt.Sprintf("leatfs-test-%d-%d", os.Getpid(), machines.Add(1)))
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if dir, err = os.Open(path); err != nil {
		t.Fatal(err)
	}
	return dir, path
}

// removeCgroup removes a control group and those in it. That they are empty is the proof that
// no process is left; the last may take a moment.
func removeCgroup(t *testing.T, path string) {
	t.Helper()
	deadline := time.Now().Add(endTime)
	for {
		var dirs []string
		_ = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- {
			_ = os.Remove(dirs[i])
		}
		_, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("processes of the machine are left in %s", path)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// run runs a command in the machine and returns what it printed, errors included.
func (m *machine) run(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	all := []string{"--target", strconv.Itoa(m.pid), "--mount", "--uts", "--ipc", "--pid", "--cgroup", "--root", "--wd", "--",
		"env", "-i", "PATH=/usr/sbin:/usr/bin", "LANG=C.UTF-8", name}
	cmd := exec.CommandContext(ctx, "nsenter", append(all, args...)...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("no end within %v: %w", commandTime, err)
	}
	return string(out), err
}

// must is run of a command that has to succeed.
func (m *machine) must(name string, args ...string) string {
	m.t.Helper()
	out, err := m.run(name, args...)
	if err != nil {
		m.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// path is where the test finds a file of the machine.
func (m *machine) path(name string) string {
	return filepath.Join("/proc", strconv.Itoa(m.pid), "root", name)
}

// property is a property of a unit, as systemd tells it.
func (m *machine) property(unit, name string) string {
	m.t.Helper()
	return strings.TrimSpace(m.must("systemctl", "show", "-P", name, unit))
}

// journal is what a unit and systemd about it have written.
func (m *machine) journal(unit string) string {
	m.t.Helper()
	return m.must("journalctl", "--no-pager", "-o", "short-precise", "-u", unit)
}

// eventually waits until f says yes.
func (m *machine) eventually(what string, f func() bool) {
	m.t.Helper()
	for deadline := time.Now().Add(commandTime); !f(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatalf("not within %v: %s", commandTime, what)
		}
	}
}

// mountLine is the line of /proc/PID/mountinfo of a mount of leatfs, up to where it may change
// ("ID PARENT MAJOR:MINOR"); empty when it is not mounted.
func (m *machine) mountLine(mountpoint string) string {
	m.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", m.pid))
	if err != nil {
		m.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); f[4] == mountpoint && strings.Contains(line, " - fuse.leatfs ") {
			return strings.Join(f[:3], " ")
		}
	}
	return ""
}
