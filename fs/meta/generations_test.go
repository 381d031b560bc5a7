package meta

import (
	"errors"
	"testing"

	"github.com/dgraph-io/badger/v4"
)

func readKeptOf(db *DB, ino Ino, gen uint32) (p place, err error) {
	err = db.view(func(tx *badger.Txn) error {
		p, err = readKept(tx, ino, gen)
		return err
	})
	return p, err
}

// TestKeptVersions: a node id of a replaced version leads to it, also for the next process, after
// the name and the inode are gone, and for as long as somebody holds it.
func TestKeptVersions(t *testing.T) {
	dir := t.TempDir()
	db := openAt(t, dir)
	r := root(t, db)
	merge(t, db, r.Ino, page("", "", "f=1", "g=1"))
	f1, _ := db.Lookup(r.Ino, "f")
	merge(t, db, r.Ino, page("", "", "f=2", "g=1"))
	f2, _ := db.Lookup(r.Ino, "f")
	if f1.Ino != f2.Ino || f2.Gen != f1.Gen+1 || f1.Object.ETag != "1" || f2.Object.ETag != "2" {
		t.Fatalf("got %+v, then %+v", f1, f2)
	}
	is := func(gen uint32, want Inode) {
		t.Helper()
		if got, err := db.InodeAt(f1.Ino, gen); err != nil || got != want {
			t.Fatalf("generation %d: got %+v, %v, want %+v", gen, got, err, want)
		}
	}
	gone := func(gen uint32) {
		t.Helper()
		if got, err := db.InodeAt(f1.Ino, gen); !errors.Is(err, ErrNotFound) || got != (Inode{}) {
			t.Fatalf("generation %d: got %+v, %v, want ErrNotFound", gen, got, err)
		}
	}
	for range 2 {
		is(0, f1)
		is(1, f2)
		gone(2)
		gone(maxGen + 1)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		db = openAt(t, dir)
	}
	merge(t, db, r.Ino, page("", "", "g=1"))
	f1.Flags |= Removed
	f2.Flags |= Removed
	is(0, f1)
	is(1, f2)
	for range 2 {
		if n, err := db.Purge(1<<62, 100, func(ino Ino, gen uint32) bool { return ino == f1.Ino && gen == 0 }); err != nil || n > 1 {
			t.Fatalf("purged %d, %v", n, err)
		}
		is(0, f1)
		gone(1)
	}
	if n, err := db.Purge(1<<62, 100, nil); err != nil || n != 1 {
		t.Fatalf("purged %d, %v", n, err)
	}
	gone(0)
}

// TestPurgeHeld: what is held does not stand in the way of what comes after it, and no call does much
// more than it was asked to.
func TestPurgeHeld(t *testing.T) {
	db := open(t)
	r := root(t, db)
	const n = 3 * purgeChunk
	fillDir(t, db, r.Ino, n)
	p := fillPage(0, n)
	for i := range p.Objects {
		p.Objects[i].Size++
	}
	if res := merge(t, db, r.Ino, p); res.Altered != n {
		t.Fatalf("got %+v", res)
	}
	for i, o := range p.Objects {
		if i%2 == 0 {
			if err := db.Remove(r.Ino, o.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Half of the kept and half of the removed, all of the oldest among them.
	held := func(ino Ino, _ uint32) bool { return ino < r.Ino+n/2 }
	asked := 0
	total := 0
	for {
		got, err := db.Purge(1<<62, 100, func(ino Ino, gen uint32) bool {
			asked++
			if _, err := db.InodeAt(ino, gen); err != nil {
				t.Errorf("%d at %d: %v", ino, gen, err)
			}
			return held(ino, gen)
		})
		if err != nil || got > 100+2*purgeChunk {
			t.Fatalf("got %d, %v", got, err)
		}
		total += got
		if got < 100 {
			break
		}
	}
	kept := 0
	for ino := r.Ino + 1; ino <= r.Ino+n; ino++ {
		switch _, err := db.InodeAt(ino, 0); {
		case err == nil && held(ino, 0):
			kept++
		case !errors.Is(err, ErrNotFound) || held(ino, 0):
			t.Fatalf("%d: got %v", ino, err)
		}
	}
	if want := n + n/2 - kept - kept/2; total < want-1 || total > want+1 || kept < n/2-2 || asked == 0 {
		t.Fatalf("purged %d, want %d; %d are kept", total, want, kept)
	}
	if err := audit(db); err != nil {
		t.Fatal(err)
	}
}

// TestGenerationComesBack: after 2^24 changes. What the older entry says of the time does not
// count for the newer.
func TestGenerationComesBack(t *testing.T) {
	db := open(t)
	r := root(t, db)
	f, err := db.Insert(r.Ino, Inode{Name: "f", Kind: KindFile})
	if err != nil {
		t.Fatal(err)
	}
	set := func(gen uint32, size int64) Inode {
		t.Helper()
		in, err := db.Update(f.Ino, func(in *Inode) error { in.Gen, in.Object.Size = gen, size; return nil })
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	set(1, 1) // keeps 0, of size 0
	first, err := readKeptOf(db, f.Ino, 0)
	if err != nil {
		t.Fatal(err)
	}
	set(0, 2)          // keeps 1
	again := set(2, 3) // keeps 0 once more, of size 2
	again.Gen, again.Object.Size = 0, 2
	if _, err := db.Purge(first.since+1, 100, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := db.InodeAt(f.Ino, 0); err != nil || got != again {
		t.Fatalf("got %+v, %v, want %+v", got, err, again)
	}
	if n, err := db.Purge(1<<62, 100, nil); err != nil || n != 2 {
		t.Fatalf("purged %d, %v", n, err)
	}
	if err := audit(db); err != nil {
		t.Fatal(err)
	}
}

// TestPast: what is kept of an earlier generation can be changed, and is purged all the same.
func TestPast(t *testing.T) {
	db := openAt(t, t.TempDir())
	r := root(t, db)
	merge(t, db, r.Ino, page("", "", "f=1"))
	f1, _ := db.Lookup(r.Ino, "f")
	merge(t, db, r.Ino, page("", "", "f=2"))
	set := func(gen uint32) error {
		return db.Do(func(tx *Tx) error {
			return tx.Past(f1.Ino, gen, func(in *Inode) { in.Object.Key, in.Object.ETag = "elsewhere", "3" })
		})
	}
	if err := set(0); err != nil {
		t.Fatal(err)
	}
	if err := set(7); !errors.Is(err, ErrNotFound) {
		t.Errorf("a generation that never was: %v", err)
	}
	f1.Object.Key, f1.Object.ETag = "elsewhere", "3"
	if got, err := db.InodeAt(f1.Ino, 0); err != nil || got != f1 {
		t.Errorf("%+v, %v, want %+v", got, err, f1)
	}
	if f2, err := db.Lookup(r.Ino, "f"); err != nil || f2.Object.ETag != "2" {
		t.Errorf("the present one is %+v, %v", f2, err)
	}
	if n, err := db.Purge(1<<62, 100, nil); err != nil || n != 1 {
		t.Errorf("purged %d, %v", n, err)
	}
}
