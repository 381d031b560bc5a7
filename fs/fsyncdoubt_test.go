package fs

import (
	"os"
	"testing"
	"time"
)

// TestFsyncInDoubt: fsync that promises the bucket does not fail because a process was killed that may still have the object
// deleted that was under the name before: it waits for as long.
func TestFsyncInDoubt(t *testing.T) {
	p, o := newStray(t, false)
	p.steps(t, "put a 1", "drain")
	o.shut()
	p.steps(t, "rm a")
	p.hasten(t)
	o.waitHeld(t, "DELETE a")
	p.takeOver(t)
	o.mu.Lock()
	o.stray = false
	o.mu.Unlock()
	o.open()
	p.fs.opt.Policies = []Policy{{Pattern: "*", FsyncRemote: true}}
	w, err := p.openFile(t, "a", os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	if err := w.write(t, 0, []byte("2")); err != nil {
		t.Fatal(err)
	}
	synced := make(chan error, 1)
	go func() { synced <- p.fs.Fsync(t.Context(), w.node, w.o.FH, false) }()
	time.Sleep(200 * time.Millisecond)
	if p.fs.inDoubt() && o.land() == 0 {
		t.Fatal("nothing was under way")
	}
	if err := <-synced; err != nil {
		t.Errorf("fsync: %v", err)
	}
	if have := bucket(t, p.store); have["a"] != "2" {
		t.Errorf("the bucket holds %q", have)
	}
}
