package fs

import (
	"context"
	"slices"
	"testing"
)

// TestCopyOfOverlay: of a large file that was changed in part no file here holds all: who compares or sums it up reads it
// through the mount.
func TestCopyOfOverlay(t *testing.T) {
	data := pattern(2<<20, 1)
	p, o := overlaying(t, slices.Clone(data))
	o.shut()
	p.change(t, "big", 1<<20+10, []byte("changed")).close()
	var got []Copy
	if err := p.fs.Copies(context.Background(), "/big", func(c *Copy) error { got = append(got, *c); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].File != "" || !got[0].Partly || got[0].Size != int64(len(data)) || got[0].Pending == "" {
		t.Errorf("%+v", got)
	}
}
