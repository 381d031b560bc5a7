package fs

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// breaking makes a program over a store that answers all with an error of the kind that is set, 0 for none.
func breaking(t *testing.T, set func(*rig)) (p *program, kind, asked *atomic.Int64) {
	t.Helper()
	kind, asked = new(atomic.Int64), new(atomic.Int64)
	r := newRig(t, t.TempDir(), true)
	r.wrap = func(s objstore.Store) objstore.Store {
		return objstore.Around(s, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
			asked.Add(1)
			if k := kind.Load(); k != 0 {
				return &objstore.Error{Op: op.Name, Key: op.Key, Kind: objstore.Kind(k)}
			}
			return call(ctx)
		})
	}
	if set != nil {
		set(r)
	}
	r.start(t)
	t.Cleanup(func() { kind.Store(0); r.stop(t) })
	return newProgram(r), kind, asked
}

func (p *program) wantFile(t *testing.T, name, want string) {
	t.Helper()
	if b, err := p.get(t, name); err != nil || string(b) != want {
		t.Errorf("%s: %q, %v; want %q", name, b, err, want)
	}
}

func (p *program) wantAway(t *testing.T, name string) {
	t.Helper()
	if _, err := p.walk(name); !objstore.KindOf(err).Temporary() {
		t.Errorf("%s: %v, want that the origin does not answer", name, err)
	}
}

// TestStaleWhileAway: while the origin does not answer, names are found that this mount published or that are
// directories, and others as long after the TTL as is allowed; and what is cached can be read. Nothing that is not
// known is made up, and what the origin answers is believed.
func TestStaleWhileAway(t *testing.T) {
	for _, state := range []objstore.Kind{objstore.Unavailable, objstore.Network, objstore.Timeout, objstore.Throttled} {
		t.Run(state.String(), func(t *testing.T) {
			p, kind, asked := breaking(t, func(r *rig) { r.opt.StaleIfError = time.Hour })
			p.store.Set("f/x", []byte("theirs"))
			p.store.Set("f/sub/y", []byte("theirs too"))
			p.steps(t, "mkdir d", "put d/a ours", "put f/b ours", "drain")
			p.wantFile(t, "f/x", "theirs")
			for _, dir := range []string{"", "d", "f", "f/sub"} {
				if _, err := p.list(dir, 10); err != nil {
					t.Fatal(err)
				}
			}
			p.wantFile(t, "f/sub/y", "theirs too")
			within(t, "the listings are noted", func() bool {
				p.fs.listMu.Lock()
				defer p.fs.listMu.Unlock()
				return len(p.fs.lists) == 0
			})
			kind.Store(int64(state))
			p.clock.Add(int64(30 * time.Minute))
			p.wantFile(t, "f/x", "theirs")
			for dir, want := range map[string][]string{"d": {"a"}, "f": {"b", "sub/", "x"}} {
				if got, err := p.list(dir, 10); err != nil || !slices.Equal(got, want) {
					t.Errorf("in %s: %q, %v", dir, got, err)
				}
			}
			p.clock.Add(int64(2 * time.Hour))
			before := asked.Load()
			for range 3 {
				p.wantFile(t, "d/a", "ours")
				p.wantFile(t, "f/b", "ours")
			}
			if n := asked.Load() - before; n > 3 {
				t.Errorf("%d requests of an origin that has just not answered", n)
			}
			p.wantAway(t, "f/x")
			p.wantAway(t, "f/sub/y")
			p.wantAway(t, "f/nothing")
			if got, err := p.list("d", 10); err != nil || !slices.Equal(got, []string{"a"}) {
				t.Errorf("in d: %q, %v", got, err)
			}
			if _, err := p.list("f", 10); !objstore.KindOf(err).Temporary() {
				t.Errorf("in f: %v, want that the origin does not answer", err)
			}
			p.takeOver(t)
			p.wantFile(t, "d/a", "ours")
			if p.fs.Stats().Stale == 0 {
				t.Error("none of it was counted")
			}
			// What was changed here is seen at once, too.
			p.steps(t, "append d/a more", "mv f/b d/b", "rm d/a")
			p.wantFile(t, "d/b", "ours")
			if _, err := p.walk("d/a"); !errors.Is(err, ErrNotExist) {
				t.Errorf("removed here: %v", err)
			}

			p.store.Set("f/x", []byte("another"))
			kind.Store(0)
			p.clock.Add(int64(time.Minute))
			p.wantFile(t, "f/x", "another")
			p.wantBucket(t, map[string]string{"d/": "", "d/b": "ours", "f/x": "another", "f/sub/y": "theirs too"})
		})
	}
}

// TestDeniedIsNotAway: that access is denied, or a name is gone, is an answer.
func TestDeniedIsNotAway(t *testing.T) {
	p, kind, _ := breaking(t, nil)
	p.steps(t, "mkdir d", "put d/a ours", "drain")
	p.clock.Add(int64(2 * time.Minute))
	kind.Store(int64(objstore.AccessDenied))
	if _, err := p.walk("d/a"); !objstore.Is(err, objstore.AccessDenied) {
		t.Errorf("%v, want that access is denied", err)
	}
	kind.Store(0)
	if err := p.store.Delete(context.Background(), "d/a", objstore.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.walk("d/a"); !errors.Is(err, ErrNotExist) {
		t.Errorf("%v, want that it is gone", err)
	}
}

// TestStaleOff: with a negative StaleIfError nothing is shown that was not confirmed.
func TestStaleOff(t *testing.T) {
	p, kind, _ := breaking(t, func(r *rig) { r.opt.StaleIfError = -1 })
	p.steps(t, "mkdir d", "put d/a ours", "drain")
	p.clock.Add(int64(2 * time.Minute))
	kind.Store(int64(objstore.Network))
	p.wantAway(t, "d")
	kind.Store(0)
	p.wantFile(t, "d/a", "ours")
	w, err := p.openFile(t, "d/a", os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.close()
}
