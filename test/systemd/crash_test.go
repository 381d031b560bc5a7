package systemd

import (
	"os"
	"strconv"
	"testing"
)

// kill sends a signal to a process of the machine.
func (m *machine) kill(signal string, pid int) {
	m.t.Helper()
	m.must("kill", "-s", signal, strconv.Itoa(pid))
}

// recovers waits until systemd has restarted the service n times in all and it answers.
func (m *machine) recovers(n int) {
	m.t.Helper()
	m.eventually("systemd restarts the service", func() bool {
		return m.restarts() >= n && m.property(unit, "ActiveState") == "active"
	})
	if got := m.restarts(); got != n {
		m.t.Errorf("systemd has restarted the service %d times, want %d:\n%s", got, n, m.journal(unit))
	}
	m.status(mountpoint)
}

func TestWorkerKilled(t *testing.T) {
	w := newWorld(t)
	m := w.service()
	mount, keeper := m.mountLine(mountpoint), m.mainPID()
	l := startLoad(w, m)
	defer l.end()
	for range 4 {
		worker := m.status(mountpoint).WorkerPID
		l.goesOn(m)
		m.kill("KILL", worker)
		m.eventually("another worker answers", func() bool {
			out, err := m.run("leatfs", "status", "--json", mountpoint)
			return err == nil && m.statusOf(out).WorkerPID != worker
		})
		l.goesOn(m)
	}
	m.wantSame(mount, keeper)
	w.check(m, mountpoint)
}

// Systemd keeps the connection while there is no keeper, and hands it to the next.
func TestKeeperKilled(t *testing.T) {
	w := newWorld(t)
	m := w.service()
	if n := m.property(unit, "NFileDescriptorStore"); n == "0" {
		t.Fatalf("systemd keeps no descriptor:\n%s", m.journal(unit))
	}
	mount := m.mountLine(mountpoint)
	l := startLoad(w, m)
	defer l.end()
	for i := range 3 {
		l.goesOn(m)
		if i < 2 {
			m.kill("KILL", m.mainPID())
		} else { // all at once
			m.must("systemctl", "kill", "--signal=KILL", unit)
		}
		m.recovers(i + 1)
		l.goesOn(m)
		m.wantSame(mount, 0)
	}
	w.check(m, mountpoint)
	l.goesOn(m)
}

// A mistake that was made in the configuration meanwhile does not end a mount: it waits.
func TestKeeperKilledAndConfigurationBroken(t *testing.T) {
	w := newWorld(t)
	m := w.service("RestartSec=100ms")
	config := m.path("/etc/leatfs/data.yaml")
	good, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	mount := m.mountLine(mountpoint)
	l := startLoad(w, m)
	defer l.end()
	l.goesOn(m)
	if err := os.WriteFile(config, append([]byte("no-such-option: 1\n"), good...), 0o600); err != nil {
		t.Fatal(err)
	}
	m.kill("KILL", m.mainPID())
	m.eventually("the service is tried again", func() bool { return m.restarts() >= 3 })
	if err := os.WriteFile(config, good, 0o600); err != nil {
		t.Fatal(err)
	}
	m.eventually("it is active", func() bool { return m.property(unit, "ActiveState") == "active" })
	l.goesOn(m)
	m.wantSame(mount, 0)
	w.check(m, mountpoint)
}

// A keeper that hangs is noticed.
func TestKeeperHangs(t *testing.T) {
	w := newWorld(t)
	m := w.service("WatchdogSec=8s")
	mount := m.mountLine(mountpoint)
	l := startLoad(w, m)
	defer l.end()
	l.goesOn(m)
	m.kill("STOP", m.mainPID())
	m.recovers(1)
	l.goesOn(m)
	m.wantSame(mount, 0)
	w.check(m, mountpoint)
}

// The end of a service whose keeper was replaced is as clean as any.
func TestStopAfterCrash(t *testing.T) {
	w := newWorld(t)
	m := w.service()
	m.kill("KILL", m.mainPID())
	m.recovers(1)
	w.check(m, mountpoint)
	m.must("systemctl", "stop", unit)
	if r := m.property(unit, "Result"); r != "success" {
		t.Errorf("stopped with result %q:\n%s", r, m.journal(unit))
	}
	m.nothingLeft(mountpoint)
}
