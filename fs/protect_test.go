package fs

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/leatfs/leatfs/objstore"
)

// TestProtectBelow: with Protect a directory in which there is somebody else's is not renamed.
func TestProtectBelow(t *testing.T) {
	r := newLedgerRig(t)
	r.opt.Protect = true
	r.begin()
	r.store.Set("d/e/theirs", []byte("theirs"))
	r.store.Set("empty/", nil)
	ctx := context.Background()
	if err := r.fs.Rmdir(ctx, RootNode, "empty"); !errors.Is(err, ErrProtected) {
		t.Errorf("rmdir of a directory that has an object: %v, want that it is refused", err)
	}
	if err := r.fs.Rename(ctx, RootNode, "empty", RootNode, "n", 0); !errors.Is(err, ErrProtected) {
		t.Errorf("rename of a directory that has an object: %v, want that it is refused", err)
	}
	for _, dir := range []string{"d", "d/e"} {
		if err := r.fs.Rename(ctx, r.dirOf(dir), dir[strings.LastIndexByte(dir, '/')+1:], RootNode, "n", 0); !errors.Is(err, ErrProtected) {
			t.Errorf("rename of %s: %v, want that it is refused", dir, err)
		}
	}
	r.clean()
	r.wantStored("d/e/theirs=theirs")
	if _, err := r.fs.Mkdir(ctx, RootNode, "ours", 0o755, Caller{}); err != nil {
		t.Fatal(err)
	}
	r.write("ours/f", "f")
	r.clean()
	r.rename("ours", "d/e/mine")
	r.clean()
	r.wantStored("d/e/mine/f=f", "d/e/theirs=theirs")
	r.unlink("d/e/mine/f")
	if err := r.fs.Rmdir(ctx, r.dirOf("d/e/x"), "mine"); err != nil {
		t.Error(err)
	}
	r.clean()
	r.wantStored("d/e/theirs=theirs")
	if _, err := r.store.Head(ctx, "empty/", objstore.HeadOptions{}); err != nil {
		t.Error(err)
	}
}
