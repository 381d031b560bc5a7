package fs

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

// TestTakenWhileRead: a file that somebody has open is opened for writing and changed while something in the daemon reads the
// cache's file of it for a while. Who has it open sees the change.
func TestTakenWhileRead(t *testing.T) {
	for _, pass := range []bool{true, false} {
		t.Run(fmt.Sprintf("passthrough=%v", pass), func(t *testing.T) {
			p, _ := writing(t, pass)
			p.steps(t, "put a 1", "drain")
			r, err := p.openFile(t, "a", os.O_RDONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := r.all(); err != nil || string(b) != "1" {
				t.Fatalf("%q, %v", b, err)
			}
			e, err := p.walk("a")
			if err != nil {
				t.Fatal(err)
			}
			in, err := p.fs.inode(e.Node)
			if err != nil {
				t.Fatal(err)
			}
			ident, err := p.fs.identity(&in)
			if err != nil {
				t.Fatal(err)
			}
			obj, err := p.fs.cache.Object(context.Background(), ident, p.fs.store)
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(700*time.Millisecond, obj.Release)
			p.steps(t, "append a 2")
			if b, err := r.all(); err != nil || string(b) != "12" {
				t.Errorf("who has it open reads %q, %v", b, err)
			}
			r.close()
			p.wantBucket(t, map[string]string{"a": "12"})
		})
	}
}

// TestCompleteWhileRead: that the daemon reads a file for somebody, again and again, does not keep it from being complete once it is
// closed.
func TestCompleteWhileRead(t *testing.T) {
	p, _ := writing(t, false)
	w, err := p.openFile(t, "a", os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.write(t, 0, []byte("1")); err != nil {
		t.Fatal(err)
	}
	r, err := p.openFile(t, "a", os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var reader sync.WaitGroup
	for range 4 {
		reader.Go(func() {
			for ctx.Err() == nil {
				if b, err := r.read(0, 10); err != nil || string(b) != "1" {
					t.Errorf("%q, %v", b, err)
					return
				}
			}
		})
	}
	ino := r.node.Ino()
	w.close()
	held := false
	within(t, "the file is complete", func() bool {
		p.fs.publisher.mu.Lock()
		_, again := p.fs.publisher.again[ino]
		p.fs.publisher.mu.Unlock()
		held = held || again
		_, ok := bucket(t, p.store)["a"]
		return ok
	})
	stop()
	reader.Wait()
	r.close()
	if held {
		t.Error("it was taken for one that somebody has mapped for writing")
	}
}
