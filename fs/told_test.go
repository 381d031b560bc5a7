package fs

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/publish"
	"github.com/leatfs/leatfs/objstore"
)

// another makes a second node on the store of p.
func another(t *testing.T, p *program, metadata bool) *program {
	t.Helper()
	r := newRig(t, t.TempDir(), true)
	r.store, r.opt.Metadata = p.store, metadata
	heads := new(int)
	r.wrap = func(s objstore.Store) objstore.Store {
		return objstore.Around(s, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
			if op.Name == "HEAD" {
				*heads++
			}
			return call(ctx)
		})
	}
	r.start(t)
	t.Cleanup(func() { r.stop(t) })
	return newProgram(r)
}

// readlink looks a name up and reads it as a symbolic link.
func (p *program) readlink(file string) (string, error) {
	e, err := p.walk(file)
	if err != nil {
		return "", err
	}
	return p.fs.Readlink(context.Background(), e.Node)
}

// TestTold: a symbolic link, a mode and times come back on another node, listed before or not; the owner and setuid
// do not; without the option nothing does.
func TestTold(t *testing.T) {
	a, _ := writing(t, true)
	a.steps(t, "mkdir d", "put d/plain y")
	w, err := a.openFile(t, "d/script", os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.write(t, 0, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := a.symlink(t, "../away", "d/link"); err != nil {
		t.Fatal(err)
	}
	mode, mtime := uint32(0o4755), int64(900_000_000_123_456_789)
	if err := a.setattr(t, "d/script", SetAttr{Mode: &mode, MTime: &mtime}); err != nil {
		t.Fatal(err)
	}
	w.close() // attributes go with the content
	a.drain(t)
	for _, listed := range []bool{false, true} {
		for _, on := range []bool{true, false} {
			t.Run(fmt.Sprintf("listed %v, believed %v", listed, on), func(t *testing.T) {
				b := another(t, a, on)
				if listed {
					if _, err := b.list("d", 10); err != nil {
						t.Fatal(err)
					}
				}
				for range 2 {
					target, err := b.readlink("d/link")
					if on && (err != nil || target != "../away") || !on && err != ErrInvalid {
						t.Errorf("the link: %q, %v", target, err)
					}
					e, err := b.walk("d/script")
					if err != nil {
						t.Fatal(err)
					}
					if got := e.Attr; on && (got.Mode != 0o755 || got.MTime != mtime || got.UID != b.opt.UID || got.GID != b.opt.GID) || !on && (got.Mode != 0o644 || got.MTime == mtime) {
						t.Errorf("the script: %+v", got)
					}
					b.takeOver(t)
				}
			})
		}
	}
}

// TestToldChanges: a link becomes a file, a file a link, a link another, a script's mode goes; each is seen when the TTL is over.
func TestToldChanges(t *testing.T) {
	a, _ := writing(t, true)
	b := another(t, a, true)
	publishAs := func(key, data string, mode uint32) {
		t.Helper()
		md := maps.Clone(publish.Metadata(mode, 1, 2, 3e9, 4e9, ""))
		if _, err := a.store.Put(t.Context(), key, bytes.NewReader([]byte(data)), objstore.PutOptions{Metadata: md}); err != nil {
			t.Fatal(err)
		}
	}
	for i, step := range []struct {
		data string
		mode uint32
		kind meta.Kind
		perm uint32
	}{
		{"one", 0o120777, meta.KindSymlink, 0o777},
		{"two", 0o120777, meta.KindSymlink, 0o777},
		{"a file", 0o100600, meta.KindFile, 0o600},
		{"a script", 0o100755, meta.KindFile, 0o755},
		{"three", 0o120777, meta.KindSymlink, 0o777},
		{"a nul \x00 in it", 0o120777, meta.KindFile, 0o644},
		{"", 0o120777, meta.KindFile, 0o644},
		{"a device", 0o060666, meta.KindFile, 0o644},
		{"nonsense", 1 << 31, meta.KindFile, 0o644},
	} {
		publishAs("x", step.data, step.mode)
		if i%2 == 0 {
			if _, err := b.list("", 10); err != nil {
				t.Fatal(err)
			}
		}
		b.clock.Add(int64(time.Hour))
		e, err := b.walk("x")
		if err != nil || e.Attr.Kind != step.kind || e.Attr.Mode != step.perm || step.kind == meta.KindFile && e.Attr.MTime != 3e9 {
			t.Fatalf("%q: %+v, %v", step.data, e.Attr, err)
		}
		if step.kind == meta.KindSymlink {
			if target, err := b.readlink("x"); err != nil || target != step.data {
				t.Fatalf("%q: %q, %v", step.data, target, err)
			}
		} else if got, err := b.get(t, "x"); err != nil || string(got) != step.data {
			t.Fatalf("%q: %q, %v", step.data, got, err)
		}
	}
	// What is changed here is not told anew.
	publishAs("y", "data", 0o100600)
	b.clock.Add(int64(time.Hour))
	mode := uint32(0o640)
	if err := b.setattr(t, "y", SetAttr{Mode: &mode}); err != nil {
		t.Fatal(err)
	}
	b.clock.Add(int64(time.Hour))
	if e, err := b.walk("y"); err != nil || e.Attr.Mode != 0o640 {
		t.Errorf("after chmod here: %+v, %v", e.Attr, err)
	}
	if w, err := b.openFile(t, "y", os.O_WRONLY, 0); err != nil {
		t.Error(err)
	} else {
		if err := w.write(t, 0, []byte("more")); err != nil {
			t.Error(err)
		}
		w.close()
	}
	b.drain(t)
	c := another(t, a, true)
	if e, err := c.walk("y"); err != nil || e.Attr.Mode != 0o640 {
		t.Errorf("a third node: %+v, %v", e.Attr, err)
	}
}
