package fs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
)

// worker is a program that works in a directory of its own, and knows what is in it.
type worker struct {
	*program
	t    *testing.T
	rng  *rand.Rand
	top  string
	m    tree
	open []mfile
	seed byte
	few  bool // few names, few contents, which come back, and mostly changes of names
}

// TestParallelPrograms: programs that work beside each other, while what they closed is published, find what they left; at the end the
// bucket has it, and nothing else.
func TestParallelPrograms(t *testing.T) {
	for _, c := range []struct{ pass, givesWay, asks, few bool }{
		{true, false, false, false}, {false, false, true, false}, {true, true, true, false}, {false, true, false, false},
		{true, false, false, true}, {false, false, true, true},
	} {
		t.Run(fmt.Sprintf("passthrough=%v gives way %v asks %v few names %v", c.pass, c.givesWay, c.asks, c.few), func(t *testing.T) {
			o := newOrigin()
			lasts := parallelFor
			if c.few { // much of what is published is under way while its names change
				o.slow, lasts = 20*time.Millisecond, 2*parallelFor
			}
			r := newRig(t, t.TempDir(), c.pass)
			r.opt.SmallObject, r.opt.PartSize, r.givesWay = 64<<10, 1<<20, c.givesWay
			if c.asks {
				r.opt.TTL, r.opt.NegativeTTL, r.opt.OverlayMin = 0, 0, 1
			}
			r.wrap = o.wrap
			r.start(t)
			defer r.stop(t)
			defer o.open()
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 1))
			var all []*worker
			for g := range 4 {
				w := &worker{program: newProgram(r), t: t, rng: rand.New(rand.NewPCG(seed, uint64(g+2))), top: fmt.Sprintf("g%d/", g), m: tree{newDir()}, few: c.few}
				w.unique = uint64(g+1) << 40
				if err := w.mkdir(t, fmt.Sprintf("g%d", g)); err != nil {
					t.Fatal(err)
				}
				all = append(all, w)
			}
			for range 3 {
				var tasks sync.WaitGroup
				until := time.Now().Add(lasts)
				for _, w := range all {
					tasks.Go(func() {
						for time.Now().Before(until) && !t.Failed() {
							w.step()
							if c.few {
								time.Sleep(time.Duration(w.rng.IntN(30)) * time.Millisecond)
							}
						}
					})
				}
				n := 0
				for ; time.Now().Before(until); time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond) {
					switch n++; rng.IntN(6) {
					case 0:
						o.shut()
					case 1:
						what := fate(n % 3)
						o.fates(func(objstore.Op) fate { return what })
					case 2:
						o.fates(nil)
					case 3:
						r.clock.Add(int64(time.Second))
					default:
						o.open()
						r.hasten(t)
					}
				}
				o.open()
				o.fates(nil)
				tasks.Wait()
				if t.Failed() {
					return
				}
				for _, w := range all {
					w.closeAll()
				}
				r.drain(t)
				have := bucket(t, r.store)
				want := map[string]string{}
				for _, w := range all {
					marker := func(key string, n *mnode) {
						if _, ok := have[key]; ok || len(n.kids) == 0 {
							want[key] = ""
						}
					}
					marker(w.top, w.m.root)
					w.m.root.below(w.top, func(file string, n *mnode) {
						if n.kind == meta.KindDir {
							marker(file+"/", n)
						} else {
							want[file] = string(n.data)
						}
					})
				}
				r.wantBucket(t, want)
				if rng.IntN(2) == 0 {
					r.takeOver(t)
				}
				r.clock.Add(int64(time.Hour))
				for _, w := range all {
					w.checkAll()
				}
			}
		})
	}
}

// parallelFor is how long the programs work between two looks at the bucket.
const parallelFor = 700 * time.Millisecond

func (w *worker) name() string {
	dirs := []string{""}
	for name, k := range w.m.root.kids {
		if k.kind == meta.KindDir {
			dirs = append(dirs, name+"/")
		}
	}
	slices.Sort(dirs)
	names := modelNames
	if w.few {
		names = []string{"a.txt", "b.txt", "c.bin"}
	}
	return dirs[w.rng.IntN(len(dirs))] + names[w.rng.IntN(len(names))]
}

func (w *worker) ok(what string, got, want error) {
	if !sameError(got, want) {
		w.t.Errorf("%s%s: %v, want %v", w.top, what, got, want)
	}
}

func (w *worker) content() []byte {
	if w.few {
		return []byte([]string{"", "\x00", "A"}[w.rng.IntN(3)])
	}
	w.seed++
	size := []int{0, 1, 100, 5000, 70 << 10}[w.rng.IntN(5)]
	return bytes.Repeat([]byte{w.seed, byte(size), 7}, size/3+1)[:size]
}

func (w *worker) closeAll() {
	for _, h := range w.open {
		h.w.close()
	}
	w.open = nil
}

func (w *worker) check(file string) {
	n := w.m.find(file)
	if n == nil || n.kind != meta.KindFile {
		return
	}
	if b, err := w.get(w.t, w.top+file); err != nil || !bytes.Equal(b, n.data) {
		w.t.Errorf("read %s%s: %d bytes, %v; want %d", w.top, file, len(b), err, len(n.data))
	}
	if e, err := w.walk(w.top + file); err != nil || e.Attr.Size != int64(len(n.data)) {
		w.t.Errorf("stat %s%s: %d bytes, %v; want %d", w.top, file, e.Attr.Size, err, len(n.data))
	}
}

func (w *worker) checkAll() {
	w.m.root.below("", func(file string, n *mnode) { w.check(file) })
	w.checkNames("")
	for name, k := range w.m.root.kids {
		if k.kind == meta.KindDir {
			w.checkNames(name)
		}
	}
}

func (w *worker) checkNames(dir string) {
	var want []string
	for name, k := range w.m.find(dir).kids {
		if k.kind == meta.KindDir {
			name += "/"
		}
		want = append(want, name)
	}
	got, err := w.list(w.top+dir, 3)
	slices.Sort(want)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) {
		w.t.Errorf("list %s%s: %q, %v; want %q", w.top, dir, got, err, want)
	}
}

func (w *worker) step() {
	p := w.name()
	d, name := w.m.at(p)
	n := d.kids[name]
	what := w.rng.IntN(13)
	if w.few {
		what = []int{0, 0, 2, 4, 5, 5, 6, 7, 8, 8, 8, 8, 9, 9, 9, 11}[w.rng.IntN(16)]
	}
	switch what {
	case 0, 1: // a whole file
		if n != nil && n.kind != meta.KindFile {
			return
		}
		data := w.content()
		w.ok("put "+p, w.put(w.t, w.top+p, data), nil)
		if n == nil {
			n = &mnode{kind: meta.KindFile, nlink: 1}
			d.kids[name] = n
		}
		n.data = data
	case 2: // and its end
		if n == nil || n.kind != meta.KindFile {
			return
		}
		data := w.content()
		f, err := w.openFile(w.t, w.top+p, os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			err = f.write(w.t, 0, data)
			f.close()
		}
		w.ok("append "+p, err, nil)
		n.data = slices.Concat(n.data, data)
	case 3: // in place, and kept open
		if n == nil || n.kind != meta.KindFile || len(w.open) > 3 {
			return
		}
		f, err := w.openFile(w.t, w.top+p, []int{os.O_RDONLY, os.O_RDWR}[w.rng.IntN(2)], 0)
		w.ok("open "+p, err, nil)
		if err == nil {
			w.open = append(w.open, mfile{f, n})
		}
	case 4:
		size := int64([]int{0, 1, 4096, 50000}[w.rng.IntN(4)])
		if w.few {
			size &= 1
		}
		if n == nil || n.kind != meta.KindFile {
			return
		}
		w.ok("truncate "+p, w.setattr(w.t, w.top+p, SetAttr{Size: &size}), nil)
		b := make([]byte, size)
		copy(b, n.data)
		n.data = b
	case 5:
		var want error
		if n == nil {
			want = ErrNotExist
		} else if n.kind == meta.KindDir {
			want = ErrIsDir
		} else {
			delete(d.kids, name)
		}
		w.ok("unlink "+p, w.unlink(w.t, w.top+p), want)
	case 6:
		if strings.Contains(p, "/") {
			return
		}
		var want error
		if n != nil {
			want = ErrExist
		} else {
			d.kids[name] = newDir()
		}
		w.ok("mkdir "+p, w.mkdir(w.t, w.top+p), want)
	case 7:
		if n == nil || n.kind != meta.KindDir {
			return
		}
		var want error
		if len(n.kids) > 0 {
			want = ErrNotEmpty
		} else {
			delete(d.kids, name)
		}
		w.ok("rmdir "+p, w.rmdir(w.t, w.top+p), want)
	case 8:
		to := w.name()
		td, tname := w.m.at(to)
		if n == nil || n.kind != meta.KindFile || td.kids[tname] != nil {
			return
		}
		td.kids[tname] = n
		w.ok("link "+p+" "+to, w.link(w.t, w.top+p, w.top+to), nil)
	case 9, 10:
		to := w.name()
		td, tname := w.m.at(to)
		dst := td.kids[tname]
		if n == nil || n == dst || n.kind == meta.KindDir && (n.contains(td) || strings.Contains(to, "/")) {
			return
		}
		var want error
		switch {
		case dst != nil && dst.kind == meta.KindDir && n.kind != meta.KindDir:
			want = ErrIsDir
		case dst != nil && dst.kind != meta.KindDir && n.kind == meta.KindDir:
			want = ErrNotDir
		case dst != nil && len(dst.kids) > 0:
			want = ErrNotEmpty
		default:
			delete(d.kids, name)
			td.kids[tname] = n
		}
		w.ok("rename "+p+" "+to, w.rename(w.t, w.top+p, w.top+to), want)
	case 11:
		w.check(p)
		if dir, _, ok := strings.Cut(p, "/"); ok {
			w.checkNames(dir)
		} else {
			w.checkNames("")
		}
	case 12: // an open file
		if len(w.open) == 0 {
			return
		}
		i := w.rng.IntN(len(w.open))
		h := w.open[i]
		if h.w.writable() {
			data := w.content()
			off := int64(w.rng.IntN(len(h.n.data) + 1))
			w.ok("write", h.w.write(w.t, off, data), nil)
			if len(data) > 0 {
				b := slices.Clone(h.n.data)
				if grow := int(off) + len(data) - len(b); grow > 0 {
					b = append(b, make([]byte, grow)...)
				}
				copy(b[off:], data)
				h.n.data = b
			}
		}
		if b, err := h.w.all(); err != nil || !bytes.Equal(b, h.n.data) {
			w.t.Errorf("%s: an open file has %d bytes, %v; want %d", w.top, len(b), err, len(h.n.data))
		}
		if size, err := h.w.size(); err != nil || size != int64(len(h.n.data)) {
			w.t.Errorf("%s: an open file has %d bytes, %v; want %d", w.top, size, err, len(h.n.data))
		}
		if w.rng.IntN(2) == 0 {
			h.w.close()
			w.open = slices.Delete(w.open, i, i+1)
		}
	}
}
