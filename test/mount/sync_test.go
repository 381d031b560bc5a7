package mount

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/test/fault"
)

// writes is the part of "leatfs status --json" about what was written.
type writes struct {
	Open, Waiting, Uploading, Failing, Held, Deletes int
	Bytes                                            int64
	Conflicts, Unlinked                              int
	Conditional                                      bool  `json:"conditional_writes"`
	UnlinkedBytes                                    int64 `json:"unlinked_bytes"`
	Entries                                          []struct {
		Path, Kind, State, Error string
		Bytes                    int64
		Tries                    int
	}
}

// total is how much is not in the bucket.
func (w *writes) total() int {
	return w.Open + w.Waiting + w.Uploading + w.Failing + w.Held + w.Deletes
}

func (m *mnt) writes() writes {
	m.t.Helper()
	out, err := m.w.command("status", m.dir, "--json").Output()
	if err != nil {
		m.t.Fatalf("status: %v\n%s", err, m.logText())
	}
	var s struct{ Writes writes }
	if err := json.Unmarshal(out, &s); err != nil {
		m.t.Fatalf("status: %v\n%s", err, out)
	}
	return s.Writes
}

// statusText is the status for people.
func (m *mnt) statusText() string {
	m.t.Helper()
	out, err := m.w.command("status", m.dir).Output()
	if err != nil {
		m.t.Fatalf("status: %v\n%s", err, m.logText())
	}
	return string(out)
}

// ends runs a command of the program on the mount and checks its exit code; the rest is what it said.
func (m *mnt) ends(code int, args ...string) (stdout, stderr string) {
	m.t.Helper()
	got, stdout, stderr := outcome(m.t, m.w.command(args...), 60*time.Second)
	if got != code {
		m.t.Fatalf("leatfs %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, code, stdout, stderr)
	}
	return stdout, stderr
}

func contains(t *testing.T, what, text string, says ...string) {
	t.Helper()
	for _, s := range says {
		if !strings.Contains(text, s) {
			t.Errorf("%s does not say %q:\n%s", what, s, text)
		}
	}
}

// unpublishable are warnings of mounts whose bucket takes nothing.
func unpublishable() []string {
	return append(retried(), "cannot be published yet", "cannot be deleted yet", "not all of it is in the bucket", "cannot be aborted")
}

// refuseWrites has the bucket refuse every change until the result is called.
func (w *world) refuseWrites() (undo func()) {
	var rules []*fault.Rule
	for _, method := range []string{"PUT", "POST", "DELETE"} {
		rules = append(rules, w.proxy.Add(fault.Rule{Method: method, Do: fault.AccessDenied()}))
	}
	undo = sync.OnceFunc(func() {
		for _, r := range rules {
			r.Remove()
		}
	})
	w.t.Cleanup(undo) // before the mount is stopped
	return undo
}

// TestSync: the command returns when all is in the bucket, with 0; with 1 and a list when something
// is not.
func TestSync(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		m := w.mount(flag)
		data := random(1, 20<<20)
		ok(t, "mkdir", os.Mkdir(m.path("d"), 0o755))
		for i := range 20 {
			ok(t, "write", os.WriteFile(m.path(fmt.Sprintf("d/%d", i)), data[:i*1000], 0o644))
		}
		ok(t, "write", os.WriteFile(m.path("d/large.tmp"), data, 0o644))
		if out, errs := m.ends(0, "sync", m.dir); out != "" || errs != "" {
			t.Errorf("sync says %q %q", out, errs)
		}
		for i := range 20 {
			if got, err := w.object(fmt.Sprintf("d/%d", i)); err != nil || len(got) != i*1000 {
				t.Errorf("d/%d after sync: %d bytes, %v", i, len(got), err)
			}
		}
		if got, err := w.object("d/large.tmp"); err != nil || string(got) != string(data) {
			t.Errorf("d/large.tmp after sync: %v", err)
		}
		if n := m.writes(); n.total() != 0 {
			t.Errorf("status after sync: %+v", n)
		}
		contains(t, "status", m.statusText(), "writes    all in the bucket\n")

		f, err := os.Create(m.path("open"))
		ok(t, "create", err)
		_, err = f.Write(data[:5000])
		ok(t, "write", err)
		out, errs := m.ends(1, "sync", m.dir)
		contains(t, "sync beside an open file", out, "open", "/open", "4.9KiB")
		oneLine(t, "sync beside an open file", errs, m.dir, "1 files")
		contains(t, "status", m.statusText(), "1 open for writing")
		ok(t, "unlink", os.Remove(m.path("open")))
		if n := m.writes(); n.Unlinked != 1 || n.UnlinkedBytes != 5000 || n.total() != 0 {
			t.Errorf("an open file without a name: %+v", n)
		}
		ok(t, "close", f.Close())
		out, _ = m.ends(0, "sync", "--json", "--timeout=10s", m.dir)
		var l writes
		if err := json.Unmarshal([]byte(out), &l); err != nil || l.total() != 0 {
			t.Errorf("sync --json: %v %s", err, out)
		}
		_, errs = m.ends(1, "sync", t.TempDir())
		oneLine(t, "sync of what is no mount", errs, "no leatfs")
		m.ends(2, "sync", "--timeout=-1s", m.dir)
	})
}

// TestSyncOriginAway: what fails is told with its error; sync goes on, over the death of a worker too, and
// ends when the bucket is back.
func TestSyncOriginAway(t *testing.T) {
	w := newWorld(t)
	m := w.mount("--origin-timeout=2s")
	m.expect = append(unpublishable(), "died", "killed", "takes over", "worker")
	m.names(".")
	// That there is no d has to be known when the bucket goes away, and is known for a second.
	err := error(syscall.EIO)
	for try := 0; try < 10 && errors.Is(err, syscall.EIO); try++ {
		ok(t, "be there", w.proxy.SetDown(false))
		if _, err := os.Lstat(m.path("d")); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("stat: %v", err)
		}
		ok(t, "go away", w.proxy.SetDown(true))
		err = os.Mkdir(m.path("d"), 0o755)
	}
	ok(t, "mkdir", err)
	ok(t, "write", os.WriteFile(m.path("d/f"), []byte("data"), 0o644))
	out, errs := m.ends(1, "sync", "--timeout=10s", m.dir)
	contains(t, "sync", out, "failing", "/d/f", "tries", "4B")
	oneLine(t, "sync", errs, m.dir, "not in the bucket")
	n := m.writes()
	if i := slices.IndexFunc(n.Entries, func(e struct {
		Path, Kind, State, Error string
		Bytes                    int64
		Tries                    int
	}) bool {
		return e.Path == "/d/f" && e.State == "failing" && e.Error != "" && e.Tries > 0
	}); i < 0 || n.Failing == 0 || n.Bytes != 4 {
		t.Errorf("status: %+v", n)
	}
	contains(t, "status", m.statusText(), "FAILING", "failing   /d/f")

	done := make(chan error, 1)
	cmd := w.command("sync", m.dir)
	ok(t, "start sync", cmd.Start())
	go func() { done <- cmd.Wait() }()
	time.Sleep(200 * time.Millisecond)
	ok(t, "kill the worker", syscall.Kill(m.status().WorkerPID, syscall.SIGKILL))
	select {
	case err := <-done:
		t.Fatalf("sync ended while the bucket was away: %v", err)
	case <-time.After(time.Second):
	}
	ok(t, "come back", w.proxy.SetDown(false))
	if err := <-done; err != nil {
		t.Errorf("sync after the bucket was back: %v", err)
	}
	if got, err := w.object("d/f"); err != nil || string(got) != "data" {
		t.Errorf("after sync the bucket has %q, %v", got, err)
	}
}

// TestUmountDrains: what was just written is in the bucket when umount returns, and when a signal ends the
// mount.
func TestUmountDrains(t *testing.T) {
	w := newWorld(t)
	for how, end := range map[string]func(*testing.T, *mnt){
		"umount":          func(t *testing.T, m *mnt) { m.ends(0, "umount", m.dir) },
		"umount --lazy":   func(t *testing.T, m *mnt) { m.ends(0, "umount", "--lazy", m.dir) },
		"umount(8)":       func(t *testing.T, m *mnt) { ok(t, "umount", exec.Command("umount", m.dir).Run()) },
		"SIGTERM":         func(t *testing.T, m *mnt) { ok(t, "kill", syscall.Kill(m.status().Keeper.PID, syscall.SIGTERM)) },
		"umount, bounded": func(t *testing.T, m *mnt) { m.ends(0, "umount", "--drain-timeout=30s", m.dir) },
	} {
		t.Run(how, func(t *testing.T) {
			w := *w
			w.t = t
			m := w.mount()
			pid := m.status().Keeper.PID
			name := strings.Map(func(r rune) rune {
				if r >= 'a' && r <= 'z' {
					return r
				}
				return '-'
			}, how) + ".tmp" // which waits for a better name
			data := random(3, 17<<20)
			ok(t, "write", os.WriteFile(m.path(name), data, 0o644))
			end(t, m)
			m.up = false
			m.eventually("the daemon has ended", func() error {
				if alive(pid) {
					return fmt.Errorf("process %d is alive", pid)
				}
				return nil
			})
			if got, err := w.object(name); err != nil || string(got) != string(data) {
				t.Errorf("after the end the bucket has %d bytes, %v", len(got), err)
			}
			m.checkLog()
			nothingLeft(t, how, m.dir)
		})
	}
}

// TestMountAfterUmount: after umount(8) the daemon goes on to publish for a while; a mount with the same cache directory waits
// for that.
func TestMountAfterUmount(t *testing.T) {
	w := newWorld(t)
	m := w.mount("--origin-timeout=2s")
	m.expect = unpublishable()
	undo := w.refuseWrites()
	ok(t, "write", os.WriteFile(m.path("f"), []byte("kept"), 0o644))
	ok(t, "umount", exec.Command("umount", m.dir).Run())
	m.up = false
	time.AfterFunc(8*time.Second, undo)
	m.start()
	m.same("f", []byte("kept"))
	m.eventually("it is in the bucket", func() error {
		if got, err := w.object("f"); err != nil || string(got) != "kept" {
			return fmt.Errorf("%q, %v", got, err)
		}
		return nil
	})
	m.stop()
}

// TestUmountKeeps: what cannot be published is kept, umount says so by its exit code, and the next mount
// with the cache directory publishes it.
func TestUmountKeeps(t *testing.T) {
	for _, c := range []struct {
		flag string
		code int
	}{{"--drain-timeout=1s", 3}, {"--no-drain", 0}} {
		t.Run(c.flag, func(t *testing.T) {
			w := newWorld(t)
			w.put("old", []byte("old"))
			m := w.mount("--origin-timeout=2s")
			m.expect = unpublishable()
			m.same("old", []byte("old"))
			undo := w.refuseWrites()
			ok(t, "write", os.WriteFile(m.path("f"), []byte("kept"), 0o644))
			ok(t, "unlink", os.Remove(m.path("old")))
			_, errs := m.ends(c.code, "umount", c.flag, m.dir)
			m.up = false
			oneLine(t, "umount", errs, m.dir+" is unmounted", "1 files", "1 deletions", m.cache, "next mount")
			nothingLeft(t, c.flag, m.dir)
			undo()
			m.start()
			m.same("f", []byte("kept"))
			if got := m.names("."); !slices.Equal(got, []string{"f"}) {
				t.Errorf("names %q", got)
			}
			m.ends(0, "sync", m.dir)
			if got, err := w.object("f"); err != nil || string(got) != "kept" {
				t.Errorf("after sync the bucket has %q, %v", got, err)
			}
			if _, err := w.object("old"); err == nil {
				t.Error("the object that was removed is still there")
			}
		})
	}
}

// asks waits until a command has a connection to its daemon.
func (m *mnt) asks(pid int) {
	m.t.Helper()
	m.eventually("the command asks its daemon", func() error {
		fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil {
			return err
		}
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:") {
				return nil
			}
		}
		return errors.New("it has no socket")
	})
}

// TestUmountInterrupted: an umount that is interrupted while it waits for the bucket leaves the mount.
func TestUmountInterrupted(t *testing.T) {
	w := newWorld(t)
	m := w.mount("--origin-timeout=2s")
	m.expect = unpublishable()
	undo := w.refuseWrites()
	ok(t, "write", os.WriteFile(m.path("f"), []byte("kept"), 0o644))
	cmd := w.command("umount", m.dir)
	var errs strings.Builder
	cmd.Stderr = &errs
	ok(t, "umount", cmd.Start())
	m.asks(cmd.Process.Pid)
	time.Sleep(time.Second) // it publishes by now, or asks whom to wait for: the mount stays either way
	interrupted := func() {
		t.Helper()
		ok(t, "interrupt", cmd.Process.Signal(os.Interrupt))
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("umount that was interrupted: %v", err)
		}
		oneLine(t, "umount", errs.String(), m.dir+" stays mounted", "--no-drain")
	}
	interrupted()
	m.same("f", []byte("kept"))

	// So does one whose daemon has not answered yet.
	s := m.status()
	for _, pid := range []int{s.Keeper.PID, s.WorkerPID} {
		m.signal(pid, syscall.SIGSTOP)
	}
	cmd = w.command("umount", m.dir)
	errs.Reset()
	cmd.Stderr = &errs
	ok(t, "umount", cmd.Start())
	m.asks(cmd.Process.Pid)
	interrupted()
	for _, pid := range []int{s.Keeper.PID, s.WorkerPID} {
		m.signal(pid, syscall.SIGCONT)
	}
	m.expect = append(m.expect, "hangs", "not well", "SIGQUIT", "is not sent", "goroutine") // when that took long
	m.same("f", []byte("kept"))
	undo()
	m.ends(0, "retry", m.dir)
	m.published("f", []byte("kept"))
}

// TestDiscard: local changes are given up, and what the bucket has shows.
func TestDiscard(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		for _, k := range []string{"changed", "deleted", "renamed"} {
			w.put(k, []byte(k))
		}
		m := w.mount(flag, "--ttl=1h")
		m.expect = append(unpublishable(), "given up")
		m.names(".")
		m.same("changed", []byte("changed"))
		undo := w.refuseWrites()
		ok(t, "write", os.WriteFile(m.path("changed"), []byte("otherwise"), 0o644))
		ok(t, "write", os.WriteFile(m.path("new"), []byte("new"), 0o644))
		ok(t, "unlink", os.Remove(m.path("deleted")))
		ok(t, "rename", os.Rename(m.path("renamed"), m.path("other")))
		f := mustOpen(t, m.path("new"))
		_, errs := m.ends(1, "discard", m.dir, "new")
		oneLine(t, "discard of an open file", errs, "/new", "open")
		if got, err := io.ReadAll(f); err != nil || string(got) != "new" {
			t.Errorf("read of a file that was not discarded: %q %v", got, err)
		}
		ok(t, "close", f.Close())
		_, errs = m.ends(2, "discard", m.dir)
		oneLine(t, "discard of nothing", errs, "--all")
		m.eventually("the handle is released", func() error {
			if n := m.status().Files.Handles; n != 0 {
				return fmt.Errorf("%d handles", n)
			}
			return nil
		})
		out, _ := m.ends(0, "discard", m.dir, m.path("new"), "changed", "/deleted")
		contains(t, "discard", out, "given up: 3")
		m.same("changed", []byte("changed"))
		m.same("deleted", []byte("deleted"))
		_, err := os.Stat(m.path("new"))
		wantErrno(t, "stat of what was discarded", err, syscall.ENOENT)
		m.ends(0, "discard", "--all", m.dir)
		if got := m.names("."); !slices.Equal(got, []string{"changed", "deleted", "renamed"}) {
			t.Errorf("names %q", got)
		}
		m.same("renamed", []byte("renamed"))
		_, errs = m.ends(1, "discard", m.dir, "changed")
		oneLine(t, "discard of what is in the bucket", errs, "/changed", "nothing")
		undo()
		m.ends(0, "sync", m.dir)
		for _, k := range []string{"changed", "deleted", "renamed"} {
			if got, err := w.object(k); err != nil || string(got) != k {
				t.Errorf("the bucket has %q under %s, %v", got, k, err)
			}
		}
		for _, k := range []string{"new", "other"} {
			if _, err := w.object(k); err == nil {
				t.Errorf("%s came to the bucket", k)
			}
		}
	})
}

// TestHeld: a file that was open when the machine stopped is shown, not published, and published by retry.
func TestHeld(t *testing.T) {
	w := newWorld(t)
	m := w.mount("--origin-timeout=2s")
	m.expect = unpublishable()
	undo := w.refuseWrites()
	ok(t, "write", os.WriteFile(m.path("f"), []byte("half"), 0o644))
	m.ends(0, "umount", "--no-drain", m.dir)
	m.up = false
	undo()
	hold(t, m.cache)
	m.start()
	contains(t, "status", m.statusText(), "1 HELD", "held      /f")
	out, _ := m.ends(1, "sync", m.dir)
	contains(t, "sync", out, "held", "/f")
	if _, err := w.object("f"); err == nil {
		t.Error("a held file was published")
	}
	m.same("f", []byte("half"))
	out, _ = m.ends(0, "retry", m.dir, m.path("f"))
	contains(t, "retry", out, "tried again: 1")
	m.ends(0, "sync", m.dir)
	if got, err := w.object("f"); err != nil || string(got) != "half" {
		t.Errorf("the bucket has %q, %v", got, err)
	}
	_, errs := m.ends(1, "retry", m.dir, "f")
	oneLine(t, "retry of what is in the bucket", errs, "/f", "nothing")
}

// hold marks all that is dirty in the index of a cache directory as open when the machine stopped.
func hold(t *testing.T, cache string) {
	t.Helper()
	db, err := meta.Open(meta.Options{Dir: filepath.Join(cache, "index")})
	ok(t, "index", err)
	var all []meta.Dirty
	ok(t, "walk", db.WalkDirty(0, func(d meta.Dirty) bool { all = append(all, d); return true }))
	if len(all) != 1 {
		t.Fatalf("%d dirty inodes", len(all))
	}
	ok(t, "hold", db.Do(func(tx *meta.Tx) error {
		d := all[0]
		d.Held = true
		return tx.SetDirty(&d)
	}))
	ok(t, "close", db.Close())
}

// TestConflict: somebody else changes an object that was changed here: both are kept, and status says it.
func TestConflict(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("before"))
	m := w.mount("--ttl=1h")
	m.expect = append(unpublishable(), "somebody else has changed the object")
	m.same("f", []byte("before"))
	undo := w.refuseWrites()
	ok(t, "write", os.WriteFile(m.path("f"), []byte("ours"), 0o644))
	w.put("f", []byte("theirs"))
	undo()
	m.ends(0, "sync", m.dir)
	if n := m.writes(); n.Conflicts != 1 {
		t.Errorf("status: %+v", n)
	}
	contains(t, "status", m.statusText(), "conflict  1 files")
	m.eventually("theirs has the name", func() error {
		if b, err := os.ReadFile(m.path("f")); err != nil || string(b) != "theirs" {
			return fmt.Errorf("%q %v", b, err)
		}
		return nil
	})
	var ours string
	for _, n := range m.names(".") {
		if strings.HasPrefix(n, "f.conflict-") {
			ours = n
		}
	}
	m.same(ours, []byte("ours"))
	if got, err := w.object(ours); err != nil || string(got) != "ours" {
		t.Errorf("the bucket has %q under %q, %v", got, ours, err)
	}
}

// TestLastWins: with --conflicts=last-wins ours takes the name.
func TestLastWins(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("before"))
	m := w.mount("--conflicts=last-wins")
	m.expect = append(unpublishable(), "is overwritten (last-wins)")
	m.same("f", []byte("before"))
	undo := w.refuseWrites()
	ok(t, "write", os.WriteFile(m.path("f"), []byte("ours"), 0o644))
	w.put("f", []byte("theirs"))
	undo()
	m.ends(0, "sync", m.dir)
	if got, err := w.object("f"); err != nil || string(got) != "ours" {
		t.Errorf("the bucket has %q, %v", got, err)
	}
}

// TestProtect: with --protect=foreign only what this mount wrote can be changed.
func TestProtect(t *testing.T) {
	w := newWorld(t)
	w.put("theirs", []byte("theirs"))
	w.put("dir/theirs", []byte("theirs"))
	m := w.mount("--protect=foreign")
	p := m.path("theirs")
	_, err := os.OpenFile(p, os.O_WRONLY, 0)
	wantErrno(t, "write", err, syscall.EPERM)
	wantErrno(t, "truncate", os.Truncate(p, 0), syscall.EPERM)
	wantErrno(t, "unlink", os.Remove(p), syscall.EPERM)
	wantErrno(t, "rename", os.Rename(p, m.path("x")), syscall.EPERM)
	wantErrno(t, "rename of its directory", os.Rename(m.path("dir"), m.path("x")), syscall.EPERM)
	ok(t, "create", os.WriteFile(m.path("ours"), []byte("1"), 0o644))
	wantErrno(t, "rename over it", os.Rename(m.path("ours"), p), syscall.EPERM)
	m.same("theirs", []byte("theirs"))
	m.ends(0, "sync", m.dir)
	ok(t, "write of our own", os.WriteFile(m.path("ours"), []byte("22"), 0o644))
	ok(t, "rename of our own", os.Rename(m.path("ours"), m.path("mine")))
	m.ends(0, "sync", m.dir)
	if got, err := w.object("mine"); err != nil || string(got) != "22" {
		t.Errorf("the bucket has %q, %v", got, err)
	}
	ok(t, "unlink of our own", os.Remove(m.path("mine")))
	m.unpublished("mine")
}

// TestPolicies: fsync and close of some paths return when the bucket has the file.
func TestPolicies(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "c.yaml")
	write(t, file, "policies:\n  - path: /ckpt/**\n    fsync: remote\n  - {path: '*.done', close: remote}\n")
	m := w.mount("--config", file)
	ok(t, "mkdir", os.Mkdir(m.path("ckpt"), 0o755))
	f, err := os.Create(m.path("ckpt/a"))
	ok(t, "create", err)
	_, err = f.Write([]byte("data"))
	ok(t, "write", err)
	ok(t, "fsync", f.Sync())
	if got, err := w.object("ckpt/a"); err != nil || string(got) != "data" {
		t.Errorf("after fsync the bucket has %q, %v", got, err)
	}
	ok(t, "close", f.Close())
	ok(t, "write", os.WriteFile(m.path("x.done"), []byte("yes"), 0o644))
	if got, err := w.object("x.done"); err != nil || string(got) != "yes" {
		t.Errorf("after close the bucket has %q, %v", got, err)
	}
}
