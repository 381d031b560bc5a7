package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
)

// writing makes a program over a store whose requests can be held up.
func writing(t *testing.T, pass bool) (*program, *origin) {
	t.Helper()
	o := newOrigin()
	r := newRig(t, t.TempDir(), pass)
	r.wrap = o.wrap
	r.start(t)
	t.Cleanup(func() { o.open(); o.fates(nil); r.stop(t) })
	return newProgram(r), o
}

// steps runs what a program does: "put NAME DATA", "mv A B", "ln A B", "rm A", "mkdir D", "rmdir D",
// "append A DATA", "drain"; a name that ends in "/" is made without its content being looked at.
func (p *program) steps(t *testing.T, all ...string) {
	t.Helper()
	for _, s := range all {
		f := strings.Fields(s)
		var err error
		switch f[0] {
		case "put":
			err = p.put(t, f[1], []byte(f[2]))
		case "append":
			var w *wfile
			if w, err = p.openFile(t, f[1], os.O_WRONLY|os.O_APPEND, 0); err == nil {
				err = w.write(t, 0, []byte(f[2]))
				w.close()
			}
		case "mv":
			err = p.rename(t, f[1], f[2])
		case "ln":
			err = p.link(t, f[1], f[2])
		case "rm":
			err = p.unlink(t, f[1])
		case "mkdir":
			err = p.mkdir(t, f[1])
		case "rmdir":
			err = p.rmdir(t, f[1])
		case "drain":
			p.drain(t)
		case "takeover":
			p.takeOver(t)
		case "wait":
			time.Sleep(20 * time.Millisecond)
		default:
			err = errors.New("unknown step")
		}
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// sequences are orders of changes, and what the bucket holds when all is published. "|" stands where
// a test may drain.
var sequences = []struct {
	name string
	do   []string
	want map[string]string
}{
	{"rename", []string{"put a 1", "drain", "mv a b"}, map[string]string{"b": "1"}},
	{"rename twice", []string{"put a 1", "drain", "mv a b", "mv b c"}, map[string]string{"c": "1"}},
	{"rename and back", []string{"put a 1", "drain", "mv a b", "mv b a"}, map[string]string{"a": "1"}},
	{"rename over", []string{"put a 1", "put b 2", "drain", "mv a b"}, map[string]string{"b": "1"}},
	{"new over old", []string{"put b 2", "drain", "put a.tmp 1", "mv a.tmp b"}, map[string]string{"b": "1"}},
	{"swap", []string{"put a 1", "put b 2", "drain", "mv a t", "mv b a", "mv t b"}, map[string]string{"a": "2", "b": "1"}},
	{"rotate three", []string{"put a 1", "put b 2", "put c 3", "drain", "mv a t", "mv b a", "mv c b", "mv t c"},
		map[string]string{"a": "2", "b": "3", "c": "1"}},
	{"swap names of two kinds", []string{"put a.txt 1", "put b.bin 2", "drain", "mv a.txt t.x", "mv b.bin a.txt", "mv t.x b.bin"},
		map[string]string{"a.txt": "2", "b.bin": "1"}},
	{"keep a backup", []string{"put b.bin 1", "drain", "put a.txt 2", "mv b.bin c.old", "mv a.txt b.bin"},
		map[string]string{"c.old": "1", "b.bin": "2"}},
	{"moved on after its name was taken", []string{"put a.txt 1", "drain", "mv a.txt b.bin", "put a.txt 2", "mv b.bin c.old"},
		map[string]string{"a.txt": "2", "c.old": "1"}},
	{"rotated log", []string{"put log 1", "drain", "mv log log.1", "put log 2", "mv log.1 log.2", "mv log log.1", "put log 3"},
		map[string]string{"log": "3", "log.1": "2", "log.2": "1"}},
	{"renamed and written", []string{"put a 1", "drain", "mv a b", "append b 2"}, map[string]string{"b": "12"}},
	{"renamed, truncated and written", []string{"put a 1", "drain", "mv a b", "put b 2"}, map[string]string{"b": "2"}},
	{"renamed, name taken, truncated and written", []string{"put a 1", "drain", "mv a b", "put a 3", "put b 2"}, map[string]string{"a": "3", "b": "2"}},
	{"renamed over, name taken, truncated and written", []string{"put a 1", "put b 0", "drain", "mv a b", "put a 3", "put b 2"}, map[string]string{"a": "3", "b": "2"}},
	{"renamed, written, renamed", []string{"put a 1", "drain", "mv a b", "append b 2", "mv b c"}, map[string]string{"c": "12"}},
	{"written, renamed, name taken", []string{"put a 1", "drain", "append a 2", "mv a b", "put a 3"}, map[string]string{"a": "3", "b": "12"}},
	{"renamed and removed", []string{"put a 1", "drain", "mv a b", "rm b"}, map[string]string{}},
	{"removed and made", []string{"put a 1", "drain", "rm a", "put a 2"}, map[string]string{"a": "2"}},
	{"removed and made twice", []string{"put a 1", "drain", "rm a", "put a 2", "rm a", "put a 3"}, map[string]string{"a": "3"}},
	{"removed", []string{"put a 1", "drain", "rm a"}, map[string]string{}},
	{"removed before", []string{"put a 1", "rm a"}, map[string]string{}},
	{"the only file of a directory", []string{"mkdir d", "put d/a 1", "drain", "rm d/a"}, map[string]string{"d/": ""}},
	{"moved out of a directory", []string{"mkdir d", "put d/a 1", "drain", "mv d/a a"}, map[string]string{"d/": "", "a": "1"}},
	{"rename a directory", []string{"mkdir d", "put d/a 1", "drain", "put d/b 2", "mv d e"}, map[string]string{"e/": "", "e/a": "1", "e/b": "2"}},
	{"rename nested", []string{"mkdir d", "mkdir d/e", "put d/e/a 1", "put d/b 2", "drain", "put d/e/c 3", "mv d f"},
		map[string]string{"f/": "", "f/e/": "", "f/e/a": "1", "f/b": "2", "f/e/c": "3"}},
	{"rename a directory twice", []string{"mkdir d", "put d/a 1", "drain", "mv d e", "mv e f"}, map[string]string{"f/": "", "f/a": "1"}},
	{"rename a directory and back", []string{"mkdir d", "put d/a 1", "drain", "mv d e", "mv e d"}, map[string]string{"d/": "", "d/a": "1"}},
	{"directory made again", []string{"mkdir d", "put d/a 1", "drain", "mv d e", "mkdir d", "put d/a 2"},
		map[string]string{"d/": "", "d/a": "2", "e/": "", "e/a": "1"}},
	{"directory removed and made again", []string{"mkdir d", "put d/a 1", "drain", "rm d/a", "rmdir d", "mkdir d", "put d/a 2"},
		map[string]string{"d/": "", "d/a": "2"}},
	{"swap directories", []string{"mkdir d", "mkdir e", "put d/a 1", "put e/a 2", "drain", "mv d t", "mv e d", "mv t e"},
		map[string]string{"d/": "", "e/": "", "d/a": "2", "e/a": "1"}},
	{"directory in the place of a file", []string{"put a 1", "drain", "rm a", "mkdir a", "put a/b 2"}, map[string]string{"a/": "", "a/b": "2"}},
	{"file in the place of a directory", []string{"mkdir a", "put a/b 2", "drain", "rm a/b", "rmdir a", "put a 1"}, map[string]string{"a": "1"}},
	{"linked, renamed and back", []string{"put a 1", "drain", "ln a b", "mv a c", "mv c a"}, map[string]string{"a": "1", "b": "1"}},
	{"linked in a directory, renamed and back", []string{"mkdir d", "put d/a 1", "drain", "ln d/a b", "mv d e", "mv e d"}, map[string]string{"d/": "", "d/a": "1", "b": "1"}},
	{"renamed, another's second name in its place", []string{"put a 1", "put b 2", "drain", "mv a c", "ln b a"}, map[string]string{"a": "2", "b": "2", "c": "1"}},
	{"second name in the place of a file of the same content", []string{"put a 1", "put b 1", "drain", "ln a c", "mv c b"}, map[string]string{"a": "1", "b": "1"}},
	{"link, first name removed", []string{"put a 1", "drain", "ln a b", "rm a"}, map[string]string{"b": "1"}},
	{"link, second name removed", []string{"put a 1", "drain", "ln a b", "rm b"}, map[string]string{"a": "1"}},
	{"link before it is published", []string{"put a 1", "ln a b", "rm a"}, map[string]string{"b": "1"}},
	{"link, all removed", []string{"put a 1", "drain", "ln a b", "rm a", "rm b"}, map[string]string{}},
	{"link, written, first removed", []string{"put a 1", "drain", "ln a b", "append b 2", "rm a"}, map[string]string{"b": "12"}},
	{"link, renamed over", []string{"put a 1", "put c 3", "drain", "ln a b", "mv c a"}, map[string]string{"a": "3", "b": "1"}},
	{"link, both renamed", []string{"put a 1", "drain", "ln a b", "mv a c", "mv b d"}, map[string]string{"c": "1", "d": "1"}},
	{"link stays", []string{"put a 1", "drain", "ln a b"}, map[string]string{"a": "1", "b": "1"}},
	{"link is written", []string{"put a 1", "drain", "ln a b", "drain", "append b 2"}, map[string]string{"a": "12", "b": "12"}},
	{"link is written at once", []string{"put a 1", "drain", "ln a b", "append b 2"}, map[string]string{"a": "12", "b": "12"}},
	{"link of a link, first removed", []string{"put a 1", "ln a b", "ln b c", "drain", "rm a"}, map[string]string{"b": "1", "c": "1"}},
	{"links are written, first removed", []string{"put a 1", "ln a b", "ln b c", "drain", "append c 2", "rm a"}, map[string]string{"b": "12", "c": "12"}},
	{"link as in atomic making", []string{"put .a.tmp 1", "ln .a.tmp a", "rm .a.tmp"}, map[string]string{"a": "1"}},
	{"link in a directory that moves", []string{"mkdir d", "put d/a 1", "drain", "ln d/a b", "mv d e", "rm e/a"}, map[string]string{"e/": "", "b": "1"}},
	{"empty", []string{"put a 1", "drain", "put b 2", "drain", "rm a", "rm b"}, map[string]string{}},
	{"directory moves over an empty one", []string{"mkdir d", "put d/a 1", "mkdir e", "drain", "mv d e"}, map[string]string{"e/": "", "e/a": "1"}},
	{"removed in a directory that moves", []string{"mkdir d", "put d/a 1", "put d/b 2", "drain", "rm d/a", "mv d e"}, map[string]string{"e/": "", "e/b": "2"}},
	{"emptied directory that moves", []string{"mkdir d", "put d/a 1", "drain", "rm d/a", "mv d e"}, map[string]string{"e/": ""}},
}

func runSequences(t *testing.T, every func(p *program, o *origin), between ...string) {
	for i, s := range sequences {
		t.Run(s.name, func(t *testing.T) {
			for _, pass := range []bool{i%2 == 0} {
				p, o := writing(t, pass)
				if every != nil {
					every(p, o)
				}
				for _, step := range s.do {
					p.steps(t, step)
					p.steps(t, between...)
				}
				o.open()
				p.wantShown(t, s.want)
				p.wantBucket(t, s.want)
				p.wantShown(t, s.want)
				p.clock.Add(int64(time.Hour)) // all is asked for anew
				p.wantShown(t, s.want)
			}
		})
	}
}

// wantShown compares what the mount shows with what the bucket is to hold.
func (p *program) wantShown(t *testing.T, want map[string]string) {
	t.Helper()
	names := map[string]bool{}
	for k, v := range want {
		top, _, below := strings.Cut(k, "/")
		if below {
			top += "/"
		}
		names[top] = true
		if strings.HasSuffix(k, "/") {
			if e, err := p.walk(k); err != nil || e.Attr.Kind != meta.KindDir {
				t.Fatalf("%s: %v, %v", k, e.Attr.Kind, err)
			}
			continue
		}
		if b, err := p.get(t, k); err != nil || string(b) != v {
			t.Fatalf("%s: %q, %v; want %q", k, b, err, v)
		}
	}
	got, err := p.list("", 10)
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	for n := range names {
		if !slices.Contains(got, n) {
			t.Fatalf("list: %q without %s", got, n)
		}
	}
	for _, n := range got {
		if !names[n] {
			t.Fatalf("list: %q, with %s", got, n)
		}
	}
}

// TestSequences: whatever the order of changes, with nothing, everything or each step published in
// between, the bucket ends as the tree is.
func TestSequences(t *testing.T) {
	t.Run("at once", func(t *testing.T) { runSequences(t, nil) })
	t.Run("drained", func(t *testing.T) { runSequences(t, nil, "drain") })
	t.Run("taken over", func(t *testing.T) { runSequences(t, nil, "takeover") })
	t.Run("answers lost", func(t *testing.T) {
		runSequences(t, func(_ *program, o *origin) {
			last := ""
			o.fates(func(op objstore.Op) fate {
				if at := op.Name + op.Key; at != last {
					last = at
					return lost
				}
				return carriedOut
			})
		}, "wait")
	})
	t.Run("refused", func(t *testing.T) {
		runSequences(t, func(_ *program, o *origin) {
			n := 0
			o.fates(func(objstore.Op) fate {
				if n++; n%3 != 0 {
					return refused
				}
				return carriedOut
			})
		}, "wait")
	})
}

// TestInFlight: changes while the request that publishes is under way, which the origin carries out
// though nobody waits for it any more, or does not.
func TestInFlight(t *testing.T) {
	for _, s := range sequences {
		t.Run(s.name, func(t *testing.T) {
			for _, late := range []bool{true, false} {
				p, o := writing(t, late)
				o.late = late
				for _, step := range s.do {
					if step == "drain" {
						o.open()
						p.drain(t)
						continue
					}
					o.shut()
					p.steps(t, step)
					p.hasten(t)
					time.Sleep(5 * time.Millisecond) // something comes to the gate
				}
				o.open()
				p.wantBucket(t, s.want)
				p.clock.Add(int64(time.Hour))
				p.wantShown(t, s.want)
			}
		})
	}
}

// TestReplacedAtOnce: what a file is renamed over stays in the bucket until the new content takes its
// place, however long that is written and uploaded.
func TestReplacedAtOnce(t *testing.T) {
	p, o := writing(t, true)
	p.steps(t, "put a old", "drain")
	w, err := p.openFile(t, "new", os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	o.took()
	p.steps(t, "mv new a")
	for range 50 {
		p.hasten(t)
		time.Sleep(time.Millisecond)
	}
	if b := bucket(t, p.store); b["a"] != "old" {
		t.Errorf("the bucket holds %q while the new content is written", b)
	}
	if err := w.write(t, 0, []byte("new")); err != nil {
		t.Fatal(err)
	}
	w.close()
	p.wantBucket(t, map[string]string{"a": "new"})
	if got := o.took(); !slices.Equal(got, []string{"PUT a"}) {
		t.Errorf("requests: %q", got)
	}
}

// TestRenameIsLast: a file that gets its name after others were completed is published after them,
// whenever it was written.
func TestRenameIsLast(t *testing.T) {
	p, o := writing(t, true)
	o.shut()
	p.steps(t, "mkdir d", "put d/m.tmp 1", "put d/data.bin 2", "mv d/m.tmp d/manifest.json")
	o.open()
	p.wantBucket(t, map[string]string{"d/": "", "d/data.bin": "2", "d/manifest.json": "1"})
	var puts []string
	for _, s := range o.took() {
		if !strings.HasSuffix(s, "/") {
			puts = append(puts, s)
		}
	}
	if want := []string{"PUT d/data.bin", "PUT d/manifest.json"}; !slices.Equal(puts, want) {
		t.Errorf("%q, want %q", puts, want)
	}
}

// TestDirectoryOrder: in a directory that is renamed, what says that it is complete comes last.
func TestDirectoryOrder(t *testing.T) {
	for _, published := range []bool{true, false} {
		p, o := writing(t, true)
		p.steps(t, "mkdir d", "put d/z.bin 2", "put d/.metadata 1")
		if published {
			p.drain(t)
		}
		o.took()
		p.steps(t, "mv d e")
		p.wantBucket(t, map[string]string{"e/": "", "e/z.bin": "2", "e/.metadata": "1"})
		got := strings.Join(o.took(), ", ")
		if a, b := strings.Index(got, " e/z.bin"), strings.Index(got, " e/.metadata"); a < 0 || b < a {
			t.Errorf("published before %v: %s", published, got)
		}
	}
}

// TestOpenWhileUploading: a file that is opened for writing while its publication ends.
func TestOpenWhileUploading(t *testing.T) {
	p, o := writing(t, true)
	for i := range 20 {
		name := fmt.Sprint("f", i)
		o.shut()
		p.steps(t, "put "+name+" 1")
		o.waitHeld(t, "PUT "+name)
		done := make(chan error, 1)
		go func() {
			w, err := p.openFile(t, name, os.O_WRONLY|os.O_APPEND, 0)
			if err == nil {
				err = w.write(t, 0, []byte("2"))
				w.close()
			}
			done <- err
		}()
		time.Sleep(time.Duration(i%5) * 100 * time.Microsecond)
		o.open()
		select {
		case err := <-done:
			if err != nil {
				t.Fatalf("open: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("an open for writing waits for a publication that waits for it")
		}
	}
	want := map[string]string{}
	for i := range 20 {
		want[fmt.Sprint("f", i)] = "12"
	}
	p.wantBucket(t, want)
}

// TestReadersKeep: who has a file open reads on when its name is changed or taken away, though the
// origin has it under another key by then, or not at all.
func TestReadersKeep(t *testing.T) {
	for _, pass := range []bool{true, false} {
		for _, what := range []string{"mv big b", "rm big", "mv other big", "mv big b; rm b", "mv big b; drain; mv b c", "mv big b; drain; rm b",
			"takeover; mv big b", "takeover; rm big", "takeover; mv other big", "mkdir d; mv big d/big; mv d e", "ln big b; drain; rm big"} {
			t.Run(fmt.Sprintf("passthrough=%v %s", pass, what), func(t *testing.T) {
				p, _ := writing(t, pass)
				p.fs.opt.SmallObject = 1
				data := bytes.Repeat([]byte("0123456789abcdef"), 256<<10)
				p.store.Set("big", data)
				p.steps(t, "put other x", "drain")
				w, err := p.openFile(t, "big", os.O_RDONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := w.read(0, 4096); err != nil {
					t.Fatal(err)
				}
				for _, s := range strings.Split(what, "; ") {
					p.steps(t, s)
				}
				p.drain(t)
				got, err := w.all()
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
				w.close()
				if strings.HasSuffix(what, "rm big") && !strings.Contains(what, "ln") {
					p.wantBucket(t, map[string]string{"other": "x"})
				}
			})
		}
	}
}

// TestLinkIsOver: a file that has one name again is like any other: what others put in its place is
// seen.
func TestLinkIsOver(t *testing.T) {
	p, _ := writing(t, true)
	p.steps(t, "put a 1", "drain", "ln a b", "rm b", "drain")
	p.store.Set("a", []byte("theirs"))
	p.clock.Add(int64(time.Hour))
	if b, err := p.get(t, "a"); err != nil || string(b) != "theirs" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestConflict: what somebody else put under a name keeps it, and ours is published beside it.
func TestConflict(t *testing.T) {
	p, o := writing(t, true)
	p.steps(t, "put a 1", "drain")
	o.shut()
	p.steps(t, "append a 2")
	p.store.Set("a", []byte("theirs"))
	o.open()
	p.drain(t)
	have := bucket(t, p.store)
	if have["a"] != "theirs" || len(have) != 2 {
		t.Fatalf("the bucket holds %q", have)
	}
	p.clock.Add(int64(time.Hour))
	for k, v := range have {
		if b, err := p.get(t, k); err != nil || string(b) != v {
			t.Errorf("%s: %q, %v; want %q", k, b, err, v)
		}
	}
}

// TestRemovedNode: a node of a removed file is no other file's.
func TestRemovedNode(t *testing.T) {
	p, _ := writing(t, true)
	p.steps(t, "put a 1")
	e, err := p.walk("a")
	if err != nil {
		t.Fatal(err)
	}
	p.steps(t, "rm a", "put a 2")
	a, _, err := p.fs.Getattr(context.Background(), e.Node)
	if err == nil && a.Nlink != 0 {
		t.Errorf("%+v", a)
	}
}

// TestClosedAndStopped: what was closed right before the mount ends is published by the next.
func TestClosedAndStopped(t *testing.T) {
	p, o := writing(t, true)
	want := map[string]string{}
	for i := range 10 {
		o.shut()
		name := fmt.Sprint("f", i)
		p.steps(t, "put "+name+" 1")
		want[name] = "1"
		p.stop(t)
		p.start(t)
	}
	o.open()
	p.wantBucket(t, want)
}
