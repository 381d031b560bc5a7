package fs

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/leatfs/leatfs/objstore"
)

// TestCopyInDoubt: the origin has copied a file to its second name, and the answer was lost. What becomes of the file
// before that is known, the copy is known to be ours: it is overwritten, or goes with its name.
func TestCopyInDoubt(t *testing.T) {
	for _, c := range []struct {
		name string
		do   []string
		want map[string]string
	}{
		{"nothing", nil, map[string]string{"w/": "", "w/a": "1", "w/d/": "", "w/d/b": "1"}},
		{"renamed", []string{"mv w/a w/c"}, map[string]string{"w/": "", "w/c": "1", "w/d/": "", "w/d/b": "1"}},
		{"renamed and back", []string{"mv w/a w/c", "mv w/c w/a"}, map[string]string{"w/": "", "w/a": "1", "w/d/": "", "w/d/b": "1"}},
		{"renamed and changed", []string{"mv w/a w/c", "append w/c 2"}, map[string]string{"w/": "", "w/c": "12", "w/d/": "", "w/d/b": "12"}},
		{"renamed, the second name removed", []string{"mv w/a w/c", "rm w/d/b"}, map[string]string{"w/": "", "w/c": "1", "w/d/": ""}},
		{"renamed, the second name too", []string{"mv w/a w/c", "mv w/d/b w/d/e"}, map[string]string{"w/": "", "w/c": "1", "w/d/": "", "w/d/e": "1"}},
		{"renamed, the second name replaced", []string{"mv w/a w/c", "put w/x 3", "mv w/x w/d/b"}, map[string]string{"w/": "", "w/c": "1", "w/d/": "", "w/d/b": "3"}},
		{"moved beside it, all renamed", []string{"mv w/a w/d/a", "mv w/d w/e"}, map[string]string{"w/": "", "w/e/": "", "w/e/a": "1", "w/e/b": "1"}},
		{"all removed", []string{"rm w/a", "rm w/d/b"}, map[string]string{"w/": "", "w/d/": ""}},
		{"renamed, all removed", []string{"mv w/a w/c", "rm w/c", "rm w/d/b"}, map[string]string{"w/": "", "w/d/": ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, o := writing(t, true)
			p.steps(t, "mkdir w", "mkdir w/d", "put w/a 1", "drain")
			o.fates(func(objstore.Op) fate { o.away = true; return lost })
			p.steps(t, "ln w/a w/d/b")
			within(t, "the origin was asked to copy", func() bool { return slices.Contains(o.took(), "COPY w/d/b") })
			p.steps(t, c.do...)
			o.fates(nil)
			o.leave(false)
			p.wantBucket(t, c.want)
		})
	}
}

// TestCopyLostAndBack: a copy to a second name was made, and nobody heard of that. When the file then becomes what it was before,
// the second name does not keep what was copied.
func TestCopyLostAndBack(t *testing.T) {
	p, o := writing(t, true)
	p.steps(t, "put a 1", "ln a b", "drain")
	o.fates(func(op objstore.Op) fate {
		if op.Key == "a" {
			o.gate = make(chan struct{}) // for what comes after this one
		}
		return carriedOut
	})
	p.steps(t, "put a 22")
	o.waitHeld(t, "PUT b")
	var once atomic.Bool
	o.fates(func(op objstore.Op) fate {
		if op.Key == "b" && once.CompareAndSwap(false, true) {
			return lost
		}
		return carriedOut
	})
	p.steps(t, "put a 1")
	within(t, "what is under way is given up", func() bool {
		d, err := p.db.Dirty(p.ino(t, "a"))
		return err == nil && d.Seq != 0
	})
	o.open()
	p.wantBucket(t, map[string]string{"a": "1", "b": "1"})
	if !once.Load() {
		t.Error("no answer was lost; the test shows nothing")
	}
	p.steps(t, "append b 3")
	p.wantBucket(t, map[string]string{"a": "13", "b": "13"})
}
