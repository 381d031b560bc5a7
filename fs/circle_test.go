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

// TestLabelledWhileRemoved: the label of a directory that is being written while that is removed does not stay.
func TestLabelledWhileRemoved(t *testing.T) {
	p, _ := writing(t, true)
	p.steps(t, "mkdir d")
	e, err := p.walk("d")
	if err != nil {
		t.Fatal(err)
	}
	in, err := p.db.Inode(e.Node.Ino())
	if err != nil {
		t.Fatal(err)
	}
	unlock := p.fs.labels.lock(in.Ino)
	removed := make(chan error, 1)
	go func() { removed <- p.rmdir(t, "d") }()
	within(t, "it has no name", func() bool {
		now, err := p.db.Inode(in.Ino)
		return err == nil && now.Flags&meta.Removed != 0
	})
	time.Sleep(20 * time.Millisecond) // it waits for who writes the label
	root, err := p.db.Inode(in.Parent)
	if err != nil {
		t.Fatal(err)
	}
	err = p.cache.LabelDir(uint64(in.Ino), p.fs.label(&root, &in))
	unlock()
	if err := errors.Join(err, <-removed); err != nil {
		t.Fatal(err)
	}
	p.wantBucket(t, nil)
}
