package meta

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestDirtyAndTombs(t *testing.T) {
	dir := t.TempDir()
	db := openAt(t, dir)
	r := root(t, db)
	up := Upload{Key: "k\x00/", ID: "u1", PartSize: 8 << 20}
	var all []Dirty
	for i := range 600 {
		in := insert(t, db, r.Ino, Inode{Name: itoa(i), Kind: KindFile})
		d := Dirty{Ino: in.Ino, Seq: db.NextSeq(), Since: int64(i), Held: i%2 == 0, Token: "t" + itoa(i), Tries: 1, Next: 5, Error: "no"}
		if i == 0 {
			d.Upload = up
		}
		tomb := Tomb{Key: fmt.Sprintf("k%03d", i), ETag: md5, VersionID: "v", Needed: in.Ino, Seq: db.NextSeq(), Done: 5, Token: "t", Tries: 2, Next: 3, Error: "e"}
		do(t, db, func(tx *Tx) error {
			if err := tx.SetTomb(&tomb); err != nil {
				return err
			}
			return tx.SetDirty(&d)
		})
		all = append(all, d)
		if got, err := db.Tomb(tomb.Key); err != nil || got != tomb {
			t.Fatalf("got %+v, %v, want %+v", got, err, tomb)
		}
	}
	check := func(db *DB) {
		t.Helper()
		var got []Dirty
		if err := db.WalkDirty(0, func(d Dirty) bool { got = append(got, d); return true }); err != nil || !slices.Equal(got, all) {
			t.Fatalf("got %d, %v", len(got), err)
		}
		if db.DirtyCount() != len(all) || db.TombCount() != 600 {
			t.Fatalf("%d dirty, %d tombs", db.DirtyCount(), db.TombCount())
		}
		var keys []string
		if err := db.WalkTombs("k100", "k400", func(tomb Tomb) bool { keys = append(keys, tomb.Key); return true }); err != nil || len(keys) != 300 || keys[0] != "k100" || keys[299] != "k399" {
			t.Fatalf("got %d, %v", len(keys), err)
		}
		keys = nil
		if err := db.WalkTombs("k5", "", func(tomb Tomb) bool { keys = append(keys, tomb.Key); return len(keys) < 3 }); err != nil || !slices.Equal(keys, []string{"k500", "k501", "k502"}) {
			t.Fatalf("got %v, %v", keys, err)
		}
	}
	check(db)
	last := db.NextSeq()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = openAt(t, dir)
	check(db)
	if n := db.NextSeq(); n < last {
		t.Fatalf("got %d after %d", n, last)
	}
	// Uploads that are given up are remembered, finished ones are not.
	do(t, db, func(tx *Tx) error {
		d, err := tx.Dirty(all[0].Ino)
		if err != nil || d != all[0] {
			t.Errorf("got %+v, %v", d, err)
		}
		d.Upload.ID = "u2"
		if err := tx.SetDirty(&d); err != nil {
			return err
		}
		return tx.AddAbort("other", "u3")
	})
	do(t, db, func(tx *Tx) error { return tx.ClearDirty(all[0].Ino, false) })
	want := []Upload{{Key: up.Key, ID: "u1"}, {Key: up.Key, ID: "u2"}, {Key: "other", ID: "u3"}}
	if got, err := db.Aborts(); err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %+v, %v, want %+v", got, err, want)
	}
	do(t, db, func(tx *Tx) error {
		d := all[1]
		d.Upload = Upload{Key: "f", ID: "u4"}
		if err := tx.SetDirty(&d); err != nil {
			return err
		}
		return tx.ClearDirty(d.Ino, true)
	})
	for _, u := range want[:2] {
		if err := db.ClearAbort(u.Key, u.ID); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := db.Aborts(); err != nil || !slices.Equal(got, want[2:]) {
		t.Fatalf("got %+v, %v", got, err)
	}
	do(t, db, func(tx *Tx) error {
		if err := tx.ClearTomb("k000"); err != nil {
			return err
		}
		if _, err := tx.Tomb("k000"); !errors.Is(err, ErrNotFound) {
			t.Errorf("got %v", err)
		}
		if err := tx.ClearTomb("none"); err != nil {
			return err
		}
		return tx.ClearDirty(1<<30, false)
	})
	if db.DirtyCount() != 598 || db.TombCount() != 599 {
		t.Fatalf("%d dirty, %d tombs", db.DirtyCount(), db.TombCount())
	}
	wantIs(t, db.Do(func(tx *Tx) error { return tx.SetDirty(&Dirty{Ino: 1 << 30}) }), ErrNotFound)
	for _, bad := range []Tomb{{}, {Key: "x", Prefix: true}, {Key: strings.Repeat("x", maxKey+1)}} {
		wantIs(t, db.Do(func(tx *Tx) error { return tx.SetTomb(&bad) }), ErrInvalid)
	}
	// What is dirty or staged is not purged.
	s, e := all[2].Ino, insert(t, db, r.Ino, Inode{Name: "s", Kind: KindFile, Stage: 9}).Ino
	do(t, db, func(tx *Tx) error {
		if err := tx.SetXattr(e, "user.x", nil); err != nil {
			return err
		}
		if _, err := tx.Remove(r.Ino, "2"); err != nil {
			return err
		}
		_, err := tx.Remove(r.Ino, "s")
		return err
	})
	for _, wait := range []bool{true, false} {
		if n, err := db.Purge(1<<62, 1000, nil); err != nil || (n == 0) != wait {
			t.Fatalf("%d purged, %v", n, err)
		}
		do(t, db, func(tx *Tx) error {
			in, err := tx.Inode(e)
			if err != nil && !wait {
				return tx.ClearDirty(s, true)
			} else if err != nil {
				return err
			}
			in.Stage = 0
			return errors.Join(tx.Update(&in), tx.ClearDirty(s, true))
		})
	}
	if err := audit(db); err != nil {
		t.Fatal(err)
	}
}

func TestXattrs(t *testing.T) {
	db := open(t)
	r := root(t, db)
	a, b := insert(t, db, r.Ino, Inode{Name: "a", Kind: KindFile}), insert(t, db, r.Ino, Inode{Name: "b", Kind: KindFile})
	big := bytes.Repeat([]byte("x"), maxXattr)
	do(t, db, func(tx *Tx) error {
		return errors.Join(tx.SetXattr(a.Ino, "user.b", big), tx.SetXattr(a.Ino, "user.a", nil), tx.SetXattr(b.Ino, "user.c", []byte("1")))
	})
	if v, err := db.Xattr(a.Ino, "user.b"); err != nil || !bytes.Equal(v, big) {
		t.Fatalf("%d bytes, %v", len(v), err)
	}
	if v, err := db.Xattr(a.Ino, "user.a"); err != nil || len(v) != 0 {
		t.Fatalf("%d bytes, %v", len(v), err)
	}
	if got, err := db.Xattrs(a.Ino); err != nil || !slices.Equal(got, []string{"user.a", "user.b"}) {
		t.Fatalf("got %v, %v", got, err)
	}
	do(t, db, func(tx *Tx) error {
		if err := tx.RemoveXattr(a.Ino, "user.c"); !errors.Is(err, ErrNotFound) {
			t.Errorf("got %v", err)
		}
		if err := tx.RemoveXattr(a.Ino, "user.b"); err != nil {
			return err
		}
		if got, err := tx.Xattrs(a.Ino); err != nil || !slices.Equal(got, []string{"user.a"}) {
			t.Errorf("got %v, %v", got, err)
		}
		if v, err := tx.Xattr(b.Ino, "user.c"); err != nil || string(v) != "1" {
			t.Errorf("got %q, %v", v, err)
		}
		_, err := tx.Remove(r.Ino, "a")
		return err
	})
	wantIs(t, db.Do(func(tx *Tx) error { return tx.SetXattr(1<<30, "user.a", nil) }), ErrNotFound)
	wantIs(t, db.Do(func(tx *Tx) error { return tx.SetXattr(b.Ino, "", nil) }), ErrInvalid)
	wantIs(t, db.Do(func(tx *Tx) error { return tx.SetXattr(b.Ino, "user.x", append(big, 0)) }), ErrInvalid)
	if got, err := db.Xattrs(a.Ino); err != nil || len(got) != 1 {
		t.Fatalf("got %v, %v", got, err)
	}
	if n, err := db.Purge(1<<62, 10, nil); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	if got, err := db.Xattrs(a.Ino); err != nil || len(got) != 0 {
		t.Fatalf("got %v, %v", got, err)
	}
	if err := audit(db); err != nil {
		t.Fatal(err)
	}
}
