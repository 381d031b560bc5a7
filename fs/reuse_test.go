package fs

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/publish"
	"github.com/leatfs/leatfs/objstore"
)

// The sizes of these tests: a file of five parts and a bit, just sent in parts.
const (
	reuseTestPart = 4 << 20
	reuseTestSize = 5*reuseTestPart + 1000
)

// reusing is writing with ReuseParts.
func reusing(t *testing.T, pass bool) (*program, *origin) {
	t.Helper()
	o := newOrigin()
	r := newRig(t, t.TempDir(), pass)
	r.opt.ReuseParts, r.opt.PartSize = true, reuseTestPart
	r.wrap = o.wrap
	r.start(t)
	t.Cleanup(func() { o.open(); o.fates(nil); r.stop(t) })
	return newProgram(r), o
}

// checkpoint is random data; those of one seed differ in the parts named only.
func checkpoint(seed byte, changed ...int) []byte {
	b := make([]byte, reuseTestSize)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	for _, p := range changed {
		b[p*reuseTestPart+17] ^= 0xff
	}
	return b
}

// save publishes a file, and makes sure of its content at the origin. It returns how many parts were sent and copied.
func (p *program) save(t *testing.T, o *origin, file string, data []byte) (sent, copied int) {
	t.Helper()
	if err := p.put(t, file, data); err != nil {
		t.Fatal(err)
	}
	p.drain(t)
	return p.wantObject(t, o, file, data)
}

// wantObject compares an object with what it is to hold, and counts the requests of parts since the last call.
func (p *program) wantObject(t *testing.T, o *origin, key string, data []byte) (sent, copied int) {
	t.Helper()
	r, err := p.store.Get(t.Context(), key, objstore.GetOptions{Length: -1})
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if _, err := got.ReadFrom(r.Body); err != nil || !bytes.Equal(got.Bytes(), data) {
		t.Fatalf("%s holds %d bytes that are not the %d that were written; %v", key, got.Len(), len(data), err)
	}
	for _, s := range o.took() {
		switch {
		case strings.HasPrefix(s, "PUT PART "):
			sent++
		case strings.HasPrefix(s, "COPY PART "):
			copied++
		}
	}
	return sent, copied
}

func wantParts(t *testing.T, what string, sent, copied, wantSent, wantCopied int) {
	t.Helper()
	if sent != wantSent || copied != wantCopied {
		t.Errorf("%s: %d parts sent, %d copied; want %d, %d", what, sent, copied, wantSent, wantCopied)
	}
}

// TestReuseParts: of a checkpoint only those parts are sent that neither the file that it replaces holds nor the
// last checkpoint of the same pattern, whatever it was called while it was written, also by another process.
func TestReuseParts(t *testing.T) {
	for _, pass := range []bool{true, false} {
		t.Run(fmt.Sprintf("passthrough %v", pass), func(t *testing.T) {
			p, o := reusing(t, pass)
			for _, d := range []string{"step-1", "step-2", "step-3.tmp"} {
				if err := p.mkdir(t, d); err != nil {
					t.Fatal(err)
				}
			}
			s, c := p.save(t, o, "step-1/rank-0.pt", checkpoint(1))
			wantParts(t, "the first", s, c, 6, 0)
			s, c = p.save(t, o, "step-1/rank-1.pt", checkpoint(2))
			wantParts(t, "another rank", s, c, 6, 0)
			s, c = p.save(t, o, "step-2/rank-0.pt", checkpoint(1, 3))
			wantParts(t, "the next step", s, c, 1, 5)
			s, c = p.save(t, o, "step-2/rank-1.pt", checkpoint(2, 0, 5))
			wantParts(t, "the next step of the other rank", s, c, 2, 4)
			if got := p.fs.ReuseStats(); got.Bytes != 5*reuseTestSize/5-reuseTestPart+4*reuseTestPart || got.Files != 2 || got.Known != 4 || got.Parts != 24 || !got.On || !got.Able {
				t.Errorf("%+v", got)
			}
			p.takeOver(t)

			// Over itself, by way of a temporary name.
			if err := p.put(t, "step-2/rank-0.pt.tmp", checkpoint(1, 3, 4)); err != nil {
				t.Fatal(err)
			}
			if err := p.rename(t, "step-2/rank-0.pt.tmp", "step-2/rank-0.pt"); err != nil {
				t.Fatal(err)
			}
			p.drain(t)
			s, c = p.wantObject(t, o, "step-2/rank-0.pt", checkpoint(1, 3, 4))
			if s != 1 || c < 5 { // this store does not tell what a copied part holds: who goes on with an upload copies it again
				t.Errorf("in place of the one before: %d parts sent, %d copied", s, c)
			}

			// What was published under another name is known under the new one.
			s, c = p.save(t, o, "step-3.tmp/rank-0.pt", checkpoint(3))
			wantParts(t, "something new", s, c, 6, 0)
			if err := p.rename(t, "step-3.tmp", "step-3"); err != nil {
				t.Fatal(err)
			}
			p.drain(t)
			o.took()
			s, c = p.save(t, o, "step-3/rank-0.pt", checkpoint(3, 1))
			wantParts(t, "a renamed one changed", s, c, 1, 5)

			// What is gone is not tried.
			if err := p.unlink(t, "step-2/rank-1.pt"); err != nil {
				t.Fatal(err)
			}
			p.drain(t)
			if p.fs.reuse.knows("step-2/rank-1.pt") || p.fs.reuse.knows("step-3.tmp/rank-0.pt") {
				t.Error("what was deleted is still compared with")
			}

			// Without the option nothing is copied, and nothing remembered.
			p.opt.ReuseParts = false
			p.takeOver(t)
			s, c = p.save(t, o, "step-3/rank-0.pt", checkpoint(3, 2))
			wantParts(t, "without the option", s, c, 6, 0)
			n := 0
			if err := p.db.WalkParts(func(*meta.Parts) { n++ }); err != nil || n != 0 {
				t.Errorf("%d records are left, %v", n, err)
			}
			p.opt.ReuseParts = true
			p.takeOver(t)
			s, c = p.save(t, o, "step-3/rank-0.pt", checkpoint(3, 2, 3))
			wantParts(t, "with the option again", s, c, 6, 0)
			s, c = p.save(t, o, "step-3/rank-0.pt", checkpoint(3, 2))
			wantParts(t, "and once more", s, c, 1, 5)
		})
	}
}

// TestReuseForeign: somebody else replaces or deletes the source, before or in the middle: the file lands as it is.
func TestReuseForeign(t *testing.T) {
	for _, when := range []string{"before", "in the middle"} {
		for _, what := range []string{"replaced", "deleted"} {
			t.Run(what+" "+when, func(t *testing.T) {
				p, o := reusing(t, true)
				p.save(t, o, "a-1", checkpoint(1))
				harm := func() {
					if what == "replaced" {
						p.store.Set("a-1", checkpoint(9))
					} else if err := p.store.Delete(context.Background(), "a-1", objstore.DeleteOptions{}); err != nil {
						t.Error(err)
					}
				}
				n := 0
				o.fates(func(op objstore.Op) fate {
					if op.Name == "COPY PART" {
						if n++; n == 3 && when != "before" {
							harm()
						}
					}
					return carriedOut
				})
				if when == "before" {
					harm()
				}
				if s, c := p.save(t, o, "a-2", checkpoint(1, 4)); s+c != 6 || s < 2 {
					t.Errorf("%d parts sent, %d copied", s, c)
				}
				if p.fs.reuse.knows("a-1") {
					t.Error("what is not there any more is still compared with")
				}
				s, c := p.save(t, o, "a-3", checkpoint(1, 4, 5))
				wantParts(t, "the one after", s, c, 1, 5)
			})
		}
	}
}

// TestReuseTakeover: the process dies while parts are copied, or when the answer of the commit is lost; the next one ends it.
func TestReuseTakeover(t *testing.T) {
	for _, at := range []string{"COPY PART a-2", "COMPLETE MULTIPART a-2"} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late %v", at, late), func(t *testing.T) {
				p, o := reusing(t, true)
				p.save(t, o, "a-1", checkpoint(1))
				o.mu.Lock()
				o.late = late // what was under way is carried out when nobody hears of it any more
				o.mu.Unlock()
				if at == "COPY PART a-2" {
					o.shut()
				} else {
					o.fates(func(op objstore.Op) fate {
						if op.Name+" "+op.Key == at {
							o.mu.Unlock()
							o.shut()
							o.mu.Lock()
							return lost
						}
						return carriedOut
					})
				}
				if err := p.put(t, "a-2", checkpoint(1, 2)); err != nil {
					t.Fatal(err)
				}
				if at == "COPY PART a-2" {
					o.waitHeld(t, "CREATE MULTIPART a-2")
					o.open()
					o.shut()
				}
				for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
					o.mu.Lock()
					shut := o.gate != nil
					o.mu.Unlock()
					if shut {
						break
					}
				}
				time.Sleep(20 * time.Millisecond)
				p.takeOver(t)
				o.fates(nil)
				o.open()
				p.drain(t)
				if s, c := p.wantObject(t, o, "a-2", checkpoint(1, 2)); s > 9 || c == 0 && !strings.HasPrefix(at, "COMPLETE") {
					t.Errorf("%d parts sent, %d copied", s, c)
				}
				p.wantClean(t)
				p.save(t, o, "a-3", checkpoint(1, 2, 3))
			})
		}
	}
}

// TestReuseGrowing: parts are copied while the file is still being written, too.
func TestReuseGrowing(t *testing.T) {
	p, o := reusing(t, true)
	data := checkpoint(1)
	p.save(t, o, "a-1", data)
	data = append(data[:5*reuseTestPart], make([]byte, growMin-reuseTestPart)...) // of 20 parts
	data[0]++
	w, err := p.openFile(t, "a-2", os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.write(t, 0, data); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		o.mu.Lock()
		n := 0
		for _, s := range o.seen {
			if s == "COPY PART a-2" {
				n++
			}
		}
		o.mu.Unlock()
		if n >= 4 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d parts are copied while it is open", n)
		}
	}
	w.close()
	p.drain(t)
	s, c := p.wantObject(t, o, "a-2", data)
	wantParts(t, "a file that grew", s, c, 16, 4)
	if got := p.fs.ReuseStats(); got.Bytes != 4*reuseTestPart {
		t.Errorf("%+v", got)
	}
}

// TestReuseBounded: no more is remembered than may be; the oldest is forgotten.
func TestReuseBounded(t *testing.T) {
	p, _ := reusing(t, false)
	r := &p.fs.reuse
	out := publish.Outcome{PartSize: 1, Parts: make([]publish.PartSum, meta.MaxParts)}
	most := reuseParts / meta.MaxParts
	for i := range most + 3 {
		if err := r.published(fmt.Sprint("k", i), &meta.Object{ETag: "e", Size: meta.MaxParts}, int64(i), &out); err != nil {
			t.Fatal(err)
		}
	}
	check := func() {
		t.Helper()
		n := 0
		if err := p.db.WalkParts(func(q *meta.Parts) {
			if n++; q.At < 3 {
				t.Errorf("%s is remembered", q.Key)
			}
		}); err != nil || n != most || len(p.fs.reuse.known) != most || p.fs.reuse.parts != most*meta.MaxParts || len(p.fs.reuse.alike) != 1 {
			t.Errorf("%d records, %d known, %v", n, len(p.fs.reuse.known), err)
		}
	}
	check()
	p.takeOver(t)
	check()
	many := publish.Outcome{PartSize: 1, Parts: make([]publish.PartSum, meta.MaxParts+1)}
	if err := p.fs.reuse.published("k9", &meta.Object{ETag: "e"}, 1e9, &many); err != nil || p.fs.reuse.knows("k9") {
		t.Errorf("too many parts: %v", err)
	}
}

// TestReuseNearest: which of several objects content is compared with.
func TestReuseNearest(t *testing.T) {
	p, _ := reusing(t, false)
	r := &p.fs.reuse
	out := publish.Outcome{PartSize: 1, Parts: make([]publish.PartSum, 2)}
	for i, k := range []string{"s-1/r-0", "s-1/r-1", "s-2/r-1", "s-2/r-0", "s-3/r-7", "m"} {
		if err := r.published(k, &meta.Object{ETag: k}, int64(i), &out); err != nil {
			t.Fatal(err)
		}
	}
	for key, want := range map[string]string{"s-9/r-0": "s-2/r-0 s-1/r-0 s-3/r-7", "s-3/r-1": "s-2/r-1 s-1/r-1 s-3/r-7", "s-1/r-0": "s-1/r-0 s-2/r-0 s-1/r-1",
		"s-9/r-9": "s-3/r-7 s-2/r-0 s-2/r-1", "m": "m", "n": "", "t-1/r-0": ""} {
		var got []string
		for _, r := range r.find(key, reuseMin) {
			got = append(got, r.Key)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s is compared with %q, want %q", key, got, want)
		}
	}
	if r.find("m", reuseMin-1) != nil {
		t.Error("what is sent at once is compared")
	}
}
