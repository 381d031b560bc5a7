package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// serves checks that a mount is there and answers, with its control socket.
func (m *mnt) serves(when, name string, want []byte) {
	m.t.Helper()
	if n := mountsAt(m.t, m.dir); n != 1 {
		m.t.Fatalf("%s: %d mounts are at %s", when, n, m.dir)
	}
	m.same(name, want)
	if s := m.status(); s.State != "serving" {
		m.t.Errorf("%s: status: %+v", when, s)
	}
}

// TestTakeoverOwnStop: the end of a mount that was taken out of sight leaves the one that is at the
// same place by then, whichever of its workers it ends in.
func TestTakeoverOwnStop(t *testing.T) {
	w := newWorld(t)
	data := random(1, 1<<20)
	w.put("d/f", data)
	for _, c := range []struct{ name, when string }{
		{"the first worker", ""},
		{"a worker that took over before", "before"},
		{"a worker that took over after", "after"},
		{"a worker that refuses", "refuses"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.t = t
			one := w.mount()
			one.same("d/f", data)
			one.expect = []string{"format", "pause before", "keep dying", "keeps dying", "in use"}
			keeper := one.status().Keeper.PID
			held := mustOpen(t, one.path("d/f"))
			switch c.when {
			case "before":
				one.killWorker(keeper)
			case "refuses":
				format := filepath.Join(one.cache, "leatfs-cache.json")
				good, err := os.ReadFile(format)
				if err != nil {
					t.Fatal(err)
				}
				write(t, format, strings.Replace(string(good), `"format":1`, `"format":99`, 1))
				one.signal(one.worker(keeper), syscall.SIGKILL)
				within(t, 120*time.Second, "the refusal", func() {
					_, err := os.Stat(one.path("d/other"))
					wantErrno(t, "a name when nobody can serve", err, syscall.EIO)
				})
			}
			if out, err := w.command("umount", "-l", one.dir).CombinedOutput(); err != nil {
				t.Fatalf("umount -l: %v\n%s", err, out)
			}
			one.up = false
			two := w.mountAt(one.dir)
			two.serves("at first", "d/f", data)
			if c.when == "after" {
				old := one.worker(keeper)
				one.signal(old, syscall.SIGKILL)
				one.eventually("another worker goes on", func() error {
					if !strings.Contains(one.logText(), "goes on with the mount") {
						return errors.New("not yet")
					}
					return nil
				})
			}
			one.signal(keeper, syscall.SIGTERM)
			time.Sleep(500 * time.Millisecond) // it waits for who has a file open; two must not be gone by then
			two.serves("after SIGTERM", "d/f", data)
			if err := held.Close(); err != nil && c.when != "refuses" {
				t.Error(err)
			}
			one.gone(keeper)
			two.serves("after the end of the other", "d/f", data)
			one.checkLog()
		})
	}
}

// TestTakeoverOwnLog: a log that cannot be opened any more costs the mount nothing.
func TestTakeoverOwnLog(t *testing.T) {
	w := newWorld(t)
	data := random(1, 1<<20)
	w.put("d/f", data)
	logs := filepath.Join(t.TempDir(), "logs")
	mkdir(t, logs)
	m := w.mount("--log-file", filepath.Join(logs, "log"))
	m.expect = []string{"the log cannot be opened"}
	keeper := m.status().Keeper.PID
	if err := os.Rename(logs, logs+".away"); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		m.killWorker(keeper)
		m.serves("without its log", "d/f", data)
		m.eventually("the log that was open holds what was said since", func() error {
			b, err := os.ReadFile(filepath.Join(logs+".away", "log"))
			if err != nil || strings.Count(string(b), "goes on with the mount") != i+1 {
				return fmt.Errorf("%v:\n%s", err, b)
			}
			return nil
		})
	}
	if err := os.Rename(logs+".away", logs); err != nil {
		t.Fatal(err)
	}
	m.killWorker(keeper)
	m.serves("with its log", "d/f", data)
}

// TestTakeoverOwnSource: a directory that is away when a worker takes over fails what must be read
// from it, and is read again when it is back.
func TestTakeoverOwnSource(t *testing.T) {
	w := newWorld(t)
	src := filepath.Join(t.TempDir(), "src")
	mkdir(t, src)
	cached, other := random(1, 1<<20), random(2, 1<<20)
	for name, b := range map[string][]byte{"cached": cached, "other": other} {
		if err := os.WriteFile(filepath.Join(src, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w.source = "file://" + src
	m := w.mount("--immutable", "--origin-timeout=2s")
	m.expect = []string{"retr", "not now", "another directory", "EIO", "tried again"}
	m.names(".")
	m.same("cached", cached)
	m.eventually("it is whole in the cache", func() error { // a directory has no checksums
		if c := m.status().Cache; c.Proven+c.Unverifiable != 1 {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	m.noted()
	keeper := m.status().Keeper.PID
	if err := os.Rename(src, src+".away"); err != nil {
		t.Fatal(err)
	}
	m.killWorker(keeper)
	m.serves("without its source", "cached", cached)
	within(t, 60*time.Second, "a read of what is not cached", func() {
		_, err := os.ReadFile(m.path("other"))
		wantErrno(t, "a read of what is away", err, syscall.EIO)
	})
	mkdir(t, src) // what a file system was mounted on, say
	within(t, 60*time.Second, "a read from another directory", func() {
		_, err := os.ReadFile(m.path("other"))
		wantErrno(t, "a read from another directory", err, syscall.EIO)
	})
	if err := os.Remove(src); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(src+".away", src); err != nil {
		t.Fatal(err)
	}
	m.eventually("it is read again", func() error {
		_, err := os.ReadFile(m.path("other"))
		return err
	})
	m.same("other", other)
}

// TestTakeoverOwnHung: a mount that nobody serves, and whose connection somebody holds all the same,
// is taken away by the next mount at the place.
func TestTakeoverOwnHung(t *testing.T) {
	w := newWorld(t)
	w.put("d/f", []byte("f"))
	dir, _ := place(t)
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(dev) }()
	options := fmt.Sprintf("rootmode=40000,user_id=0,group_id=0,fd=%d", dev)
	if err := unix.Mount("hung", dir, "fuse.leatfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		t.Fatal(err)
	}
	within(t, 120*time.Second, "a mount where another hangs", func() {
		m := w.mountAt(dir)
		m.expect = []string{"whose processes were all gone"}
		m.serves("in place of the other", "d/f", []byte("f"))
	})
	if _, err := unix.Write(dev, make([]byte, 16)); err == nil {
		t.Error("the connection of the other goes on")
	}
}

// TestTakeoverOwnSilent: who unmounts while nobody can be asked whom to wait for is told so.
func TestTakeoverOwnSilent(t *testing.T) {
	w := newWorld(t)
	w.put("d/f", []byte("f"))
	m := w.mount()
	m.same("d/f", []byte("f"))
	s := m.status()
	for _, pid := range []int{s.Keeper.PID, s.WorkerPID} {
		m.signal(pid, syscall.SIGSTOP)
	}
	code, _, stderr := outcome(t, w.command("umount", m.dir), 60*time.Second)
	for _, pid := range []int{s.Keeper.PID, s.WorkerPID} {
		m.signal(pid, syscall.SIGCONT)
	}
	if code != 0 {
		t.Errorf("umount: exit code %d", code)
	}
	oneLine(t, "umount", stderr, m.dir+" is unmounted", "may still be ending")
	m.up = false
	m.expect = []string{"hangs", "not well", "SIGQUIT", "is not sent", "goroutine", "keeps dying"}
	nothingLeft(t, "after it could go on", m.dir)
	m.checkLog()
}
