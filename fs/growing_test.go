package fs

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/leatfs/leatfs/objstore"
)

// TestGrowthOfAnotherFile: a stream that was begun just when its file was closed and published, and stayed behind, does
// not publish that file again in place of the one that the inode has by then.
func TestGrowthOfAnotherFile(t *testing.T) {
	for _, tick := range []bool{false, true} {
		r := newRig(t, t.TempDir(), true)
		var mu sync.Mutex
		var puts []string
		r.wrap = func(s objstore.Store) objstore.Store {
			return objstore.Around(s, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
				err := call(ctx)
				if op.Name == "PUT" {
					mu.Lock()
					defer mu.Unlock()
					puts = append(puts, bucket(t, r.store)[op.Key])
				}
				return err
			})
		}
		r.start(t)
		p := newProgram(r)
		w, err := p.openFile(t, "a", os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.write(t, 0, []byte("old")); err != nil {
			t.Fatal(err)
		}
		in, err := r.fs.inode(w.node)
		if err != nil {
			t.Fatal(err)
		}
		g := r.fs.growth(&in)
		if g == nil {
			t.Fatal("no stream")
		}
		w.close()
		p.drain(t)
		r.fs.publisher.mu.Lock()
		r.fs.publisher.growing[in.Ino] = g
		r.fs.publisher.mu.Unlock()
		if w, err = p.openFile(t, "a", os.O_WRONLY|os.O_TRUNC, 0); err != nil {
			t.Fatal(err)
		}
		if err := w.write(t, 0, []byte("newer")); err != nil {
			t.Fatal(err)
		}
		if tick {
			if err := w.write(t, growMin, []byte("!")); err != nil {
				t.Fatal(err)
			}
			r.fs.grown(in.Ino)
			if got := r.fs.takeGrowth(in.Ino); got == g {
				t.Error("the stream of the file before is told of the size of the one there is")
				closeFile(g.file)
			} else if got != nil {
				_ = got.stream.Abort()
				closeFile(got.file)
			}
			if err := w.truncate(t, 5); err != nil {
				t.Fatal(err)
			}
		}
		w.close()
		r.wantBucket(t, map[string]string{"a": "newer"})
		mu.Lock()
		if want := []string{"old", "newer"}; !slices.Equal(puts, want) {
			t.Errorf("published %q, want %q", puts, want)
		}
		mu.Unlock()
		r.stop(t)
	}
}

// TestGrowthAtTheEnd: a stream that is begun just when the file system ends is ended with it.
func TestGrowthAtTheEnd(t *testing.T) {
	p, _ := writing(t, true)
	w, err := p.openFile(t, "a", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	if err := w.write(t, growMin, []byte("!")); err != nil {
		t.Fatal(err)
	}
	p.fs.closeGrowths()
	p.fs.grown(w.node.Ino())
	if g := p.fs.takeGrowth(w.node.Ino()); g != nil {
		t.Error("it stays behind")
	}
}
