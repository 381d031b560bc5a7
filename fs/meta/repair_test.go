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

// TestRepairLinks drops what a transaction wrote of several names, and looks at what is left.
func TestRepairLinks(t *testing.T) {
	for _, c := range []struct {
		name string
		drop func(r, d, x Ino) [][]byte
		set  func(r, d, x Ino) (k, v []byte)
		want []string // names of the root, then of d
	}{
		{name: "nothing", want: []string{"a", "b", "d/", "c", "l"}},
		{name: "dentry", drop: func(r, _, _ Ino) [][]byte { return [][]byte{dentryKey(r, "b")} }, want: []string{"a", "b", "d/", "c", "l"}},
		{name: "dentry of the primary name", drop: func(r, _, _ Ino) [][]byte { return [][]byte{dentryKey(r, "a"), nameOf(19, r, "a")} },
			want: []string{"a", "b", "d/", "c", "l"}},
		{name: "dentry and name", drop: func(r, _, x Ino) [][]byte { return [][]byte{dentryKey(r, "b"), nameOf(x, r, "b")} },
			want: []string{"a", "d/", "c", "l"}},
		{name: "inode", drop: func(_, _, x Ino) [][]byte { return [][]byte{inoKey(keyInode, x)} }, want: []string{"d/", "l"}},
		{name: "directory", drop: func(r, d, _ Ino) [][]byte { return [][]byte{inoKey(keyInode, d), dentryKey(r, "d")} }, want: []string{"a", "b"}},
		{name: "body in the dentry", set: func(r, _, x Ino) (k, v []byte) {
			return dentryKey(r, "a"), appendBody(nil, &Inode{Ino: x, Kind: KindFile})
		}, want: []string{"a", "b", "d/", "c", "l"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			db := openAt(t, dir)
			r := root(t, db)
			d := insert(t, db, r.Ino, Inode{Name: "d", Kind: KindDir})
			x := insert(t, db, r.Ino, Inode{Name: "a", Kind: KindFile, Flags: Local, Object: Object{Size: 5}})
			insert(t, db, d.Ino, Inode{Name: "l", Kind: KindFile, Flags: Local})
			do(t, db, func(tx *Tx) error {
				if _, err := tx.Link(x.Ino, r.Ino, "b"); err != nil {
					return err
				}
				_, err := tx.Link(x.Ino, d.Ino, "c")
				return err
			})
			if err := db.update(func(tx *badger.Txn) error {
				if c.set != nil {
					if err := tx.Set(c.set(r.Ino, d.Ino, x.Ino)); err != nil {
						return err
					}
				}
				if c.drop != nil {
					for _, k := range c.drop(r.Ino, d.Ino, x.Ino) {
						if err := tx.Delete(k); err != nil {
							return err
						}
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			copied := t.TempDir()
			if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			otherBoot(t, copied)
			after := openAt(t, copied)
			if after.Rebuilt() {
				t.Fatal("rebuilt")
			}
			got := names(t, after, r.Ino)
			if _, err := after.Inode(d.Ino); err == nil {
				got = append(got, names(t, after, d.Ino)...)
			}
			if !slices.Equal(got, c.want) {
				t.Fatalf("got %v, want %v", got, c.want)
			}
			if err := audit(after); err != nil {
				t.Fatal(err)
			}
			for _, n := range got[:min(1, len(got))] {
				if in, err := after.Lookup(r.Ino, n); n == "a" && (err != nil || in.Ino != x.Ino || in.Object.Size != 5) {
					t.Fatalf("got %+v, %v", in, err)
				}
			}
		})
	}
}
