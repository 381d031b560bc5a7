package fs

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// discard gives a file up, once its handles are given back, a moment after their close.
func (p *program) discard(t *testing.T, name string) {
	t.Helper()
	within(t, "it is closed", func() bool {
		err := p.fs.Discard(t.Context(), name)
		if err != nil && !errors.Is(err, errOpen) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// TestDiscardTakenName: to give up what took the name of a renamed file does not bring that back under it.
func TestDiscardTakenName(t *testing.T) {
	p, o := writing(t, true)
	p.steps(t, "put a 1", "drain")
	o.fates(func(objstore.Op) fate { return refused })
	p.steps(t, "mv a b", "put a 2")
	p.discard(t, "a")
	o.fates(nil)
	p.wantBucket(t, map[string]string{"b": "1"})
	p.clock.Add(int64(time.Hour))
	p.wantShown(t, map[string]string{"b": "1"})
}

// TestDiscardRenamedInPart: a large file that was changed in part and renamed has its old name and content again when it is given
// up, and nothing is left to be done.
func TestDiscardRenamedInPart(t *testing.T) {
	data := pattern(overlaid, 1)
	p, o := overlaying(t, slices.Clone(data))
	o.fates(func(objstore.Op) fate { return refused })
	p.change(t, "big", 1<<20+10, []byte("first")).close()
	p.steps(t, "mv big b")
	p.discard(t, "b")
	o.fates(nil)
	p.wantBucket(t, map[string]string{"big": string(data)})
	p.wantFile(t, "big", string(data))
	if _, err := p.walk("b"); !errors.Is(err, ErrNotExist) {
		t.Errorf("b: %v", err)
	}
}
