package meta

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// txModel is what a few directories should hold, in plain maps.
type txModel struct {
	names   map[Name]Ino
	inodes  map[Ino]txInode
	dirty   map[Ino]Dirty
	aborts  map[Upload]bool
	tombs   map[string]Tomb
	times   map[Ino]int64
	xattrs  map[Ino]string // of the one name
	results map[Request]Ino
}

type txInode struct {
	kind    Kind
	size    int64
	removed bool
}

func (m *txModel) clone() *txModel {
	return &txModel{maps.Clone(m.names), maps.Clone(m.inodes), maps.Clone(m.dirty), maps.Clone(m.aborts), maps.Clone(m.tombs),
		maps.Clone(m.times), maps.Clone(m.xattrs), maps.Clone(m.results)}
}

func (m *txModel) namesOf(ino Ino) (out []Name) {
	for n, i := range m.names {
		if i == ino {
			out = append(out, n)
		}
	}
	return out
}

// below tells whether dir is top or below it.
func (m *txModel) below(dir, top Ino) bool {
	for dir != top {
		n := m.namesOf(dir)
		if len(n) == 0 {
			return false
		}
		dir = n[0].Parent
	}
	return true
}

// gone tells whether a directory, or one above it, was removed.
func (m *txModel) gone(dir, root Ino) bool { return !m.below(dir, root) }

// txOp is one call in a transaction.
type txOp struct {
	what     string
	from, to Name
	ino      Ino
	kind     Kind
	n        int64
	key      string
}

// run does an operation in both, and compares what came of it.
func (o *txOp) run(tx *Tx, m *txModel, root Ino) error {
	var got Inode
	var err, want error
	switch o.what {
	case "insert":
		got, err = tx.Insert(o.to.Parent, Inode{Name: o.to.Name, Kind: o.kind, Object: Object{Size: o.n}})
		switch {
		case m.names[o.to] != 0:
			want = ErrExist
		case m.gone(o.to.Parent, root):
			want = ErrNotFound
		default:
			m.names[o.to], m.inodes[got.Ino] = got.Ino, txInode{kind: o.kind, size: o.n}
		}
	case "remove":
		got, err = tx.Remove(o.from.Parent, o.from.Name)
		if ino := m.names[o.from]; ino == 0 {
			want = ErrNotFound
		} else {
			delete(m.names, o.from)
			in := m.inodes[ino]
			in.removed = len(m.namesOf(ino)) == 0
			m.inodes[ino] = in
			if err == nil && (got.Flags&Removed != 0) != in.removed {
				return fmt.Errorf("removed: %+v", got)
			}
		}
	case "move":
		got, err = tx.Move(o.from.Parent, o.from.Name, o.to.Parent, o.to.Name)
		ino := m.names[o.from]
		switch {
		case ino == 0:
			want = ErrNotFound
		case m.names[o.to] != 0:
			want = ErrExist
		case m.gone(o.to.Parent, root):
			want = ErrNotFound
		case m.inodes[ino].kind == KindDir && m.below(o.to.Parent, ino):
			want = ErrInvalid
		default:
			delete(m.names, o.from)
			m.names[o.to] = ino
		}
	case "link":
		got, err = tx.Link(o.ino, o.to.Parent, o.to.Name)
		in, ok := m.inodes[o.ino]
		switch {
		case !ok:
			want = ErrNotFound
		case in.kind == KindDir:
			want = ErrInvalid
		case in.removed:
			want = ErrNotFound
		case m.names[o.to] != 0:
			want = ErrExist
		case m.gone(o.to.Parent, root):
			want = ErrNotFound
		default:
			m.names[o.to] = o.ino
		}
	case "update":
		got, err = tx.Inode(o.ino)
		in, ok := m.inodes[o.ino]
		if !ok {
			want = ErrNotFound
			break
		}
		got.Object.Size = o.n
		if err == nil {
			err = tx.Update(&got)
		}
		in.size = o.n
		m.inodes[o.ino] = in
	case "dirty":
		d := Dirty{Ino: o.ino, Seq: uint64(o.n), Upload: Upload{Key: o.key, ID: itoa(int(o.n) % 3)}}
		err = tx.SetDirty(&d)
		if _, ok := m.inodes[o.ino]; !ok {
			want = ErrNotFound
			break
		}
		if old, ok := m.dirty[o.ino]; ok && old.Upload != d.Upload {
			m.aborts[old.Upload] = true
		}
		m.dirty[o.ino] = d
	case "clean":
		err = tx.ClearDirty(o.ino, o.n%2 == 0)
		if old, ok := m.dirty[o.ino]; ok && o.n%2 != 0 {
			m.aborts[old.Upload] = true
		}
		delete(m.dirty, o.ino)
	case "tomb":
		m.tombs[o.key] = Tomb{Key: o.key, Seq: uint64(o.n), Needed: o.ino}
		err = tx.SetTomb(&Tomb{Key: o.key, Seq: uint64(o.n), Needed: o.ino})
	case "clear tomb":
		delete(m.tombs, o.key)
		err = tx.ClearTomb(o.key)
	case "touch":
		if err = tx.Touch(o.to.Parent, o.n); m.inodes[o.to.Parent].kind == 0 {
			want = ErrNotFound
		} else {
			m.times[o.to.Parent] = o.n
		}
	case "xattr":
		if err = tx.SetXattr(o.ino, "user.x", []byte(o.key)); m.inodes[o.ino].kind == 0 {
			want = ErrNotFound
		} else {
			m.xattrs[o.ino] = o.key
		}
	}
	if !errors.Is(err, want) || want == nil && err != nil {
		return fmt.Errorf("%+v: got %+v, %w, want %v", *o, got, err, want)
	}
	// What the transaction sees by now.
	for n, ino := range m.names {
		if in, err := tx.Lookup(n.Parent, n.Name); err != nil || in.Ino != ino || in.Parent != n.Parent || in.Name != n.Name {
			return fmt.Errorf("%+v: lookup of %v: %+v, %w, want %d", *o, n, in, err, ino)
		}
	}
	return nil
}

// check compares everything.
func (m *txModel) check(t *rapid.T, db *DB, root Ino) {
	t.Helper()
	if err := audit(db); err != nil {
		t.Fatal(err)
	}
	for ino, want := range m.inodes {
		in, err := db.Inode(ino)
		if err != nil || in.Kind != want.kind || in.Object.Size != want.size || (in.Flags&Removed != 0) != want.removed {
			t.Fatalf("got %+v, %v, want %+v", in, err, want)
		}
		if ino == root {
			continue
		}
		names, err := db.Names(ino)
		wantNames := m.namesOf(ino)
		if err != nil || len(names) != len(wantNames) || len(names) > 0 && int(in.Links) != len(names)-1 {
			t.Fatalf("%+v: got names %v, %v, want %v", in, names, err, wantNames)
		}
		for _, n := range names {
			if m.names[n] != ino {
				t.Fatalf("%+v: got names %v, want %v", in, names, wantNames)
			}
		}
		if v, err := db.Xattr(ino, "user.x"); err == nil && string(v) != m.xattrs[ino] || err != nil && m.xattrs[ino] != "" {
			t.Fatalf("%d: got attribute %q, %v, want %q", ino, v, err, m.xattrs[ino])
		}
		if want.kind != KindDir {
			continue
		}
		if at, ct, err := db.DirTimes(ino); err != nil || at != m.times[ino] || ct != at {
			t.Fatalf("%d: got times %d, %d, %v, want %d", ino, at, ct, err, m.times[ino])
		}
		var got []string
		if err := db.Readdir(ino, "", 0, func(in Inode) bool {
			if m.names[Name{ino, in.Name}] != in.Ino {
				t.Fatalf("got %+v", in)
			}
			got = append(got, in.Name)
			return true
		}); err != nil {
			t.Fatal(err)
		}
		n := 0
		for name := range m.names {
			if name.Parent == ino {
				n++
			}
		}
		if n != len(got) {
			t.Fatalf("%d: got %v, want %d names", ino, got, n)
		}
	}
	dirty := make(map[Ino]Dirty)
	tombs := make(map[string]Tomb)
	aborts := make(map[Upload]bool)
	err := errors.Join(db.WalkDirty(0, func(d Dirty) bool { dirty[d.Ino] = d; return true }),
		db.WalkTombs("", "", func(t Tomb) bool { tombs[t.Key] = t; return true }))
	ups, err2 := db.Aborts()
	for _, u := range ups {
		aborts[u] = true
	}
	if err != nil || err2 != nil || !maps.Equal(dirty, m.dirty) || !maps.Equal(tombs, m.tombs) || !maps.Equal(aborts, m.aborts) {
		t.Fatalf("got %v, %v, %v, %v, %v, want %+v", dirty, tombs, aborts, err, err2, m)
	}
	for req, ino := range m.results {
		if res, ok, err := db.Result(req); err != nil || !ok || res.Ino != ino {
			t.Fatalf("%v: got %+v, %v, %v, want %d", req, res, ok, err, ino)
		}
	}
}

// TestDoModel runs transactions of several calls, some given up at the end, and compares with the
// model.
func TestDoModel(t *testing.T) {
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
		m := &txModel{map[Name]Ino{}, map[Ino]txInode{r.Ino: {kind: KindDir}}, map[Ino]Dirty{}, map[Upload]bool{}, map[string]Tomb{},
			map[Ino]int64{}, map[Ino]string{}, map[Request]Ino{}}
		unique := uint64(0)
		anyIno := func(t *rapid.T, label string) Ino {
			return rapid.SampledFrom(append(slices.Sorted(maps.Keys(m.inodes)), 1<<20)).Draw(t, label)
		}
		anyName := func(t *rapid.T, label string) Name {
			var dirs []Ino
			for _, ino := range slices.Sorted(maps.Keys(m.inodes)) {
				if m.inodes[ino].kind == KindDir {
					dirs = append(dirs, ino)
				}
			}
			return Name{rapid.SampledFrom(dirs).Draw(t, label), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, label)}
		}
		anyOld := func(t *rapid.T, label string) Name {
			var names []Name
			for n := range m.names {
				names = append(names, n)
			}
			if len(names) == 0 || rapid.IntRange(0, 5).Draw(t, "any") == 0 {
				return anyName(t, label)
			}
			slices.SortFunc(names, func(a, b Name) int {
				return slices.Compare([]string{itoa(int(a.Parent)), a.Name}, []string{itoa(int(b.Parent)), b.Name})
			})
			return rapid.SampledFrom(names).Draw(t, label)
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { m.check(t, db, r.Ino) },
			"do": func(t *rapid.T) {
				var ops []txOp
				for range rapid.IntRange(1, 4).Draw(t, "calls") {
					ops = append(ops, txOp{
						what: rapid.SampledFrom([]string{"insert", "insert", "insert", "remove", "move", "move", "link", "link", "update", "dirty",
							"clean", "tomb", "clear tomb", "touch", "xattr"}).Draw(t, "call"),
						from: anyOld(t, "from"), to: anyName(t, "to"), ino: anyIno(t, "ino"),
						kind: Kind(rapid.IntRange(1, 4).Draw(t, "kind")), n: rapid.Int64Range(1, 9).Draw(t, "n"),
						key: rapid.SampledFrom([]string{"k", "k/", "l"}).Draw(t, "key"),
					})
				}
				giveUp := rapid.IntRange(0, 4).Draw(t, "give up") == 0
				unique++
				req := Request{1, unique}
				odd := errors.New("odd")
				var next *txModel
				var bad error
				err := db.Do(func(tx *Tx) error {
					next = m.clone()
					for i := range ops {
						if bad = ops[i].run(tx, next, r.Ino); bad != nil {
							return bad
						}
					}
					tx.Result(&Inode{Ino: Ino(unique)})
					if giveUp {
						return odd
					}
					return nil
				}, For(req, 1, nil))
				switch {
				case bad != nil:
					t.Fatal(bad)
				case giveUp && err != odd || !giveUp && err != nil:
					t.Fatal(err)
				case !giveUp:
					m = next
					m.results[req] = Ino(unique)
				}
			},
			"purge": func(t *rapid.T) {
				// As often as there is something below.
				for range 4 {
					if _, err := db.Purge(1<<62, 1<<20, nil); err != nil {
						t.Fatal(err)
					}
				}
				for ino := range m.inodes {
					if ino != r.Ino && len(m.namesOf(ino)) == 0 {
						in := m.inodes[ino]
						in.removed = true
						m.inodes[ino] = in
					}
				}
				for again := true; again; {
					again = false
					for ino, in := range m.inodes {
						if !in.removed || ino == r.Ino {
							continue
						}
						for n, i := range m.names {
							if n.Parent == ino {
								delete(m.names, n)
								if k := m.inodes[i]; len(m.namesOf(i)) == 0 {
									k.removed = true
									m.inodes[i] = k
								}
								again = true
							}
						}
						if _, dirty := m.dirty[ino]; !dirty {
							delete(m.inodes, ino)
							delete(m.times, ino)
							delete(m.xattrs, ino)
							again = true
						}
					}
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
			},
		})
	})
}
