package meta

import (
	"errors"
	"fmt"
	"math/rand/v2"
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
