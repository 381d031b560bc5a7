package fs

import (
	"os"
	"slices"
	"testing"
	"time"
)

// TestTimesAfterClose: times, mode and owner that are set while the upload is under way, as by who copies a
// file with them, do not cause another; they are shown, and what is written after is published.
func TestTimesAfterClose(t *testing.T) {
	for _, pass := range []bool{true, false} {
		p, o := writing(t, pass)
		o.shut()
		p.steps(t, "put a 1")
		o.waitHeld(t, "PUT a")
		mode, mtime := uint32(0o640), time.Unix(1234567890, 987).UnixNano()
		for _, at := range []int64{1, mtime} {
			if err := p.setattr(t, "a", SetAttr{MTime: &at, ATime: &at}); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.setattr(t, "a", SetAttr{Mode: &mode}); err != nil {
			t.Fatal(err)
		}
		o.open()
		p.wantBucket(t, map[string]string{"a": "1"})
		e, err := p.walk("a")
		if err != nil || e.Attr.MTime != mtime || e.Attr.Mode != mode {
			t.Errorf("%+v, %v", e.Attr, err)
		}
		if got := o.took(); !slices.Equal(got, []string{"PUT a"}) {
			t.Errorf("requests: %q", got)
		}

		// What is written between is no matter of times only.
		o.shut()
		p.steps(t, "put b 1")
		o.waitHeld(t, "PUT b")
		w, err := p.openFile(t, "b", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.write(t, 0, []byte("2")); err != nil {
			t.Fatal(err)
		}
		if err := p.setattr(t, "b", SetAttr{MTime: &mtime}); err != nil {
			t.Fatal(err)
		}
		w.close()
		if err := p.setattr(t, "b", SetAttr{MTime: &mtime}); err != nil {
			t.Fatal(err)
		}
		o.open()
		p.wantBucket(t, map[string]string{"a": "1", "b": "2"})
	}
}
