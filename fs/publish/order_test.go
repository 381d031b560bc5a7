package publish

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// TestOrder runs testdata/order. Commands:
//
//	class
//	NAME...        one a line: says what each is alike with
//	waits
//	put|delete|failing KEY   one a line, completed in this order: says which lines each waits for
//
// ("failing" is a put that has failed too often.) What MustPrecede says is compared with what the tree says.
func TestOrder(t *testing.T) {
	datadriven.Walk(t, "testdata/order", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "class":
				return classes(d.Input)
			case "waits":
				return waits(t, d.Input)
			}
			t.Fatalf("unknown command %q", d.Cmd)
			return ""
		})
	})
}

func classes(in string) string {
	var out strings.Builder
	for name := range strings.Lines(in) {
		name = strings.TrimSpace(name)
		c := classOf(name)
		if c == marker {
			c = "marker"
		}
		fmt.Fprintf(&out, "%s: %s\n", name, c)
	}
	return out.String()
}

func waits(t *testing.T, in string) string {
	var places []Place
	var entries []*entry
	tr := newTree()
	for line := range strings.Lines(in) {
		kind, key, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || kind != "put" && kind != "delete" && kind != "failing" {
			t.Fatalf("bad line %q", line)
		}
		p := Place{Key: key, Seq: uint64(len(places) + 1), Delete: kind == "delete", Failing: kind == "failing"}
		places = append(places, p)
		e := entryAt(p)
		entries = append(entries, e)
		tr.insert(e)
	}
	var out strings.Builder
	for i, b := range places {
		fmt.Fprintf(&out, "%d %s:", b.Seq, b.Key)
		var after []string
		blocked := false
		for _, a := range places {
			if MustPrecede(a, b) {
				after = append(after, fmt.Sprint(a.Seq))
				blocked = blocked || a.Key != b.Key || !alikePlaces(a, b)
			}
		}
		if after == nil {
			out.WriteString(" free")
		} else {
			out.WriteString(" waits for " + strings.Join(after, " "))
		}
		out.WriteByte('\n')
		if got := tr.blocked(entries[i]); got != blocked {
			t.Fatalf("the tree says of line %d that it is blocked: %v; MustPrecede: %v", b.Seq, got, blocked)
		}
	}
	return out.String()
}

// alikePlaces: two puts of the same key, or a put and an earlier delete: the queue keeps these apart by their key, not the tree.
func alikePlaces(a, b Place) bool {
	_, class := placeOf(a.Key)
	return class != marker && (a.Delete || !b.Delete)
}

func entryAt(p Place) *entry {
	e := &entry{Item: Item{ID: p.Seq, Key: p.Key, Seq: p.Seq, Delete: p.Delete}}
	if p.Failing {
		e.Tries = patience
	}
	return e
}

var someKeys = rapid.Custom(func(t *rapid.T) string {
	dir := rapid.SampledFrom([]string{"", "a/", "a/b/", "a/b/c/", "d/", "d/_delta_log/"}).Draw(t, "dir")
	return dir + rapid.SampledFrom([]string{"1.bin", "2.bin", "x-1", "x-2", "latest", ".metadata", "readme.md", "b/", "r.a", "r.b", "word"}).Draw(t, "name")
})

// The tree says of each entry what MustPrecede says, and hands out exactly those that are free, whatever
// is entered and taken out.
func TestTreeIsMustPrecede(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := newTree()
		var in []*entry
		seq := uint64(0)
		check := func() {
			var free []uint64
			for _, b := range in {
				blocked := false
				for _, a := range in {
					if MustPrecede(a.place(), b.place()) && (a.Key != b.Key || !alikePlaces(a.place(), b.place())) {
						blocked = true
					}
				}
				if got := tr.blocked(b); got != blocked {
					t.Fatalf("%v %+v: blocked %v, MustPrecede says %v", b.ID, b.place(), got, blocked)
				}
				if !blocked && b.in[inCandidate] != 0 {
					free = append(free, b.ID)
				}
			}
			var got []uint64
			var taken []*entry
			for e := tr.next(); e != nil; e = tr.next() {
				tr.withdraw(e)
				taken = append(taken, e)
				got = append(got, e.ID)
			}
			slices.Sort(got)
			slices.Sort(free)
			if !slices.Equal(got, free) {
				t.Fatalf("handed out %v, free are %v", got, free)
			}
			for _, e := range taken {
				if rapid.Bool().Draw(t, "give back") {
					tr.offer(e)
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				seq++
				p := Place{Key: someKeys.Draw(t, "key"), Seq: uint64(rapid.IntRange(1, 40).Draw(t, "seq")), Delete: rapid.IntRange(0, 3).Draw(t, "delete") == 0}
				p.Failing = !p.Delete && rapid.IntRange(0, 5).Draw(t, "failing") == 0
				e := entryAt(p)
				e.ID = seq
				tr.insert(e)
				tr.offer(e)
				in = append(in, e)
			case 2:
				if len(in) > 0 {
					i := rapid.IntRange(0, len(in)-1).Draw(t, "which")
					e := in[i]
					in = slices.Delete(in, i, i+1)
					if e.in[inCandidate] != 0 {
						tr.withdraw(e)
					}
					tr.remove(e)
				}
			case 3:
				if len(in) > 0 {
					e := rapid.SampledFrom(in).Draw(t, "which fails")
					if e.in[inHold] != 0 {
						e.Tries = patience
						tr.release(e)
					}
				}
			}
			check()
		}
		for _, e := range in {
			if e.in[inCandidate] != 0 {
				tr.withdraw(e)
			}
			tr.remove(e)
		}
		if len(tr.dirs) != 0 || len(tr.stuck) != 0 || tr.hold.len() != 0 || tr.held.len() != 0 {
			t.Fatalf("left in the empty tree: %d dirs, %d stuck, %d hold, %d held", len(tr.dirs), len(tr.stuck), tr.hold.len(), tr.held.len())
		}
	})
}
