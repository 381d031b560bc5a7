package fs

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// TestSyncBesideOpen: sync does not wait for a removed object to go whose place a file takes that is open, or held, nor for one
// that such a file is still to be copied from.
func TestSyncBesideOpen(t *testing.T) {
	for _, what := range []string{"made again", "held", "renamed"} {
		t.Run(what, func(t *testing.T) {
			p, o := overlaying(t, pattern(overlaid, 1))
			var w *wfile
			var err error
			p.steps(t, "put log 1", "drain")
			o.fates(func(objstore.Op) fate { return refused })
			switch what {
			case "made again":
				p.steps(t, "rm log")
				w, err = p.openFile(t, "log", os.O_CREATE|os.O_WRONLY, 0o644)
			case "held":
				p.steps(t, "rm log")
				p.held(t, "log", "2")
			case "renamed":
				w = p.change(t, "big", 1<<20+10, []byte("first"))
				p.steps(t, "mv big other")
			}
			o.fates(nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			res, err := p.fs.Sync(ctx, nil)
			left := names(&res.Left)
			if err != nil || len(left) != 2 || !slices.ContainsFunc(left, func(s string) bool { return s == "open file /log" || s == "held file /log" || s == "open file /other" }) {
				t.Errorf("%v, left %q", err, left)
			}
			if w != nil {
				w.close()
				p.drain(t)
			}
		})
	}
}

// TestNewBesideOpen: what is put under the old name of a file that was renamed, and is changed in part and still open, is
// published all the same.
func TestNewBesideOpen(t *testing.T) {
	data := pattern(overlaid, 1)
	p, _ := overlaying(t, slices.Clone(data))
	w := p.change(t, "big", 1<<20+10, []byte("first"))
	copy(data[1<<20+10:], "first")
	p.steps(t, "mv big log", "put big new")
	within(t, "what has the old name now is in the bucket", func() bool {
		p.hasten(t)
		return bucket(t, p.store)["big"] == "new"
	})
	w.want(t, data)
	w.close()
	p.wantBucket(t, map[string]string{"big": "new", "log": string(data)})
}
