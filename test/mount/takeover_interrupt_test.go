package mount

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/leatfs/leatfs/test/fault"
)

// TestTakeoverInterrupt: a program that waits for a slow origin, under a process that has taken
// over, can be killed, and while it is being killed others are served.
func TestTakeoverInterrupt(t *testing.T) {
	for _, mode := range []struct{ name, flag string }{{"resend", "--no-resend=false"}, {"no resend", "--no-resend=true"}} {
		t.Run(mode.name, func(t *testing.T) {
			w := newWorld(t)
			w.put("d/a", random(1, 100<<10))
			m := w.mount(mode.flag)
			m.expect = retried()
			m.names("d")
			const slow = 30 * time.Second
			r := w.proxy.Add(fault.Rule{Class: "GET", Do: fault.Stall(-1, slow)})
			mark := w.mark()
			cat := exec.Command("cat", m.path("d/a"))
			if err := cat.Start(); err != nil {
				t.Fatal(err)
			}
			asked := func(n int) func() error {
				return func() error {
					if got := w.requests("GET", mark); got < n {
						return fmt.Errorf("%d GETs, want %d", got, n)
					}
					return nil
				}
			}
			m.eventually("it waits for the origin", asked(1))
			pid := m.status().WorkerPID
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			m.eventually("it waits under the next process", asked(2))
			began := time.Now()
			if err := cat.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.ReadDir(m.path("d")); err != nil {
				t.Error(err)
			}
			_ = cat.Wait()
			if d := time.Since(began); d > slow/2 {
				t.Errorf("others were served, and it ended, after %v", d)
			}
			r.Remove()
			m.same("d/a", random(1, 100<<10))
		})
	}
}
