package fs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// TestMissingThenListed: while an old answer that there is no such name is on its way, a listing brings the name. It is
// not denied for the sake of that answer, whether the listing has ended by then or not.
func TestMissingThenListed(t *testing.T) {
	for _, ended := range []bool{true, false} {
		answered, gate := make(chan struct{}, 1), make(chan struct{})
		hold := true
		r := newRig(t, t.TempDir(), false)
		r.wrap = func(s objstore.Store) objstore.Store {
			return objstore.Around(s, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
				err := call(ctx)
				if op.Class == objstore.ClassHead && op.Key == "d/x" && hold {
					hold = false
					answered <- struct{}{}
					<-gate
				}
				return err
			})
		}
		r.store.Set("d/a", []byte("1"))
		r.start(t)
		defer r.stop(t)
		d, err := r.walk("d")
		if err != nil {
			t.Fatal(err)
		}
		dir, err := r.fs.dir(d.Node)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := r.fs.Lookup(context.Background(), d.Node, "x")
			done <- err
		}()
		select {
		case <-answered:
		case <-time.After(30 * time.Second):
			t.Fatal("no request")
		}
		r.store.Set("d/x", []byte("new"))
		j := r.fs.list(&dir)
		if err := j.wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		if !ended { // as if its last page were still to come
			lst, err := r.db.Listing(dir.Ino)
			if err != nil {
				t.Fatal(err)
			}
			lst.Complete = 0
			if err := r.db.SetListing(dir.Ino, lst); err != nil {
				t.Fatal(err)
			}
			r.fs.listMu.Lock()
			r.fs.lists[dir.Ino] = j
			r.fs.listMu.Unlock()
		}
		close(gate)
		if err := <-done; err != nil {
			t.Errorf("listing ended %v: the lookup: %v", ended, err)
		}
		if e, err := r.walk("d/x"); err != nil || e.Attr.Size != 3 {
			t.Errorf("listing ended %v: the next: %+v, %v", ended, e.Attr, err)
		}
		r.fs.listMu.Lock()
		delete(r.fs.lists, dir.Ino)
		r.fs.listMu.Unlock()
	}
}

// TestLocalBelowGone: a directory that the bucket has no longer is there as long as something below it is only here.
func TestLocalBelowGone(t *testing.T) {
	p, o := writing(t, true)
	p.store.Set("d/a", []byte("1"))
	o.shut()
	p.steps(t, "put d/new 2")
	if err := p.store.Delete(context.Background(), "d/a", objstore.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p.clock.Add(int64(time.Hour))
		if _, err := p.walk("d"); err != nil {
			t.Fatalf("the directory: %v", err)
		}
		if e, err := p.walk("d/new"); err != nil || e.Attr.Size != 1 {
			t.Fatalf("what is in it: %+v, %v", e.Attr, err)
		}
		if _, err := p.walk("d/a"); !errors.Is(err, ErrNotExist) {
			t.Fatalf("what was in it: %v", err)
		}
	}
	o.open()
	p.wantBucket(t, map[string]string{"d/new": "2"})
}
