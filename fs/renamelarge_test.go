package fs

import (
	"errors"
	"fmt"
	"testing"
)

// TestRenameTooLarge: a directory of more objects than a transaction can note is refused with EXDEV, and
// once that is known, without a request; nothing of it has changed. One of 3,000 is renamed.
func TestRenameTooLarge(t *testing.T) {
	p, lists := counting(t, true, "LIST", nil)
	var keys []string
	for i := range maxMoved + 1 {
		keys = append(keys, fmt.Sprintf("large/%d/name-%05d", i%3, i))
	}
	for i := range 3000 {
		keys = append(keys, fmt.Sprintf("small/name-%05d", i))
	}
	p.store.SetKeys(keys)
	for range 2 {
		before := lists.Load()
		if err := p.rename(t, "large", "other"); !errors.Is(err, ErrCrossDevice) {
			t.Fatalf("%v, want ErrCrossDevice", err)
		}
		if _, err := p.walk("large/0/name-00000"); err != nil {
			t.Error(err)
		}
		if _, err := p.walk("other"); !errors.Is(err, ErrNotExist) {
			t.Errorf("the new name: %v", err)
		}
		if n := lists.Load() - before; before > 0 && n > 2 { // of the new name, to know that it is not there
			t.Errorf("%d LISTs of what was known to be too large", n)
		}
		p.clock.Add(int64(p.fs.opt.NegativeTTL) * 2)
	}
	if err := p.rename(t, "small", "another"); err != nil {
		t.Fatal(err)
	}
	if got, err := p.list("another", 1000); err != nil || len(got) != 3000 {
		t.Errorf("%d names, %v", len(got), err)
	}
}
