package meta

import (
	"errors"
	"slices"
	"testing"
)

// TestMergeLocalBelow: a directory that went from the origin stays while something below it is only here.
func TestMergeLocalBelow(t *testing.T) {
	db := open(t)
	r := root(t, db)
	for name, local := range map[string]func(d Ino){
		"inserted": func(d Ino) { insert(t, db, d, Inode{Name: "x", Kind: KindFile, Flags: Local}) },
		"staged":   func(d Ino) { insert(t, db, d, Inode{Name: "x", Kind: KindFile, Stage: 7}) },
		"FIFO":     func(d Ino) { insert(t, db, d, Inode{Name: "x", Kind: KindFIFO}) },
		"updated": func(d Ino) {
			x := insert(t, db, d, Inode{Name: "x", Kind: KindFile})
			if _, err := db.Update(x.Ino, func(in *Inode) error { in.Flags |= Local; return nil }); err != nil {
				t.Fatal(err)
			}
		},
		"linked": func(d Ino) {
			do(t, db, func(tx *Tx) error {
				x, err := tx.Insert(r.Ino, Inode{Name: "linked-x", Kind: KindFile, Flags: Local})
				if err != nil {
					return err
				}
				_, err = tx.Link(x.Ino, d, "x")
				return err
			})
		},
		"moved": func(d Ino) {
			do(t, db, func(tx *Tx) error {
				if _, err := tx.Insert(r.Ino, Inode{Name: "moved-x", Kind: KindFile, Flags: Local}); err != nil {
					return err
				}
				_, err := tx.Move(r.Ino, "moved-x", d, "x")
				return err
			})
		},
		"moved directory": func(d Ino) {
			do(t, db, func(tx *Tx) error {
				e, err := tx.Insert(r.Ino, Inode{Name: "e", Kind: KindDir})
				if err != nil {
					return err
				}
				if _, err := tx.Insert(e.Ino, Inode{Name: "y", Kind: KindFile, Flags: Local}); err != nil {
					return err
				}
				_, err = tx.Move(r.Ino, "e", d, "x")
				return err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			merge(t, db, r.Ino, page("", "", "a/", "b/"))
			a, _ := db.Lookup(r.Ino, "a")
			merge(t, db, a.Ino, page("", "", "d/"))
			d, _ := db.Lookup(a.Ino, "d")
			local(d.Ino)
			if res := merge(t, db, r.Ino, page("", "")); res.Kept < 1 || res.Gone < 1 {
				t.Fatalf("got %+v", res)
			}
			x, err := db.Lookup(d.Ino, "x")
			if in, err2 := db.Inode(a.Ino); err != nil || err2 != nil || in.Flags&Removed != 0 {
				t.Fatalf("got %+v, %v, %v", in, err, err2)
			}
			if in, removed, err := db.RemoveIf(r.Ino, "a", func(*Inode, *Listing) bool { return true }); err != nil || removed || in.Flags&Removed != 0 {
				t.Fatalf("got %+v, %v", in, err)
			}
			// An object of the name does not take its place either.
			merge(t, db, r.Ino, page("", "", "a"))
			if in, err := db.Lookup(r.Ino, "a"); err != nil || in.Ino != a.Ino || in.Flags&Shadows == 0 {
				t.Fatalf("got %+v, %v", in, err)
			}
			do(t, db, func(tx *Tx) error { _, err := tx.Remove(x.Parent, x.Name); return err })
			if _, removed, err := db.RemoveIf(r.Ino, "a", func(*Inode, *Listing) bool { return true }); err != nil || !removed {
				t.Fatal(err)
			}
			if in, err := db.Inode(a.Ino); err != nil || in.Flags&Removed == 0 {
				t.Fatalf("got %+v, %v", in, err)
			}
			// Nothing comes below what is gone.
			wantIs(t, second(db.Insert(d.Ino, Inode{Name: "z", Kind: KindFile})), ErrNotFound)
			if err := audit(db); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestMergeTombs: what was removed here does not come back by a listing that cannot know of it.
func TestMergeTombs(t *testing.T) {
	db := open(t)
	r := root(t, db)
	d := insert(t, db, r.Ino, Inode{Name: "d", Kind: KindDir, Flags: Local})
	do(t, db, func(tx *Tx) error {
		return errors.Join(tx.SetTomb(&Tomb{Key: "a"}), tx.SetTomb(&Tomb{Key: "b", Done: 50}), tx.SetTomb(&Tomb{Key: "e/", Prefix: true}),
			tx.SetTomb(&Tomb{Key: "m/"}), tx.SetTomb(&Tomb{Key: "d/x"}))
	})
	p := page("", "", "a", "b", "c", "e/", "m/", "d/")
	p.Began = 50
	if res := merge(t, db, r.Ino, p); res.Hidden != 4 || res.Added != 1 {
		t.Fatalf("got %+v", res)
	}
	if got := names(t, db, r.Ino); !slices.Equal(got, []string{"c", "d/"}) {
		t.Fatalf("got %v", got)
	}
	p.Began = 51
	if res := merge(t, db, r.Ino, p); res.Hidden != 3 || res.Added != 1 {
		t.Fatalf("got %+v", res)
	}
	// A page merged twice takes nothing away that it has, and an old one not what came after the tomb.
	p.Began = 40
	if res := merge(t, db, r.Ino, p); res.Gone != 0 || res.Hidden != 3 {
		t.Fatalf("got %+v", res)
	}
	p = page("", "", "x", "y")
	p.Began = 60
	if res := merge(t, db, d.Ino, p); res.Hidden != 1 || res.Added != 1 {
		t.Fatalf("got %+v", res)
	}
	// Kinds do not change into what is hidden.
	do(t, db, func(tx *Tx) error { return tx.SetTomb(&Tomb{Key: "c/", Prefix: true}) })
	p = page("", "", "c", "c/", "b", "d/")
	p.Began = 60
	merge(t, db, r.Ino, p)
	if in, err := db.Lookup(r.Ino, "c"); err != nil || in.Kind != KindFile {
		t.Fatalf("got %+v, %v", in, err)
	}
	// Below a key that is gone with all that is below, everything is hidden.
	f := insert(t, db, r.Ino, Inode{Name: "f", Kind: KindDir, Flags: Local})
	f = insert(t, db, f.Ino, Inode{Name: "g", Kind: KindDir, Flags: Local})
	do(t, db, func(tx *Tx) error { return tx.SetTomb(&Tomb{Key: "f/", Prefix: true}) })
	p = page("", "", "x", "y/")
	if res := merge(t, db, f.Ino, p); res.Hidden != 2 || res.Added != 0 {
		t.Fatalf("got %+v", res)
	}
	do(t, db, func(tx *Tx) error { return tx.ClearTomb("f/") })
	if res := merge(t, db, f.Ino, p); res.Hidden != 0 || res.Added != 2 {
		t.Fatalf("got %+v", res)
	}
}

// TestMergeAttributes: what a listing does to what was set here.
func TestMergeAttributes(t *testing.T) {
	db := open(t)
	r := root(t, db)
	one := func(name, etag string) Page {
		p := page("", "", name)
		p.Objects[0].ETag, p.Objects[0].Size = etag, 10
		return p
	}
	a := insert(t, db, r.Ino, Inode{Name: "a", Kind: KindFile, Flags: Owned, Mode: 0o600, UID: 5, MTime: 7, CTime: 8, ATime: 9, Object: Object{Size: 10, ETag: "1"}})
	do(t, db, func(tx *Tx) error { return tx.SetXattr(a.Ino, "user.x", []byte("v")) })
	merge(t, db, r.Ino, one("a", "1"))
	if in, err := db.Inode(a.Ino); err != nil || in.MTime != 7 || in.CTime != 8 || in.ATime != 9 {
		t.Fatalf("got %+v, %v", in, err)
	}
	merge(t, db, r.Ino, one("a", "2"))
	in, err := db.Inode(a.Ino)
	if err != nil || in.MTime != 0 || in.CTime != 0 || in.Mode != 0o600 || in.UID != 5 || in.Flags&Owned == 0 || in.Gen != a.Gen+1 || in.Object.ETag != "2" {
		t.Fatalf("got %+v, %v", in, err)
	}
	if v, err := db.Xattr(a.Ino, "user.x"); err != nil || string(v) != "v" {
		t.Fatalf("got %q, %v", v, err)
	}
	// A symlink is what its object says, whatever size the origin has of it.
	s := insert(t, db, r.Ino, Inode{Name: "s", Kind: KindSymlink, Target: "x", Object: Object{ETag: "1"}})
	merge(t, db, r.Ino, one("s", "1"))
	if in, err := db.Lookup(r.Ino, "s"); err != nil || in.Ino != s.Ino || in.Kind != KindSymlink || in.Target != "x" {
		t.Fatalf("got %+v, %v", in, err)
	}
	merge(t, db, r.Ino, one("s", "2"))
	if in, err := db.Lookup(r.Ino, "s"); err != nil || in.Ino == s.Ino || in.Kind != KindFile {
		t.Fatalf("got %+v, %v", in, err)
	}
	// What is Local, staged or of a kind that is only here is left alone.
	insert(t, db, r.Ino, Inode{Name: "l", Kind: KindFile, Flags: Local, Object: Object{Key: "other"}})
	insert(t, db, r.Ino, Inode{Name: "p", Kind: KindFIFO})
	insert(t, db, r.Ino, Inode{Name: "t", Kind: KindFile, Stage: 3})
	before := map[string]Inode{}
	for _, n := range []string{"l", "p", "t"} {
		before[n], _ = db.Lookup(r.Ino, n)
	}
	merge(t, db, r.Ino, page("", ""))
	merge(t, db, r.Ino, page("", "", "l", "p", "t"))
	for n, want := range before {
		if in, err := db.Lookup(r.Ino, n); err != nil || in != want {
			t.Fatalf("got %+v, %v, want %+v", in, err, want)
		}
	}
}
