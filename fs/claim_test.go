package fs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/memstore"
)

// named is a store with a name of its own.
type named struct {
	objstore.Store
	name string
}

func (s named) String() string { return s.name }

// refusal is what a file system says that does not start.
type refusal string

func (refusal) Fatalf(format string, args ...any) { panic(refusal(fmt.Sprintf(format, args...))) }
func (refusal) Helper()                           {}

// refused starts a file system that is to refuse to, and returns why.
func (r *ledgerRig) refused() (why string) {
	r.t.Helper()
	func() {
		defer func() {
			if p := recover(); p != nil {
				why = string(p.(refusal))
			}
		}()
		r.start(refusal(""))
	}()
	if why == "" {
		r.stop(r.t)
		return ""
	}
	r.closeBelow(r.t)
	if err := r.memory.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.memory = nil
	return why
}

// TestOtherBucket: a cache directory with what one bucket has not yet is not used for another: what is to be deleted there
// is not deleted here, and what was written for it is not published here.
func TestOtherBucket(t *testing.T) {
	for _, what := range []string{"delete", "write", "rename"} {
		t.Run(what, func(t *testing.T) {
			r := newLedgerRig(t)
			one, two := r.store, memstore.New()
			name := "mem://one"
			shut := r.wrap
			r.wrap = func(s objstore.Store) objstore.Store { return named{shut(s), name} }
			for _, s := range []*memstore.Store{one, two} {
				s.Set("x", []byte("same")) // and so of the same ETag
				s.Set("other", []byte("o"))
			}
			r.start(t)
			r.shut.shut.Store(true)
			want := "other=o x=same"
			switch what {
			case "delete":
				r.unlink("x")
				want = "other=o"
			case "write":
				r.write("y", "y")
				want = "other=o x=same y=y"
			case "rename":
				r.rename("x", "z")
				want = "other=o z=same"
			}
			if _, err := r.sync(300 * time.Millisecond); err == nil {
				t.Fatal("sync to a store that refuses ended well")
			}
			r.stop(t)
			r.shut.shut.Store(false)

			r.store, name = two, "mem://two"
			why := r.refused()
			if !strings.Contains(why, "mem://one") {
				t.Errorf("a mount of another bucket: %q, want that it is refused", why)
			}
			if got := strings.Join(r.stored(), " "); got != "other=o x=same" {
				t.Errorf("the other bucket has %q", got)
			}

			r.store, name = one, "mem://one"
			r.start(t)
			r.clean()
			if got := strings.Join(r.stored(), " "); got != want {
				t.Errorf("the bucket has %q, want %q", got, want)
			}
			r.stop(t)

			r.store, name = two, "mem://two" // nothing is left: it is taken
			r.start(t)
			r.content("x", "same")
			r.clean()
			r.stop(t)
			if got := strings.Join(r.stored(), " "); got != "other=o x=same" {
				t.Errorf("the other bucket has %q", got)
			}
		})
	}
}
