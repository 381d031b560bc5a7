package fs

import (
	"context"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/file"
)

// TestDirectoryMadeAgain: where no objects stand for directories, one that is removed and made again leaves nothing behind that
// is to be deleted for ever.
func TestDirectoryMadeAgain(t *testing.T) {
	r := newRig(t, t.TempDir(), true)
	s, err := file.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r.wrap = func(objstore.Store) objstore.Store { return s }
	r.start(t)
	defer r.stop(t)
	p := newProgram(r)
	p.steps(t, "mkdir d", "put d/a 1", "drain", "rm d/a", "rmdir d", "mkdir d")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if res, err := p.fs.Sync(ctx, nil); err != nil || res.Left.Total() != 0 {
		t.Errorf("sync: %v, left %+v", err, res.Left)
	}
	p.steps(t, "put d/b 2", "drain")
	p.clock.Add(int64(time.Hour))
	if b, err := p.get(t, "d/b"); err != nil || string(b) != "2" {
		t.Errorf("%q, %v", b, err)
	}
}
