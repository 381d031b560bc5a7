package systemd

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// maxExposure is what "systemd-analyze security" may find, in tenths of its scale of ten. Most
// of it is what a file system for everybody cannot do without: root, mounting, the network, the
// host's files.
const maxExposure = 45

func TestUnitFile(t *testing.T) {
	w := newWorld(t)
	m := boot(t, func(root string) { w.install(root) })
	if out := m.must("systemd-analyze", "verify", unit); out != "" {
		t.Errorf("systemd-analyze verify says:\n%s", out)
	}
	out, err := m.run("systemd-analyze", "security", "--no-pager", fmt.Sprintf("--threshold=%d", maxExposure), unit)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	t.Log(lines[len(lines)-1])
	if err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}

func TestStartAndStop(t *testing.T) {
	w := newWorld(t)
	m := w.service()
	if m.mountLine(mountpoint) == "" {
		t.Fatalf("started, but %s is not mounted:\n%s", mountpoint, m.journal(unit))
	}
	w.check(m, mountpoint) // fetches
	w.check(m, mountpoint)
	s := m.status(mountpoint)
	if !s.Passthrough || s.Files.OpensPass == 0 {
		t.Errorf("the sandbox takes passthrough away: %+v", s)
	}
	if text := m.property(unit, "StatusText"); text == "" {
		t.Errorf("systemctl status has nothing to show:\n%s", m.must("systemctl", "status", "--no-pager", unit))
	} else {
		t.Logf("status: %s", text)
	}
	if j := m.journal(unit); !strings.Contains(j, "msg=mounted") {
		t.Errorf("the journal does not have the log:\n%s", j)
	}
	m.wantScore(m.mainPID(), -1000) // the keeper exempts itself
	m.wantScore(s.WorkerPID, -500)  // the worker has what the unit says
	if out := m.must("stat", "-c", "%a %U", "/run/leatfs"); out != "700 root\n" {
		t.Errorf("/run/leatfs is open to others: %s", out)
	}

	m.must("systemctl", "stop", unit)
	if r := m.property(unit, "Result"); r != "success" {
		t.Errorf("stopped with result %q:\n%s", r, m.journal(unit))
	}
	m.nothingLeft(mountpoint)

	// Again, in the place that the first left.
	m.must("systemctl", "start", unit)
	w.check(m, mountpoint)
}

// wantScore checks how the kernel would choose a process when memory runs out. Where the test
// itself may not lower it, neither may the machine, and it stays what it was.
func (m *machine) wantScore(pid, want int) {
	m.t.Helper()
	if b, err := os.ReadFile("/proc/self/oom_score_adj"); err != nil {
		m.t.Error(err)
	} else if !m.mayLowerScore() {
		m.t.Log("no CAP_SYS_RESOURCE here: OOMScoreAdjust= has no effect, which is what is checked")
		want, _ = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	name := fmt.Sprintf("/proc/%d/oom_score_adj", pid)
	if got := strings.TrimSpace(m.must("cat", name)); got != strconv.Itoa(want) {
		m.t.Errorf("%s is %s, want %d", name, got, want)
	}
}

// mayLowerScore tells whether the machine has CAP_SYS_RESOURCE.
func (m *machine) mayLowerScore() bool {
	m.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.pid))
	if err != nil {
		m.t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "CapBnd:")
	text, _, _ = strings.Cut(text, "\n")
	caps, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
	if err != nil {
		m.t.Fatal(err)
	}
	return caps&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// An operator's own unmount is an end, not a failure to mend.
func TestUnmountEndsService(t *testing.T) {
	w := newWorld(t)
	m := w.service()
	m.must("leatfs", "umount", mountpoint)
	m.eventually("the service is inactive", func() bool { return m.property(unit, "ActiveState") == "inactive" })
	if n := m.restarts(); n != 0 {
		t.Errorf("it was restarted %d times", n)
	}
	m.nothingLeft(mountpoint)
}

// A mount in use does not hold up a stop for longer than the unit says.
func TestStopWhileInUse(t *testing.T) {
	const bound = 6 * time.Second
	w := newWorld(t)
	m := w.service(fmt.Sprintf("TimeoutStopSec=%v", bound))
	f, err := os.Open(m.path(mountpoint + "/" + big))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	start := time.Now()
	if out, err := m.run("systemctl", "stop", unit); err != nil {
		t.Errorf("stop: %v\n%s", err, out)
	}
	took := time.Since(start)
	t.Logf("stopped in %v, result %s", took.Round(time.Millisecond), m.property(unit, "Result"))
	if took > bound+endTime {
		t.Errorf("the stop took %v, the bound is %v", took, bound)
	}
	if j := m.journal(unit); !strings.Contains(j, "in use") {
		t.Errorf("the journal does not say that the mount was in use:\n%s", j)
	}
	if m.property(unit, "Result") != "timeout" { // else it was killed, and the next start clears up
		m.nothingLeft(mountpoint)
	}
	m.notServed(mountpoint)

	// What was left behind does not keep the next one from starting.
	m.must("systemctl", "start", unit)
	w.check(m, mountpoint)
}

// Who does not want to wait for the users of a mount tells the keeper a second time.
func TestStopTwice(t *testing.T) {
	w := newWorld(t)
	m := w.service()
	f, err := os.Open(m.path(mountpoint + "/" + big))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m.must("systemctl", "stop", "--no-block", unit)
	m.eventually("the mount is out of sight", func() bool { return m.mountLine(mountpoint) == "" })
	if err := at(f, w.files[big], 1<<20); err != nil {
		t.Errorf("while the stop waits for it, the file cannot be read: %v", err)
	}
	m.must("systemctl", "kill", "--kill-who=main", "--signal=TERM", unit)
	m.eventually("it has stopped", func() bool { return m.property(unit, "ActiveState") == "inactive" })
	m.nothingLeft(mountpoint)
}

// At shutdown what comes after remote-fs.target, as everything that uses the mount should, ends
// before it: the mount serves it to its last moment.
func TestShutdown(t *testing.T) {
	w := newWorld(t)
	m := boot(t, func(root string) {
		w.install(root)
		w.enable(root)
		w.write(root, "etc/job", "trap 'sleep 2; cat "+mountpoint+"/d2/file3 >/var/cache/leatfs/last; exit' TERM",
			"echo running >/run/job", "while :; do sleep 0.1; done")
	})
	m.must("systemd-run", "--unit=job", "--property=After=remote-fs.target", "sh", "/etc/job")
	m.eventually("the job runs", func() bool { _, err := os.Stat(m.path("/run/job")); return err == nil })
	start := time.Now()
	_, _ = m.run("systemctl", "poweroff") // may be cut off by what it does
	select {
	case <-m.done:
		t.Logf("shut down in %v", time.Since(start).Round(time.Millisecond))
	case <-time.After(commandTime): // the stop of a mount in use takes 75 s
		t.Errorf("the machine is not down after %v", commandTime)
	}
	got, err := os.ReadFile(filepath.Join(m.cache, "last"))
	if err != nil || !bytes.Equal(got, w.files["d2/file3"]) {
		t.Errorf("the last that was read while the machine shut down: %d bytes, %v", len(got), err)
	}
}

// A mistake in the configuration is told once, in a line, and not tried again.
func TestMistakeInConfiguration(t *testing.T) {
	w := newWorld(t)
	m := boot(t, func(root string) {
		w.install(root)
		w.write(root, "etc/leatfs/data.yaml", "source: s3://"+w.bucket, "mountpiont: "+mountpoint)
	})
	if out, err := m.run("systemctl", "start", unit); err == nil {
		t.Errorf("it started: %s", out)
	}
	if s := m.property(unit, "ActiveState"); s != "failed" {
		t.Errorf("the service is %s, want failed", s)
	}
	if j := m.journal(unit); strings.Count(j, `there is no option "mountpiont"`) != 1 {
		t.Errorf("the journal does not say once what is wrong:\n%s", j)
	}
	m.nothingLeft(mountpoint)
}

// A bucket that cannot be reached is tried again until it can, more often than systemd would
// by itself (five times).
func TestBucketComesLater(t *testing.T) {
	w := newWorld(t)
	m := boot(t, func(root string) { w.install(root, "RestartSec=100ms") })
	w.server.Stop()
	if out, err := m.run("systemctl", "start", unit); err == nil {
		t.Errorf("it started: %s", out)
	}
	m.eventually("it was tried seven times", func() bool { return m.restarts() >= 7 })
	if err := w.server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.eventually("it is active", func() bool { return m.property(unit, "ActiveState") == "active" })
	w.check(m, mountpoint)
}

// restarts is how often systemd has restarted the service.
func (m *machine) restarts() int {
	m.t.Helper()
	n, err := strconv.Atoi(m.property(unit, "NRestarts"))
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}
