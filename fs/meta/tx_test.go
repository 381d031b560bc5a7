package meta

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leatfs/leatfs/cache"
)

// do runs a transaction that must work.
func do(t testing.TB, db *DB, fn func(tx *Tx) error, opts ...Option) {
	t.Helper()
	if err := db.Do(fn, opts...); err != nil {
		t.Fatal(err)
	}
}

// insert makes an inode.
func insert(t testing.TB, db *DB, parent Ino, in Inode) (out Inode) {
	t.Helper()
	do(t, db, func(tx *Tx) (err error) {
		out, err = tx.Insert(parent, in)
		return err
	})
	return out
}

// wantIs fails unless err is want, or there is none and none is wanted.
func wantIs(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) || want == nil && err != nil {
		t.Fatalf("got %v, want %v", err, want)
	}
}

func TestDo(t *testing.T) {
	db := open(t)
	r := root(t, db)
	odd := errors.New("odd")
	var a Inode
	// An error takes everything back, and comes back as it is.
	err := db.Do(func(tx *Tx) (err error) {
		if a, err = tx.Insert(r.Ino, Inode{Name: "a", Kind: KindFile}); err != nil {
			return err
		}
		if got, err := tx.Lookup(r.Ino, "a"); err != nil || got != a {
			t.Errorf("got %+v, %v, want %+v", got, err, a)
		}
		if got, err := tx.Inode(a.Ino); err != nil || got != a {
			t.Errorf("got %+v, %v, want %+v", got, err, a)
		}
		if err := tx.SetDirty(&Dirty{Ino: a.Ino}); err != nil {
			return err
		}
		if err := tx.SetTomb(&Tomb{Key: "k"}); err != nil {
			return err
		}
		return odd
	}, For(Request{1, 1}, 1, nil))
	if err != odd {
		t.Fatalf("got %v", err)
	}
	if _, err := db.Lookup(r.Ino, "a"); !errors.Is(err, ErrNotFound) || db.DirtyCount() != 0 || db.TombCount() != 0 {
		t.Fatalf("got %v, %d dirty, %d tombs", err, db.DirtyCount(), db.TombCount())
	}
	if _, ok := found(t, db, Request{1, 1}); ok {
		t.Fatal("what failed has a result")
	}
	// With a result, of whichever inode.
	do(t, db, func(tx *Tx) (err error) {
		if a, err = tx.Insert(r.Ino, Inode{Name: "a", Kind: KindFile, Gen: 3}); err != nil {
			return err
		}
		tx.Result(&a)
		return tx.Touch(r.Ino, 77)
	}, For(Request{1, 2}, 9, func(in *Inode) []byte { return []byte(in.Name) }))
	if res, ok := found(t, db, Request{1, 2}); !ok || res.Ino != a.Ino || res.Gen != 3 || res.Op != 9 || string(res.Data) != "a" {
		t.Fatalf("got %+v, %v", res, ok)
	}
	if m, c, err := db.DirTimes(r.Ino); err != nil || m != 77 || c != 77 {
		t.Fatalf("got %d, %d, %v", m, c, err)
	}
	do(t, db, func(tx *Tx) error { return tx.SetDirTimes(r.Ino, 1, 2) }, For(Request{1, 3}, 8, nil))
	if m, c, err := db.DirTimes(r.Ino); err != nil || m != 1 || c != 2 {
		t.Fatalf("got %d, %d, %v", m, c, err)
	}
	if res, ok := found(t, db, Request{1, 3}); !ok || res.Ino != 0 || res.Op != 8 {
		t.Fatalf("got %+v, %v", res, ok)
	}
	// Update keeps what was under another generation, and may not do everything.
	do(t, db, func(tx *Tx) error {
		in := a
		in.Gen, in.Object.Size = 4, 9
		return tx.Update(&in)
	})
	if in, err := db.InodeAt(a.Ino, 3); err != nil || in.Object.Size != 0 {
		t.Fatalf("got %+v, %v", in, err)
	}
	for _, change := range []func(in *Inode){
		func(in *Inode) { in.Kind = KindDir }, func(in *Inode) { in.Name = "b" }, func(in *Inode) { in.Links++ },
		func(in *Inode) { in.Flags |= Removed }, func(in *Inode) { in.Parent = 5 }, func(in *Inode) { in.Gen = maxGen + 1 },
	} {
		wantIs(t, db.Do(func(tx *Tx) error {
			in, err := tx.Inode(a.Ino)
			if err != nil {
				return err
			}
			change(&in)
			return tx.Update(&in)
		}), ErrInvalid)
	}
	// Remove, and what may be done with what is removed.
	do(t, db, func(tx *Tx) error {
		in, err := tx.Remove(r.Ino, "a")
		if err != nil || in.Flags&Removed == 0 || in.Ino != a.Ino {
			t.Errorf("got %+v, %v", in, err)
		}
		in.UID = 7
		return tx.Update(&in)
	})
	if in, err := db.Inode(a.Ino); err != nil || in.Flags&Removed == 0 || in.UID != 7 {
		t.Fatalf("got %+v, %v", in, err)
	}
	wantIs(t, db.Do(func(tx *Tx) error { _, err := tx.Link(a.Ino, r.Ino, "b"); return err }), ErrNotFound)
	wantIs(t, db.Do(func(tx *Tx) error { _, err := tx.Remove(r.Ino, "a"); return err }), ErrNotFound)
	// What is too big leaves nothing, also when the function hides the error.
	wantIs(t, db.Do(func(tx *Tx) error {
		for i := range 1 << 20 {
			if _, err := tx.Insert(r.Ino, Inode{Name: itoa(i), Kind: KindFile}); err != nil {
				return nil
			}
		}
		return nil
	}), ErrTooBig)
	if got := names(t, db, r.Ino); len(got) != 0 {
		t.Fatalf("got %d names", len(got))
	}
	if err := audit(db); err != nil {
		t.Fatal(err)
	}
}

func TestDoKinds(t *testing.T) {
	dir := t.TempDir()
	db := openAt(t, dir)
	r := root(t, db)
	var want []Inode
	for k := KindFile; k <= lastKind; k++ {
		in := insert(t, db, r.Ino, Inode{Name: strings.ReplaceAll(k.String(), " ", "-"), Kind: k, Flags: Owned, Rdev: 5, MTime: 1, CTime: 2, ATime: 3, Stage: cache.ID(k)})
		if k >= KindFIFO != (in.Flags&Local != 0) {
			t.Fatalf("got %+v", in)
		}
		want = append(want, in)
	}
	wantIs(t, db.Do(func(tx *Tx) error { _, err := tx.Insert(r.Ino, Inode{Name: "x", Kind: lastKind + 1}); return err }), ErrInvalid)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = openAt(t, dir)
	for _, in := range want {
		if got, err := db.Inode(in.Ino); err != nil || got != in {
			t.Fatalf("got %+v, %v, want %+v", got, err, in)
		}
	}
	// Neither a listing nor anything else makes a FIFO anything that the origin might have.
	got, err := db.Update(want[3].Ino, func(in *Inode) error { in.Flags = 0; return nil })
	if err != nil || got.Flags&Local == 0 {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestMove(t *testing.T) {
	db := open(t)
	r := root(t, db)
	merge(t, db, r.Ino, page("", "", "a", "b", "d/", "e/"))
	d, _ := db.Lookup(r.Ino, "d")
	e, _ := db.Lookup(r.Ino, "e")
	a, _ := db.Lookup(r.Ino, "a")
	move := func(p Ino, n string, q Ino, m string) (in Inode, err error) {
		err = db.Do(func(tx *Tx) error { in, err = tx.Move(p, n, q, m); return err })
		return in, err
	}
	in, err := move(r.Ino, "a", d.Ino, "x")
	if err != nil || in.Ino != a.Ino || in.Parent != d.Ino || in.Name != "x" || in.Object.Key != "a" || in.Object.ETag != a.Object.ETag {
		t.Fatalf("got %+v, %v", in, err)
	}
	if got, err := db.Inode(a.Ino); err != nil || got != in {
		t.Fatalf("got %+v, %v, want %+v", got, err, in)
	}
	if have, err := move(d.Ino, "x", r.Ino, "b"); !errors.Is(err, ErrExist) || have.Name != "b" || have.Ino == a.Ino {
		t.Fatalf("got %+v, %v", have, err)
	}
	if _, err := move(r.Ino, "a", r.Ino, "c"); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	// Back, the key is what the name says.
	if in, err = move(d.Ino, "x", r.Ino, "a"); err != nil || in != a {
		t.Fatalf("got %+v, %v, want %+v", in, err, a)
	}
	// A directory keeps its Prefix until it is changed, and cannot be below itself.
	in, err = move(r.Ino, "e", d.Ino, "e")
	if err != nil || in.Prefix != "e/" {
		t.Fatalf("got %+v, %v", in, err)
	}
	wantIs(t, second(move(r.Ino, "d", e.Ino, "d")), ErrInvalid)
	wantIs(t, second(move(r.Ino, "d", d.Ino, "d")), ErrInvalid)
	do(t, db, func(tx *Tx) error {
		in.Prefix = "d/e/"
		return tx.Update(&in)
	})
	if got := insert(t, db, e.Ino, Inode{Name: "f", Kind: KindDir}); got.Prefix != "d/e/f/" {
		t.Fatalf("got %+v", got)
	}
	wantIs(t, second(move(r.Ino, "a", 1<<30, "x")), ErrNotFound)
	wantIs(t, second(move(r.Ino, "a", r.Ino, "x/y")), ErrInvalid)
	// Nothing comes into what was removed, or is below that.
	do(t, db, func(tx *Tx) error { _, err := tx.Remove(r.Ino, "d"); return err })
	wantIs(t, second(move(r.Ino, "a", d.Ino, "x")), ErrNotFound)
	wantIs(t, second(move(r.Ino, "a", e.Ino, "x")), ErrNotFound)
	if err := audit(db); err != nil {
		t.Fatal(err)
	}
}

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

// TestDoCache: the cache's records change with the names, or not at all.
func TestDoCache(t *testing.T) {
	db := open(t)
	r := root(t, db)
	id, err := db.NewID()
	if err != nil {
		t.Fatal(err)
	}
	rec := cache.Record{ID: id, Identity: cache.Identity{Origin: "o", Key: "k"}}
	odd := errors.New("odd")
	for _, want := range []error{odd, nil} {
		wantIs(t, db.Do(func(tx *Tx) error {
			if _, err := tx.Insert(r.Ino, Inode{Name: "a", Kind: KindFile}); err != nil {
				return err
			}
			if err := tx.Apply(cache.Batch{Usages: []cache.Usage{{ID: id}}}); err != nil {
				return err
			}
			if err := tx.Apply(cache.Batch{Records: []cache.Record{rec}}); err != nil {
				return err
			}
			return want
		}), want)
		got, err := db.Find(rec.Identity)
		if want == nil && (err != nil || got != rec) || want != nil && !errors.Is(err, cache.ErrNoRecord) {
			t.Fatalf("got %+v, %v", got, err)
		}
	}
	do(t, db, func(tx *Tx) error { return tx.Apply(cache.Batch{Delete: []cache.ID{id}}) })
	wantIs(t, second(db.Record(id)), cache.ErrNoRecord)
}

// TestDoParallel runs transactions that take the same locks in opposite orders, beside listings and purges:
// they all end, and lose nothing of each other.
func TestDoParallel(t *testing.T) {
	db := open(t)
	r := root(t, db)
	const dirs, workers, rounds = 6, 4, 250
	var ds []Ino
	for i := range dirs {
		ds = append(ds, insert(t, db, r.Ino, Inode{Name: "d" + itoa(i), Kind: KindDir, Flags: Local}).Ino)
	}
	for _, d := range ds {
		insert(t, db, d, Inode{Name: "n", Kind: KindFile, Flags: Local})
	}
	stop := make(chan struct{})
	var beside, wg sync.WaitGroup
	beside.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			p := page("", "", "x"+itoa(i%3)+"/", "y")
			p.Began = time.Now().UnixNano()
			if _, err := db.Merge(r.Ino, p); err != nil {
				t.Error(err)
				return
			}
			if _, err := db.Purge(1<<62, 100, nil); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for w := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for i := range rounds {
				a, b := ds[rnd.IntN(dirs)], ds[rnd.IntN(dirs)]
				// One is added in a, then in b: the sum counts transactions twice.
				add := func(tx *Tx, d Ino) error {
					in, err := tx.Lookup(d, "n")
					if err != nil {
						return err
					}
					in.Object.Size++
					return tx.Update(&in)
				}
				if err := db.Do(func(tx *Tx) error {
					if err := add(tx, a); err != nil {
						return err
					}
					if err := tx.SetTomb(&Tomb{Key: itoa(rnd.IntN(4))}); err != nil {
						return err
					}
					return add(tx, b)
				}); err != nil {
					t.Error(err)
					return
				}
				name := "w" + strconv.Itoa(w)
				if err := db.Do(func(tx *Tx) error {
					if _, err := tx.Remove(a, name); err != nil && !errors.Is(err, ErrNotFound) {
						return err
					}
					in, err := tx.Insert(a, Inode{Name: name, Kind: KindFile})
					if err != nil {
						return err
					}
					if _, err := tx.Link(in.Ino, b, fmt.Sprintf("%s-%d", name, i)); err != nil {
						return err
					}
					if err := tx.Touch(b, int64(i)); err != nil {
						return err
					}
					return tx.SetDirty(&Dirty{Ino: in.Ino, Seq: db.NextSeq()})
				}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	beside.Wait()
	sum := int64(0)
	for _, d := range ds {
		in, err := db.Lookup(d, "n")
		if err != nil {
			t.Fatal(err)
		}
		sum += in.Object.Size
	}
	if sum != 2*workers*rounds || db.DirtyCount() != workers*rounds {
		t.Fatalf("sum %d, %d dirty", sum, db.DirtyCount())
	}
	if err := audit(db); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkDo(b *testing.B) {
	db := open(b)
	r := root(b, db)
	d := insert(b, db, r.Ino, Inode{Name: "d", Kind: KindDir})
	d = insert(b, db, d.Ino, Inode{Name: "d", Kind: KindDir})
	b.Run("create", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			name := pageName(i)
			do(b, db, func(tx *Tx) error {
				in, err := tx.Insert(d.Ino, Inode{Name: name, Kind: KindFile, Flags: Local | Owned, Mode: 0o644, MTime: 1, CTime: 1, Stage: 5})
				if err != nil {
					return err
				}
				if err := tx.SetDirty(&Dirty{Ino: in.Ino, Since: 1}); err != nil {
					return err
				}
				return tx.Touch(d.Ino, 1)
			})
		}
	})
}
