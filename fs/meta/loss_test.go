package meta

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/leatfs/leatfs/cache"
)

// TestNodeIDsAfterLoss loses the index, or parts of it, again and again while the kernel still
// has every node id it was ever given. None may come to mean anything else: neither by
// being found, nor by being given out again.
func TestNodeIDsAfterLoss(t *testing.T) {
	dir := t.TempDir()
	lose := func(pattern string) func(*DB) {
		return func(*DB) {
			m, _ := filepath.Glob(filepath.Join(dir, pattern))
			if len(m) == 0 {
				t.Fatalf("no %s", pattern)
			}
			for _, p := range m {
				if err := os.RemoveAll(p); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	damage := func(*DB) {
		m, _ := filepath.Glob(filepath.Join(dir, "db-*", "MANIFEST"))
		if len(m) != 1 || os.Truncate(m[0], 3) != nil {
			t.Fatal("no manifest")
		}
	}
	steps := []struct {
		name string
		do   func(*DB)
		lost bool // what was known is not any more
		all  bool // also the marks: the caller raises them
	}{
		{"nothing", func(*DB) {}, false, false},
		{"damaged", damage, true, false},
		{"damaged at once again", damage, true, false},
		{"removed", lose("db-*"), true, false},
		{"removed with what was put aside", lose("*-[0-9]*"), true, false},
		{"marks", lose("marks"), false, false},
		{"nothing after the marks", func(*DB) {}, false, false},
		{"damaged after the marks", damage, true, false},
		{"everything", lose("*"), true, true},
		{"damaged after everything", damage, true, false},
	}
	// What each node id was given out for, and in which index.
	type meaning struct {
		index         int
		kind          Kind
		name          string
		size, version int64
	}
	given := map[nodeID]meaning{}
	highest := Ino(0)
	index := 0
	rnd := rand.New(rand.NewPCG(5, 6))
	version := int64(0)
	records := map[cache.ID]Ino{}
	mean := func(in *Inode) meaning {
		return meaning{index, in.Kind, in.Name, in.Object.Size, in.Object.MTime}
	}
	give := func(in Inode) {
		t.Helper()
		id := nodeID{in.Ino, in.Gen}
		if had, ok := given[id]; ok && had != mean(&in) {
			t.Fatalf("%v was given out for %+v, and now for %+v", id, had, mean(&in))
		}
		given[id] = mean(&in)
		highest = max(highest, in.Ino)
	}
	for _, s := range steps {
		db, err := Open(Options{Dir: dir, NoSync: true, Ballast: 1 << 20, Floor: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		life := func(db *DB) {
			r := root(t, db)
			give(r)
			for range 40 {
				name := fmt.Sprint("n", rnd.IntN(6))
				in, err := db.Lookup(r.Ino, name)
				version++
				switch {
				case errors.Is(err, ErrNotFound):
					in, err = db.Insert(r.Ino, Inode{Name: name, Kind: KindFile, Object: Object{Size: version, MTime: version}})
				case err == nil && rnd.IntN(4) == 0:
					err = db.Remove(r.Ino, name)
				case err == nil:
					in, err = db.Update(in.Ino, func(in *Inode) error {
						in.Gen++
						in.Object.Size, in.Object.MTime = version, version
						return nil
					})
				}
				if err != nil {
					t.Fatal(err)
				}
				give(in)
			}
			// An object file, as its label says.
			id, err := db.NewID()
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := records[id]; ok {
				t.Fatalf("ID %d was given out before", id)
			}
			records[id] = highest
		}
		life(db)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		s.do(db)
		if db, err = Open(Options{Dir: dir, NoSync: true, Ballast: 1 << 20, Floor: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		if db.Rebuilt() != (s.lost && !s.all) {
			t.Fatalf("%s: got rebuilt %v", s.name, db.Rebuilt())
		}
		if s.lost {
			index++
		}
		if s.all {
			if err := db.RaiseMarks(highest, cache.ID(1<<20)); err != nil {
				t.Fatal(err)
			}
		}
		// The cache brings back what it finds on its disks, with the numbers of then.
		var b cache.Batch
		for id, ino := range records {
			b.Records = append(b.Records, cache.Record{ID: id,
				Identity: cache.Identity{Origin: "o", Key: fmt.Sprint(id), Inode: uint64(ino)}})
		}
		if err := db.Apply(b); err != nil {
			t.Fatal(err)
		}
		life(db)
		for id, want := range given {
			in, err := db.InodeAt(id.ino, id.gen)
			switch {
			case want.index != index && !errors.Is(err, ErrNotFound):
				t.Fatalf("%s: %v was %+v and now is %+v, %v", s.name, id, want, in, err)
			case want.index == index && (err != nil || mean(&in) != want):
				t.Fatalf("%s: %v was %+v and now is %+v, %v", s.name, id, want, in, err)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d node ids in %d indexes", len(given), index+1)
}
