package mount

import (
	"bytes"
	"syscall"
	"testing"
	"time"
)

// TestTakeoverStorm: workers that are killed at every moment of their start, one after the other,
// cost nothing that was known: a death that was ordered says nothing of the index.
func TestTakeoverStorm(t *testing.T) {
	w := newWorld(t)
	data := random(1, 12<<20)
	w.put("d/f", data)
	w.put("d/g", data[:1<<20])
	m := w.mount("--passthrough=off")
	m.same("d/g", data[:1<<20])
	f := mustOpen(t, m.path("d/f"))
	got := make([]byte, len(data))
	if _, err := f.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	keeper := m.status().Keeper.PID
	// Seven in a row at each moment; which of them falls into what depends on the machine.
	for after := time.Duration(0); after <= 400*time.Millisecond; after += 10*time.Millisecond + after/4 {
		for range 7 {
			pid := m.worker(keeper)
			time.Sleep(after)
			m.signal(pid, syscall.SIGKILL)
			m.gone(pid)
		}
	}
	clear(got)
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
		t.Errorf("a file that was open all along: %v %s", err, difference(got, data))
	}
	m.same("d/g", data[:1<<20])
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	// That the log says nothing of a damaged index is seen at the end.
}
