package mount

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/test/load"
)

// TestTakeoverEnds: whatever ends a mount while its worker has just been killed, nothing is left.
func TestTakeoverEnds(t *testing.T) {
	w := newWorld(t)
	w.put("d/f", random(1, 1<<20))
	connection := func(m *mnt) string {
		var st unix.Stat_t
		if err := unix.Stat(m.dir, &st); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%d", unix.Minor(st.Dev))
	}
	run := func(args ...string) func(*mnt, string) {
		return func(m *mnt, _ string) {
			if out, err := exec.Command(args[0], append(args[1:], m.dir)...).CombinedOutput(); err != nil {
				m.t.Errorf("%v: %v %s", args, err, out)
			}
		}
	}
	own := func(args ...string) func(*mnt, string) {
		return func(m *mnt, _ string) {
			code, _, stderr := outcome(m.t, w.command(append(args, m.dir)...), 60*time.Second)
			if code != 0 {
				m.t.Errorf("%v: %s", args, stderr)
			}
		}
	}
	keeperTerm := func(m *mnt, _ string) {}
	for _, c := range []struct {
		name string
		end  func(m *mnt, connection string)
		term string // who gets a SIGTERM: keeper, worker
	}{
		{"umount", run("umount"), ""},
		{"umount -l", run("umount", "-l"), ""},
		{"leatfs umount", own("umount"), ""},
		{"leatfs umount -l", own("umount", "-l"), ""},
		{"abort", abortConnection, ""},
		{"SIGTERM to the keeper", keeperTerm, "keeper"},
		{"SIGTERM to the worker", keeperTerm, "worker"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, after := range []time.Duration{-1, 0, 30 * time.Millisecond, 150 * time.Millisecond, 400 * time.Millisecond} {
				w := *w
				w.t = t
				m := w.mount()
				m.same("d/f", random(1, 1<<20))
				keeper, conn := m.status().Keeper.PID, connection(m)
				if after >= 0 {
					m.signal(m.worker(keeper), syscall.SIGKILL)
					time.Sleep(after)
				}
				m.up = false
				switch c.term {
				case "keeper":
					m.signal(keeper, syscall.SIGTERM)
				case "worker":
					_ = syscall.Kill(m.worker(keeper), syscall.SIGTERM) // it may have been replaced by now
				default:
					c.end(m, conn)
				}
				m.expect = []string{"keeps dying", "FUSE connection ended", "in use"}
				if c.term == "worker" && after >= 0 && mountsAt(t, m.dir) > 0 {
					// One that had not begun is killed by it, and another goes on. The next is told when it serves.
					m.endByTerm(keeper)
				}
				if c.term != "" || c.name == "abort" { // nobody waits for the end there
					m.eventually(fmt.Sprintf("no mount is left, %s %v after a kill", c.name, after), func() error {
						if mountsAt(t, m.dir) > 0 {
							return errors.New("it is there")
						}
						return nil
					})
				}
				nothingLeft(t, fmt.Sprintf("%s %v after a kill", c.name, after), m.dir)
				m.checkLog()
			}
		})
	}
}

// endByTerm sends SIGTERM to workers until the mount has ended.
func (m *mnt) endByTerm(keeper int) {
	m.t.Helper()
	m.eventually("SIGTERM to the worker ends the mount", func() error {
		if mountsAt(m.t, m.dir) == 0 {
			return nil
		}
		if ws := load.Workers(keeper); len(ws) > 0 {
			_ = syscall.Kill(ws[0], syscall.SIGTERM) // it may have ended
		}
		time.Sleep(200 * time.Millisecond)
		return errors.New("it is there")
	})
}

// abortConnection ends a connection as an operator does who has no other way left.
func abortConnection(m *mnt, connection string) {
	const control = "/sys/fs/fuse/connections"
	switch err := unix.Mount("fusectl", control, "fusectl", 0, ""); {
	case err == nil:
		defer func() {
			if err := unix.Unmount(control, unix.MNT_DETACH); err != nil {
				m.t.Error(err)
			}
		}()
	case !errors.Is(err, syscall.EBUSY): // mounted there already
		m.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(control, connection, "abort"), []byte("1"), 0); err != nil {
		m.t.Fatal(err)
	}
}
