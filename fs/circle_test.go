package fs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
)

// TestFetchSourceStopped: a file that is to be fetched, since something else is to be put under its key, goes on being
// published when who asks for that is stopped while it waits.
func TestFetchSourceStopped(t *testing.T) {
	p, _ := writing(t, true)
	p.steps(t, "put a.tmp 1", "drain")
	p.steps(t, "append a.tmp 2")
	e, err := p.walk("a.tmp")
	if err != nil {
		t.Fatal(err)
	}
	// It waits, since it may get another name.
	within(t, "it is complete", func() bool {
		d, err := p.db.Dirty(e.Node.Ino())
		return err == nil && d.Seq != 0 && len(p.fs.publisher.queue.Snapshot()) > 0
	})
	end, err := p.fs.open.begin(t.Context(), e.Node)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := p.fs.fetchSource(ctx, e.Node.Ino(), "a.tmp"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it was stopped", err)
	}
	end(nil)
	p.fs.publisher.queue.HastenAll()
	if err := p.fs.publisher.queue.Wait(t.Context(), uint64(e.Node.Ino())); err != nil {
		t.Fatal(err)
	}
	if d, err := p.db.Dirty(e.Node.Ino()); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("it has left the queue, and is not published: %+v, %v", d, err)
	}
	p.wantBucket(t, map[string]string{"a.tmp": "12"})
}

// TestForgottenWhileStaged: nothing stays of a file that is given a staging file, for it to be published, while its name is removed.
func TestForgottenWhileStaged(t *testing.T) {
	p, _ := writing(t, true)
	p.steps(t, "put a 1", "drain")
	e, err := p.walk("a")
	if err != nil {
		t.Fatal(err)
	}
	end, err := p.fs.open.begin(t.Context(), e.Node)
	if err != nil {
		t.Fatal(err)
	}
	removed := make(chan error, 1)
	go func() { removed <- p.unlink(t, "a") }()
	var in meta.Inode
	within(t, "it has no name", func() bool {
		in, err = p.db.Inode(e.Node.Ino())
		return err == nil && in.Flags&meta.Removed != 0
	})
	time.Sleep(20 * time.Millisecond) // it waits for who has the node now
	_, err = p.fs.stage(t.Context(), e.Node, &in, false)
	end(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-removed; err != nil {
		t.Fatal(err)
	}
	if d, err := p.db.Dirty(e.Node.Ino()); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("%+v, %v", d, err)
	}
	if ids, err := p.cache.StageIDs(); err != nil || len(ids) > 0 {
		t.Errorf("staging files %v, %v", ids, err)
	}
	p.wantBucket(t, nil)
}
