package meta

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// page makes a Page of names; those that end in "/" are directories. "name=etag" gives an
// object another ETag.
func page(from, to string, names ...string) Page {
	p := Page{From: from, To: to, Began: 100}
	for _, n := range names {
		if d, ok := strings.CutSuffix(n, "/"); ok {
			p.Dirs = append(p.Dirs, d)
			continue
		}
		name, etag, _ := strings.Cut(n, "=")
		p.Objects = append(p.Objects, ListedObject{Name: name, Size: 1, ETag: etag, MTime: 5})
	}
	return p
}

func merge(t testing.TB, db *DB, dir Ino, p Page) MergeResult {
	t.Helper()
	res, err := db.Merge(dir, p)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestMergeOrder(t *testing.T) {
	// In S3's order: a, a!, a.txt, a/, a0.
	all := []string{"a", "a!", "a.txt", "a/", "a0"}
	t.Run("whole", func(t *testing.T) {
		db := open(t)
		r := root(t, db)
		res := merge(t, db, r.Ino, page("", "", all...))
		if got := names(t, db, r.Ino); !slices.Equal(got, []string{"a/!", "a!", "a.txt", "a0"}) || res.Added != 4 {
			t.Fatalf("got %v, %+v", got, res)
		}
		if res := merge(t, db, r.Ino, page("", "", all...)); res.Unchanged != 4 || res.Added+res.Altered+res.Gone != 0 {
			t.Fatalf("got %+v", res)
		}
	})
	// Every cut of the listing into two pages, in both orders, relisted.
	for cut := range len(all) {
		for _, swap := range []bool{false, true} {
			t.Run(fmt.Sprint(cut, swap), func(t *testing.T) {
				db := open(t)
				r := root(t, db)
				pages := []Page{page("", all[cut], all[:cut+1]...), page(all[cut], "", all[cut+1:]...)}
				if swap {
					slices.Reverse(pages)
				}
				want := []string{"a/!", "a!", "a.txt", "a0"}
				for round := range 3 {
					altered := 0
					for _, p := range pages {
						res := merge(t, db, r.Ino, p)
						altered += res.Altered + res.Gone + res.Added
						if res.Unshadowed {
							t.Error("unshadowed")
						}
					}
					if got := names(t, db, r.Ino); !slices.Equal(got, want) || round > 0 && altered != 0 {
						t.Fatalf("round %d: got %v, %d changes", round, got, altered)
					}
				}
				// One after the other goes away, and nothing else.
				for _, gone := range all {
					for _, p := range pages {
						q := p
						q.Objects = slices.DeleteFunc(slices.Clone(p.Objects), func(o ListedObject) bool { return o.Name == gone })
						q.Dirs = slices.DeleteFunc(slices.Clone(p.Dirs), func(d string) bool { return d+"/" == gone })
						merge(t, db, r.Ino, q)
					}
					want := slices.DeleteFunc([]string{"a/!", "a!", "a.txt", "a0"}, func(s string) bool { return s == gone })
					switch gone {
					case "a":
						want[0] = "a/"
					case "a/":
						// Where object and directory are in one page the object takes the place at once,
						// else the next listing brings it.
						want = want[1:]
						if again := names(t, db, r.Ino); slices.Contains(again, "a") {
							want = slices.Insert(want, 0, "a")
						}
					}
					if got := names(t, db, r.Ino); !slices.Equal(got, want) {
						t.Fatalf("without %q: got %v, want %v", gone, got, want)
					}
					for range 2 {
						for _, p := range pages {
							merge(t, db, r.Ino, p)
						}
					}
					if got := names(t, db, r.Ino); !slices.Equal(got, []string{"a/!", "a!", "a.txt", "a0"}) {
						t.Fatalf("after %q came back: got %v", gone, got)
					}
				}
			})
		}
	}
}

func TestMergeRange(t *testing.T) {
	db := open(t)
	r := root(t, db)
	merge(t, db, r.Ino, page("", "", "a", "b", "b-", "b/", "c", "d/", "e"))
	for _, c := range []struct {
		from, to string
		want     string // what is left when an empty page covers the range
	}{
		{"z", "", "b/! a b- c d/ e"},
		{"a", "b", "b/! a b- c d/ e"}, // b is in it, but hidden: no flag is kept, see below
		{"b", "b-", "b/! a b- c d/ e"},
		{"b-", "b/", "b/! a b- c d/ e"},
		{"b/", "d", "b/! a b- c d/ e"},
		{"d", "d/", "b/! a b- c d/ e"},
		{"d/", "", "b/! a b- c d/ e"},
	} {
		all := map[string]string{"a": "a", "b": "b", "b-": "b-", "b/": "b/", "c": "c", "d/": "d/", "e": "e"}
		var left []string
		for k := range all {
			if k <= c.from || c.to != "" && k > c.to {
				left = append(left, k)
			}
		}
		slices.Sort(left)
		merge(t, db, r.Ino, page(c.from, c.to))
		var got []string
		for _, n := range names(t, db, r.Ino) {
			if d, ok := strings.CutSuffix(n, "/!"); ok {
				got = append(got, d, d+"/")
				continue
			}
			got = append(got, n)
		}
		if slices.Sort(got); !slices.Contains(left, "b/") {
			// With the directory goes what is known of the object below it.
			left = slices.DeleteFunc(left, func(s string) bool { return s == "b" && c.from == "b-" })
		}
		if !slices.Equal(got, left) {
			t.Errorf("(%q, %q]: got %v, want %v", c.from, c.to, got, left)
		}
		merge(t, db, r.Ino, page("", "", "a", "b", "b-", "b/", "c", "d/", "e"))
	}
}

func TestMergeChanges(t *testing.T) {
	db := open(t)
	r := root(t, db)
	merge(t, db, r.Ino, page("", "", "same=1", "new=1", "time=1", "gone=1", "todir=1", "tofile/", "local=1", "checked=1", "none"))
	get := func(name string) Inode {
		t.Helper()
		in, err := db.Lookup(r.Ino, name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return in
	}
	before := make(map[string]Inode)
	for _, n := range []string{"same", "new", "time", "gone", "todir", "tofile", "local", "checked", "none"} {
		before[n] = get(n)
	}
	update := func(name string, fn func(*Inode)) {
		t.Helper()
		in, err := db.Update(before[name].Ino, func(in *Inode) error { fn(in); return nil })
		if err != nil {
			t.Fatal(err)
		}
		before[name] = in
	}
	update("new", func(in *Inode) { in.Gen, in.Object.File, in.Object.VersionID, in.Object.Key = maxGen, 7, "v", "other" })
	update("same", func(in *Inode) { in.Object.File, in.Object.VersionID, in.Mode = 8, "w", 0o600 })
	update("local", func(in *Inode) { in.Flags |= Local })
	update("checked", func(in *Inode) { in.Checked = 101 })
	p := page("", "", "same=1", "new=2", "time=1", "todir/", "tofile=1", "none")
	for i := range p.Objects {
		switch o := &p.Objects[i]; o.Name {
		case "time":
			o.MTime = 6
		case "none":
			o.MTime = 7
		}
	}
	res := merge(t, db, r.Ino, p)
	if res.Added != 0 || res.Altered != 5 || res.Gone != 1 || res.Unchanged != 1 || res.Kept != 2 ||
		len(res.Changed) != 5 || len(res.Removed) != 1 || res.Removed[0].Name != "gone" {
		t.Fatalf("got %+v", res)
	}
	for _, n := range []string{"same", "local", "checked"} {
		if got := get(n); got != before[n] {
			t.Errorf("%s: got %+v, want %+v", n, got, before[n])
		}
	}
	if got := get("new"); got.Gen != 0 || got.Object != (Object{Key: "other", Size: 1, ETag: "2", MTime: 5}) || got.Ino != before["new"].Ino {
		t.Errorf("new: got %+v", got)
	}
	if got := get("time"); got.Gen != 0 || got.Object.MTime != 6 || got.Ino != before["time"].Ino {
		t.Errorf("time: got %+v", got)
	}
	if got := get("none"); got.Gen != 1 || got.Object.MTime != 7 {
		t.Errorf("without ETag another time is another version: got %+v", got)
	}
	for _, n := range []string{"todir", "tofile"} {
		got, old := get(n), before[n]
		if got.Ino == old.Ino || got.Kind == old.Kind {
			t.Errorf("%s: got %+v, was %+v", n, got, old)
		}
		was, err := db.Inode(old.Ino)
		if old.Flags |= Removed; err != nil || was != old {
			t.Errorf("%s: got %+v, %v, want %+v", n, was, err, old)
		}
	}
	if d := get("todir"); d.Prefix != "todir/" {
		t.Errorf("got %+v", d)
	}
	was, err := db.Inode(before["gone"].Ino)
	if err != nil || was.Flags != Removed || was.Name != "gone" {
		t.Errorf("got %+v, %v", was, err)
	}
	// A partial page removes nothing.
	q := page("", "", "x=1")
	q.Partial = true
	if res := merge(t, db, r.Ino, q); res.Gone != 0 || res.Added != 1 {
		t.Errorf("got %+v", res)
	}
	// A directory goes away that hid an object which the page does not cover.
	merge(t, db, r.Ino, page("", "", "s", "s!", "s/"))
	if res := merge(t, db, r.Ino, page("s!", "")); !res.Unshadowed || res.Gone != 1 {
		t.Errorf("got %+v", res)
	}
	for _, bad := range []Page{page("", "", ""), page("", "", "a/b"), page("", "", "a", "a"), page("b", "a"),
		page("", "", strings.Repeat("x", MaxName+1))} {
		if _, err := db.Merge(r.Ino, bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: got %v, want ErrInvalid", bad, err)
		}
	}
	if _, err := db.Merge(before["same"].Ino, page("", "")); !errors.Is(err, ErrInvalid) {
		t.Errorf("merge into a file: got %v", err)
	}
	if _, err := db.Merge(before["tofile"].Ino, page("", "", "x")); !errors.Is(err, ErrNotFound) {
		t.Errorf("merge into a removed directory: got %v", err)
	}
	if _, err := db.Merge(1<<30, page("", "", "x")); !errors.Is(err, ErrNotFound) {
		t.Errorf("merge into nothing: got %v", err)
	}
}

// A page may be of any size: it is merged in steps.
func TestMergeLarge(t *testing.T) {
	db := open(t)
	r := root(t, db)
	const n = 20_000
	p := fillPage(0, n)
	p.To = ""
	added := 0
	p.OnChange = func(c Change) {
		added++
		if got, err := db.Inode(c.New.Ino); err != nil || got != c.New || c.Old.Ino != 0 {
			t.Fatalf("got %+v, %v, want %+v", got, err, c)
		}
	}
	if res := merge(t, db, r.Ino, p); res.Added != n || added != n {
		t.Fatalf("got %+v, %d changes", res, added)
	}
	if got := len(names(t, db, r.Ino)); got != n {
		t.Fatalf("got %d names", got)
	}
	wrote := db.writes.Load()
	p.OnChange = func(c Change) { t.Fatalf("got %+v", c) }
	if res := merge(t, db, r.Ino, p); res.Unchanged != n || db.writes.Load() != wrote {
		t.Fatalf("got %+v, %d writes", res, db.writes.Load()-wrote)
	}
	removed := 0
	if res := merge(t, db, r.Ino, Page{Began: 100, OnChange: func(Change) { removed++ }}); res.Gone != n || removed != n || res.Removed != nil {
		t.Fatalf("got %+v, %d changes", res, removed)
	}
	if got := names(t, db, r.Ino); len(got) != 0 {
		t.Fatalf("got %v", got)
	}
}
