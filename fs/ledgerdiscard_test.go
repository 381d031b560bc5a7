package fs

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
)

// refusing is a file system whose store refuses all changes, with some objects that are listed.
func refusing(t *testing.T, keys ...string) *ledgerRig {
	r := newLedgerRig(t).begin()
	for _, k := range keys {
		r.store.Set(k, []byte(k))
	}
	if _, err := r.list("/", 100); err != nil {
		t.Fatal(err)
	}
	r.shut.shut.Store(true)
	return r
}

// TestDiscardOfHeld: a held file that cannot be discarded, since somebody reads it, is still held.
func TestDiscardOfHeld(t *testing.T) {
	r := refusing(t)
	r.write("torn", "torn")
	if _, err := r.sync(300 * time.Millisecond); err == nil {
		t.Fatal("sync to a store that refuses ended well")
	}
	e, err := r.walk("torn")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.fs.db.Do(func(tx *meta.Tx) error {
		d, err := tx.Dirty(r.fs.ino(e.Node))
		if err != nil {
			return err
		}
		d.Held, d.Seq, d.Error = true, 0, heldOpen
		return tx.SetDirty(&d)
	}); err != nil {
		t.Fatal(err)
	}
	r.shut.shut.Store(false)
	h, err := r.open("torn")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.fs.Discard(context.Background(), "/torn"); !errors.Is(err, errOpen) {
		t.Errorf("discard of a held file that is open: %v", err)
	}
	res, err := r.sync(time.Minute)
	if err != nil || !slices.Equal(names(&res.Left), []string{"held file /torn"}) {
		t.Errorf("after that: %v, %q", err, names(&res.Left))
	}
	r.wantStored()
	h.close()
	if err := r.fs.Discard(context.Background(), "/torn"); err != nil {
		t.Error(err)
	}
	r.missing("torn")
	r.clean()
	r.wantStored()
}

// TestDiscardRenamedAndWritten: a file that was renamed, and written to since, has its old name again, and what it held.
func TestDiscardRenamedAndWritten(t *testing.T) {
	r := refusing(t, "a")
	r.rename("a", "b")
	r.write("b", "otherwise")
	if err := r.fs.Discard(context.Background(), "/b"); err != nil {
		t.Fatal(err)
	}
	r.missing("b")
	r.content("a", "a")
	if l, err := r.fs.Ledger(10); err != nil || l.Total() != 0 {
		t.Errorf("after that: %q %v", names(&l), err)
	}
	r.shut.shut.Store(false)
	r.clean()
	r.wantStored("a=a")
	r.content("a", "a")
}

// TestDiscardRenamedAway: what has taken the old name of a renamed file meanwhile is not lost, nor taken for somebody
// else's, nor is what was renamed.
func TestDiscardRenamedAway(t *testing.T) {
	r := refusing(t, "a")
	r.rename("a", "b")
	r.write("a", "new")
	ctx := context.Background()
	if err := r.fs.Discard(ctx, "/b"); err == nil || !strings.Contains(err.Error(), "/a") {
		t.Errorf("discard of a renamed file whose old name is taken: %v", err)
	}
	r.content("a", "new")
	r.content("b", "a")
	r.shut.shut.Store(false)
	r.clean()
	r.wantStored("a=new", "b=a")

	r.shut.shut.Store(true)
	r.rename("b", "c")
	r.write("b", "newer")
	for _, file := range []string{"/b", "/c"} {
		if err := r.fs.Discard(ctx, file); err != nil {
			t.Error(err)
		}
	}
	r.content("b", "a")
	r.missing("c")
	r.shut.shut.Store(false)
	r.clean()
	r.wantStored("a=new", "b=a")
}

// TestDiscardBelowRenamed: a file in a directory that was renamed shows under the old name of the directory again, at once.
func TestDiscardBelowRenamed(t *testing.T) {
	r := refusing(t, "d/e/x", "d/e/y")
	r.rename("d", "n")
	if err := r.fs.Discard(context.Background(), "/n/e/x"); err != nil {
		t.Fatal(err)
	}
	r.missing("n/e/x")
	r.content("d/e/x", "d/e/x")
	r.missing("d/e/y")
	r.content("n/e/y", "d/e/y")
	r.shut.shut.Store(false)
	r.clean()
	r.wantStored("d/e/x=d/e/x", "n/e/y=d/e/y")
	r.content("d/e/x", "d/e/x")
}
