package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
)

// mnode is a file, directory or symbolic link of the model.
type mnode struct {
	kind   meta.Kind
	data   []byte
	target string
	kids   map[string]*mnode
	nlink  int
	mode   uint32 // 0: not known
	xattrs map[string]string
	linked bool // it had several names once
}

func newDir() *mnode { return &mnode{kind: meta.KindDir, kids: map[string]*mnode{}, nlink: 1} }

// tree is what a POSIX file system would hold.
type tree struct{ root *mnode }

// find returns what a path names, nil when nothing does.
func (t *tree) find(file string) *mnode {
	n := t.root
	for _, name := range strings.Split(file, "/") {
		if name == "" {
			continue
		}
		if n = n.kids[name]; n == nil {
			return nil
		}
	}
	return n
}

// at returns the directory of a path, and the name in it.
func (t *tree) at(file string) (*mnode, string) {
	dir, name := path.Split(file)
	d := t.find(dir)
	if d != nil && d.kind != meta.KindDir {
		d = nil
	}
	return d, name
}

// below calls fn for all, directories first.
func (n *mnode) below(prefix string, fn func(file string, n *mnode)) {
	for name, k := range n.kids {
		fn(prefix+name, k)
		k.below(prefix+name+"/", fn)
	}
}

func (n *mnode) contains(o *mnode) bool {
	found := n == o
	n.below("", func(_ string, k *mnode) { found = found || k == o })
	return found
}

// mfile is an open file in both worlds.
type mfile struct {
	w *wfile
	n *mnode
}

// world is a run of the model.
type world struct {
	*program
	o    *origin
	m    tree
	open []mfile
	seed byte
}

// kinds of errors that the model foresees.
func sameError(got, want error) bool {
	return got == nil && want == nil || errors.Is(got, want) && want != nil
}

var modelNames = []string{"a.txt", "b.bin", "c", "x.tmp", "d", "e"}

// TestWriteModel runs random operations of programs against the model, with requests to the origin that
// fail, are held up or whose answers are lost, and with processes that die. At the end the bucket must hold
// what the model does, and nothing else; and a mount that knows nothing must show it.
func TestWriteModel(t *testing.T) {
	for _, pass := range []bool{true, false} {
		t.Run(fmt.Sprintf("passthrough=%v", pass), func(t *testing.T) {
			t.Parallel()
			n := 0
			base := t.TempDir()
			rapid.Check(t, func(rt *rapid.T) {
				n++
				dir := filepath.Join(base, fmt.Sprint(n))
				defer os.RemoveAll(dir)
				runWriteModel(rt, t, dir, pass)
			})
		})
	}
}

func runWriteModel(rt *rapid.T, t *testing.T, dir string, pass bool) {
	r := newRig(t, filepath.Join(dir, "one"), pass)
	r.opt.SmallObject = 64 << 10
	r.opt.PartSize = 1 << 20
	if rapid.Bool().Draw(rt, "change in part") {
		r.opt.OverlayMin = 1
	}
	if rapid.Bool().Draw(rt, "ask at every use") {
		r.opt.TTL, r.opt.NegativeTTL = 0, 0
	}
	w := &world{program: newProgram(r), o: newOrigin(), m: tree{newDir()}}
	r.wrap = w.o.wrap
	r.start(rt)
	ended := false
	defer func() {
		if !ended { // it has failed
			w.o.open()
			_ = w.fs.Close()
			_ = w.cache.Close()
			_ = w.db.Close()
			_ = w.pool.Close()
		}
	}()
	rng := rand.New(rand.NewPCG(1, uint64(rapid.IntRange(0, 1<<20).Draw(rt, "seed"))))
	w.resend = func() bool { return false }
	rt.Repeat(w.actions(rng))
	w.settle(rt)
	w.fresh(rt, t, filepath.Join(dir, "two"))
	ended = true
	w.stop(rt)
}

func (w *world) path(rt *rapid.T, label string) string {
	dirs := []string{""}
	w.m.root.below("", func(file string, n *mnode) {
		if n.kind == meta.KindDir && strings.Count(file, "/") < 2 {
			dirs = append(dirs, file+"/")
		}
	})
	slices.Sort(dirs)
	return rapid.SampledFrom(dirs).Draw(rt, label+" in") + rapid.SampledFrom(modelNames).Draw(rt, label)
}

func (w *world) content(rt *rapid.T) []byte {
	w.seed++
	size := rapid.SampledFrom([]int{0, 1, 100, 5000, 70 << 10, 200 << 10}).Draw(rt, "size")
	return bytes.Repeat([]byte{w.seed, byte(size), 7}, size/3+1)[:size]
}

func (w *world) check(rt *rapid.T, what string, got, want error) {
	rt.Helper()
	if !sameError(got, want) {
		rt.Fatalf("%s: %v, want %v", what, got, want)
	}
}

func (w *world) actions(rng *rand.Rand) map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"open":    w.doOpen,
		"open 2":  w.doOpen,
		"write":   w.doWrite,
		"write 2": w.doWrite,
		"put":     w.doPut,
		"close":   w.doClose,
		"close 2": w.doClose,
		"read":    w.doRead,
		"stat":    w.doStat,
		"list":    w.doList,
		"mkdir": func(rt *rapid.T) {
			p := w.path(rt, "dir")
			d, name := w.m.at(p)
			var want error
			if d.kids[name] != nil {
				want = ErrExist
			} else {
				d.kids[name] = newDir()
			}
			w.check(rt, "mkdir "+p, w.mkdir(rt, p), want)
		},
		"symlink": func(rt *rapid.T) {
			p := w.path(rt, "link")
			d, name := w.m.at(p)
			var want error
			if d.kids[name] != nil {
				want = ErrExist
			} else {
				d.kids[name] = &mnode{kind: meta.KindSymlink, target: "to/" + p, nlink: 1}
			}
			w.check(rt, "symlink "+p, w.symlink(rt, "to/"+p, p), want)
		},
		"unlink":   w.doUnlink,
		"rmdir":    w.doRmdir,
		"link":     w.doLink,
		"rename":   w.doRename,
		"rename 2": w.doRename,
		"rename 3": w.doRename,
		"truncate": w.doTruncate,
		"chmod": func(rt *rapid.T) {
			p := w.path(rt, "file")
			n, mode := w.m.find(p), uint32(rapid.IntRange(0o400, 0o777).Draw(rt, "mode"))
			if n == nil || n.kind == meta.KindSymlink {
				return
			}
			w.check(rt, "chmod "+p, w.setattr(rt, p, SetAttr{Mode: &mode}), nil)
			n.mode = mode
		},
		"xattr": w.doXattr,
		"fsync": func(rt *rapid.T) {
			if h := w.some(rt); h != nil {
				w.check(rt, "fsync", w.fs.Fsync(context.Background(), h.w.node, h.w.o.FH, false), nil)
			}
		},
		"take over": func(rt *rapid.T) { w.takeOver(rt) },
		"both killed": func(rt *rapid.T) {
			w.closeAll()
			w.killBoth(rt)
		},
		"upgraded": func(rt *rapid.T) { w.leave(rt); w.start(rt) },
		"die before the answer": func(rt *rapid.T) {
			w.resend = func() bool { w.resend = func() bool { return false }; return true }
		},
		"hold the origin":    func(*rapid.T) { w.o.shut() },
		"let the origin go":  func(*rapid.T) { w.o.open() },
		"origin loses":       func(*rapid.T) { w.o.fates(func(objstore.Op) fate { return fate(rng.IntN(3)) }) },
		"origin is well":     func(*rapid.T) { w.o.fates(nil) },
		"origin serves late": func(rt *rapid.T) { w.o.late = rapid.Bool().Draw(rt, "late") },
		"wait": func(rt *rapid.T) {
			w.hasten(rt)
			time.Sleep(time.Duration(rapid.IntRange(0, 5).Draw(rt, "ms")) * time.Millisecond)
		},
		"time passes": func(rt *rapid.T) { w.clock.Add(int64(rapid.IntRange(0, 100).Draw(rt, "s")) * int64(time.Second)) },
		"settle": func(rt *rapid.T) {
			if rapid.IntRange(0, 3).Draw(rt, "do") == 0 {
				w.settle(rt)
			}
		},
		"restart": func(rt *rapid.T) {
			if rapid.IntRange(0, 3).Draw(rt, "do") == 0 {
				w.closeAll()
				w.stop(rt)
				w.start(rt)
			}
		},
		"others": w.doOthers,
		"":       func(rt *rapid.T) {},
	}
}

func (w *world) some(rt *rapid.T) *mfile {
	if len(w.open) == 0 {
		return nil
	}
	return &w.open[rapid.IntRange(0, len(w.open)-1).Draw(rt, "handle")]
}

func (w *world) closeAll() {
	for _, h := range w.open {
		h.w.close()
	}
	w.open = nil
}

func (w *world) doOpen(rt *rapid.T) {
	if len(w.open) > 5 {
		return
	}
	p := w.path(rt, "file")
	flags := rapid.SampledFrom([]int{os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_CREATE, os.O_RDWR | os.O_CREATE | os.O_TRUNC,
		os.O_WRONLY | os.O_CREATE | os.O_EXCL}).Draw(rt, "flags")
	d, name := w.m.at(p)
	n := d.kids[name]
	var want error
	switch {
	case n == nil && flags&os.O_CREATE == 0:
		want = ErrNotExist
	case n != nil && flags&os.O_EXCL != 0:
		want = ErrExist
	case n != nil && n.kind == meta.KindDir:
		want = ErrIsDir
	case n != nil && n.kind == meta.KindSymlink:
		return
	}
	f, err := w.openFile(rt, p, flags, 0o640)
	w.check(rt, fmt.Sprintf("open %s %#x", p, flags), err, want)
	if err != nil {
		return
	}
	if n == nil {
		n = &mnode{kind: meta.KindFile, nlink: 1, mode: 0o640}
		d.kids[name] = n
	}
	if flags&os.O_TRUNC != 0 {
		n.data = nil
	}
	w.open = append(w.open, mfile{f, n})
}

func (w *world) doPut(rt *rapid.T) {
	p := w.path(rt, "file")
	d, name := w.m.at(p)
	n := d.kids[name]
	if n != nil && n.kind != meta.KindFile {
		return
	}
	data := w.content(rt)
	if n == nil {
		n = &mnode{kind: meta.KindFile, nlink: 1, mode: 0o644}
		d.kids[name] = n
	}
	n.data = data
	w.check(rt, "put "+p, w.put(rt, p, data), nil)
}

func (w *world) doWrite(rt *rapid.T) {
	h := w.some(rt)
	if h == nil || !h.w.writable() {
		return
	}
	data := w.content(rt)
	off := rapid.Int64Range(0, int64(len(h.n.data))+10).Draw(rt, "off")
	if h.w.flags&os.O_APPEND != 0 {
		off = int64(len(h.n.data))
	}
	w.check(rt, "write", h.w.write(rt, off, data), nil)
	if len(data) == 0 {
		return
	}
	b := slices.Clone(h.n.data)
	if grow := off + int64(len(data)) - int64(len(b)); grow > 0 {
		b = append(b, make([]byte, grow)...)
	}
	copy(b[off:], data)
	h.n.data = b
}

func (w *world) doClose(rt *rapid.T) {
	if len(w.open) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.open)-1).Draw(rt, "handle")
	w.open[i].w.close()
	w.open = slices.Delete(w.open, i, i+1)
}

func (w *world) doRead(rt *rapid.T) {
	if h := w.some(rt); h != nil && h.w.flags&os.O_WRONLY == 0 {
		off := rapid.Int64Range(0, int64(len(h.n.data))).Draw(rt, "off")
		got, err := h.w.read(off, 100<<10)
		want := h.n.data[off:min(int64(len(h.n.data)), off+100<<10)]
		if err != nil || !bytes.Equal(got, want) {
			rt.Fatalf("read at %d: %d bytes, %v; want %d of %d", off, len(got), err, len(want), len(h.n.data))
		}
		if size, err := h.w.size(); err != nil || size != int64(len(h.n.data)) {
			rt.Fatalf("size %d, %v; want %d", size, err, len(h.n.data))
		}
	}
	p := w.path(rt, "file")
	n := w.m.find(p)
	if n == nil || n.kind != meta.KindFile {
		return
	}
	got, err := w.get(rt, p)
	if err != nil || !bytes.Equal(got, n.data) {
		rt.Fatalf("read %s: %d bytes, %v; want %d", p, len(got), err, len(n.data))
	}
}

func (w *world) doStat(rt *rapid.T) {
	p := w.path(rt, "file")
	w.checkStat(rt, p, w.m.find(p))
}

func (w *world) checkStat(rt *rapid.T, p string, n *mnode) {
	e, err := w.walk(p)
	a := e.Attr
	switch {
	case n == nil:
		w.check(rt, "stat "+p, err, ErrNotExist)
	case err != nil || a.Kind != n.kind:
		rt.Fatalf("stat %s: %v, %v; want %v", p, a.Kind, err, n.kind)
	case n.kind == meta.KindFile && (a.Size != int64(len(n.data)) || int(a.Nlink) != n.nlink):
		rt.Fatalf("stat %s: %d bytes, %d links; want %d, %d", p, a.Size, a.Nlink, len(n.data), n.nlink)
	case n.mode != 0 && n.mode != a.Mode:
		rt.Fatalf("stat %s: mode %o, want %o", p, a.Mode, n.mode)
	case n.kind == meta.KindSymlink:
		if to, err := w.fs.Readlink(context.Background(), e.Node); err != nil || to != n.target {
			rt.Fatalf("readlink %s: %q, %v", p, to, err)
		}
	}
	for k, v := range n.attrs() {
		if b, err := w.fs.Getxattr(context.Background(), e.Node, k); err != nil || string(b) != v {
			rt.Fatalf("getxattr %s %s: %q, %v; want %q", p, k, b, err, v)
		}
	}
}

func (n *mnode) attrs() map[string]string {
	if n == nil {
		return nil
	}
	return n.xattrs
}

func (w *world) doList(rt *rapid.T) {
	dirs := []string{""}
	w.m.root.below("", func(file string, n *mnode) {
		if n.kind == meta.KindDir {
			dirs = append(dirs, file)
		}
	})
	slices.Sort(dirs)
	w.checkList(rt, rapid.SampledFrom(dirs).Draw(rt, "dir"))
}

func (w *world) checkList(rt *rapid.T, dir string) {
	var want []string
	for name, k := range w.m.find(dir).kids {
		if k.kind == meta.KindDir {
			name += "/"
		}
		want = append(want, name)
	}
	got, err := w.list(dir, rapid.IntRange(1, 5).Draw(rt, "batch"))
	slices.Sort(want)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) {
		rt.Fatalf("list %q: %q, %v; want %q", dir, got, err, want)
	}
}

func (w *world) doUnlink(rt *rapid.T) {
	p := w.path(rt, "file")
	d, name := w.m.at(p)
	var want error
	switch n := d.kids[name]; {
	case n == nil:
		want = ErrNotExist
	case n.kind == meta.KindDir:
		want = ErrIsDir
	default:
		n.nlink--
		delete(d.kids, name)
	}
	w.check(rt, "unlink "+p, w.unlink(rt, p), want)
}

func (w *world) doRmdir(rt *rapid.T) {
	p := w.path(rt, "dir")
	d, name := w.m.at(p)
	var want error
	switch n := d.kids[name]; {
	case n == nil:
		want = ErrNotExist
	case n.kind != meta.KindDir:
		want = ErrNotDir
	case len(n.kids) > 0:
		want = ErrNotEmpty
	default:
		delete(d.kids, name)
	}
	w.check(rt, "rmdir "+p, w.rmdir(rt, p), want)
}

func (w *world) doLink(rt *rapid.T) {
	from, to := w.path(rt, "from"), w.path(rt, "to")
	n := w.m.find(from)
	if n == nil || n.kind != meta.KindFile {
		return
	}
	d, name := w.m.at(to)
	var want error
	if d.kids[name] != nil {
		want = ErrExist
	} else {
		d.kids[name] = n
		n.nlink++
		n.linked = true
	}
	w.check(rt, "link "+from+" "+to, w.link(rt, from, to), want)
}

func (w *world) doRename(rt *rapid.T) {
	from, to := w.path(rt, "from"), w.path(rt, "to")
	fd, fname := w.m.at(from)
	td, tname := w.m.at(to)
	src, dst := fd.kids[fname], td.kids[tname]
	var want error
	switch {
	case src == nil:
		want = ErrNotExist
	case src.kind == meta.KindDir && src.contains(td):
		want = ErrInvalid
	case src == dst:
	case dst != nil && dst.kind == meta.KindDir && src.kind != meta.KindDir:
		want = ErrIsDir
	case dst != nil && dst.kind != meta.KindDir && src.kind == meta.KindDir:
		want = ErrNotDir
	case dst != nil && len(dst.kids) > 0:
		want = ErrNotEmpty
	default:
		if dst != nil {
			dst.nlink--
		}
		td.kids[tname] = src
		delete(fd.kids, fname)
	}
	w.check(rt, "rename "+from+" "+to, w.rename(rt, from, to), want)
}

func (w *world) doTruncate(rt *rapid.T) {
	size := int64(rapid.SampledFrom([]int{0, 1, 4096, 100 << 10}).Draw(rt, "size"))
	resize := func(n *mnode) {
		b := make([]byte, size)
		copy(b, n.data)
		n.data = b
	}
	if h := w.some(rt); h != nil && h.w.writable() {
		w.check(rt, "ftruncate", h.w.truncate(rt, size), nil)
		resize(h.n)
		return
	}
	p := w.path(rt, "file")
	if n := w.m.find(p); n != nil && n.kind == meta.KindFile {
		w.check(rt, "truncate "+p, w.setattr(rt, p, SetAttr{Size: &size}), nil)
		resize(n)
	}
}

func (w *world) doXattr(rt *rapid.T) {
	p := w.path(rt, "file")
	n := w.m.find(p)
	if n == nil {
		return
	}
	flags := rapid.SampledFrom([]int{0, unix.XATTR_CREATE, unix.XATTR_REPLACE}).Draw(rt, "flags")
	v := fmt.Sprint(rapid.IntRange(0, 99).Draw(rt, "value"))
	const name = "user.k"
	_, have := n.xattrs[name]
	var want error
	switch {
	case have && flags == unix.XATTR_CREATE:
		want = ErrExist
	case !have && flags == unix.XATTR_REPLACE:
		want = ErrNoAttr
	default:
		n.xattrs = map[string]string{name: v}
	}
	err := again(func() error {
		e, err := w.walk(p)
		if err != nil {
			return err
		}
		return w.ask(rt, func(ctx context.Context) error { return w.fs.Setxattr(ctx, e.Node, name, []byte(v), flags) })
	})
	w.check(rt, "setxattr "+p, err, want)
}

// doOthers changes the bucket behind the mount's back, of what nobody has open and is published.
func (w *world) doOthers(rt *rapid.T) {
	p := w.path(rt, "key")
	d, name := w.m.at(p)
	n := d.kids[name]
	// What others put in the place of one of several names is another file.
	if n != nil && (n.kind != meta.KindFile || n.linked) {
		return
	}
	w.settle(rt)
	if n != nil && len(d.kids) > 1 && rapid.Bool().Draw(rt, "delete") {
		if err := w.store.Delete(context.Background(), p, objstore.DeleteOptions{}); err != nil {
			rt.Fatalf("delete: %v", err)
		}
		delete(d.kids, name)
	} else {
		data := w.content(rt)
		w.store.Set(p, data)
		if n == nil {
			n = &mnode{kind: meta.KindFile, nlink: 1}
			d.kids[name] = n
		}
		n.data = data
	}
	w.clock.Add(int64(time.Hour))
	// It is seen at once: now the index knows of it.
	w.checkList(rt, strings.TrimSuffix(path.Dir("/" + p)[1:], "/"))
	w.checkStat(rt, p, d.kids[name])
}

// settle closes all and waits until all is published, and compares the bucket.
func (w *world) settle(rt *rapid.T) {
	w.closeAll()
	w.o.open()
	w.o.fates(nil)
	w.resend = func() bool { return false }
	want := map[string]string{}
	w.drain(rt)
	have := bucket(rt, w.store)
	w.m.root.below("", func(file string, n *mnode) {
		switch n.kind {
		case meta.KindFile:
			want[file] = string(n.data)
		case meta.KindSymlink:
			want[file] = n.target
		default:
			if _, ok := have[file+"/"]; ok || len(n.kids) == 0 {
				want[file+"/"] = ""
			}
		}
	})
	w.wantBucket(rt, want)
}

// fresh compares what a mount shows that knows nothing but the bucket.
func (w *world) fresh(rt *rapid.T, t *testing.T, dir string) {
	r := newRig(t, dir, true)
	r.store = w.store
	r.start(rt)
	defer r.stop(rt)
	p := newProgram(r)
	w.m.root.below("", func(file string, n *mnode) {
		switch n.kind {
		case meta.KindDir:
			if e, err := p.walk(file); err != nil || e.Attr.Kind != meta.KindDir {
				rt.Fatalf("a fresh mount shows %s as %v, %v", file, e.Attr.Kind, err)
			}
		case meta.KindFile:
			if b, err := p.get(rt, file); err != nil || !bytes.Equal(b, n.data) {
				rt.Fatalf("a fresh mount shows %d bytes of %s, %v; want %d", len(b), file, err, len(n.data))
			}
		}
	})
	(&world{program: p, m: w.m}).checkList(rt, "")
}
