package fs

import (
	"os"
	"strings"
	"testing"

	"github.com/leatfs/leatfs/fs/meta"
)

// held makes a file that may be torn, as after a power cut.
func (p *program) held(t *testing.T, name, data string) {
	t.Helper()
	w, err := p.openFile(t, name, os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		err = w.write(t, 0, []byte(data))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := p.db.Do(func(tx *meta.Tx) error {
		d, err := tx.Dirty(w.node.Ino())
		if err != nil {
			return err
		}
		d.Held, d.Error = true, heldTorn
		return tx.SetDirty(&d)
	}); err != nil {
		t.Fatal(err)
	}
	w.close()
}

// TestHeldIsNotSynced: fsync and close that promise the bucket fail on a file that is held.
func TestHeldIsNotSynced(t *testing.T) {
	p, _ := writing(t, true)
	p.fs.opt.Policies = []Policy{{Pattern: "*", FsyncRemote: true, CloseRemote: true}}
	p.held(t, "torn", "1")
	w, err := p.openFile(t, "torn", os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	if err := p.fs.Fsync(t.Context(), w.node, w.o.FH, false); err == nil || !strings.Contains(err.Error(), heldTorn) {
		t.Errorf("fsync: %v", err)
	}
	if err := p.fs.Flush(t.Context(), w.node, w.o.FH); err == nil || !strings.Contains(err.Error(), heldTorn) {
		t.Errorf("close: %v", err)
	}
	if have := bucket(t, p.store); len(have) != 0 {
		t.Errorf("the bucket holds %q", have)
	}
}

// TestHeldWhileSynced: so does one that waits when its file comes to be held.
func TestHeldWhileSynced(t *testing.T) {
	p, o := overlaying(t, pattern(overlaid, 1))
	p.fs.opt.Policies = []Policy{{Pattern: "*", FsyncRemote: true}}
	o.shut()
	w := p.change(t, "big", 1<<20+10, []byte("first"))
	defer w.close()
	p.store.Set("big", []byte("theirs"))
	o.open()
	if err := p.fs.Fsync(t.Context(), w.node, w.o.FH, false); err == nil || !strings.Contains(err.Error(), heldBase) {
		t.Errorf("fsync: %v", err)
	}
}
