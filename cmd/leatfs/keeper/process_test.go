package keeper

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// beginProcess runs a keeper in a process of its own, with more in its environment and more
// descriptors from 3 on.
func beginProcess(t *testing.T, dir string, cfg Config, env []string, files ...*os.File) *bench {
	t.Helper()
	cfg.Env = nil
	conf, err := json.Marshal(struct {
		Config
		Report, Stderr, Signals *int // not to be written
	}{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config"), conf, 0o600); err != nil {
		t.Fatal(err)
	}
	stderr, err := os.OpenFile(filepath.Join(dir, "stderr"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	// A shell, as LISTEN_PID must be the keeper's own.
	cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ WATCHDOG_PID=$$ exec "$0" test-keeper`, os.Args[0])
	cmd.Env = append(append(os.Environ(), testDir+"="+dir), env...)
	cmd.Stderr = stderr
	cmd.ExtraFiles = files
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = stderr.Close()
	b := &bench{t: t, dir: dir, done: make(chan struct{}), pid: cmd.Process.Pid}
	go func() {
		defer close(b.done)
		b.err = cmd.Wait()
		b.code = cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		b.wait()
		b.clean()
	})
	return b
}

// The keeper dies: its worker lives on, and knows.
func TestKeeperKilled(t *testing.T) {
	t.Parallel()
	dir, cfg := scripted(t, first)
	b := beginProcess(t, dir, cfg, nil)
	b.ready(0)
	if err := unix.Kill(b.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.wait()
	b.see("orphan 0")
	b.signal(0, 0) // it is there
	b.mark("end")
	pid, _ := b.worker(0)
	for end := time.Now().Add(patience); processState(pid) != 0 && processState(pid) != 'Z'; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the worker does not end")
		}
	}
}

// systemd is the manager's end of the notification socket.
type systemd struct {
	t    *testing.T
	conn *net.UnixConn
	path string
	seen []notification
}

type notification struct {
	text string
	fds  []int
}

func newSystemd(t *testing.T) *systemd {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	s := &systemd{t: t, conn: conn, path: path}
	t.Cleanup(func() {
		_ = conn.Close()
		for _, n := range s.seen {
			closeAll(n.fds)
		}
	})
	return s
}

// next waits for a notification that has a text in it, and returns it.
func (s *systemd) next(want string) notification {
	s.t.Helper()
	_ = s.conn.SetReadDeadline(time.Now().Add(patience))
	buf, oob := make([]byte, 4096), make([]byte, 1024)
	for {
		n, oobn, _, _, err := s.conn.ReadMsgUnix(buf, oob)
		if err != nil {
			s.t.Fatalf("%q does not come: %v\nbut %v", want, err, s.seen)
		}
		fds, err := descriptors(oob[:oobn])
		if err != nil {
			s.t.Fatal(err)
		}
		x := notification{string(buf[:n]), fds}
		s.seen = append(s.seen, x)
		if strings.Contains(x.text, want) {
			return x
		}
	}
}

func TestSystemd(t *testing.T) {
	t.Parallel()
	s := newSystemd(t)
	dir, cfg := scripted(t, "beat mounted until:x text:fine ready serve", standby)
	b := beginProcess(t, dir, cfg, []string{"NOTIFY_SOCKET=" + s.path, "WATCHDOG_USEC=20000"})
	device := s.next("FDSTORE=1\nFDNAME=leatfs-device")
	session := s.next("FDSTORE=1\nFDNAME=leatfs-session")
	if len(device.fds) != 1 || len(session.fds) != 1 {
		t.Fatalf("%d and %d descriptors", len(device.fds), len(session.fds))
	}
	for _, n := range s.seen {
		if strings.Contains(n.text, "READY=1") {
			t.Errorf("%q before the mount is ready", n.text)
		}
	}
	b.mark("x")
	if n := s.next("READY=1"); !strings.Contains(n.text, "MAINPID="+strconv.Itoa(b.pid)) {
		t.Errorf("%q", n.text)
	}
	s.next("STATUS=fine")
	s.next("WATCHDOG=1")
	if err := unix.Kill(b.pid, unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if n := s.next("RELOADING=1"); !strings.Contains(n.text, "\nMONOTONIC_USEC=") {
		t.Errorf("%q", n.text)
	}
	s.next("STATUS=upgrading")
	s.next("READY=1")
	s.next("STATUS=serving " + filepath.Join(dir, "mnt"))
	b.see("go 1")
	if err := unix.Kill(b.pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.next("STOPPING=1")
	s.next("FDSTOREREMOVE=1\nFDNAME=leatfs-device")
	s.next("FDSTOREREMOVE=1\nFDNAME=leatfs-session")
	b.end(exitOK)
}

// The keeper died and the service is restarted: the next keeper goes on with what was stored.
func TestStoredFiles(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		names, script string
		see           []string
	}{
		"alive": {"leatfs-device:other:leatfs-session", later,
			[]string{"worker 0 mode=takeover blame=false args=original", `"stored\nseen by 0\n"`}},
		"dead": {"leatfs-device:other:leatfs-session", "same ended\n" + first,
			[]string{"worker 0 mode=takeover", "worker 1 mode=mount blame=false args=original"}},
		"crashes": {"leatfs-device:other:leatfs-session", "exit:2\n" + later,
			[]string{"worker 1 mode=takeover blame=true"}},
		"no device": {"leatfs-what:other:leatfs-session", first, []string{"worker 0 mode=mount"}},
		"no names":  {"", first, []string{"worker 0 mode=mount"}},
		"twice one": {"leatfs-session:leatfs-device:leatfs-session", later, []string{`"stored\nseen by 0\n"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var files []*os.File
			for _, n := range []string{"a", "b", "c"} {
				fd, err := unix.MemfdCreate(n, unix.MFD_CLOEXEC)
				if err != nil {
					t.Fatal(err)
				}
				f := os.NewFile(uintptr(fd), n)
				defer func() { _ = f.Close() }()
				_, _ = f.WriteString("stored\n")
				files = append(files, f)
			}
			dir, cfg := scripted(t, strings.Split(x.script, "\n")...)
			b := beginProcess(t, dir, cfg, []string{"LISTEN_FDS=3", "LISTEN_FDNAMES=" + x.names}, files...)
			for _, want := range x.see {
				b.see(want)
			}
			b.see("report <nil> false")
		})
	}
}

// With a real mount: nobody serves it when the keeper is told to stop, and it is taken away, the
// socket's name too.
func TestStopWithoutWorkerUnmounts(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root mounts")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse here")
	}
	dir, cfg := scripted(t, "beat mounted:fuse ready until:x exit:2")
	cfg.Times.PauseMin = time.Hour
	socket, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	b := begin(t, dir, cfg)
	b.ready(0)
	mountpoint := filepath.Join(dir, "mnt")
	t.Cleanup(func() { _ = unix.Unmount(mountpoint, unix.MNT_DETACH) })
	if id, err := mountedAt(mountpoint); id == "" || err != nil {
		t.Fatalf("not mounted: %v\n%s", err, b.all())
	}
	b.mark("x")
	b.seeIn("stderr", "pause before")
	b.signals <- unix.SIGTERM
	b.end(exitOK)
	if id, err := mountedAt(mountpoint); id != "" || err != nil {
		t.Errorf("still mounted: %q, %v\n%s", id, err, b.all())
	}
	if _, err := os.Lstat(filepath.Join(dir, "socket")); err == nil {
		t.Error("the socket's name is still there")
	}
}

// A keeper leaks neither descriptors nor goroutines over many workers, and its workers inherit
// none.
func TestStorm(t *testing.T) {
	t.Parallel()
	dir, cfg := scripted(t, "beat mounted ready signal:9", "same ready beat signal:9", "same ready exit:2", "exit:1",
		"beat same fds ready serve")
	// The last line repeats, so all are killed: by the test from the fifth on.
	b := beginProcess(t, dir, cfg, nil)
	b.ready(4)
	count := func() int {
		names, err := os.ReadDir("/proc/" + strconv.Itoa(b.pid) + "/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	before := count()
	const kills = 30
	for n := 4; n < 4+kills; n++ {
		b.signal(n, unix.SIGKILL)
		b.ready(n + 1)
	}
	// A few are open for a moment at each start.
	for end := time.Now().Add(patience); count() > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors before, %d after %d deaths", before, count(), kills)
		}
	}
	var seen []string
	for line := range strings.Lines(b.log()) {
		if f := strings.Fields(line); f[0] == "fds" {
			seen = append(seen, f[2])
		}
	}
	if len(seen) != kills+1 || len(slices.Compact(slices.Clone(seen))) != 1 {
		t.Errorf("workers have so many descriptors at their start: %v", seen)
	}
}
