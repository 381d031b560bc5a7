package fs

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// TestRenamedWhileListed: a directory is renamed while it is listed, or a name in it asked for. What others put under the old name after
// that is not shown under the new one.
func TestRenamedWhileListed(t *testing.T) {
	for _, what := range []string{"list", "lookup"} {
		t.Run(what, func(t *testing.T) {
			held, gate := make(chan struct{}, 1), make(chan struct{})
			r := newRig(t, t.TempDir(), true)
			r.opt.TTL, r.opt.NegativeTTL = 0, 0
			hold := func(objstore.Op) bool { return false }
			r.wrap = func(s objstore.Store) objstore.Store {
				return objstore.Around(s, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
					if hold(op) {
						held <- struct{}{}
						<-gate
					}
					return call(ctx)
				})
			}
			r.store.Set("d/a", []byte("1"))
			r.start(t)
			defer r.stop(t)
			p := newProgram(r)
			if what == "list" { // else names are asked for one by one
				if got, err := p.list("d", 10); err != nil || !slices.Equal(got, []string{"a"}) {
					t.Fatalf("%q, %v", got, err)
				}
			}
			d, err := p.walk("d")
			if err != nil {
				t.Fatal(err)
			}
			first := true
			hold = func(op objstore.Op) bool {
				if what == "list" && op.Class == objstore.ClassList && op.Key == "d/" || what == "lookup" && op.Key == "d/x" && op.Class == objstore.ClassHead {
					was := first
					first = false
					return was
				}
				return false
			}
			done := make(chan error, 1)
			go func() {
				if what == "lookup" {
					_, err := p.fs.Lookup(context.Background(), d.Node, "x")
					if errors.Is(err, ErrNotExist) {
						err = nil
					}
					done <- err
					return
				}
				h, err := p.fs.Opendir(context.Background(), d.Node)
				if err == nil {
					err = h.Readdir(context.Background(), 0, func(*DirEntry) bool { return true })
				}
				done <- err
			}()
			select {
			case <-held:
			case <-time.After(30 * time.Second):
				t.Fatal("no request")
			}
			p.steps(t, "mv d e")
			p.store.Set("d/x", []byte("theirs"))
			close(gate)
			if err := <-done; err != nil {
				t.Error(err)
			}
			e, err := p.walk("e")
			if err != nil {
				t.Fatal(err)
			}
			if in, err := p.db.Lookup(e.Node.Ino(), "x"); err == nil {
				t.Errorf("the new name has what was put under the old one: %+v", in)
			}
			if got, err := p.list("e", 10); err != nil || !slices.Equal(got, []string{"a"}) {
				t.Errorf("%q, %v", got, err)
			}
			p.wantBucket(t, map[string]string{"e/": "", "e/a": "1", "d/x": "theirs"})
		})
	}
}
