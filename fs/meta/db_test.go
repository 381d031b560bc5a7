package meta

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"testing"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
)

func openAt(t testing.TB, dir string) *DB {
	t.Helper()
	db, err := Open(Options{Dir: dir, NoSync: true, Ballast: 1 << 20, Floor: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func open(t testing.TB) *DB { return openAt(t, t.TempDir()) }

func root(t testing.TB, db *DB) Inode {
	t.Helper()
	in, err := db.Origin("s3://bucket/", "")
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func names(t testing.TB, db *DB, dir Ino) []string {
	t.Helper()
	var out []string
	if err := db.Readdir(dir, "", 0, func(in Inode) bool {
		s := in.Name
		if in.Kind == KindDir {
			s += "/"
		}
		if in.Flags&Shadows != 0 {
			s += "!"
		}
		out = append(out, s)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestInodes(t *testing.T) {
	dir := t.TempDir()
	db := openAt(t, dir)
	r := root(t, db)
	if again := root(t, db); again != r || r.Ino < 16 || r.Parent != r.Ino {
		t.Fatalf("got root %+v, want %+v", again, r)
	}
	f, err := db.Insert(r.Ino, Inode{Name: "f", Kind: KindFile, Object: Object{Size: 3, ETag: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	d, err := db.Insert(r.Ino, Inode{Name: "d", Kind: KindDir})
	if err != nil || d.Prefix != "d/" {
		t.Fatalf("got %+v, %v", d, err)
	}
	if have, err := db.Insert(r.Ino, Inode{Name: "f", Kind: KindDir}); !errors.Is(err, ErrExist) || have != f {
		t.Fatalf("got %+v, %v, want the one there", have, err)
	}
	for range 2 {
		if got, err := db.Lookup(r.Ino, "f"); err != nil || got != f {
			t.Fatalf("got %+v, %v, want %+v", got, err, f)
		}
		if got, err := db.Inode(f.Ino); err != nil || got != f {
			t.Fatalf("got %+v, %v, want %+v", got, err, f)
		}
		if got := names(t, db, r.Ino); !slices.Equal(got, []string{"d/", "f"}) {
			t.Fatalf("got names %v", got)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Inode(f.Ino); !errors.Is(err, ErrClosed) {
			t.Fatalf("got %v after close", err)
		}
		db = openAt(t, dir)
	}
	if _, err := db.Update(f.Ino, func(in *Inode) error { in.Gen++; return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Update(f.Ino, func(in *Inode) error { in.Name = "g"; return nil }); !errors.Is(err, ErrInvalid) {
		t.Fatalf("got %v, want ErrInvalid", err)
	}
	own := errors.New("own")
	if _, err := db.Update(f.Ino, func(in *Inode) error { in.Gen = 9; return own }); err != own {
		t.Fatalf("got %v, want the caller's error", err)
	}
	if err := db.Remove(r.Ino, "f"); err != nil {
		t.Fatal(err)
	}
	if err := db.Remove(r.Ino, "f"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("got %v", err)
	}
	in, err := db.Update(f.Ino, func(in *Inode) error { in.Gen++; return nil })
	if err != nil || in.Gen != 2 || in.Flags != Removed || in.Name != "f" {
		t.Fatalf("got %+v, %v", in, err)
	}
	if _, err := db.Lookup(r.Ino, "f"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("got %v", err)
	}
	if n, err := db.Purge(1, 100, nil); n != 0 || err != nil {
		t.Fatalf("purged %d, %v", n, err)
	}
	if n, err := db.Purge(1<<62, 100, nil); n != 3 || err != nil {
		t.Fatalf("purged %d, %v", n, err)
	}
	if _, err := db.Inode(f.Ino); !errors.Is(err, ErrNotFound) {
		t.Fatalf("got %v", err)
	}
	g, err := db.Insert(r.Ino, Inode{Name: "f", Kind: KindFile})
	if err != nil || g.Ino <= d.Ino {
		t.Fatalf("got %+v, %v: want a new number", g, err)
	}
}

func TestPurgeTree(t *testing.T) {
	db := open(t)
	r := root(t, db)
	a, _ := db.Insert(r.Ino, Inode{Name: "a", Kind: KindDir})
	b, _ := db.Insert(a.Ino, Inode{Name: "b", Kind: KindDir})
	var last Inode
	for i := range 3 * purgeChunk {
		var err error
		if last, err = db.Insert(b.Ino, Inode{Name: fmt.Sprint(i), Kind: KindFile}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.SetListing(b.Ino, Listing{Complete: 5, Entries: 7, Hidden: 1}); err != nil {
		t.Fatal(err)
	}
	if err := db.Remove(r.Ino, "a"); err != nil {
		t.Fatal(err)
	}
	total := 0
	for {
		n, err := db.Purge(1<<62, 100, nil)
		if err != nil {
			t.Fatal(err)
		}
		if total += n; n == 0 {
			break
		}
	}
	if want := 2 + 3*purgeChunk; total != want {
		t.Fatalf("purged %d, want %d", total, want)
	}
	for _, ino := range []Ino{a.Ino, b.Ino, last.Ino} {
		if _, err := db.Inode(ino); !errors.Is(err, ErrNotFound) {
			t.Fatalf("got %v", err)
		}
	}
	if l, err := db.Listing(b.Ino); err != nil || l != (Listing{}) {
		t.Fatalf("got %+v, %v", l, err)
	}
	if err := db.SetListing(b.Ino, Listing{Complete: 5}); !errors.Is(err, ErrNotFound) {
		t.Fatalf("got %v", err)
	}
}

func TestCacheIndex(t *testing.T) {
	dir := t.TempDir()
	db := openAt(t, dir)
	rec := func(id cache.ID, key string) cache.Record {
		return cache.Record{ID: id, Dir: 2, Identity: cache.Identity{Origin: "s3://b", Key: key,
			ETag: "d41d8cd98f00b204e9800998ecf8427e-12", Size: 1 << 40, Inode: 77}, State: cache.Proven, Pinned: true,
			Checksum: objstore.Checksum{Algorithm: objstore.CRC32C, Value: 9}, Sum: 10, Epoch: 11}
	}
	id, err := db.NewID()
	if err != nil || id == 0 {
		t.Fatal(id, err)
	}
	r := rec(id, "k")
	var e cache.Extent
	e.CRC = make([]uint64, 70)
	e.Present[1], e.CRC[64], e.CRC[69] = 1|1<<5, 3, 4
	u := cache.Usage{ID: id, Dir: 2, Bytes: 5, Admitted: 6, LastUse: 7, Hits: 8}
	if err := db.Apply(cache.Batch{Records: []cache.Record{r}, Extents: []cache.ExtentKey{{ID: id, N: 1, Extent: e}},
		Usages: []cache.Usage{u}, Vars: map[string][]byte{"clock": {1, 2}}}); err != nil {
		t.Fatal(err)
	}
	db.Close()
	db = openAt(t, dir)
	if got, err := db.Record(id); err != nil || got != r {
		t.Fatalf("got %+v, %v", got, err)
	}
	if got, err := db.Find(r.Identity); err != nil || got != r {
		t.Fatalf("got %+v, %v", got, err)
	}
	got, err := db.Extent(id, 1)
	if err != nil || got.Present != e.Present || !slices.Equal(got.CRC, e.CRC) {
		t.Fatalf("got %+v, %v", got, err)
	}
	if _, err := db.Extent(id, 0); !errors.Is(err, cache.ErrNoRecord) {
		t.Fatal(err)
	}
	if got, err := db.Usage(id); err != nil || got != u {
		t.Fatalf("got %+v, %v", got, err)
	}
	if got, err := db.Var("clock"); err != nil || !slices.Equal(got, []byte{1, 2}) {
		t.Fatalf("got %v, %v", got, err)
	}
	// A second file of the same identity takes it over; the first one's end does not undo that.
	id2, _ := db.NewID()
	if id2 <= id {
		t.Fatalf("got ID %d after %d", id2, id)
	}
	if err := db.Apply(cache.Batch{Records: []cache.Record{rec(id2, "k")}}); err != nil {
		t.Fatal(err)
	}
	if err := db.Apply(cache.Batch{Delete: []cache.ID{id}, Records: []cache.Record{r}, Usages: []cache.Usage{u}}); err != nil {
		t.Fatal(err)
	}
	if got, err := db.Find(r.Identity); err != nil || got.ID != id2 {
		t.Fatalf("got %+v, %v", got, err)
	}
	for _, err := range []error{
		second(db.Record(id)), second(db.Extent(id, 1)), second(db.Usage(id)), second(db.Var("x")),
	} {
		if !errors.Is(err, cache.ErrNoRecord) {
			t.Fatalf("got %v, want ErrNoRecord", err)
		}
	}
	if s, err := db.SampleUsage(0.5, 3); err != nil || len(s) != 0 {
		t.Fatalf("got %v, %v", s, err)
	}
	var b cache.Batch
	for i := range 600 {
		b.Usages = append(b.Usages, cache.Usage{ID: cache.ID(1000 + i)})
		b.Records = append(b.Records, rec(cache.ID(1000+i), fmt.Sprint(i)))
	}
	if err := db.Apply(b); err != nil {
		t.Fatal(err)
	}
	for _, pick := range []float64{0, 0.25, 0.999, 1} {
		s, err := db.SampleUsage(pick, 400)
		if err != nil || len(s) != 400 {
			t.Fatalf("got %d, %v", len(s), err)
		}
		seen := make(map[cache.ID]bool)
		for _, u := range s {
			seen[u.ID] = true
		}
		if len(seen) != 400 {
			t.Fatalf("got %d different ones of 400", len(seen))
		}
		if s, _ := db.SampleUsage(pick, 700); len(s) != 600 {
			t.Fatalf("got %d of 600", len(s))
		}
	}
	n := 0
	if err := db.WalkRecords(id2, func(r cache.Record) bool {
		n++
		_, err := db.Record(r.ID)
		return err == nil
	}); err != nil || n != 600 {
		t.Fatalf("walked %d, %v", n, err)
	}
	big := cache.Batch{}
	for i := range 400 {
		e := cache.Extent{CRC: make([]uint64, cache.ExtentBlocks)}
		for w := range e.Present {
			e.Present[w] = ^uint64(0)
		}
		big.Extents = append(big.Extents, cache.ExtentKey{ID: id2, N: uint32(i), Extent: e})
	}
	if err := db.Apply(big); !errors.Is(err, ErrTooBig) {
		t.Fatalf("got %v, want ErrTooBig", err)
	}
	big.Extents = big.Extents[:100]
	if err := db.Apply(big); err != nil {
		t.Fatal(err)
	}
}

func second[T any](_ T, err error) error { return err }

func itoa(n int) string { return strconv.Itoa(n) }

func castagnoli(b []byte) []byte {
	return binary.BigEndian.AppendUint32(nil, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}
