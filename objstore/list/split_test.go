package list

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// made expands "img_%04d.jpg 0 999 1" to names: a format, the first and the last number, the
// step. Other lines are names themselves.
func made(t testing.TB, lines []string) []string {
	t.Helper()
	var out []string
	for _, l := range lines {
		f := strings.Fields(l)
		if len(f) != 4 || !strings.Contains(f[0], "%") {
			out = append(out, l)
			continue
		}
		var n [3]int
		for i := range n {
			var err error
			if n[i], err = strconv.Atoi(f[i+1]); err != nil {
				t.Fatal(err)
			}
		}
		for i := n[0]; i <= n[1]; i += n[2] {
			out = append(out, fmt.Sprintf(f[0], i))
		}
	}
	sort.Strings(out)
	return out
}

// pageSample is the sample of a page as listing.check takes it.
func pageSample(names []string, origin string) sample {
	s := sample{origin: origin, began: names[0], count: len(names), total: len(names)}
	every := max(1, len(names)/sampled)
	for i, n := range names {
		if i%every == 0 || i == len(names)-1 {
			s.names = append(s.names, n)
		}
	}
	return s
}

// TestCutsGolden shows the decision where to cut as text. The input of "cuts" is one page; arguments: to, the end
// of the range; want, how many ranges are welcome; origin, the first name of the listing;
// numeric=false after numbers have misled.
func TestCutsGolden(t *testing.T) {
	datadriven.RunTest(t, "testdata/cuts", func(t *testing.T, d *datadriven.TestData) string {
		names := made(t, strings.Split(d.Input, "\n"))
		to, origin, want, numeric := "", names[0], 4, true
		d.MaybeScanArgs(t, "to", &to)
		d.MaybeScanArgs(t, "origin", &origin)
		d.MaybeScanArgs(t, "want", &want)
		d.MaybeScanArgs(t, "numeric", &numeric)
		g := learn(pageSample(names, origin), numeric)
		var b strings.Builder
		if g.ok && g.endless(to) {
			b.WriteString("more pages: unknown\n")
		} else {
			fmt.Fprintf(&b, "more pages: %.1f\n", g.pages(names[len(names)-1], to, len(names), want))
		}
		for _, c := range g.cuts(names[len(names)-1], to, len(names), want) {
			fmt.Fprintf(&b, "%s\n", c)
		}
		return b.String()
	})
}

// Cuts are in order and inside the range, whatever the names; places never fall as names
// grow.
func TestCutsProperties(t *testing.T) {
	name := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-f0-9]{1,8}`), rapid.StringMatching(`x_[0-9]{4}(\.jpg)?`),
		rapid.StringMatching(`[a-z]{1,3}[0-9]{1,20}`), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(name, 1, 100, rapid.ID[string]).Draw(t, "names")
		sort.Strings(names)
		page := rapid.SliceOfNDistinct(name, 1, 100, rapid.ID[string]).Draw(t, "page")
		sort.Strings(page)
		g := learn(pageSample(page, min(page[0], names[0])), rapid.Bool().Draw(t, "numeric"))
		if g.ok {
			for i, n := range names[1:] {
				if a, b := g.scale.place(names[i]), g.scale.place(n); b < a-a*1e-12 {
					t.Fatalf("places fall: %q at %v, %q at %v", names[i], a, n, b)
				}
			}
		}
		after, to := page[len(page)-1], ""
		if n := rapid.SampledFrom(names).Draw(t, "to"); n > after {
			to = n
		}
		want := rapid.IntRange(0, 20).Draw(t, "want")
		cuts := g.cuts(after, to, rapid.IntRange(1, 1000).Draw(t, "size"), want)
		if len(cuts) > want {
			t.Fatalf("%d cuts, want at most %d", len(cuts), want)
		}
		for _, c := range cuts {
			if c <= after || to != "" && c >= to {
				t.Fatalf("cut %q is not inside (%q, %q)", c, after, to)
			}
			after = c
		}
	})
}

func BenchmarkLearn(b *testing.B) {
	s := pageSample(made(b, []string{"img_%08d.jpg 0 999 1"}), "img_00000000.jpg")
	b.Run("numeric", func(b *testing.B) {
		for b.Loop() {
			learn(s, true)
		}
	})
	b.Run("alphabetic", func(b *testing.B) {
		for b.Loop() {
			learn(s, false)
		}
	})
}
