package fs

import (
	"testing"

	"github.com/leatfs/leatfs/fs/meta"
)

// TestResizeFails: a closed file whose size cannot be set is published all the same, and one that is held stays held.
func TestResizeFails(t *testing.T) {
	for _, held := range []bool{false, true} {
		big := pattern(overlaid, 1)
		p, o := overlaying(t, big)
		o.shut()
		p.change(t, "big", 10, []byte("first")).close()
		copy(big[10:], "first")
		within(t, "it is complete", func() bool { return p.seqOf(t, "big") != 0 })
		ino := p.ino(t, "big")
		if held {
			p.fs.unqueue(ino)
			if err := p.db.Do(func(tx *meta.Tx) error {
				d, err := tx.Dirty(ino)
				if err != nil {
					return err
				}
				d.Seq, d.Held, d.Error = 0, true, heldTorn
				return tx.SetDirty(&d)
			}); err != nil {
				t.Fatal(err)
			}
		}
		o.leave(true)
		size := int64(overlaid - 10)
		if err := p.setattr(t, "big", SetAttr{Size: &size}); err == nil {
			t.Fatal("its size was set without what the bucket has; the test shows nothing")
		}
		o.leave(false)
		o.open()
		if held {
			p.fs.completeClosed()
			if d, err := p.db.Dirty(ino); err != nil || !d.Held || d.Seq != 0 || d.Error != heldTorn {
				t.Errorf("%+v, %v", d, err)
			}
			p.steps(t, "rm big")
			continue
		}
		p.wantBucket(t, map[string]string{"big": string(big)})
	}
}
