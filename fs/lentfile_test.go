package fs

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// damage has the file of an object found damaged, and fetched anew.
func (p *program) damage(t *testing.T, obj *cache.Object) {
	t.Helper()
	was := obj.ID()
	within(t, "it is in the index", func() bool { rec, err := p.db.Record(was); return err == nil && rec.State.Complete() })
	if err := os.WriteFile(cachedFile(t, p.dir), []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if err := p.cache.Scrub(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := obj.Fetch(t.Context()); err != nil || obj.ID() == was {
		t.Fatal(err, obj.ID())
	}
}

// lentOnce has fn called when the next file is lent.
func (p *program) lentOnce(fn func()) {
	p.fs.open.atLent = func() {
		p.fs.open.atLent = nil
		fn()
	}
}

// object is the object of a file, to be released.
func (p *program) object(t *testing.T, name string) (*cache.Object, meta.Inode) {
	t.Helper()
	in, err := p.db.Inode(p.ino(t, name))
	if err != nil {
		t.Fatal(err)
	}
	ident, err := p.fs.identity(&in)
	if err != nil {
		t.Fatal(err)
	}
	obj, err := p.cache.Object(context.Background(), ident, p.fs.store)
	if err != nil {
		t.Fatal(err)
	}
	return obj, in
}

// TestReplacedWhileLent: a file of the cache that is found damaged, and fetched anew, while it is being given to the kernel is not
// taken for the new one: who opens it then reads that, and what is written goes there.
func TestReplacedWhileLent(t *testing.T) {
	r := newRig(t, t.TempDir(), true)
	r.store.Set("a", []byte("1"))
	r.start(t)
	t.Cleanup(func() { r.stop(t) })
	p := newProgram(r)
	obj, _ := p.object(t, "a")
	if err := obj.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	found := false
	p.lentOnce(func() { p.damage(t, obj); found = true })
	h, err := r.open("a")
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	obj.Release()
	if !found {
		t.Fatal("nothing was lent; the test shows nothing")
	}
	if b, err := h.all(); err != nil || string(b) != "1" {
		t.Errorf("who opened it then reads %q, %v", b, err)
	}
	p.wantFile(t, "a", "1")
	p.steps(t, "append a 2")
	p.wantFile(t, "a", "12")
	p.wantBucket(t, map[string]string{"a": "12"})
}

// TestReplacedWhileCopied: nor does a damaged file become what is written to.
func TestReplacedWhileCopied(t *testing.T) {
	r := newRig(t, t.TempDir(), true)
	r.store.Set("a", []byte("1"))
	r.start(t)
	t.Cleanup(func() { r.stop(t) })
	p := newProgram(r)
	obj, in := p.object(t, "a")
	if err := obj.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer obj.Release()
	p.lentOnce(func() { p.damage(t, obj) })
	dir, err := p.db.Inode(in.Parent)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := p.fs.copyStage(obj, p.fs.label(&dir, &in)); !errors.Is(err, cache.ErrIncomplete) {
		t.Errorf("copied as %d: %v", id, err)
	}
	id, err := p.fs.copyStage(obj, p.fs.label(&dir, &in))
	if err != nil {
		t.Fatal(err)
	}
	f, err := p.cache.OpenStage(id, os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFile(f)
	if b, err := io.ReadAll(f); err != nil || string(b) != "1" {
		t.Errorf("%q, %v", b, err)
	}
	p.fs.removeStage(id)
}
