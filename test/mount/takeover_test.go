package mount

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leatfs/leatfs/test/fault"
	"github.com/leatfs/leatfs/test/load"
	"github.com/leatfs/leatfs/test/s3test"
)

// worker is the worker of a keeper, as soon as there is one.
func (m *mnt) worker(keeper int) int {
	m.t.Helper()
	pid, err := load.WaitWorker(keeper, time.Minute)
	if err != nil {
		m.t.Fatalf("%v\n%s", err, m.logText())
	}
	return pid
}

// signal sends a signal to a process.
func (m *mnt) signal(pid int, s syscall.Signal) {
	m.t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		m.t.Fatalf("%v to process %d: %v", s, pid, err)
	}
}

// gone waits until a process is no more.
func (m *mnt) gone(pid int) {
	m.t.Helper()
	m.eventually(fmt.Sprintf("process %d is gone", pid), func() error {
		if alive(pid) {
			return errors.New("it is alive")
		}
		return nil
	})
}

// TestTakeoverReplaced: a handle of an object that was replaced keeps its version across a
// restart, whole or by ESTALE, and a new open gets the new one.
func TestTakeoverReplaced(t *testing.T) {
	one, two := random(1, 24<<20), random(2, 24<<20)
	for _, versioned := range []bool{false, true} {
		t.Run(fmt.Sprintf("versioned=%v", versioned), func(t *testing.T) {
			w := newWorldOn(t, s3test.Options{Kind: s3test.Versitygw, Versioning: versioned})
			if versioned {
				if err := w.server.EnableVersioning(t.Context(), w.bucket); err != nil {
					t.Fatal(err)
				}
			}
			modes(t, func(t *testing.T, flag string) {
				w := *w
				w.t = t
				w.put("part", one)
				w.put("whole", one)
				m := w.mount(flag, "--ttl=1s")
				m.same("whole", one)
				m.proven(1)
				m.noted()
				part, whole := mustOpen(t, m.path("part")), mustOpen(t, m.path("whole"))
				b := make([]byte, 4096)
				for _, f := range []*os.File{part, whole} {
					if _, err := f.ReadAt(b, 0); err != nil || !bytes.Equal(b, one[:4096]) {
						t.Fatal(err)
					}
				}
				keeper := m.status().Keeper.PID
				w.put("part", two)
				w.put("whole", two)
				for range 2 {
					m.killWorker(keeper)
					check := func(name string, f *os.File, whole bool) {
						got := make([]byte, len(one))
						n, err := f.ReadAt(got, 0)
						if !bytes.Equal(got[:n], one[:n]) {
							t.Fatalf("%s: %s", name, difference(got[:n], one[:n]))
						}
						if err != nil && (whole || !errors.Is(err, syscall.ESTALE)) {
							t.Errorf("%s: %v after %d bytes", name, err, n)
						}
					}
					check("part", part, versioned)
					check("whole", whole, true)
					for _, name := range []string{"part", "whole"} {
						m.eventually("a new open sees the new version", func() error {
							got, err := os.ReadFile(m.path(name))
							if err == nil && !bytes.Equal(got, two) {
								err = errors.New(difference(got, two))
								if !bytes.Equal(got, one) {
									t.Fatalf("%s is of no version", name)
								}
							}
							return err
						})
					}
				}
				for _, f := range []*os.File{part, whole} {
					if err := f.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// faulty is the program with faults built in.
func faulty(t *testing.T) string {
	t.Helper()
	b := filepath.Join(t.TempDir(), "leatfs")
	if err := build(b, "-tags", "leatfs_faults"); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestTakeoverPoison: a request that workers die of is given up at the third death, and others
// that were under way at the same time are not.
func TestTakeoverPoison(t *testing.T) {
	t.Setenv("LEATFS_FAULT_PANIC", "poison")
	binary := faulty(t)
	for _, c := range []struct{ name, flag string }{{"resend", "--passthrough=auto"}, {"no resend", "--no-resend"}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.binary = binary
			data := load.Data{Large: 4, LargeSize: 9 << 20, Dirs: 1, PerDir: 20}
			w.putAll(data)
			w.put("poison", []byte("p"))
			m := w.mount(c.flag)
			m.expect = []string{"panic", "given up", "pause before", "goroutine", "fault_on", "retr", "connection reset"}
			m.names("small/0000")
			w.proxy.Add(fault.Rule{Class: "GET", Do: fault.Stall(0, 2*time.Second)})
			errs := make(chan error, 4)
			for i := range 4 { // these are under way when the workers die
				go func() {
					f := data.Files()[i]
					b, err := os.ReadFile(m.path(f.Key))
					if err == nil {
						err = load.Check(f.Key, 0, b)
					}
					errs <- err
				}()
			}
			time.Sleep(500 * time.Millisecond)
			began := time.Now()
			_, err := os.Stat(m.path("poison"))
			wantErrno(t, "the name that workers die of", err, syscall.EIO)
			t.Logf("it was answered after %v", ms(time.Since(began)))
			if d := time.Since(began); d > 30*time.Second {
				t.Errorf("it was answered after %v", d)
			}
			for range 4 {
				if err := <-errs; err != nil {
					t.Errorf("a request that is innocent: %v", err)
				}
			}
			s := m.status()
			if s.Keeper.GivenUp != 1 || !strings.Contains(s.Keeper.LastGivenUp, `lookup of "poison"`) || s.Keeper.Restarts != 3 || s.State != "serving" {
				t.Errorf("status: %+v", s.Keeper)
			}
			if n := strings.Count(m.logText(), "a request is given up"); n != 1 {
				t.Errorf("%d lines in the log say that it was given up", n)
			}
			w.proxy.Clear()
			f := data.Files()[0]
			m.same(f.Key, load.Content(f.Key, f.Size))
		})
	}
}

// TestTakeoverHang: a worker that hangs, or is stopped, is replaced, and what it had to do is done.
func TestTakeoverHang(t *testing.T) {
	once := filepath.Join(t.TempDir(), "once")
	t.Setenv("LEATFS_FAULT_HANG", "slow")
	t.Setenv("LEATFS_FAULT_HANG_ONCE", once)
	w := newWorld(t)
	w.binary = faulty(t)
	w.put("slow", []byte("s"))
	w.put("d/f", []byte("f"))
	m := w.mount("--origin-timeout=2s")
	m.expect = []string{"hangs", "not well", "SIGQUIT", "is not sent", "goroutine"}
	before := m.status()
	write(t, once, "")
	within(t, 90*time.Second, "a lookup that hangs a worker", func() { m.same("slow", []byte("s")) })
	s := m.status()
	if s.Keeper.Restarts != 1 || s.WorkerPID == before.WorkerPID || !strings.Contains(s.Keeper.LastDeath, "hung") {
		t.Errorf("status: %+v", s.Keeper)
	}
	m.signal(s.WorkerPID, syscall.SIGSTOP)
	within(t, 60*time.Second, "a read while the worker is stopped", func() { m.same("d/f", []byte("f")) })
	if s := m.status(); s.Keeper.Restarts != 2 || s.Keeper.GivenUp != 0 {
		t.Errorf("status: %+v", s.Keeper)
	}
}

// TestTakeoverRefuses: when no worker can start, requests are answered EIO at once, status says
// so, and the mount serves again when the cause is gone, open files too.
func TestTakeoverRefuses(t *testing.T) {
	w := newWorld(t)
	data := random(1, 3<<20)
	w.put("d/f", data)
	m := w.mount()
	m.expect = []string{"format", "pause before", "keep dying", "keeps dying"}
	m.same("d/f", data)
	f := mustOpen(t, m.path("d/f"))
	keeper := m.status().Keeper.PID
	format := filepath.Join(m.cache, "leatfs-cache.json")
	good, err := os.ReadFile(format)
	if err != nil {
		t.Fatal(err)
	}
	write(t, format, strings.Replace(string(good), `"format":1`, `"format":99`, 1))
	m.signal(m.worker(keeper), syscall.SIGKILL)
	within(t, 150*time.Second, "the first answer", func() {
		_, err := os.Stat(m.path("d/other"))
		wantErrno(t, "a name when nobody can serve", err, syscall.EIO)
	})
	for i := range 3 {
		within(t, 10*time.Second, "the next answers", func() {
			_, err := os.Stat(m.path(fmt.Sprint("d/other", i)))
			wantErrno(t, "a name when nobody can serve", err, syscall.EIO)
		})
	}
	s := m.status()
	if s.State != "refusing" || !strings.Contains(s.Keeper.LastDeath, "format") {
		t.Errorf("status: state %q, keeper %+v", s.State, s.Keeper)
	}
	out, err := m.w.command("status", m.dir).Output()
	if err != nil || !strings.Contains(string(out), "KEEPS DYING") {
		t.Errorf("status: %v\n%s", err, out)
	}
	write(t, format, string(good))
	deadline := time.Now().Add(120 * time.Second) // the next try may be a minute away
	for m.status().State != "serving" && time.Now().Before(deadline) {
		time.Sleep(100 * time.Millisecond)
	}
	m.same("d/f", data)
	got := make([]byte, len(data))
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
		t.Errorf("a file that was open all along: %v %s", err, difference(got, data))
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// copyFile makes an executable copy, put in place at once.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to+".new", b, 0o755)
	}
	if err == nil {
		err = os.Rename(to+".new", to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestTakeoverUpgrade: an upgrade under load is not seen; one that cannot work is refused in one
// line, and the old worker goes on.
func TestTakeoverUpgrade(t *testing.T) {
	w := newWorld(t)
	data := load.Data{Large: 6, LargeSize: 6 << 20, Hot: 3, HotSize: 2 << 20, Dirs: 4, PerDir: 50}
	w.putAll(data)
	w.binary = filepath.Join(t.TempDir(), "leatfs")
	copyFile(t, leatfs, w.binary)
	m := w.mount("--cache-size=64MiB", "--ttl=2s", "--cache-dir", t.TempDir())
	m.expect = []string{"the upgrade did not work"}
	first := m.status()
	ps, err := load.StartAll(m.dir, data, load.Kinds, 7)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	asks := *w
	asks.binary = leatfs // also when what is installed is garbage
	upgrade := func() (int, string) {
		code, _, stderr := outcome(t, asks.command("upgrade", m.dir), 60*time.Second)
		return code, stderr
	}
	for range 2 {
		before := asksStatus(m, &asks)
		if code, stderr := upgrade(); code != 0 {
			t.Errorf("upgrade: %s\n%s", stderr, m.logText())
		}
		after := asksStatus(m, &asks)
		if after.WorkerPID == before.WorkerPID || after.Keeper.PID != first.Keeper.PID || after.Keeper.Upgrades != before.Keeper.Upgrades+1 {
			t.Errorf("worker %d then %d; keeper %+v", before.WorkerPID, after.WorkerPID, after.Keeper)
		}
	}
	worker := asksStatus(m, &asks).WorkerPID
	for _, c := range []struct {
		name  string
		place func()
	}{
		{"garbage", func() { write(t, w.binary+".g", "garbage"); rename(t, w.binary+".g", w.binary) }},
		{"missing", func() { rename(t, w.binary, w.binary+".away") }},
		{"a program that refuses", func() { write(t, w.binary+".g", "#!/bin/sh\nexit 1\n"); rename(t, w.binary+".g", w.binary) }},
	} {
		c.place()
		_ = os.Chmod(w.binary, 0o755) // not there, once
		code, stderr := upgrade()
		if code != 1 {
			t.Errorf("%s: exit code %d", c.name, code)
		}
		oneLine(t, c.name, stderr, m.dir, "goes on as it was")
		s := asksStatus(m, &asks)
		if s.WorkerPID != worker || s.Keeper.UpgradeError == "" {
			t.Errorf("%s: worker %d then %d, upgrade error %q", c.name, worker, s.WorkerPID, s.Keeper.UpgradeError)
		}
		// With what is installed of no use, the old program goes on after a death too.
		m.killWorker(first.Keeper.PID)
		worker = asksStatus(m, &asks).WorkerPID
	}
	copyFile(t, leatfs, w.binary)
	upgrades := m.status().Keeper.Upgrades
	m.signal(first.Keeper.PID, syscall.SIGHUP)
	m.eventually("SIGHUP upgrades", func() error {
		if s := m.status(); s.Keeper.Upgrades != upgrades+1 || s.Keeper.UpgradeError != "" {
			return fmt.Errorf("%+v", s.Keeper)
		}
		return nil
	})
	rs, err := ps.Stop()
	if err != nil {
		t.Fatal(err)
	}
	m.judge(rs, 3, nil, longPause)
}

// asksStatus is the status, asked by another program than the mount's.
func asksStatus(m *mnt, w *world) status {
	other := *m
	other.w = w
	return other.status()
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// TestTakeoverKeeperKilled: a mount whose keeper was killed goes on, says so, and ends with its
// worker; the next mount at the place cleans up.
func TestTakeoverKeeperKilled(t *testing.T) {
	w := newWorld(t)
	data := random(1, 3<<20)
	w.put("d/f", data)
	m := w.mount()
	s := m.status()
	f := mustOpen(t, m.path("d/f"))
	m.signal(s.Keeper.PID, syscall.SIGKILL)
	m.gone(s.Keeper.PID)
	m.expect = []string{"keeper of this mount has died", "processes were all gone"}
	m.eventually("status says that the keeper is gone", func() error {
		if k := m.status().Keeper; !k.Gone {
			return fmt.Errorf("%+v", k)
		}
		return nil
	})
	m.same("d/f", data)
	code, _, stderr := outcome(t, w.command("upgrade", m.dir), prompt)
	if code != 1 {
		t.Errorf("upgrade without a keeper: exit code %d", code)
	}
	oneLine(t, "upgrade without a keeper", stderr, m.dir, "keeper has died")
	m.signal(s.WorkerPID, syscall.SIGKILL)
	m.gone(s.WorkerPID)
	if _, err := os.Stat(m.path("d/new")); !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, syscall.ECONNABORTED) {
		t.Errorf("access to a dead mount: %v", err)
	}
	_ = f.Close()
	m.start()
	m.same("d/f", data)
	if n := mountsAt(t, m.dir); n != 1 {
		t.Errorf("%d mounts are there", n)
	}
}

// TestTakeoverIndexLost: a worker that finds no index gives open files their own bytes or an
// error, never another's; what is looked up anew is right.
func TestTakeoverIndexLost(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		data := load.Data{Large: 2, LargeSize: 9 << 20, Hot: 2, HotSize: 1 << 20, Dirs: 2, PerDir: 30}
		w.putAll(data)
		m := w.mount(flag)
		m.expect = []string{"index was lost", "index"}
		var open []*os.File
		for i, f := range data.Files() {
			file := mustOpen(t, m.path(f.Key))
			open = append(open, file)
			if i%2 == 0 {
				m.same(f.Key, load.Content(f.Key, f.Size))
			}
		}
		keeper := m.status().Keeper.PID
		m.signal(keeper, syscall.SIGSTOP)
		worker := m.worker(keeper)
		m.signal(worker, syscall.SIGKILL)
		m.gone(worker)
		if err := os.RemoveAll(filepath.Join(m.cache, "index")); err != nil {
			t.Fatal(err)
		}
		m.signal(keeper, syscall.SIGCONT)
		stale := 0
		// In the reverse order: numbers given out anew would meet those of open files.
		files := data.Files()
		for i := len(files) - 1; i >= 0; i-- {
			f := files[i]
			m.same(f.Key, load.Content(f.Key, f.Size))
			b := make([]byte, f.Size)
			n, err := open[i].ReadAt(b, 0)
			if cerr := load.Check(f.Key, 0, b[:n]); cerr != nil {
				t.Error(cerr)
			}
			switch {
			case errors.Is(err, syscall.ESTALE), errors.Is(err, syscall.EIO):
				stale++
			case err != nil:
				t.Errorf("%s: %v", f.Key, err)
			}
		}
		t.Logf("%d of %d open files answer ESTALE", stale, len(files))
		for _, f := range open {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
