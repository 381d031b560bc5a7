package mount

import (
	"bytes"
	"fmt"
	"io"
	"syscall"
	"testing"
)

// TestTakeoverReads: what the kernel reads by itself is read while no process serves the mount.
func TestTakeoverReads(t *testing.T) {
	w := newWorld(t)
	data := random(1, 9<<20)
	w.put("f", data)
	m := w.mount()
	m.same("f", data)
	m.eventually("the file is passed through", func() error {
		before := m.status().Files.Pass
		f := mustOpen(t, m.path("f"))
		defer f.Close()
		if m.status().Files.Pass == before {
			return fmt.Errorf("%d opens are", before)
		}
		return nil
	})
	f := mustOpen(t, m.path("f"))
	mapped, err := syscall.Mmap(int(f.Fd()), 0, len(data), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	s := m.status()
	for _, x := range []struct {
		pid int
		sig syscall.Signal
	}{{s.Keeper.PID, syscall.SIGSTOP}, {s.WorkerPID, syscall.SIGKILL}} {
		if err := syscall.Kill(x.pid, x.sig); err != nil {
			t.Fatal(err)
		}
	}
	m.eventually("nobody serves", func() error {
		if alive(s.WorkerPID) {
			return fmt.Errorf("process %d is alive", s.WorkerPID)
		}
		return nil
	})
	dropCaches(t)
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read: %v, %s", err, difference(got, data))
	}
	if !bytes.Equal(mapped, data) {
		t.Error("the mapping has wrong bytes")
	}
	if err := syscall.Kill(s.Keeper.PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	m.same("f", data)
	if err := syscall.Munmap(mapped); err != nil {
		t.Error(err)
	}
	if r := m.status().Keeper.Restarts; r != 1 {
		t.Errorf("%d restarts", r)
	}
	_ = f.Close()
}
