package meta

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/dgraph-io/badger/v4"
)

// otherBoot makes the lock file say that the index was last open before a reboot.
func otherBoot(t *testing.T, dir string) {
	t.Helper()
	l := filepath.Join(dir, "lock")
	b, err := os.ReadFile(l)
	if err != nil {
		t.Fatal(err)
	}
	copy(b[33:], "00000000-0000-0000-0000-000000000000")
	if err := os.WriteFile(l, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestRepair drops single keys, as a power cut drops transactions, and looks for what should
// not be believed any more.
func TestRepair(t *testing.T) {
	dir := t.TempDir()
	db := openAt(t, dir)
	r := root(t, db)
	merge(t, db, r.Ino, page("", "", "a", "b", "d/"))
	d, err := db.Lookup(r.Ino, "d")
	if err != nil {
		t.Fatal(err)
	}
	merge(t, db, d.Ino, page("", "", "x", "y"))
	a, _ := db.Lookup(r.Ino, "a")
	x, _ := db.Lookup(d.Ino, "x")
	if err := db.SetListing(r.Ino, Listing{Complete: 5}); err != nil {
		t.Fatal(err)
	}
	crash := func(drop ...[]byte) {
		t.Helper()
		if err := db.update(func(tx *badger.Txn) error {
			for _, k := range drop {
				if err := tx.Delete(k); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		// What a killed process leaves is its files.
		copied := t.TempDir()
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		dir = copied
	}
	crash(inoKey(keyInode, a.Ino), inoKey(keyInode, d.Ino), dentryKey(r.Ino, "d"))
	cut := dir
	crash()
	same := openAt(t, dir)
	if l, err := same.Listing(r.Ino); err != nil || l.Complete != 5 {
		t.Fatalf("the same boot: got %+v, %v", l, err)
	}
	if err := same.Close(); err != nil {
		t.Fatal(err)
	}
	dir = cut
	otherBoot(t, dir)
	after := openAt(t, dir)
	if after.Rebuilt() {
		t.Fatal("rebuilt")
	}
	if got := names(t, after, r.Ino); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("got %v", got)
	}
	if got, err := after.Inode(a.Ino); err != nil || got != a {
		t.Fatalf("got %+v, %v, want %+v", got, err, a)
	}
	if l, err := after.Listing(r.Ino); err != nil || l != (Listing{}) {
		t.Fatalf("got %+v, %v", l, err)
	}
	if _, err := after.Lookup(d.Ino, "x"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("got %v for a name in a lost directory (inode %d)", err, x.Ino)
	}
	if err := audit(after); err != nil {
		t.Fatal(err)
	}
}
