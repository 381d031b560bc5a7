package fs

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
)

// TestOverlayReadWhileCompleting: who reads of a large file that is changed in part, when somebody else has just replaced what it
// lies over, and it is closed by who wrote it, gets an answer, and so do all others.
func TestOverlayReadWhileCompleting(t *testing.T) {
	o := newOrigin()
	asked := make(chan struct{}, 100)
	r := newRig(t, t.TempDir(), true)
	r.opt.SmallObject, r.opt.OverlayMin, r.opt.PartSize = 1, 1<<20, 5<<20
	r.wrap = func(s objstore.Store) objstore.Store {
		return objstore.Around(sent{o.wrap(s)}, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
			if op.Class == objstore.ClassGet {
				asked <- struct{}{}
				time.Sleep(200 * time.Millisecond) // in which the other one closes it
			}
			return call(ctx)
		})
	}
	data := pattern(overlaid, 1)
	r.store.Set("big", slices.Clone(data))
	r.start(t)
	p := newProgram(r)
	o.shut()
	w := p.change(t, "big", 4096, pattern(4096, 9))
	reader, err := p.openFile(t, "big", os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for len(asked) > 0 {
		<-asked
	}
	p.store.Set("big", []byte("theirs"))
	done := make(chan error, 1)
	go func() {
		_, err := reader.read(5<<20, 4096)
		done <- err
	}()
	<-asked
	w.close()
	select {
	case err := <-done:
		if !errors.Is(err, cache.ErrStale) {
			t.Errorf("what is nowhere any more: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the read does not return")
	}
	reader.close()
	o.open()
	r.stop(t)
}
