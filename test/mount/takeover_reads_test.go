package mount

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/test/load"
)

// TestTakeoverReads: what the kernel reads by itself is read while there is no worker at all, by
// handles and by mappings; what needs one waits for it.
func TestTakeoverReads(t *testing.T) {
	w := newWorld(t)
	data := load.Content("f", 3<<20)
	w.put("f", data)
	m := w.mount()
	m.same("f", data)
	m.eventually("the kernel reads it by itself", func() error {
		m.same("f", data)
		if m.status().Files.Pass == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	f := mustOpen(t, m.path("f"))
	mem, err := unix.Mmap(int(f.Fd()), 0, len(data), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	keeper := m.status().Keeper.PID
	m.signal(keeper, syscall.SIGSTOP)
	worker := m.worker(keeper)
	m.signal(worker, syscall.SIGKILL)
	m.gone(worker)
	resumed := time.AfterFunc(20*time.Second, func() { _ = syscall.Kill(keeper, syscall.SIGCONT) }) // or it would wait for ever
	b := make([]byte, len(data))
	for range 3 {
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			t.Fatal(err)
		}
		if _, err := f.ReadAt(b, 0); err != nil {
			t.Fatal(err)
		}
		for _, got := range [][]byte{b, mem} {
			if err := load.Check("f", 0, got); err != nil {
				t.Error(err)
			}
		}
	}
	if !resumed.Stop() {
		t.Error("a read waited for the worker")
	}
	stated := make(chan error, 1)
	go func() {
		stated <- unix.Statx(unix.AT_FDCWD, m.path("f"), unix.AT_STATX_FORCE_SYNC, unix.STATX_SIZE, new(unix.Statx_t))
	}()
	select {
	case <-stated:
		t.Error("attributes were asked for, and answered by nobody")
	case <-time.After(300 * time.Millisecond):
	}
	m.signal(keeper, syscall.SIGCONT)
	if err := <-stated; err != nil {
		t.Error(err)
	}
	if err := errors.Join(unix.Munmap(mem), f.Close()); err != nil {
		t.Error(err)
	}
}
