package fs

import (
	"context"
	"os"
	"testing"
	"time"
)

// The kernel has a file open below for a moment after it has told of the last close. Such a file is
// complete all the same, before what is closed later; one that stays open is not.
func TestCompleteRightAfterClose(t *testing.T) {
	r := newRig(t, t.TempDir(), true)
	r.start(t)
	defer r.stop(t)
	e, o, err := r.fs.Create(context.Background(), RootNode, "f", os.O_WRONLY, 0o644, Caller{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := r.db.Inode(r.fs.ino(e.Node))
	if err != nil {
		t.Fatal(err)
	}
	below, err := r.cache.OpenStage(in.Stage, os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	if writers, err := r.fs.stillWritten(in.Stage); err != nil || !writers {
		t.Errorf("a file that stays open: still written %v, %v", writers, err)
	}
	if _, err := below.WriteString("content"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	r.fs.Release(o.FH)
	time.Sleep(2 * time.Millisecond)
	if err := below.Close(); err != nil {
		t.Fatal(err)
	}
	for {
		d, err := r.db.Dirty(in.Ino)
		if err != nil || d.Seq != 0 {
			break // published, or to be
		}
		time.Sleep(100 * time.Microsecond)
	}
	if took := time.Since(start); took > mappedPoll/2 {
		t.Errorf("it was complete %v after it was closed", took)
	}
}
