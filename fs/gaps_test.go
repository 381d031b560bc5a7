package fs

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
)

// TestFlushTakenOver: a close that is to wait for the bucket does so also when another process opened the file.
func TestFlushTakenOver(t *testing.T) {
	r := newRig(t, t.TempDir(), true)
	r.opt.Policies = []Policy{{Pattern: "*", CloseRemote: true}}
	r.start(t)
	defer r.stop(t)
	p := newProgram(r)
	w, err := p.openFile(t, "a", os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.write(t, 0, []byte("1")); err != nil {
		t.Fatal(err)
	}
	p.takeOver(t)
	if err := p.fs.Flush(context.Background(), w.node, w.o.FH); err != nil {
		t.Fatal(err)
	}
	if b := bucket(t, p.store); b["a"] != "1" {
		t.Errorf("after the close the bucket holds %q", b)
	}
	w.close()
}

// TestConflictsCounted: how many conflicts there were on a mount is known to the processes that come after.
func TestConflictsCounted(t *testing.T) {
	p, o := writing(t, true)
	p.steps(t, "put a 1", "drain")
	o.shut()
	p.steps(t, "append a 2")
	p.store.Set("a", []byte("theirs"))
	o.open()
	p.drain(t)
	for range 2 {
		if n := p.fs.conflicts(); n != 1 {
			t.Errorf("%d conflicts, want 1", n)
		}
		p.takeOver(t)
	}
	p.stop(t)
	p.start(t)
	if n := p.fs.conflicts(); n != 0 {
		t.Errorf("%d conflicts on a new mount", n)
	}
}

// TestDeletionsRemember: that a deletion fails is known to the next process.
func TestDeletionsRemember(t *testing.T) {
	p, o := writing(t, true)
	p.steps(t, "put a 1", "drain")
	o.fates(func(op objstore.Op) fate {
		if strings.HasPrefix(op.Name, "DELETE") {
			return refused
		}
		return carriedOut
	})
	p.steps(t, "rm a")
	var tomb meta.Tomb
	for end := time.Now().Add(30 * time.Second); tomb.Tries == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		var err error
		if tomb, err = p.db.Tomb("a"); err != nil {
			t.Fatal(err)
		}
	}
	if tomb.Tries == 0 || tomb.Error == "" {
		t.Fatalf("%+v", tomb)
	}
	p.takeOver(t)
	if now, err := p.db.Tomb("a"); err != nil || now.Tries < tomb.Tries {
		t.Errorf("after a takeover: %+v, %v", now, err)
	}
	l, err := p.fs.Ledger(10)
	if err != nil || len(l.Entries) != 1 || l.Entries[0].Tries == 0 || l.Entries[0].Error == "" {
		t.Errorf("%+v, %v", l.Entries, err)
	}
	o.fates(nil)
	p.wantBucket(t, map[string]string{})
}

// TestLastWriterUnknown: the last handle that can write is told of also when its node is known no more.
func TestLastWriterUnknown(t *testing.T) {
	var told []meta.Ino
	var tab openTable
	tab.init(nil, nil)
	tab.lastWriter = func(ino meta.Ino) { told = append(told, ino) }
	tab.writing[7] = 2
	tab.handleGone(Node(7, 0), true)
	tab.handleGone(Node(7, 0), false)
	if len(told) != 0 {
		t.Errorf("told of %v though one can write still", told)
	}
	tab.handleGone(Node(7, 0), true)
	if len(told) != 1 || told[0] != 7 {
		t.Errorf("told of %v", told)
	}
}

// TestAdoptedLater: who has a file open whose object could not be had when it was published finds it when he reads.
func TestAdoptedLater(t *testing.T) {
	for _, pass := range []bool{true, false} {
		p, _ := writing(t, pass)
		p.steps(t, "put a content", "drain")
		w, err := p.openFile(t, "a", os.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		in, err := p.fs.inode(w.node)
		if err != nil {
			t.Fatal(err)
		}
		in.Object.Size = 1 << 62 // no object can be that large
		committed := false
		p.fs.adopted(w.node, &in, func(ok bool) { committed = ok })
		if !committed {
			t.Error("not committed")
		}
		if b, err := w.all(); err != nil || string(b) != "content" {
			t.Errorf("%q, %v", b, err)
		}
		p.wantFile(t, "a", "content")
		w.close()
	}
}
