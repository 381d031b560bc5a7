package fs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// TestOddKeys: keys that no server for tests holds, but S3 does. None breaks the listing of
// the names around it.
func TestOddKeys(t *testing.T) {
	r := newRig(t, t.TempDir(), true)
	long := strings.Repeat("n", 255)
	for _, k := range []string{"ok", "a//b", "//", "x/../y", "./z", "x/.", "nul\x00byte", long + "n", long, "d/" + long + "n/e",
		"bad\xff\xfeutf8", "both", "both/x", "tail/", "ctrl\x01\x7f"} {
		r.store.Set(k, []byte(k))
	}
	r.start(t)
	defer r.stop(t)
	for dir, want := range map[string][]string{
		"":     {"a/", "bad\xff\xfeutf8", "both/", "ctrl\x01\x7f", "d/", long, "ok", "tail/", "x/"},
		"a":    nil,
		"x":    nil,
		"d":    nil,
		"tail": nil,
		"both": {"x"},
	} {
		got, err := r.list(dir, 3)
		slices.Sort(want)
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("list %q:\n%q, %v\nwant\n%q", dir, got, err, want)
		}
	}
	for _, p := range []string{"ok", long, "bad\xff\xfeutf8", "both/x", "ctrl\x01\x7f"} {
		h, err := r.open(p)
		if err != nil {
			t.Errorf("open %q: %v", p, err)
			continue
		}
		if b, err := h.all(); err != nil || string(b) != p {
			t.Errorf("read %q: %q, %v", p, b, err)
		}
		h.close()
	}
	for p, want := range map[string]error{"x/..": ErrNotExist, long + "n": ErrNameTooLong, "d/" + long + "n": ErrNameTooLong} {
		if _, err := r.walk(p); err != want {
			t.Errorf("lookup %q: %v, want %v", p, err, want)
		}
	}
}

// slowList is a store whose pages after the first wait for a sign.
type slowList struct {
	objstore.Store
	pages atomic.Int64
	goOn  chan struct{}
}

func (s *slowList) List(ctx context.Context, opt objstore.ListOptions) (objstore.ListPage, error) {
	if s.pages.Add(1) > 1 {
		select {
		case <-s.goOn:
		case <-ctx.Done():
			return objstore.ListPage{}, ctx.Err()
		}
	}
	return s.Store.List(ctx, opt)
}

// TestFirstEntriesComeEarly: the first page is given out while the rest is being listed, and
// in the end every name comes once and in order.
func TestFirstEntriesComeEarly(t *testing.T) {
	r := newRig(t, t.TempDir(), false)
	var keys []string
	for i := range 5500 {
		keys = append(keys, fmt.Sprintf("dir/img_%06d.jpg", i))
	}
	r.store.SetKeys(keys)
	slow := &slowList{goOn: make(chan struct{})}
	r.wrap = func(s objstore.Store) objstore.Store { slow.Store = s; return slow }
	r.start(t)
	defer r.stop(t)
	// The lookup of "dir" is one LIST: the listing's first page is the second.
	slow.pages.Store(-1)
	e, err := r.walk("dir")
	if err != nil {
		t.Fatal(err)
	}
	h, err := r.fs.Opendir(context.Background(), e.Node)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	var cookie uint64
	read := func() int {
		n := 0
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := h.Readdir(ctx, cookie, func(e *DirEntry) bool {
			if n == 100 {
				return false
			}
			n++
			cookie = e.Cookie
			got = append(got, e.Name)
			return true
		}); err != nil {
			t.Fatalf("readdir after %d names: %v", len(got), err)
		}
		return n
	}
	read()
	if len(got) < 50 {
		t.Fatalf("%d names from the first page", len(got))
	}
	close(slow.goOn)
	for read() > 0 {
	}
	if want := len(keys) + 2; len(got) != want || !slices.IsSorted(got[2:]) {
		t.Errorf("%d names, want %d, in order", len(got), want)
	}
}

// unordered is a store that lists in no order, as S3 Express does.
type unordered struct{ objstore.Store }

func (u unordered) Caps() objstore.Caps {
	c := u.Store.Caps()
	c.ListOrdered = false
	return c
}

func (u unordered) List(ctx context.Context, opt objstore.ListOptions) (objstore.ListPage, error) {
	p, err := u.Store.List(ctx, opt)
	slices.Reverse(p.Objects)
	slices.Reverse(p.Prefixes)
	return p, err
}

// TestUnorderedListing: every name comes, and what is removed goes.
func TestUnorderedListing(t *testing.T) {
	r := newRig(t, t.TempDir(), false)
	r.opt.TTL, r.opt.NegativeTTL = 0, 0
	r.wrap = func(s objstore.Store) objstore.Store { return unordered{s} }
	var want []string
	for i := range 2500 {
		k := fmt.Sprintf("f%04d", i)
		r.store.Set(k, []byte(k))
		want = append(want, k)
	}
	r.store.Set("d/x", []byte("x"))
	r.start(t)
	defer r.stop(t)
	check := func(want []string) {
		t.Helper()
		if got, err := r.list("", 500); err != nil || !slices.Equal(got, want) {
			t.Errorf("%d names, %v; want %d", len(got), err, len(want))
		}
	}
	check(append([]string{"d/"}, want...))
	for _, k := range []string{"f0000", "f1234", "f2499", "d/x"} {
		if err := r.store.Delete(context.Background(), k, objstore.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	check(slices.Concat(want[1:1234], want[1235:2499]))
}
