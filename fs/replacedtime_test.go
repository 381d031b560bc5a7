package fs

import (
	"context"
	"testing"
)

// TestReplacedTime: what somebody else has put in place of a file of ours has the time of its object, however
// this mount comes to know of it.
func TestReplacedTime(t *testing.T) {
	for _, how := range []string{"asked for", "listed"} {
		t.Run(how, func(t *testing.T) {
			r := newLedgerRig(t)
			r.opt.TTL, r.opt.NegativeTTL = 0, 0
			r.begin()
			r.store.Set("d/x", []byte("x")) // not made here, and so not listed
			r.write("d/f", "ours")
			e, err := r.walk("d/f")
			if err != nil {
				t.Fatal(err)
			}
			long := int64(1e18)
			if _, _, err := r.fs.Setattr(context.Background(), e.Node, 0, SetAttr{MTime: &long}); err != nil {
				t.Fatal(err)
			}
			r.clean()
			if e, err = r.walk("d/f"); err != nil || e.Attr.MTime != long {
				t.Fatalf("mtime %d, %v", e.Attr.MTime, err)
			}
			r.store.Set("d/f", []byte("theirs"))
			if how == "listed" {
				if _, err := r.list("d", 10); err != nil {
					t.Fatal(err)
				}
			}
			e, err = r.walk("d/f")
			if err != nil || e.Attr.Size != 6 || e.Attr.MTime == long {
				t.Errorf("size %d, mtime %d, %v; want those of the object", e.Attr.Size, e.Attr.MTime, err)
			}
		})
	}
}
