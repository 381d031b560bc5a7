package meta

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/dgraph-io/badger/v4"
	"pgregory.net/rapid"
)

func found(t testing.TB, db *DB, req Request) (Result, bool) {
	t.Helper()
	res, ok, err := db.Result(req)
	if err != nil {
		t.Fatal(err)
	}
	return res, ok
}

// stored counts the results in the database itself.
func stored(t testing.TB, db *DB) (n int) {
	t.Helper()
	if err := db.view(func(tx *badger.Txn) error {
		it := tx.NewIterator(badger.IteratorOptions{Prefix: []byte{keyResult}})
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			n++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestResults(t *testing.T) {
	db := open(t)
	r := root(t, db)
	size := func(in *Inode) []byte { return []byte(fmt.Sprint(in.Name, in.Object.Size)) }
	req := func(n uint64) Request { return Request{Session: 9, Unique: n} }
	f, err := db.Insert(r.Ino, Inode{Name: "f", Kind: KindFile}, For(req(1), 1, size))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Update(f.Ino, func(in *Inode) error { in.Object.Size, in.Gen = 5, 3; return nil }, For(req(2), 2, size)); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Update(f.Ino, func(in *Inode) error { return nil }, For(req(3), 3, nil)); err != nil {
		t.Fatal(err)
	}
	// What changed nothing, and what asked for nothing.
	if _, err := db.Insert(r.Ino, Inode{Name: "f", Kind: KindFile}, For(req(11), 1, size)); !errors.Is(err, ErrExist) {
		t.Fatal(err)
	}
	if err := db.Remove(r.Ino, "g", For(req(12), 4, size)); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	if _, _, err := db.RemoveIf(r.Ino, "f", func(*Inode, *Listing) bool { return false }, For(req(13), 4, size)); err != nil {
		t.Fatal(err)
	}
	own := errors.New("own")
	if _, err := db.Update(f.Ino, func(*Inode) error { return own }, For(req(14), 2, size)); err != own {
		t.Fatal(err)
	}
	long := func(n int) func(*Inode) []byte {
		return func(*Inode) []byte { return bytes.Repeat([]byte{7}, n) }
	}
	if _, err := db.Insert(r.Ino, Inode{Name: "long", Kind: KindFile}, For(req(15), 1, long(MaxResult+1))); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	if _, err := db.Lookup(r.Ino, "long"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("got %v: the change was made", err)
	}
	if _, err := db.Insert(r.Ino, Inode{Name: "h", Kind: KindFile}, For(Request{}, 1, long(MaxResult+1))); err != nil {
		t.Fatal(err)
	}
	if err := db.Remove(r.Ino, "f", For(req(4), 4, long(MaxResult))); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[uint64]Result{
		1: {Op: 1, Ino: f.Ino, Data: []byte("f0")},
		2: {Op: 2, Ino: f.Ino, Gen: 3, Data: []byte("f5")},
		3: {Op: 3, Ino: f.Ino, Gen: 3},
		4: {Op: 4, Ino: f.Ino, Gen: 3, Data: bytes.Repeat([]byte{7}, MaxResult)},
	} {
		if got, ok := found(t, db, req(n)); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("request %d: got %+v, %v, want %+v", n, got, ok, want)
		}
	}
	for _, q := range []Request{{}, {Session: 8, Unique: 1}, req(11), req(12), req(13), req(14), req(15)} {
		if got, ok := found(t, db, q); ok {
			t.Errorf("request %v: got %+v", q, got)
		}
	}
	if n := stored(t, db); n != 4 {
		t.Fatalf("%d results are stored, want 4", n)
	}
	// The one who answers pays nothing, the next change takes it along.
	writes := db.writes.Load()
	db.Answered(req(1), req(2), req(99))
	if db.writes.Load() != writes {
		t.Fatal("Answered wrote")
	}
	if err := db.Remove(r.Ino, "h", For(req(5), 4, nil)); err != nil {
		t.Fatal(err)
	}
	if n := stored(t, db); n != 3 || db.writes.Load() != writes+1 {
		t.Fatalf("%d results are stored, want 3, after %d writes", n, db.writes.Load()-writes)
	}
	if _, ok := found(t, db, req(1)); ok {
		t.Fatal("an answered request is remembered")
	}
	if err := db.PurgeResults(8, 9); err != nil || stored(t, db) != 3 {
		t.Fatal(err, stored(t, db))
	}
	if err := db.PurgeResults(8); err != nil || stored(t, db) != 0 {
		t.Fatal(err, stored(t, db))
	}
}

// TestResultsBounded: without anybody who answers, and with one who answers and changes nothing more.
func TestResultsBounded(t *testing.T) {
	dir := t.TempDir()
	db := openAt(t, dir)
	r := root(t, db)
	f, err := db.Insert(r.Ino, Inode{Name: "f", Kind: KindFile})
	if err != nil {
		t.Fatal(err)
	}
	change := func(n int) {
		t.Helper()
		if _, err := db.Update(f.Ino, func(in *Inode) error { in.Checked++; return nil },
			For(Request{Session: 1, Unique: uint64(n)}, 1, nil)); err != nil {
			t.Fatal(err)
		}
	}
	const most = 2000
	db.results.max = most
	for n := range most + 500 {
		change(n)
	}
	if n := stored(t, db); n != most {
		t.Fatalf("%d results are stored, want %d", n, most)
	}
	for n := range most + 500 {
		if _, ok := found(t, db, Request{Session: 1, Unique: uint64(n)}); ok != (n >= 500) {
			t.Fatalf("request %d of %d: found %v", n, most+500, ok)
		}
	}
	// The next process knows their order.
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = openAt(t, dir)
	db.results.max = most
	change(most + 500)
	if _, ok := found(t, db, Request{Session: 1, Unique: 500}); ok || stored(t, db) != most {
		t.Fatalf("the oldest was found: %v; %d are stored", ok, stored(t, db))
	}
	for n := range most + 501 {
		db.Answered(Request{Session: 1, Unique: uint64(n)})
	}
	if n := stored(t, db); n >= forgetAt {
		t.Fatalf("%d results of answered requests are stored", n)
	}
}

// TestResultsModel: whatever was carried out and not answered is found, as it was, by this process
// and the next; and nothing else but what was answered.
func TestResultsModel(t *testing.T) {
	name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "meta")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		opt := Options{Dir: dir, NoSync: true, Ballast: 1 << 20, Floor: 1 << 20}
		db, err := Open(opt)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { db.Close() }()
		r, err := db.Origin("o", "")
		if err != nil {
			t.Fatal(err)
		}
		results := map[Request]Result{}
		answered := map[Request]Result{}
		next := Request{Session: 1}
		// do makes a change; the model says whether it is to be recorded.
		do := func(t *rapid.T, change func(Option) (Inode, error), fails error) {
			next.Unique += 2
			op := rapid.Uint32().Draw(t, "op")
			data := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "data")
			in, err := change(For(next, op, func(*Inode) []byte { return data }))
			if !errors.Is(err, fails) || fails == nil && err != nil {
				t.Fatalf("got %v, want %v", err, fails)
			}
			if err == nil {
				results[next] = Result{Op: op, Ino: in.Ino, Gen: in.Gen, Data: slices.Clip(data)}
			}
		}
		has := func(n string) error {
			_, err := db.Lookup(r.Ino, n)
			return err
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				for req, want := range results {
					got, ok, err := db.Result(req)
					if err != nil || !ok || got.Op != want.Op || got.Ino != want.Ino || got.Gen != want.Gen || !bytes.Equal(got.Data, want.Data) {
						t.Fatalf("%v: got %+v, %v, %v, want %+v", req, got, ok, err, want)
					}
				}
				for u := uint64(0); u <= next.Unique; u++ {
					req := Request{next.Session, u}
					_, open := results[req]
					_, maybe := answered[req]
					if _, ok, err := db.Result(req); err != nil || ok && !open && !maybe {
						t.Fatalf("%v: found though nothing was done, %v", req, err)
					}
				}
			},
			"insert": func(t *rapid.T) {
				n := name.Draw(t, "name")
				var fails error
				if has(n) == nil {
					fails = ErrExist
				}
				do(t, func(o Option) (Inode, error) { return db.Insert(r.Ino, Inode{Name: n, Kind: KindFile}, o) }, fails)
			},
			"remove": func(t *rapid.T) {
				n := name.Draw(t, "name")
				fails := has(n)
				do(t, func(o Option) (Inode, error) {
					in, _, err := db.RemoveIf(r.Ino, n, func(*Inode, *Listing) bool { return true }, o)
					return in, err
				}, fails)
			},
			"update": func(t *rapid.T) {
				in, err := db.Lookup(r.Ino, name.Draw(t, "name"))
				if err != nil {
					return
				}
				do(t, func(o Option) (Inode, error) {
					return db.Update(in.Ino, func(in *Inode) error { in.Gen++; return nil }, o)
				}, nil)
			},
			"answer": func(t *rapid.T) {
				if len(results) == 0 {
					return
				}
				all := slices.SortedFunc(maps.Keys(results), func(a, b Request) int { return int(a.Unique) - int(b.Unique) })
				some := rapid.SliceOfDistinct(rapid.SampledFrom(all), rapid.ID).Draw(t, "answered")
				db.Answered(some...)
				for _, req := range some {
					answered[req] = results[req]
					delete(results, req)
				}
			},
			"next process": func(t *rapid.T) {
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
				if db, err = Open(opt); err != nil {
					t.Fatal(err)
				}
				if rapid.Bool().Draw(t, "next session") {
					if err := db.PurgeResults(next.Session + 1); err != nil {
						t.Fatal(err)
					}
					for req := range results {
						if _, ok, err := db.Result(req); ok || err != nil {
							t.Fatalf("%v is still there, %v", req, err)
						}
					}
					clear(results)
					clear(answered)
					next = Request{Session: next.Session + 1}
				} else if err := db.PurgeResults(next.Session); err != nil {
					t.Fatal(err)
				}
			},
		})
	})
}

// TestResultsParallel: changes, answers and the bound at once. Each finds its own result until it
// has answered, and nothing is left in the end.
func TestResultsParallel(t *testing.T) {
	db := open(t)
	r := root(t, db)
	const workers, each = 8, 300
	var wg sync.WaitGroup
	for w := range uint64(workers) {
		f, err := db.Insert(r.Ino, Inode{Name: fmt.Sprint(w), Kind: KindFile})
		if err != nil {
			t.Fatal(err)
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := range uint64(each) {
				req := Request{Session: 1 + w%2, Unique: n*workers + w}
				in, err := db.Update(f.Ino, func(in *Inode) error { in.Gen++; return nil }, For(req, 1, nil))
				if err != nil {
					t.Error(err)
					return
				}
				if res, ok, err := db.Result(req); err != nil || !ok || res.Ino != f.Ino || res.Gen != in.Gen {
					t.Errorf("%v: got %+v, %v, %v, want generation %d", req, res, ok, err, in.Gen)
					return
				}
				if n%50 == 0 {
					if err := db.PurgeResults(1, 2); err != nil {
						t.Error(err)
						return
					}
				}
				db.Answered(req)
			}
		}()
	}
	wg.Wait()
	if n := stored(t, db); n >= forgetAt {
		t.Errorf("%d results of answered requests are stored", n)
	}
	if err := db.PurgeResults(1, 2); err != nil {
		t.Fatal(err)
	}
	if n, open := stored(t, db), db.results.open.Len(); n != 0 || open != 0 || len(db.results.forget) != 0 {
		t.Fatalf("%d are stored, %d are open, %d to be forgotten", n, open, len(db.results.forget))
	}
}
