package list_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/list"
	"github.com/leatfs/leatfs/objstore/memstore"
	"pgregory.net/rapid"
)

// collect lists and checks that the pages cover the key space exactly once. It returns the
// names in order.
func collect(t rapid.TB, store objstore.Store, prefix string, opt list.Options) []string {
	t.Helper()
	var pages []list.Page
	opt.OnPage = func(p list.Page) error {
		pages = append(pages, p)
		return nil
	}
	if err := list.Dir(context.Background(), store, prefix, opt); err != nil {
		t.Fatalf("Dir: %v", err)
	}
	return assemble(t, pages)
}

func assemble(t rapid.TB, pages []list.Page) []string {
	t.Helper()
	sort.Slice(pages, func(i, j int) bool { return pages[i].From < pages[j].From })
	var names []string
	at := ""
	for i, p := range pages {
		if p.From != at || i > 0 && at == "" {
			t.Fatalf("page %d begins at %q, want %q", i, p.From, at)
		}
		var in []string
		for _, o := range p.Objects {
			in = append(in, o.Key)
		}
		in = append(in, p.Prefixes...)
		sort.Strings(in)
		if len(in) > 0 && (in[0] <= p.From && p.From != "" || p.To != "" && in[len(in)-1] > p.To) {
			t.Fatalf("page (%q, %q] holds %q to %q", p.From, p.To, in[0], in[len(in)-1])
		}
		names = append(names, in...)
		at = p.To
	}
	if len(pages) == 0 || at != "" {
		t.Fatalf("%d pages end at %q, want the end", len(pages), at)
	}
	return names
}

// want is what a directory holds, computed plainly.
func want(keys []string, prefix string, recursive bool) []string {
	var out []string
	for _, k := range keys {
		rest, ok := strings.CutPrefix(k, prefix)
		if !ok {
			continue
		}
		if i := strings.IndexByte(rest, '/'); i >= 0 && !recursive {
			k = prefix + rest[:i+1]
		}
		out = append(out, k)
	}
	sort.Strings(out)
	return slices.Compact(out)
}

// counted counts the LISTs and lets each take a while.
func counted(inner objstore.Store, latency time.Duration) (objstore.Store, *atomic.Int64) {
	n := new(atomic.Int64)
	return objstore.Around(inner, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
		n.Add(1)
		time.Sleep(latency)
		return call(ctx)
	}), n
}

// S3 shows the common prefix that StartAfter lies in once more.
type repeating struct{ objstore.Store }

func (s repeating) List(ctx context.Context, opt objstore.ListOptions) (objstore.ListPage, error) {
	p, err := s.Store.List(ctx, opt)
	if i := strings.IndexByte(opt.StartAfter[min(len(opt.Prefix), len(opt.StartAfter)):], '/'); i >= 0 && opt.Token == "" && opt.Delimiter != "" {
		p.Prefixes = slices.Insert(p.Prefixes, 0, opt.StartAfter[:len(opt.Prefix)+i+1])
	}
	return p, err
}

func TestCoversExactlyOnce(t *testing.T) {
	part := rapid.OneOf(
		rapid.StringMatching(`[a-c!/]{0,4}`),
		rapid.StringMatching(`img_[0-9]{3}\.jpg`),
		rapid.StringMatching(`d[0-9]{2}/[ab]?`),
		rapid.StringMatching(`[0-9a-f]{4}`),
		rapid.StringMatching(`[äöüß漢字\x{1F600}]{1,3}/?`),
		rapid.StringMatching(`dir[!/0]?[a-z]?`),
		rapid.Just("\xff\xfe/\x01"),
	)
	rapid.Check(t, func(t *rapid.T) {
		prefix := rapid.SampledFrom([]string{"", "p/", "dir/"}).Draw(t, "prefix")
		keys := rapid.SliceOfN(rapid.Map(part, func(s string) string { return prefix + s }), 0, 300).Draw(t, "keys")
		keys = append(keys, rapid.SliceOfN(part, 0, 20).Draw(t, "others")...)
		keys = slices.DeleteFunc(keys, func(k string) bool { return k == "" })
		var store objstore.Store
		mem := memstore.New()
		mem.SetKeys(keys)
		store = mem
		if rapid.Bool().Draw(t, "repeating") {
			store = repeating{mem}
		}
		opt := list.Options{Parallel: rapid.IntRange(1, 8).Draw(t, "parallel"),
			MaxKeys: rapid.IntRange(1, 12).Draw(t, "page"), Recursive: rapid.Bool().Draw(t, "recursive")}
		got := collect(t, store, prefix, opt)
		if want := want(keys, prefix, opt.Recursive); !slices.Equal(got, want) {
			t.Fatalf("got %q\nwant %q", got, want)
		}
	})
}

// layouts are directories as they are met.
func layouts(n int) map[string][]string {
	var rnd *rand.Rand
	out := map[string][]string{}
	for name, f := range map[string]func(i int) string{
		"numbers":     func(i int) string { return fmt.Sprintf("img_%08d.jpg", i) },
		"pairs":       func(i int) string { return fmt.Sprintf("%06d.%s", i/2, []string{"jpg", "txt"}[i%2]) },
		"gaps":        func(i int) string { return fmt.Sprintf("s%07d", i*7+rnd.IntN(7)) },
		"directories": func(i int) string { return fmt.Sprintf("class%05d/x", i) },
		"unpadded":    func(i int) string { return fmt.Sprintf("sample-%d.npy", i) },
		"hex":         func(int) string { return fmt.Sprintf("%016x", rnd.Uint64()) },
		"uuid":        func(int) string { return fmt.Sprintf("%08x-%04x.bin", rnd.Uint32(), rnd.IntN(1<<16)) },
		"named hex":   func(int) string { return fmt.Sprintf("train%016x", rnd.Uint64()) },
		"imagenet":    func(i int) string { return fmt.Sprintf("n%08d_%d.JPEG", 1440000+i/1000*3571, i%1000*7) },
		"two numbers": func(i int) string { return fmt.Sprintf("data_%02d_%04d.tar", i/700, i%700) },
		"words": func(int) string {
			b := make([]byte, 4+rnd.IntN(6))
			for i := range b {
				b[i] = byte('a' + min(rnd.IntN(26), rnd.IntN(26)))
			}
			return string(b)
		},
		"unicode": func(int) string {
			return string([]rune{rune(0x4e00 + rnd.IntN(0x5000)), rune(0x4e00 + rnd.IntN(0x5000))})
		},
	} {
		keys := make([]string, n)
		rnd = rand.New(rand.NewPCG(1, 2))
		for i := range keys {
			keys[i] = "d/" + f(i)
		}
		out[name] = keys
	}
	return out
}

// What it costs, in round trips and in requests, to list 20,000 names of every layout.
func TestRoundTrips(t *testing.T) {
	const n, latency = 20000, 20 * time.Millisecond
	// The most round trips of 20 a serial listing needs, and the most requests.
	limits := map[string]struct {
		trips    float64
		requests int64
	}{"numbers": {5, 40}, "directories": {5, 40}, "pairs": {5, 40}, "unicode": {20, 20}}
	for name, keys := range layouts(n) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := memstore.New()
				mem.SetKeys(keys)
				store, requests := counted(mem, latency)
				start := time.Now()
				got := collect(t, store, "d/", list.Options{})
				trips := float64(time.Since(start)) / float64(latency)
				if want := want(keys, "d/", false); !slices.Equal(got, want) {
					t.Fatalf("got %d names, want %d", len(got), len(want))
				}
				lim, ok := limits[name]
				if !ok {
					lim.trips, lim.requests = 10, 60
				}
				t.Logf("%d names: %.0f round trips, %d requests", len(got), trips, requests.Load())
				if trips > lim.trips || requests.Load() > lim.requests {
					t.Errorf("%.0f round trips, %d requests; want at most %.0f and %d", trips, requests.Load(), lim.trips, lim.requests)
				}
			})
		})
	}
}

// The first page is handed over before anything else has come.
func TestFirstPageAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		mem.SetKeys(layouts(5000)["numbers"])
		store, _ := counted(mem, time.Second)
		start, first := time.Now(), time.Duration(0)
		err := list.Dir(t.Context(), store, "d/", list.Options{OnPage: func(list.Page) error {
			if first == 0 {
				first = time.Since(start)
			}
			return nil
		}})
		if err != nil || first != time.Second {
			t.Errorf("first page after %v, error %v; want 1s", first, err)
		}
	})
}

// A slow consumer holds the listing back: no more than Parallel pages wait.
func TestBackpressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		mem.SetKeys(layouts(20000)["numbers"])
		store, requests := counted(mem, time.Millisecond)
		seen := int64(0)
		err := list.Dir(t.Context(), store, "d/", list.Options{Parallel: 4, OnPage: func(list.Page) error {
			time.Sleep(time.Second)
			if seen++; requests.Load() > seen+4 {
				t.Errorf("%d requests after %d pages", requests.Load(), seen)
			}
			return nil
		}})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestErrors(t *testing.T) {
	mem := memstore.New()
	mem.SetKeys(layouts(5000)["numbers"])
	mine := errors.New("enough")
	n := 0
	err := list.Dir(t.Context(), mem, "d/", list.Options{OnPage: func(list.Page) error {
		if n++; n == 3 {
			return mine
		}
		if n > 3 {
			t.Error("OnPage after its error")
		}
		return nil
	}})
	if err != mine {
		t.Errorf("got %v, want OnPage's error", err)
	}
	var asked atomic.Int64
	broken := objstore.Around(mem, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
		if asked.Add(1) == 4 {
			return &objstore.Error{Op: "LIST", Key: op.Key, Kind: objstore.AccessDenied}
		}
		return call(ctx)
	})
	if err := list.Dir(t.Context(), broken, "d/", list.Options{OnPage: func(list.Page) error { return nil }}); !objstore.Is(err, objstore.AccessDenied) {
		t.Errorf("got %v, want the store's error", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = list.Dir(ctx, mem, "d/", list.Options{OnPage: func(list.Page) error { cancel(); return nil }})
	if !objstore.Is(err, objstore.Canceled) {
		t.Errorf("got %v, want canceled", err)
	}
}

// unordered lists in an order of its own, as S3 Express does.
type unordered struct {
	objstore.Store
	claims bool
}

func (u unordered) Caps() objstore.Caps {
	c := u.Store.Caps()
	c.ListOrdered = u.claims
	return c
}

func (u unordered) List(ctx context.Context, opt objstore.ListOptions) (objstore.ListPage, error) {
	p, err := u.Store.List(ctx, opt)
	slices.Reverse(p.Objects)
	return p, err
}

func TestUnordered(t *testing.T) {
	mem := memstore.New()
	keys := layouts(2500)["numbers"]
	mem.SetKeys(keys)
	n, pages := 0, 0
	err := list.Dir(t.Context(), unordered{mem, false}, "d/", list.Options{OnPage: func(p list.Page) error {
		if p.From != "" || p.To != "" {
			t.Errorf("an unordered page claims (%q, %q]", p.From, p.To)
		}
		n += len(p.Objects)
		pages++
		return nil
	}})
	if err != nil || n != len(keys) || pages != 3 {
		t.Errorf("%d names on %d pages, error %v; want %d on 3", n, pages, err, len(keys))
	}
	// A store that says it lists in order, and does not, is found out.
	err = list.Dir(t.Context(), unordered{mem, true}, "d/", list.Options{OnPage: func(list.Page) error { return nil }})
	if !objstore.Is(err, objstore.Unsupported) {
		t.Errorf("got %v, want unsupported", err)
	}
}
