package systemd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// replace puts another program in the place of the installed one, as a package manager does.
func (w *world) replace(m *machine, content []byte) {
	w.t.Helper()
	path := m.path("/usr/bin/leatfs")
	if err := os.WriteFile(path+".new", content, 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		w.t.Fatal(err)
	}
}

func TestReloadUnderLoad(t *testing.T) {
	w := newWorld(t)
	m := w.service()
	program, err := os.ReadFile(leatfs)
	if err != nil {
		t.Fatal(err)
	}
	mount, keeper := m.mountLine(mountpoint), m.mainPID()
	l := startLoad(w, m)
	defer l.end()
	for range 3 {
		worker := m.status(mountpoint).WorkerPID
		w.replace(m, program)
		l.goesOn(m)
		m.must("systemctl", "reload", unit)
		if now := m.status(mountpoint).WorkerPID; now == worker {
			t.Errorf("reloaded, but the worker is still process %d", worker)
		}
		l.goesOn(m)
	}
	m.wantSame(mount, keeper)
	w.check(m, mountpoint)
}

// wantSame checks that the mount has not changed, and neither has the keeper unless that is 0.
func (m *machine) wantSame(mount string, keeper int) {
	m.t.Helper()
	if s := m.property(unit, "ActiveState"); s != "active" {
		m.t.Errorf("the service is %s", s)
	}
	if now := m.mountLine(mountpoint); now != mount {
		m.t.Errorf("another mount is there: it was %q, it is %q", mount, now)
	}
	if keeper == 0 {
		return
	}
	if now := m.mainPID(); now != keeper {
		m.t.Errorf("the keeper was process %d, it is %d", keeper, now)
	}
	if n := m.restarts(); n != 0 {
		m.t.Errorf("systemd has restarted the service %d times", n)
	}
}

// An upgrade that does not work is refused in a line, and the old worker goes on.
func TestReloadRefused(t *testing.T) {
	w := newWorld(t)
	m := w.service()
	program, err := os.ReadFile(leatfs)
	if err != nil {
		t.Fatal(err)
	}
	// The command line of a new version that works, and a worker of it that does not.
	if err := os.WriteFile(m.path("/usr/bin/leatfs-old"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	worthless := `#!/bin/sh
if [ "$1" = upgrade ]; then exec /usr/bin/leatfs-old "$@"; fi
echo the new version does not work here >&2
exit 1
`
	config := m.path("/etc/leatfs/data.yaml")
	good, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	mount, keeper, worker := m.mountLine(mountpoint), m.mainPID(), m.status(mountpoint).WorkerPID
	l := startLoad(w, m)
	defer l.end()
	for _, x := range []struct {
		name            string
		program, config []byte
		says            string
	}{
		{"the program is garbage", []byte("garbage\x00\x01"), good, "status=203/EXEC"},
		{"its worker does not start", []byte(worthless), good, "leatfs: "},
		{"the configuration has a mistake", program, append([]byte("no-such-option: 1\n"), good...), `there is no option "no-such-option"`},
		{"the configuration names another mount", program, []byte(strings.Replace(string(good), mountpoint, "/mnt", 1)), "leatfs: "},
	} {
		t.Run(x.name, func(t *testing.T) {
			since := strings.Count(m.journal(unit), "\n")
			w.replace(m, x.program)
			if err := os.WriteFile(config, x.config, 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := m.run("systemctl", "reload", unit); err == nil {
				t.Errorf("the reload succeeded: %s", out)
			}
			// What systemd says of a process that could not be started; what that said itself is not always known to be of the unit.
			var lines []string
			for range 600 {
				if lines = strings.Split(m.journal(unit), "\n")[since:]; strings.Contains(strings.Join(lines, "\n"), x.says) {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			t.Logf("the journal:\n%s", strings.Join(lines, "\n"))
			if !strings.Contains(strings.Join(lines, "\n"), x.says) {
				t.Errorf("the journal does not say %q", x.says)
			}
			l.goesOn(m)
		})
	}
	m.wantSame(mount, keeper)
	w.replace(m, program)
	if now := m.status(mountpoint).WorkerPID; now != worker {
		t.Errorf("the worker was process %d, it is %d", worker, now)
	}
	if err := os.WriteFile(config, good, 0o600); err != nil {
		t.Fatal(err)
	}
	m.must("systemctl", "reload", unit)
	if now := m.status(mountpoint).WorkerPID; now == worker {
		t.Errorf("reloaded after all, but the worker is still process %d", worker)
	}
	m.wantSame(mount, keeper)
	w.check(m, mountpoint)
}

// A restart is a stop and a start: what is open may end with the first, within its bound, and
// the second mounts afresh.
func TestRestartWhileInUse(t *testing.T) {
	w := newWorld(t)
	m := w.service("TimeoutStopSec=6s")
	f, err := os.Open(filepath.Join(m.path(mountpoint), big))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mount := m.mountLine(mountpoint)
	if out, err := m.run("systemctl", "restart", unit); err != nil {
		t.Fatalf("restart: %v\n%s", err, out)
	}
	if now := m.mountLine(mountpoint); now == "" || now == mount {
		t.Errorf("a mount of its own is wanted: it was %q, it is %q", mount, now)
	}
	w.check(m, mountpoint)
	// An error or the right bytes, but no hang.
	done := make(chan error, 1)
	go func() { done <- at(f, w.files[big], 5<<20) }() // ends with the machine at the latest
	m.eventually("a read of the file that was open ends", func() bool { return len(done) > 0 })
	if err := <-done; err != nil && strings.Contains(err.Error(), "wrong bytes") {
		t.Error(err)
	} else {
		t.Log("a read of the file that was open: ", fmt.Sprint(err))
	}
}
