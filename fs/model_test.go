package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
)

// model is what the mount must show: the objects, and nothing remembered.
type model map[string][]byte

func (m model) isDir(path string) bool {
	if path == "" {
		return true
	}
	for k := range m {
		if strings.HasPrefix(k, path+"/") {
			return true
		}
	}
	return false
}

// isFile: the object is there, and no directory hides it or stands in a file's place above.
func (m model) isFile(path string) bool {
	_, ok := m[path]
	return ok && !m.isDir(path)
}

func (m model) names(dir string) []string {
	prefix := dir
	if dir != "" {
		prefix += "/"
	}
	seen := map[string]bool{}
	for k := range m {
		rest, ok := strings.CutPrefix(k, prefix)
		if !ok || rest == "" {
			continue
		}
		name, _, isDir := strings.Cut(rest, "/")
		if isDir {
			seen[name+"/"] = true
		} else if !m.isDir(prefix + name) {
			seen[name] = true
		}
	}
	out := make([]string, 0, len(seen))
	for n := range seen {
		out = append(out, n)
	}
	sort.Slice(out, func(i, j int) bool { return strings.TrimSuffix(out[i], "/") < strings.TrimSuffix(out[j], "/") })
	return out
}

// held is an open file and the bytes that it must show or none.
type held struct {
	*handle
	path string
	want []byte
}

// TestModel runs random operations of a program, and of somebody who changes the bucket,
// against the model. With a TTL of zero the mount must always show what the bucket holds; an
// open file its own version or ErrStale.
func TestModel(t *testing.T) {
	for _, pass := range []bool{true, false} {
		t.Run(fmt.Sprintf("passthrough=%v", pass), func(t *testing.T) {
			t.Parallel()
			n := 0
			base := t.TempDir()
			rapid.Check(t, func(rt *rapid.T) {
				n++
				dir := filepath.Join(base, fmt.Sprint(n))
				defer os.RemoveAll(dir)
				runModel(rt, t, dir, pass)
			})
		})
	}
}

func runModel(rt *rapid.T, t *testing.T, dir string, pass bool) {
	r := newRig(t, dir, pass)
	r.opt.TTL, r.opt.NegativeTTL = 0, 0
	r.opt.SmallObject = 64 << 10
	r.start(rt)
	m := model{}
	var open []held
	closeAll := func() {
		for _, h := range open {
			h.close()
		}
		open = nil
	}
	defer func() { closeAll(); r.stop(rt) }()

	keys := []string{"a", "a!", "a.txt", "a/x", "a/y/z", "a0", "b", "d/e/f", "d/g", "d/", "ü/ö"}
	paths := []string{"a", "a!", "a.txt", "a/x", "a/y", "a/y/z", "a0", "b", "d", "d/e", "d/e/f", "d/g", "ü", "ü/ö", "none", "b/none"}
	sizes := []int{0, 1, 4096, 64 << 10, 64<<10 + 1, 300 << 10}
	seed := byte(0)
	rt.Repeat(map[string]func(*rapid.T){
		"put": func(rt *rapid.T) {
			k := rapid.SampledFrom(keys).Draw(rt, "key")
			size := rapid.SampledFrom(sizes).Draw(rt, "size")
			if strings.HasSuffix(k, "/") {
				size = 0
			}
			seed++
			data := bytes.Repeat([]byte{seed, byte(size), 7}, size/3+1)[:size]
			r.store.Set(k, data)
			m[k] = data
			if _, ok := m["a"]; ok && m.isDir("a") {
				// A file that a directory of its name comes to hide is seen as one only when
				// its parent is listed; SEMANTICS says so.
				if got, err := r.list("", 5); err != nil || !slices.Equal(got, m.names("")) {
					rt.Fatalf("list: %q, %v; want %q", got, err, m.names(""))
				}
			}
		},
		"delete": func(rt *rapid.T) {
			k := rapid.SampledFrom(keys).Draw(rt, "key")
			if err := r.store.Delete(context.Background(), k, objstore.DeleteOptions{}); err != nil {
				rt.Fatalf("delete: %v", err)
			}
			delete(m, k)
		},
		"stat": func(rt *rapid.T) {
			p := rapid.SampledFrom(paths).Draw(rt, "path")
			e, err := r.walk(p)
			checkStat(rt, m, p, e, err)
		},
		"list": func(rt *rapid.T) {
			p := rapid.SampledFrom([]string{"", "a", "a/y", "d", "d/e", "ü"}).Draw(rt, "dir")
			got, err := r.list(p, rapid.IntRange(1, 5).Draw(rt, "batch"))
			if !m.isDir(p) {
				if err == nil {
					rt.Fatalf("list %q: %q, but it is no directory", p, got)
				}
				return
			}
			if err != nil || !slices.Equal(got, m.names(p)) {
				rt.Fatalf("list %q: %q, %v; want %q", p, got, err, m.names(p))
			}
		},
		"read": func(rt *rapid.T) {
			p := rapid.SampledFrom(paths).Draw(rt, "path")
			if !m.isFile(p) {
				return
			}
			h, err := r.open(p)
			if err != nil {
				rt.Fatalf("open %q: %v", p, err)
			}
			defer h.close()
			got, err := h.all()
			if err != nil || !bytes.Equal(got, m[p]) {
				rt.Fatalf("read %q: %d bytes, %v; want %d bytes", p, len(got), err, len(m[p]))
			}
		},
		"hold": func(rt *rapid.T) {
			p := rapid.SampledFrom(paths).Draw(rt, "path")
			if !m.isFile(p) || len(open) > 6 {
				return
			}
			h, err := r.open(p)
			if err != nil {
				rt.Fatalf("open %q: %v", p, err)
			}
			open = append(open, held{h, p, m[p]})
		},
		"read held": func(rt *rapid.T) {
			if len(open) == 0 {
				return
			}
			h := open[rapid.IntRange(0, len(open)-1).Draw(rt, "handle")]
			off := rapid.Int64Range(0, int64(len(h.want))).Draw(rt, "off")
			n := rapid.Int64Range(1, 200<<10).Draw(rt, "n")
			got, err := h.read(off, n)
			if errors.Is(err, ErrStale) && !bytes.Equal(m[h.path], h.want) {
				return
			}
			want := h.want[off:min(int64(len(h.want)), off+n)]
			if err != nil || !bytes.Equal(got, want) {
				rt.Fatalf("read of an open %q at %d: %d bytes, %v; want %d bytes of its version", h.path, off, len(got), err, len(want))
			}
		},
		"close": func(rt *rapid.T) {
			if len(open) == 0 {
				return
			}
			i := rapid.IntRange(0, len(open)-1).Draw(rt, "handle")
			open[i].close()
			open = slices.Delete(open, i, i+1)
		},
		"restart": func(rt *rapid.T) {
			closeAll()
			r.stop(rt)
			r.start(rt)
		},
		// Another process goes on; who has files open does not see it.
		"take over": func(rt *rapid.T) { r.takeOver(rt) },
	})
}

func checkStat(rt *rapid.T, m model, p string, e Entry, err error) {
	switch {
	case m.isDir(p):
		if err != nil || e.Attr.Kind != meta.KindDir {
			rt.Fatalf("stat %q: %v, %v; want a directory", p, e.Attr.Kind, err)
		}
	case m.isFile(p):
		if err != nil || e.Attr.Kind != meta.KindFile || e.Attr.Size != int64(len(m[p])) {
			rt.Fatalf("stat %q: %+v, %v; want a file of %d bytes", p, e.Attr, err, len(m[p]))
		}
	case !errors.Is(err, ErrNotExist) && !errors.Is(err, ErrNotDir):
		rt.Fatalf("stat %q: %+v, %v; want that it does not exist", p, e.Attr, err)
	}
}
