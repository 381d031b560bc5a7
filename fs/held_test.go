package fs

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

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

// TestClosedWhenBothDied: what was closed is published, in the order of the closes, though both processes of the mount are killed
// before that was noted; what was open is held, also what was opened again.
func TestClosedWhenBothDied(t *testing.T) {
	for _, pass := range []bool{true, false} {
		o := newOrigin()
		r := newRig(t, t.TempDir(), pass)
		r.wrap, r.givesWay = o.wrap, true
		r.start(t)
		t.Cleanup(func() { r.stop(t) })
		p := newProgram(r)
		p.steps(t, "put before 1")
		p.drain(t)
		o.shut()
		p.fs.publisher.makers.Add(1) // somebody makes files all the time
		p.steps(t, "put again 1", "put d.bin 1", "put open 1", "append before 2")
		first, err := p.openFile(t, "first.txt", os.O_CREATE|os.O_WRONLY, 0o644)
		if err == nil {
			err = first.write(t, 0, []byte("1"))
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // files on a disk have coarse times
		p.steps(t, "put latest 1")
		first.close() // written before latest, and closed after it
		w, err := p.openFile(t, "open", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		p.steps(t, "append again 2")
		for i := range 2 { // the second time nobody has said so of the rest since
			if p.seqOf(t, "latest") != 0 {
				if i == 0 {
					t.Fatal("it was noted as complete; the test shows nothing")
				}
				break // before it was known that somebody makes files
			}
			p.killBoth(t)
			if p.fs.publisher.makers.Add(1); p.fs.open.writers(w.node.Ino()) != 0 {
				t.Fatal("open still")
			}
		}
		p.fs.publisher.makers.Store(0)
		o.took()
		o.open()
		var got []string
		within(t, "what was closed is published", func() bool { got = append(got, o.took()...); return len(got) >= 5 })
		want := []string{"PUT d.bin", "PUT before", "PUT latest", "PUT first.txt", "PUT again"}
		if !slices.Equal(got, want) {
			t.Errorf("passthrough %v: published in the order %q, want %q", pass, got, want)
		}
		var l Ledger
		within(t, "what is published is noted", func() bool { l, err = p.fs.Ledger(10); return err != nil || l.Files() <= 1 })
		if err != nil || l.Held != 1 || len(l.Entries) != 1 || !strings.Contains(l.Entries[0].Error, heldOpen) {
			t.Errorf("passthrough %v: %+v, %v", pass, l, err)
		}
		p.steps(t, "rm open")
		p.wantBucket(t, map[string]string{"before": "12", "again": "12", "d.bin": "1", "latest": "1", "first.txt": "1"})
	}
}
