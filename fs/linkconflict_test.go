package fs

import (
	"strings"
	"testing"
	"time"
)

// TestConflictOfFurtherName: where somebody else puts something under a further name of a file, theirs keeps that name, ours is
// published beside it, and what comes after it in its directory is published.
func TestConflictOfFurtherName(t *testing.T) {
	for _, copied := range []bool{false, true} {
		for _, lastWins := range []bool{false, true} {
			p, o := writing(t, true)
			p.fs.opt.LastWins = lastWins
			p.steps(t, "put a 1", "drain")
			want := "1"
			if copied {
				p.steps(t, "ln a b", "drain")
			}
			o.shut()
			if copied {
				p.steps(t, "append a 2")
				want = "12"
			} else {
				p.steps(t, "ln a b")
			}
			p.store.Set("b", []byte("theirs"))
			p.steps(t, "put z 3")
			o.open()
			p.drain(t)
			have := bucket(t, p.store)
			ours, n := "", 3
			for k, v := range have {
				if strings.HasPrefix(k, "b.conflict-") {
					ours = v
				}
			}
			theirs := "theirs"
			if lastWins {
				theirs = want
			} else {
				n = 4
			}
			if len(have) != n || have["a"] != want || have["b"] != theirs || have["z"] != "3" || !lastWins && ours != want {
				t.Fatalf("copied before %v, last wins %v: the bucket holds %q", copied, lastWins, have)
			}
			p.clock.Add(int64(time.Hour))
			p.wantShown(t, have)
			if got, want := p.fs.conflicts(), int64(n-3); got != want {
				t.Errorf("%d conflicts, want %d", got, want)
			}
		}
	}
}
