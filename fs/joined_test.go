package fs

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
)

// TestJoined: who joins work that began before and fails does not get its error, unless the next
// try, one for all who joined, fails too, or the answer would be the same at every try.
func TestJoined(t *testing.T) {
	down := &objstore.Error{Op: "HEAD", Kind: objstore.Timeout}
	denied := &objstore.Error{Op: "HEAD", Kind: objstore.AccessDenied}
	for _, c := range []struct {
		name          string
		first, second error
		want          error
		tries         int
	}{
		{"well again", down, nil, nil, 2},
		{"dead", down, down, down, 2},
		{"denied", denied, nil, denied, 1},
		{"well", nil, down, nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var g singleflight.Group
				tries := 0
				work := func() (any, error) {
					tries++ // by one goroutine at a time
					if tries == 1 {
						time.Sleep(time.Second)
						return 1, c.first
					}
					time.Sleep(time.Second)
					return 2, c.second
				}
				go func() {
					if _, err := joined(&g, "k", work); err != c.first {
						t.Errorf("the first: %v, want %v", err, c.first)
					}
				}()
				synctest.Wait()
				for range 5 {
					go func() {
						v, err := joined(&g, "k", work)
						if !errors.Is(err, c.want) || err == nil && v != c.tries {
							t.Errorf("one that joined: %v, %v, want %v", v, err, c.want)
						}
					}()
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if tries != c.tries {
					t.Errorf("tried %d times, want %d", tries, c.tries)
				}
			})
		})
	}
}

// watched is a context that tells when somebody begins to wait under it.
type watched struct {
	context.Context
	once  sync.Once
	waits chan struct{}
}

func (w *watched) Done() <-chan struct{} {
	w.once.Do(func() { close(w.waits) })
	return w.Context.Done()
}

// TestRelistAfterAnOlderFailure: a name that is confirmed by the listing of its directory does not
// fail because it joined one that began when the origin was ill.
func TestRelistAfterAnOlderFailure(t *testing.T) {
	r := newRig(t, t.TempDir(), false)
	r.store.Set("d/f", []byte("x"))
	r.start(t)
	defer r.stop(t)
	e, err := r.walk("d")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := r.fs.dir(e.Node)
	if err != nil {
		t.Fatal(err)
	}
	ill := &listJob{began: r.fs.now(), done: make(chan struct{}), moved: make(chan struct{})}
	r.fs.lists = map[meta.Ino]*listJob{dir.Ino: ill}
	r.clock.Add(1)
	ctx := &watched{Context: t.Context(), waits: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- r.fs.relist(ctx, &dir) }()
	<-ctx.waits
	ill.err = &objstore.Error{Op: "LIST", Kind: objstore.Timeout}
	r.fs.listMu.Lock()
	delete(r.fs.lists, dir.Ino)
	r.fs.listMu.Unlock()
	close(ill.done)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
