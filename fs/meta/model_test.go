package meta

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// model is what a directory should hold, kept by rules stated name by name. Ino is left to
// the index, and checked for being new where it should be.
type model struct {
	db      *DB
	dir     Ino
	names   map[string]Inode
	removed map[Ino]Inode
	kept    map[nodeID]Inode // as they were, without the flag Removed
	highest Ino
}

type nodeID struct {
	ino Ino
	gen uint32
}

// keep is called with an inode whose generation changes.
func (m *model) keep(old Inode) {
	old.Flags &^= Removed
	m.kept[nodeID{old.Ino, old.Gen}] = old
}

func (m *model) merge(p Page) (unshadowed bool) {
	objs := make(map[string]ListedObject)
	dirs := make(map[string]bool)
	all := make(map[string]bool)
	for _, o := range p.Objects {
		objs[o.Name], all[o.Name] = o, true
	}
	for _, d := range p.Dirs {
		dirs[d], all[d] = true, true
	}
	for n := range m.names {
		all[n] = true
	}
	in := func(key string) bool { return key > p.From && (p.To == "" || key <= p.To) }
	for n := range all {
		old, had := m.names[n]
		o, isObj := objs[n]
		isDir := dirs[n]
		objGone := !isObj && !p.Partial && in(n)
		dirGone := !isDir && !p.Partial && in(n+"/")
		file := Inode{Kind: KindFile, Parent: m.dir, Name: n, Object: Object{Size: o.Size, ETag: o.ETag, MTime: o.MTime}}
		dir := Inode{Kind: KindDir, Parent: m.dir, Name: n, Prefix: n + "/"}
		var now *Inode // nil: the name goes
		switch {
		case had && (old.Flags&Local != 0 || old.Checked > p.Began):
			continue
		case !had && isDir:
			if isObj {
				dir.Flags |= Shadows
			}
			now = &dir
		case !had && isObj:
			now = &file
		case !had:
		case old.Kind == KindDir && dirGone && isObj:
			now = &file
		case old.Kind == KindDir && dirGone:
			unshadowed = unshadowed || old.Flags&Shadows != 0 && !objGone
		case old.Kind == KindDir:
			k := old
			if isObj {
				k.Flags |= Shadows
			} else if objGone {
				k.Flags &^= Shadows
			}
			now = &k
		case isDir:
			if !objGone {
				dir.Flags |= Shadows
			}
			now = &dir
		case isObj:
			k := old
			k.Object.MTime = o.MTime
			k.Flags &^= Archived
			if o.ETag != old.Object.ETag || o.Size != old.Object.Size || o.ETag == "" && o.MTime != old.Object.MTime {
				if k.Kind == KindFile {
					m.keep(old)
					k.Gen, k.Object = (k.Gen+1)&maxGen, file.Object
				} else {
					k = file
				}
			}
			now = &k
		case !objGone:
			k := old
			now = &k
		}
		if had && (now == nil || now.Kind != old.Kind) {
			m.drop(n)
		}
		if now != nil {
			m.names[n] = *now
		}
	}
	return unshadowed
}

func (m *model) drop(name string) {
	old := m.names[name]
	old.Flags |= Removed
	m.removed[old.Ino] = old
	delete(m.names, name)
}

// check compares all of the directory, and learns the numbers of new inodes.
func (m *model) check(t *rapid.T) {
	t.Helper()
	var got []string
	highest := m.highest
	if err := m.db.Readdir(m.dir, "", 0, func(in Inode) bool {
		got = append(got, in.Name)
		want, ok := m.names[in.Name]
		if ok && want.Ino == 0 {
			if in.Ino <= m.highest {
				t.Fatalf("%q: number %d was given out before", in.Name, in.Ino)
			}
			highest = max(highest, in.Ino)
			want.Ino = in.Ino
			m.names[in.Name] = want
		}
		if !ok || in != want {
			t.Fatalf("%q: got %+v, want %+v", in.Name, in, want)
		}
		if one, err := m.db.Lookup(m.dir, in.Name); err != nil || one != in {
			t.Fatalf("lookup %q: got %+v, %v, want %+v", in.Name, one, err, in)
		}
		if one, err := m.db.Inode(in.Ino); err != nil || one != in {
			t.Fatalf("inode %d: got %+v, %v, want %+v", in.Ino, one, err, in)
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	m.highest = highest
	if want := slices.Sorted(maps.Keys(m.names)); !slices.Equal(got, want) {
		t.Fatalf("got names %q, want %q", got, want)
	}
	live := make(map[Ino]Inode)
	for _, in := range m.names {
		live[in.Ino] = in
	}
	for id, want := range m.kept {
		now, alive := live[id.ino]
		if !alive {
			want.Flags |= Removed
			now = m.removed[id.ino] // or forgotten
		}
		if got, err := m.db.InodeAt(id.ino, id.gen); err != nil || got != want {
			t.Fatalf("%d at %d: got %+v, %v, want %+v", id.ino, id.gen, got, err, want)
		}
		if now.Ino != 0 && now.Gen == id.gen {
			t.Fatalf("%d is at %d, which is kept", id.ino, id.gen)
		}
	}
	for ino := Ino(1); ino <= m.highest; ino++ {
		now, ok := live[ino]
		if gone, was := m.removed[ino]; was {
			now, ok = gone, true
		}
		if got, err := m.db.InodeAt(ino, now.Gen); ino != m.dir && ok && (err != nil || got != now) {
			t.Fatalf("%d at %d: got %+v, %v, want %+v", ino, now.Gen, got, err, now)
		}
		const never = maxGen / 2
		if got, err := m.db.InodeAt(ino, never); !errors.Is(err, ErrNotFound) || got != (Inode{}) {
			t.Fatalf("%d at %d, which never was: got %+v, %v", ino, never, got, err)
		}
	}
	for ino, want := range m.removed {
		if got, err := m.db.Inode(ino); err != nil || got != want {
			t.Fatalf("removed %d: got %+v, %v, want %+v", ino, got, err, want)
		}
	}
}

// TestModel does anything in any order and compares with the model.
func TestModel(t *testing.T) {
	name := rapid.SampledFrom([]string{"a", "a!", "a-", "a.", "a.txt", "a0", "a0b", "ab", "b", "b!", "c", "\x01", "\xff", "é"})
	key := rapid.Custom(func(t *rapid.T) string {
		k := name.Draw(t, "key")
		if rapid.Bool().Draw(t, "slash") {
			k += "/"
		}
		return k
	})
	rapid.Check(t, func(t *rapid.T) {
		// TempDir of rapid.T is not there; the directory goes with the test.
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
		m := &model{db: db, dir: r.Ino, names: map[string]Inode{}, removed: map[Ino]Inode{}, kept: map[nodeID]Inode{}, highest: r.Ino}
		t.Repeat(map[string]func(*rapid.T){
			"": m.check,
			"merge": func(t *rapid.T) {
				p := Page{Began: rapid.Int64Range(1, 3).Draw(t, "began"), Partial: rapid.IntRange(0, 9).Draw(t, "partial") == 0}
				if rapid.Bool().Draw(t, "from") {
					p.From = key.Draw(t, "from")
				}
				if rapid.Bool().Draw(t, "to") {
					if p.To = key.Draw(t, "to"); p.To < p.From {
						p.From, p.To = p.To, p.From
					}
				}
				for _, n := range rapid.SliceOfDistinct(name, rapid.ID).Draw(t, "objects") {
					p.Objects = append(p.Objects, ListedObject{Name: n, Size: 1, MTime: rapid.Int64Range(1, 2).Draw(t, "mtime"),
						ETag: rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "etag")})
				}
				p.Dirs = rapid.SliceOfDistinct(name, rapid.ID).Draw(t, "dirs")
				if rapid.IntRange(0, 3).Draw(t, "stray") != 0 {
					// What a store lists: nothing outside the range.
					in := func(key string) bool { return key > p.From && (p.To == "" || key <= p.To) }
					p.Objects = slices.DeleteFunc(p.Objects, func(o ListedObject) bool { return !in(o.Name) })
					p.Dirs = slices.DeleteFunc(p.Dirs, func(d string) bool { return !in(d + "/") })
				}
				res, err := m.db.Merge(m.dir, p)
				if err != nil {
					t.Fatal(err)
				}
				if want := m.merge(p); res.Unshadowed != want {
					t.Fatalf("got unshadowed %v, want %v", res.Unshadowed, want)
				}
			},
			"insert": func(t *rapid.T) {
				in := Inode{Name: name.Draw(t, "name"), Kind: Kind(rapid.IntRange(1, 3).Draw(t, "kind")),
					Checked: rapid.Int64Range(0, 3).Draw(t, "checked"),
					Gen:     rapid.SampledFrom([]uint32{0, 100, maxGen}).Draw(t, "gen")}
				got, err := m.db.Insert(m.dir, in)
				if have, ok := m.names[in.Name]; ok {
					if !errors.Is(err, ErrExist) || got != have {
						t.Fatalf("got %+v, %v, want ErrExist and %+v", got, err, have)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if in.Parent = m.dir; in.Kind == KindDir {
					in.Prefix = in.Name + "/"
				}
				m.names[in.Name] = in
			},
			"update": func(t *rapid.T) {
				n := name.Draw(t, "name")
				in, ok := m.names[n]
				if !ok {
					return
				}
				flags := Flags(rapid.SampledFrom([]Flags{0, Local, Archived}).Draw(t, "flags"))
				if in.Kind == KindDir {
					flags = in.Flags ^ flags&Local
				}
				checked := rapid.Int64Range(0, 3).Draw(t, "checked")
				gen := in.Gen
				if rapid.Bool().Draw(t, "new generation") {
					gen = (gen + 1) & maxGen
				}
				got, err := m.db.Update(in.Ino, func(i *Inode) error { i.Flags, i.Checked, i.Gen = flags, checked, gen; return nil })
				if gen != in.Gen {
					m.keep(in)
				}
				in.Flags, in.Checked, in.Gen = flags, checked, gen
				if err != nil || got != in {
					t.Fatalf("got %+v, %v, want %+v", got, err, in)
				}
				m.names[n] = in
			},
			"remove": func(t *rapid.T) {
				n := name.Draw(t, "name")
				err := m.db.Remove(m.dir, n)
				if _, ok := m.names[n]; !ok {
					if !errors.Is(err, ErrNotFound) {
						t.Fatalf("got %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				m.drop(n)
			},
			"readdir": func(t *rapid.T) {
				after, most := name.Draw(t, "after"), rapid.IntRange(1, 5).Draw(t, "max")
				var got []string
				if err := m.db.Readdir(m.dir, after, most, func(in Inode) bool { got = append(got, in.Name); return true }); err != nil {
					t.Fatal(err)
				}
				want := slices.DeleteFunc(slices.Sorted(maps.Keys(m.names)), func(s string) bool { return strings.Compare(s, after) <= 0 })
				if want = want[:min(most, len(want))]; !slices.Equal(got, want) {
					t.Fatalf("got %q, want %q", got, want)
				}
			},
			"update removed": func(t *rapid.T) {
				if len(m.removed) == 0 {
					return
				}
				in := m.removed[rapid.SampledFrom(slices.Sorted(maps.Keys(m.removed))).Draw(t, "ino")]
				got, err := m.db.Update(in.Ino, func(i *Inode) error { i.Gen = (i.Gen + 1) & maxGen; return nil })
				m.keep(in)
				if in.Gen = (in.Gen + 1) & maxGen; err != nil || got != in {
					t.Fatalf("got %+v, %v, want %+v", got, err, in)
				}
				m.removed[in.Ino] = in
			},
			"purge": func(t *rapid.T) {
				if n, err := m.db.Purge(1, 1<<20, nil); err != nil || n != 0 {
					t.Fatalf("got %d, %v for what is not old", n, err)
				}
				var held func(Ino, uint32) bool
				if third := rapid.Uint64Range(0, 3).Draw(t, "held"); third < 3 {
					held = func(ino Ino, gen uint32) bool { return (uint64(ino)+uint64(gen))%3 == third }
				}
				want := 0
				for ino, in := range m.removed {
					if held == nil || !held(ino, in.Gen) {
						delete(m.removed, ino)
						want++
					}
				}
				for id := range m.kept {
					if held == nil || !held(id.ino, id.gen) {
						delete(m.kept, id)
						want++
					}
				}
				if n, err := m.db.Purge(1<<62, 1<<20, held); err != nil || n != want {
					t.Fatalf("got %d, %v, want %d", n, err, want)
				}
			},
			"reopen": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "seldom") != 0 {
					return
				}
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
				if db, err = Open(opt); err != nil || db.Rebuilt() {
					t.Fatal(err)
				}
				m.db = db
			},
		})
	})
}
