package file

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/leatfs/leatfs/objstore"
)

// TestOpenLater: a directory that is away makes requests fail, and is used as soon as it is back.
func TestOpenLater(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "src")
	s, err := OpenLater(dir, Known{})
	if err != nil {
		t.Fatal(err)
	}
	if want := "file://" + dir; s.String() != want {
		t.Errorf("it is named %q, not %q", s, want)
	}
	if _, err := s.List(ctx, objstore.ListOptions{}); objstore.KindOf(err) != objstore.Unavailable {
		t.Errorf("a listing while it is away: %v", err)
	}
	if _, err := s.Get(ctx, "f", objstore.GetOptions{Length: -1}); objstore.KindOf(err) != objstore.Unavailable {
		t.Errorf("a read while it is away: %v", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := s.Get(ctx, "f", objstore.GetOptions{Length: -1})
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r.Body)
	if err != nil || !bytes.Equal(got, []byte("text")) {
		t.Errorf("it reads %q, %v", got, err)
	}
	if err := r.Body.Close(); err != nil {
		t.Error(err)
	}
	o, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if s.Caps() != o.Caps() {
		t.Errorf("its capabilities are %+v, not %+v", s.Caps(), o.Caps())
	}
	a, aerr := s.Head(ctx, "f", objstore.HeadOptions{})
	b, berr := o.Head(ctx, "f", objstore.HeadOptions{})
	if aerr != nil || berr != nil || a.ETag != b.ETag {
		t.Errorf("the version is %q (%v), and %q (%v) opened at once", a.ETag, aerr, b.ETag, berr)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}

	never, err := OpenLater(filepath.Join(dir, "none"), Known{})
	if err != nil {
		t.Fatal(err)
	}
	if err := never.Close(); err != nil {
		t.Error(err)
	}
	if _, err := never.List(ctx, objstore.ListOptions{}); objstore.KindOf(err) != objstore.Canceled {
		t.Errorf("a listing after the end: %v", err)
	}
}

// TestOpenLaterOther: another directory in the place of the one that was open is not taken for it.
func TestOpenLaterOther(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "src")
	mkdir := func() {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mkdir()
	o, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	known, err := o.Known()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	mkdir()
	s, err := OpenLater(dir, known)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.List(ctx, objstore.ListOptions{}); objstore.KindOf(err) != objstore.Unavailable {
		t.Errorf("a listing of another directory: %v", err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	if _, err := s.List(ctx, objstore.ListOptions{}); err != nil {
		t.Errorf("a listing when it is back: %v", err)
	}
}
