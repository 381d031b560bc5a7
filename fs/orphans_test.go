package fs

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/leatfs/leatfs/cache"
)

// TestWrittenRightAfterTakeover: what is opened for writing while the next process removes the staging files that
// nobody knows is none of them, though its file is older than that process.
func TestWrittenRightAfterTakeover(t *testing.T) {
	p, o := writing(t, true)
	const files = 120
	want := map[string]string{}
	for i := range files {
		p.steps(t, fmt.Sprintf("put old%d 1", i))
		want[fmt.Sprint("old", i)] = "12"
	}
	p.steps(t, "drain")
	o.shut()
	for i := range 8 * files { // to be looked through at the start
		p.steps(t, fmt.Sprintf("put new%d 1", i))
		want[fmt.Sprint("new", i)] = "1"
	}
	stray, f, err := p.cache.NewStage(cache.StageLabel{Origin: p.fs.store.String(), Name: "stray"})
	if err != nil {
		t.Fatal(err)
	}
	closeFile(f)
	p.takeOver(t)
	for i := range files {
		p.steps(t, fmt.Sprintf("append old%d 2", i))
	}
	o.open()
	p.wantBucket(t, want)
	within(t, "the staging file that nobody knows is removed", func() bool {
		f, err := p.cache.OpenStage(stray, os.O_RDONLY)
		if err == nil {
			closeFile(f)
		}
		return err != nil
	})
}

// TestRemovedAndStaged: a file without a name that is opened for writing (through /proc/self/fd) keeps what is written
// when the process that serves it is killed.
func TestRemovedAndStaged(t *testing.T) {
	for _, pass := range []bool{true, false} {
		p, _ := writing(t, pass)
		p.steps(t, "put a 1", "drain")
		r, err := p.openFile(t, "a", os.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		p.steps(t, "rm a")
		w := &wfile{p: p, node: r.node, flags: os.O_RDWR}
		if err := p.ask(t, func(ctx context.Context) (err error) {
			w.o, err = p.fs.Open(ctx, w.node, os.O_RDWR)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if err := w.attach(); err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{"12", "123", "1234"} {
			if err := w.write(t, int64(i)+1, []byte{want[i+1]}); err != nil {
				t.Fatal(err)
			}
			p.takeOver(t)
			time.Sleep(100 * time.Millisecond) // what nobody knows is removed
			if size, err := w.size(); err != nil || size != int64(len(want)) {
				t.Errorf("passthrough %v: size %d, %v; want %d", pass, size, err, len(want))
			}
			if got, err := w.all(); err != nil || string(got) != want {
				t.Errorf("passthrough %v: %q, %v; want %q", pass, got, err, want)
			}
		}
		w.close()
		r.close()
		within(t, "the file of what was removed is gone", func() bool {
			ids, err := p.cache.StageIDs()
			return err == nil && len(ids) == 0
		})
		p.wantBucket(t, nil)
	}
}

// within waits until something is so.
func within(t *testing.T, what string, fn func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !fn(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// TestStrayAfterUnmount: a staging file that nobody knows does not stay because the mount before ended as it should.
func TestStrayAfterUnmount(t *testing.T) {
	p, _ := writing(t, true)
	p.steps(t, "put a 1", "drain")
	if _, f, err := p.cache.NewStage(cache.StageLabel{Origin: p.fs.store.String(), Name: "stray"}); err != nil {
		t.Fatal(err)
	} else {
		closeFile(f)
	}
	p.stop(t)
	p.start(t)
	within(t, "the staging file that nobody knows is removed", func() bool {
		ids, err := p.cache.StageIDs()
		return err == nil && len(ids) == 0
	})
	p.wantBucket(t, map[string]string{"a": "1"})
}
