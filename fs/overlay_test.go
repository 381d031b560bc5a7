package fs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
)

// overlaying makes a program whose mount changes large objects without fetching them, and the object "big".
func overlaying(t *testing.T, big []byte) (*program, *origin) {
	t.Helper()
	o := newOrigin()
	r := newRig(t, t.TempDir(), true)
	r.opt.SmallObject, r.opt.OverlayMin, r.opt.PartSize = 1, 1<<20, 5<<20
	r.wrap = func(s objstore.Store) objstore.Store { return sent{o.wrap(s)} }
	r.store.Set("big", big)
	r.start(t)
	t.Cleanup(func() { o.open(); o.fates(nil); r.stop(t) })
	return newProgram(r), o
}

// pattern is content in which no two places are alike.
func pattern(size int, seed byte) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8) ^ byte(i>>16) ^ seed
	}
	return b
}

// change opens a file and writes to it at off.
func (p *program) change(t *testing.T, file string, off int64, data []byte) *wfile {
	t.Helper()
	w, err := p.openFile(t, file, os.O_RDWR, 0)
	if err == nil {
		err = w.write(t, off, data)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return w
}

func (w *wfile) want(t *testing.T, want []byte) {
	t.Helper()
	got, err := w.all()
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes, %v; want %d; the first difference is at %d", len(got), err, len(want), differ(got, want))
	}
}

func differ(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// TestOverlayOpenWhileUploading: a large object that is changed in part is opened again for that while what was changed before
// is uploaded. Both changes come to the bucket, and who has it open reads on.
func TestOverlayOpenWhileUploading(t *testing.T) {
	for _, size := range []int{2 << 20, 6<<20 + 77} {
		for _, then := range []string{"", "takeover", "stop"} {
			t.Run(fmt.Sprintf("%d %s", size, then), func(t *testing.T) {
				data := pattern(size, 1)
				p, o := overlaying(t, slices.Clone(data))
				o.shut()
				w := p.change(t, "big", 1<<20+10, []byte("first"))
				copy(data[1<<20+10:], "first")
				w.close()
				select {
				case <-o.held:
				case <-time.After(30 * time.Second):
					t.Fatal("nothing is uploaded")
				}
				w = p.change(t, "big", 1<<19+3, []byte("second"))
				copy(data[1<<19+3:], "second")
				o.open()
				for end := time.Now().Add(30 * time.Second); string(bucket(t, p.store)["big"][1<<20+10:][:5]) != "first"; time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatal("the first change does not come to the bucket")
					}
				}
				time.Sleep(50 * time.Millisecond)
				w.want(t, data)
				if err := w.write(t, 100, []byte("third")); err != nil {
					t.Fatal(err)
				}
				copy(data[100:], "third")
				switch then {
				case "takeover":
					p.takeOver(t)
					w.want(t, data)
				case "stop":
					w.close()
					p.stop(t)
					p.start(t)
				}
				if then != "stop" {
					w.want(t, data)
					w.close()
				}
				p.wantBucket(t, map[string]string{"big": string(data)})
				p.wantFile(t, "big", string(data))
			})
		}
	}
}

// overlaid is the size of the object that the tests change in part, in two parts.
const overlaid = 6<<20 + 77

// TestOverlayConflict: somebody else replaces, or removes, a large object while it is changed here in part. What is whole here is
// kept beside it; else it is held, and nothing is published that has anything else in the place of what is missing.
func TestOverlayConflict(t *testing.T) {
	for _, what := range []string{"replaced", "removed"} {
		for _, whole := range []string{"", "read", "written"} {
			t.Run(what+" "+whole, func(t *testing.T) {
				data := pattern(overlaid, 1)
				p, o := overlaying(t, slices.Clone(data))
				o.shut()
				w := p.change(t, "big", 1<<20+10, []byte("first"))
				copy(data[1<<20+10:], "first")
				switch whole {
				case "read":
					w.want(t, data)
				case "written":
					data = pattern(overlaid, 2)
					if err := w.write(t, 0, data); err != nil {
						t.Fatal(err)
					}
				}
				bucketHas := map[string]string{}
				if what == "replaced" {
					p.store.Set("big", []byte("theirs"))
					bucketHas["big"] = "theirs"
				} else if err := p.store.Delete(t.Context(), "big", objstore.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				w.close()
				o.open()
				if whole != "" {
					p.drain(t)
					have := bucket(t, p.store)
					if what == "removed" && (have["big"] != string(data) || len(have) != 1) {
						t.Errorf("the bucket holds %s", keysOf(have))
					}
					for k, v := range have {
						if k == "big" && what == "replaced" && v != "theirs" || k != "big" && (!strings.HasPrefix(k, "big.conflict-") || v != string(data)) {
							t.Errorf("the bucket holds %s %s", k, brief(v))
						}
					}
					if what == "replaced" && len(have) != 2 {
						t.Errorf("the bucket holds %s", keysOf(have))
					}
					return
				}
				var l Ledger
				for end := time.Now().Add(30 * time.Second); (l.Held != 1 || len(l.Entries) != 1) && time.Now().Before(end); time.Sleep(time.Millisecond) {
					var err error
					if l, err = p.fs.Ledger(10); err != nil {
						t.Fatal(err)
					}
				}
				if l.Held != 1 || l.Entries[0].Error != heldBase {
					t.Fatalf("not held: %+v", l)
				}
				w, err := p.openFile(t, "big", os.O_RDONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				if b, err := w.read(1<<20+10, 5); err != nil || string(b) != "first" {
					t.Errorf("what was written is %q, %v", b, err)
				}
				if b, err := w.read(0, 5); !errors.Is(err, cache.ErrStale) {
					t.Errorf("what is nowhere any more is %q, %v", b, err)
				}
				w.close()
				if have := bucket(t, p.store); have["big"] != bucketHas["big"] || len(have) != len(bucketHas) {
					t.Errorf("the bucket holds %s", keysOf(have))
				}
				for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
					// Handles are given back a moment after their close.
					if err = p.fs.Discard(t.Context(), "big"); err == nil {
						break
					}
					if !errors.Is(err, errOpen) || time.Now().After(end) {
						t.Fatal(err)
					}
				}
				p.wantShown(t, bucketHas)
				p.wantBucket(t, bucketHas)
			})
		}
	}
}

// TestOverlayInDoubt: an overlay is published, and nobody hears of it: the process is killed, or the file gets another name
// meanwhile. It goes on from what has landed.
func TestOverlayInDoubt(t *testing.T) {
	for _, open := range []bool{false, true} {
		for _, what := range []string{"takeover", "mv big b", "mv big b; takeover", "takeover; mv big b"} {
			t.Run(fmt.Sprintf("%s, open %v", what, open), func(t *testing.T) {
				data := pattern(overlaid, 1)
				p, o := overlaying(t, slices.Clone(data))
				o.stray, o.late = true, false
				o.shut()
				p.change(t, "big", 1<<20+10, []byte("first")).close()
				copy(data[1<<20+10:], "first")
				o.waitHeld(t, "PUT big")
				var w *wfile
				if open {
					w = p.change(t, "big", 1<<19+3, []byte("second"))
					copy(data[1<<19+3:], "second")
				}
				name := "big"
				for _, s := range strings.Split(what, "; ") {
					if s == "takeover" {
						p.leave(t)
						if n := o.land(); n != 1 {
							t.Fatalf("%d requests were under way", n)
						}
						o.open()
						p.start(t)
						continue
					}
					name = "b"
					p.steps(t, s)
				}
				o.open()
				if open {
					w.want(t, data)
					if err := w.write(t, 4097, []byte("third")); err != nil {
						t.Fatal(err)
					}
					copy(data[4097:], "third")
					w.close()
				}
				p.wantBucket(t, map[string]string{name: string(data)})
				p.wantFile(t, name, string(data))
			})
		}
	}
}

// TestOverlayLostAndBack: an overlay is published while it is renamed and back, and nobody hears of it. It goes on from what has
// landed.
func TestOverlayLostAndBack(t *testing.T) {
	data := pattern(overlaid, 1)
	p, o := overlaying(t, slices.Clone(data))
	o.shut()
	p.change(t, "big", 1<<20+10, []byte("first")).close()
	copy(data[1<<20+10:], "first")
	o.waitHeld(t, "PUT big")
	var once atomic.Bool
	o.fates(func(objstore.Op) fate {
		if once.CompareAndSwap(false, true) {
			return lost
		}
		return carriedOut
	})
	p.steps(t, "mv big b", "mv b big")
	o.open()
	p.wantBucket(t, map[string]string{"big": string(data)})
	if !once.Load() {
		t.Error("no answer was lost; the test shows nothing")
	}
	p.wantFile(t, "big", string(data))
}

// TestOverlayKept: who has an overlay open keeps all of it when the file is removed or another takes its name, before and after
// a takeover; and one that is published is read on.
func TestOverlayKept(t *testing.T) {
	for _, what := range []string{"rm big", "mv other big", "takeover; rm big", "takeover; mv other big", "rm big; takeover", "mv big b; rm b"} {
		t.Run(what, func(t *testing.T) {
			data := pattern(overlaid, 1)
			p, _ := overlaying(t, slices.Clone(data))
			p.steps(t, "put other x", "drain")
			w := p.change(t, "big", 1<<20+10, []byte("first"))
			copy(data[1<<20+10:], "first")
			for _, s := range strings.Split(what, "; ") {
				p.steps(t, s)
			}
			for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
				p.hasten(t)
				if o, err := p.store.Head(t.Context(), "big", objstore.HeadOptions{}); err != nil || o.Size == 1 {
					break
				}
				if time.Now().After(end) {
					t.Fatal("the object stays in the bucket")
				}
			}
			w.want(t, data)
			w.close()
			if strings.Contains(what, "other") {
				p.wantBucket(t, map[string]string{"big": "x"})
			} else {
				p.wantBucket(t, map[string]string{"other": "x"})
			}
		})
	}
	t.Run("published", func(t *testing.T) {
		data := pattern(overlaid, 1)
		p, _ := overlaying(t, slices.Clone(data))
		w := p.change(t, "big", 1<<20+10, []byte("first"))
		copy(data[1<<20+10:], "first")
		r, err := p.openFile(t, "big", os.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		w.close()
		p.drain(t)
		r.want(t, data)
		p.takeOver(t)
		r.want(t, data)
		r.close()
		p.wantBucket(t, map[string]string{"big": string(data)})
	})
}

// TestOverlayDoesNotGrow: nothing of an overlay is sent before it is complete: its holes are no zeros.
func TestOverlayDoesNotGrow(t *testing.T) {
	data := pattern(growMin+5<<20, 1)
	p, o := overlaying(t, slices.Clone(data))
	w := p.change(t, "big", 1<<20+10, []byte("first"))
	copy(data[1<<20+10:], "first")
	time.Sleep(5 * growPoll)
	if got := o.took(); len(got) != 0 {
		t.Errorf("%d requests while it is open, the first %q", len(got), got[0])
	}
	w.close()
	p.drain(t)
	if got := bucket(t, p.store)["big"]; got != string(data) {
		t.Errorf("the bucket holds %d bytes, another at %d", len(got), differ([]byte(got), data))
	}
}

// TestOverlayAppend: what is written behind the end of a large object, or into the block that it ends in, leaves that block as it is.
func TestOverlayAppend(t *testing.T) {
	for _, behind := range []int64{0, 1, 5000} {
		data := pattern(2<<20+77, 1)
		p, _ := overlaying(t, slices.Clone(data))
		at := int64(len(data)) + behind
		w := p.change(t, "big", at, []byte("more"))
		data = slices.Concat(data, make([]byte, behind), []byte("more"))
		w.want(t, data)
		w.close()
		p.wantBucket(t, map[string]string{"big": string(data)})
		p.wantFile(t, "big", string(data))
	}
}
