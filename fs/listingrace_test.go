package fs

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// Lookups while the first listing of a directory lands: a name that is there is never denied. The window is
// between two reads of the index, so there are many directories.
func TestLookupWhileListed(t *testing.T) {
	r := newRig(t, t.TempDir(), false)
	ctx := context.Background()
	const dirs, names = 150, 16
	for d := range dirs {
		for n := range names {
			r.store.Set(fmt.Sprintf("d%d/f%d", d, n), []byte("x"))
		}
	}
	r.start(t)
	defer r.stop(t)
	start := time.Now()
	for d := range dirs {
		dir, err := r.walk(fmt.Sprintf("d%d", d))
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for n := range names {
			wg.Go(func() {
				// Enough of them that some begin before the listing is in the index, and end after.
				if _, err := r.fs.Lookup(ctx, dir.Node, fmt.Sprintf("f%d", n)); err != nil {
					t.Errorf("d%d/f%d after %v: %v", d, n, time.Since(start), err)
				}
			})
		}
		wg.Wait()
	}
}
