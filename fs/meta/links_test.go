package meta

import (
	"slices"
	"testing"
)

func TestLinks(t *testing.T) {
	dir := t.TempDir()
	db := openAt(t, dir)
	r := root(t, db)
	merge(t, db, r.Ino, page("", "", "a", "d/"))
	d, _ := db.Lookup(r.Ino, "d")
	a, _ := db.Lookup(r.Ino, "a")
	link := func(p Ino, n string) (in Inode, err error) {
		err = db.Do(func(tx *Tx) error { in, err = tx.Link(a.Ino, p, n); return err })
		return in, err
	}
	in, err := link(d.Ino, "x")
	if err != nil || in.Parent != d.Ino || in.Name != "x" || in.Links != 1 || in.Object.Key != "a" {
		t.Fatalf("got %+v, %v", in, err)
	}
	wantIs(t, second(link(r.Ino, "d")), ErrExist)
	if _, err := link(r.Ino, "b"); err != nil {
		t.Fatal(err)
	}
	wantIs(t, db.Do(func(tx *Tx) error { _, err := tx.Link(d.Ino, r.Ino, "dd"); return err }), ErrInvalid)
	check := func(primary Name, want ...Name) {
		t.Helper()
		got, err := db.Names(a.Ino)
		if err != nil || len(got) != len(want) || got[0] != primary {
			t.Fatalf("got %v, %v, want %v", got, err, want)
		}
		in, err := db.Inode(a.Ino)
		if err != nil || (Name{in.Parent, in.Name}) != primary || int(in.Links) != len(want)-1 || in.Object.Key != "a" {
			t.Fatalf("got %+v, %v", in, err)
		}
		for _, n := range want {
			if !slices.Contains(got, n) {
				t.Fatalf("got %v, want %v", got, want)
			}
			one, err := db.Lookup(n.Parent, n.Name)
			same := in
			same.Parent, same.Name = n.Parent, n.Name
			if err != nil || one != same {
				t.Fatalf("got %+v, %v, want %+v", one, err, same)
			}
		}
		if err := audit(db); err != nil {
			t.Fatal(err)
		}
	}
	ra, dx, rb := Name{r.Ino, "a"}, Name{d.Ino, "x"}, Name{r.Ino, "b"}
	check(ra, ra, dx, rb)
	if got := names(t, db, r.Ino); !slices.Equal(got, []string{"a", "b", "d/"}) {
		t.Fatalf("got %v", got)
	}
	// A change through one name, or through DB.Update, is seen through all.
	do(t, db, func(tx *Tx) error {
		in, err := tx.Lookup(d.Ino, "x")
		if err != nil {
			return err
		}
		in.UID, in.Flags = 5, in.Flags|Owned
		return tx.Update(&in)
	})
	if _, err := db.Update(a.Ino, func(in *Inode) error { in.Gen++; return nil }); err != nil {
		t.Fatal(err)
	}
	if in, err := db.Lookup(r.Ino, "b"); err != nil || in.UID != 5 || in.Gen != a.Gen+1 {
		t.Fatalf("got %+v, %v", in, err)
	}
	if in, err := db.InodeAt(a.Ino, a.Gen); err != nil || in.UID != 5 || in.Name != "a" {
		t.Fatalf("got %+v, %v", in, err)
	}
	// The listed object under one name is that of the inode, or is not.
	if res := merge(t, db, r.Ino, page("", "", "a", "d/")); res.Gone != 1 || res.Unchanged != 2 {
		t.Fatalf("got %+v", res)
	}
	check(ra, ra, dx)
	// The primary one goes, another is it then.
	do(t, db, func(tx *Tx) error {
		in, err := tx.Remove(r.Ino, "a")
		if err == nil && (in.Flags&Removed != 0 || in.Name != "x" || in.Links != 0) {
			t.Errorf("got %+v", in)
		}
		return err
	})
	check(dx, dx)
	if _, err := link(r.Ino, "c"); err != nil {
		t.Fatal(err)
	}
	rc, rz := Name{r.Ino, "c"}, Name{r.Ino, "z"}
	check(dx, dx, rc)
	// Moves of a secondary and of the primary name.
	do(t, db, func(tx *Tx) error {
		if _, err := tx.Move(r.Ino, "c", r.Ino, "z"); err != nil {
			return err
		}
		_, err := tx.Move(d.Ino, "x", r.Ino, "c")
		return err
	})
	check(rc, rc, rz)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = openAt(t, dir)
	check(rc, rc, rz)
	// A listing with another object takes a name away; a page with a directory, too.
	p := page("", "", "c", "d/", "z/")
	p.Objects[0].ETag = "other"
	if res := merge(t, db, r.Ino, p); res.Altered != 2 {
		t.Fatalf("got %+v", res)
	}
	in, err = db.Inode(a.Ino)
	if err != nil || in.Flags&Removed == 0 || in.Links != 0 {
		t.Fatalf("got %+v, %v", in, err)
	}
	if got, err := db.Names(a.Ino); err != nil || len(got) != 0 {
		t.Fatalf("got %v, %v", got, err)
	}
	if c, err := db.Lookup(r.Ino, "c"); err != nil || c.Ino == a.Ino || c.Object.ETag != "other" {
		t.Fatalf("got %+v, %v", c, err)
	}
	if n, err := db.Purge(1<<62, 1000, nil); err != nil || n == 0 {
		t.Fatal(n, err)
	}
	wantIs(t, second(db.Inode(a.Ino)), ErrNotFound)
	if err := audit(db); err != nil {
		t.Fatal(err)
	}
}

// TestLinksPurged: what was below a removed directory goes, but other names of it stay.
func TestLinksPurged(t *testing.T) {
	db := open(t)
	r := root(t, db)
	d := insert(t, db, r.Ino, Inode{Name: "d", Kind: KindDir})
	x := insert(t, db, d.Ino, Inode{Name: "x", Kind: KindFile})
	do(t, db, func(tx *Tx) error {
		if _, err := tx.Link(x.Ino, r.Ino, "y"); err != nil {
			return err
		}
		if _, err := tx.Link(x.Ino, d.Ino, "z"); err != nil {
			return err
		}
		_, err := tx.Remove(r.Ino, "d")
		return err
	})
	for range 2 {
		if _, err := db.Purge(1<<62, 1000, nil); err != nil {
			t.Fatal(err)
		}
	}
	if in, err := db.Inode(x.Ino); err != nil || in.Links != 0 || in.Parent != r.Ino || in.Name != "y" || in.Flags&Removed != 0 {
		t.Fatalf("got %+v, %v", in, err)
	}
	wantIs(t, second(db.Inode(d.Ino)), ErrNotFound)
	if err := audit(db); err != nil {
		t.Fatal(err)
	}
}
