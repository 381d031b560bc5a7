package storetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/leatfs/leatfs/objstore"
)

func listTests() []test {
	ordered := func(c objstore.Caps) bool { return c.ListOrdered }
	return []test{
		{"ListEmpty", nil, testListEmpty},
		{"ListPages", nil, testListPages},
		{"ListDelimiter", nil, testListDelimiter},
		{"ListOrder", ordered, testListOrder},
		{"ListStartAfter", ordered, testListStartAfter},
		{"OddKeys", nil, testOddKeys},
		{"RefusedKeys", nil, testRefusedKeys},
		{"KeyBesidePrefix", nil, testKeyBesidePrefix},
		{"ListSeesWrites", nil, testListSeesWrites},
	}
}

// fill puts small objects, in parallel.
func (e *env) fill(keys []string) {
	e.Helper()
	sem := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for _, k := range keys {
		sem <- struct{}{}
		wg.Go(func() {
			defer func() { <-sem }()
			if _, err := e.s.Put(e.ctx, k, NewSource([]byte(k)), objstore.PutOptions{}); err != nil {
				e.Errorf("Put(%q): %v", k, err)
			}
		})
	}
	wg.Wait()
	if e.Failed() {
		e.FailNow()
	}
}

func testListEmpty(e *env) {
	for _, opt := range []objstore.ListOptions{{}, {Prefix: "none/"}, {Prefix: "none"}, {Delimiter: "/"}, {Prefix: "a/b/c/", Delimiter: "/"}} {
		if keys, prefixes, _ := e.list(opt); len(keys)+len(prefixes) > 0 {
			e.Errorf("List(%+v): got %q, %q", opt, keys, prefixes)
		}
	}
	e.put("a/b", []byte("x"))
	for _, opt := range []objstore.ListOptions{{Prefix: "b"}, {Prefix: "a/b/"}, {Prefix: "a/c"}, {Prefix: "a/b/c", Delimiter: "/"}, {Prefix: "a//"}, {Prefix: "/"}} {
		if keys, prefixes, _ := e.list(opt); len(keys)+len(prefixes) > 0 {
			e.Errorf("List(%+v): got %q, %q", opt, keys, prefixes)
		}
	}
	_, err := e.s.List(e.ctx, objstore.ListOptions{Delimiter: "b"})
	e.wantKind("a delimiter that is no slash", err, objstore.BadRequest)
}

func testListPages(e *env) {
	var want []string
	for i := range 57 {
		want = append(want, fmt.Sprintf("d/%03d", i))
	}
	e.fill(want)
	for _, max := range []int{0, 1, 7, 56, 57, 58, 5000} {
		keys, _, pages := e.list(objstore.ListOptions{Prefix: "d/", MaxKeys: max})
		if e.s.Caps().ListOrdered && !slices.Equal(keys, want) {
			e.Errorf("MaxKeys %d: got %q", max, keys)
		}
		slices.Sort(keys)
		if !slices.Equal(keys, want) {
			e.Errorf("MaxKeys %d: got %q", max, keys)
		}
		if n := max; n > 0 && pages < (len(want)+n-1)/n {
			e.Errorf("MaxKeys %d: %d pages", max, pages)
		}
	}
	// A token works more than once: a retry asks again.
	p, err := e.s.List(e.ctx, objstore.ListOptions{Prefix: "d/", MaxKeys: 10})
	if err != nil || p.Next == "" {
		e.Fatalf("List: %+v, %v", p, err)
	}
	var again [2]objstore.ListPage
	for i := range again {
		if again[i], err = e.s.List(e.ctx, objstore.ListOptions{Prefix: "d/", MaxKeys: 10, Token: p.Next}); err != nil {
			e.Fatal(err)
		}
	}
	if len(again[0].Objects) == 0 || len(again[0].Objects) != len(again[1].Objects) || again[0].Objects[0].Key != again[1].Objects[0].Key {
		e.Errorf("the same token twice: got %d and %d objects", len(again[0].Objects), len(again[1].Objects))
	}
}

func testListDelimiter(e *env) {
	e.fill([]string{"a/1", "a/2", "a/b/3", "a/b/c/4", "a-b/5", "a.txt", "b", "c/d/e/f/6"})
	for _, c := range []struct {
		prefix         string
		keys, prefixes string
	}{
		{"", "a.txt b", "a-b/ a/ c/"},
		{"a", "a.txt", "a-b/ a/"},
		{"a/", "a/1 a/2", "a/b/"},
		{"a/b", "", "a/b/"},
		{"a/b/", "a/b/3", "a/b/c/"},
		{"c/", "", "c/d/"},
		{"c/d/e", "", "c/d/e/"},
		{"c/d/e/f/6", "c/d/e/f/6", ""},
		{"b", "b", ""},
		{"x", "", ""},
	} {
		for _, max := range []int{0, 1, 2} {
			keys, prefixes, _ := e.list(objstore.ListOptions{Prefix: c.prefix, Delimiter: "/", MaxKeys: max})
			slices.Sort(keys)
			slices.Sort(prefixes)
			if got, want := strings.Join(keys, " "), c.keys; got != want {
				e.Errorf("keys under %q by %d: got %q, want %q", c.prefix, max, got, want)
			}
			if got, want := strings.Join(prefixes, " "), c.prefixes; got != want {
				e.Errorf("prefixes under %q by %d: got %q, want %q", c.prefix, max, got, want)
			}
		}
	}
}

// orderKeys are in byte order; a walk that sorts the names of each directory gets them
// wrong.
func orderKeys() []string {
	return []string{"A/x", "B", "a!b/1", "a#", "a-b", "a-c/1", "a.b/1", "a.txt", "a/1", "a/b-c", "a/b.d", "a/b/1", "a/b/2", "a/b0", "a0", "a00/1", "aa/1", "b/1", "b0", "z/é", "zé/1", "é"}
}

func testListOrder(e *env) {
	want := orderKeys()
	if !slices.IsSorted(want) {
		e.Fatal("orderKeys are not in order")
	}
	e.fill(want)
	for _, max := range []int{0, 1, 3} {
		keys, _, _ := e.list(objstore.ListOptions{MaxKeys: max})
		if !slices.Equal(keys, want) {
			e.Errorf("MaxKeys %d: got %s\nwant %s", max, quoteAll(keys), quoteAll(want))
		}
	}
	keys, prefixes, _ := e.list(objstore.ListOptions{Delimiter: "/"})
	if !slices.IsSorted(keys) || !slices.IsSorted(prefixes) {
		e.Errorf("with a delimiter: got %q, %q", keys, prefixes)
	}
}

func testListStartAfter(e *env) {
	all := orderKeys()
	e.fill(all)
	afters := append([]string{"", "0", "a", "a/", "a/b", "a/b/", "a/b/0", "a/b/9", "a/zzz", "a~", "b/", "zz", "~", "é", "ééé"}, all...)
	for _, after := range afters {
		for _, prefix := range []string{"", "a", "a/", "a/b"} {
			var want []string
			for _, k := range all {
				if k > after && strings.HasPrefix(k, prefix) {
					want = append(want, k)
				}
			}
			keys, _, _ := e.list(objstore.ListOptions{Prefix: prefix, StartAfter: after})
			if !slices.Equal(keys, want) {
				e.Errorf("under %q after %q: got %s\nwant %s", prefix, after, quoteAll(keys), quoteAll(want))
			}
		}
	}
	for _, after := range []string{"a", "a-", "a-c/", "a-c/1", "a/", "a/1", "a/b/1", "a/zzz", "a/\xff", "a0", "z"} {
		for _, max := range []int{0, 1} {
			var wantKeys, wantPrefixes []string
			for _, k := range all {
				if i := strings.Index(k, "/"); i >= 0 {
					p := k[:i+1]
					if p > after && !strings.HasPrefix(after, p) && !slices.Contains(wantPrefixes, p) {
						wantPrefixes = append(wantPrefixes, p)
					}
				} else if k > after {
					wantKeys = append(wantKeys, k)
				}
			}
			keys, prefixes, _ := e.list(objstore.ListOptions{Delimiter: "/", StartAfter: after, MaxKeys: max})
			if !slices.Equal(keys, wantKeys) || !slices.Equal(prefixes, wantPrefixes) {
				e.Errorf("delimited, after %q by %d: got %q %q, want %q %q", after, max, keys, prefixes, wantKeys, wantPrefixes)
			}
		}
	}
}

// commonOddKeys are keys that every store holds.
func commonOddKeys() []string {
	return []string{
		"a b/c d", "plus+plus", "100%", "%41", "%2F", "a&b<c>\"d'e", "what?x=1", "hash#x", "semi;colon:colon",
		"back`tick", "tilde~", "star*", "{brace}", "[bracket]", "comma,dollar$at@", "équipe/é", "日本/語", "🎉",
		"=eq", "-dash", ".hidden", "..two", "a/..b/c", "...", "tab\there", "new\nline", strings.Repeat("n", 200) + "/" + strings.Repeat("m", 200),
	}
}

func testOddKeys(e *env) {
	keys := append(commonOddKeys(), e.f.OddKeys...)
	for _, k := range keys {
		o, err := e.s.Put(e.ctx, k, NewSource([]byte(k)), objstore.PutOptions{})
		if err != nil {
			e.Errorf("Put(%q): %v", k, err)
			continue
		}
		if o.Key != k {
			e.Errorf("Put(%q): got key %q", k, o.Key)
		}
		b, r, err := e.read(k, objstore.GetOptions{Length: -1})
		if err != nil || string(b) != k || r.Object.Key != k {
			e.Errorf("Get(%q): got %q, %v", k, b, err)
		}
		if h, err := e.s.Head(e.ctx, k, objstore.HeadOptions{}); err != nil || h.Size != int64(len(k)) {
			e.Errorf("Head(%q): got %+v, %v", k, h, err)
		}
		got, _, _ := e.list(objstore.ListOptions{Prefix: k})
		if !slices.Contains(got, k) {
			e.Errorf("List under %q: got %q", k, got)
		}
		if c, err := e.s.Copy(e.ctx, k, "copy-of/it", objstore.CopyOptions{}); err != nil || c.Size != int64(len(k)) {
			e.Errorf("Copy(%q): %+v, %v", k, c, err)
		}
	}
	want := append(slices.Clone(keys), "copy-of/it")
	slices.Sort(want)
	for _, max := range []int{0, 3} {
		got, _, _ := e.list(objstore.ListOptions{MaxKeys: max})
		if !e.s.Caps().ListOrdered {
			slices.Sort(got)
		}
		if !slices.Equal(got, want) {
			e.Errorf("List by %d: got %s\nwant %s", max, quoteAll(got), quoteAll(want))
		}
	}
	for _, k := range keys {
		if err := e.s.Delete(e.ctx, k, objstore.DeleteOptions{}); err != nil {
			e.Errorf("Delete(%q): %v", k, err)
		}
		if _, err := e.s.Head(e.ctx, k, objstore.HeadOptions{}); !objstore.Is(err, objstore.NotFound) {
			e.Errorf("Head(%q) after Delete: %v", k, err)
		}
	}
}

func testRefusedKeys(e *env) {
	for _, k := range e.f.RefusedKeys {
		_, err := e.s.Put(e.ctx, k, NewSource([]byte("x")), objstore.PutOptions{})
		e.wantKind(fmt.Sprintf("Put(%q)", k), err, objstore.BadRequest)
		if _, err := e.s.Head(e.ctx, k, objstore.HeadOptions{}); err == nil {
			e.Errorf("Head(%q): no error", k)
		}
		if _, _, err := e.read(k, objstore.GetOptions{Length: -1}); err == nil {
			e.Errorf("Get(%q): no error", k)
		}
	}
	if keys, _, _ := e.list(objstore.ListOptions{}); len(keys) > 0 {
		e.Errorf("refused keys are listed: %q", keys)
	}
}

func testKeyBesidePrefix(e *env) {
	e.put("a/x", []byte("below"))
	_, err := e.s.Put(e.ctx, "a", NewSource([]byte("beside")), objstore.PutOptions{})
	if !e.f.KeyBesidePrefix {
		if err == nil {
			e.Error(`the store took "a" beside "a/x"`)
		}
		e.whole("a/x", []byte("below"))
		return
	}
	if err != nil {
		e.Fatal(err)
	}
	e.whole("a", []byte("beside"))
	e.whole("a/x", []byte("below"))
	if e.f.KeyHidesPrefix {
		return
	}
	if keys, _, _ := e.list(objstore.ListOptions{}); !slices.Equal(keys, []string{"a", "a/x"}) {
		e.Errorf("List: got %q", keys)
	}
	keys, prefixes, _ := e.list(objstore.ListOptions{Delimiter: "/"})
	if !slices.Equal(keys, []string{"a"}) || !slices.Equal(prefixes, []string{"a/"}) {
		e.Errorf("List with a delimiter: got %q, %q", keys, prefixes)
	}
}

func testListSeesWrites(e *env) {
	var want []string
	for i := range 5 {
		k := fmt.Sprintf("d/%d", i)
		e.put(k, nil)
		want = append(want, k)
		if keys, _, _ := e.list(objstore.ListOptions{Prefix: "d/", Delimiter: "/"}); len(keys) != len(want) {
			e.Errorf("after Put(%q): got %q", k, keys)
		}
	}
	for len(want) > 0 {
		if err := e.s.Delete(e.ctx, want[0], objstore.DeleteOptions{}); err != nil {
			e.Fatal(err)
		}
		want = want[1:]
		if keys, _, _ := e.list(objstore.ListOptions{Prefix: "d/", Delimiter: "/"}); len(keys) != len(want) {
			e.Errorf("after Delete: got %q, want %q", keys, want)
		}
	}
	if e.f.DeletedShows && e.s.Caps().Versions {
		return
	}
	if keys, prefixes, _ := e.list(objstore.ListOptions{Delimiter: "/"}); len(keys)+len(prefixes) > 0 {
		e.Errorf("all is deleted: got %q, %q", keys, prefixes)
	}
}
