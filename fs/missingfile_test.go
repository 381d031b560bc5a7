package fs

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestMissingFile: a cached file that is gone though the index says that it is there, as after a crash, or is found damaged,
// is fetched again: the object is read, and changed, as if it had never been here, also while the kernel has the file.
func TestMissingFile(t *testing.T) {
	for _, pass := range []bool{true, false} {
		for _, how := range []string{"read", "written", "open and written", "damaged and written"} {
			r := newRig(t, t.TempDir(), pass)
			r.store.Set("a", []byte("1"))
			r.start(t)
			p := newProgram(r)
			p.wantFile(t, "a", "1")
			p.stop(t)
			p.start(t)
			var w *wfile
			if how == "open and written" || how == "damaged and written" {
				var err error
				if w, err = p.openFile(t, "a", os.O_RDONLY, 0); err != nil {
					t.Fatal(err)
				}
			}
			file := cachedFile(t, r.dir)
			if how == "damaged and written" {
				if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := r.cache.Scrub(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			want := "1"
			if how != "read" {
				p.steps(t, "append a 2")
				want = "12"
			}
			p.wantFile(t, "a", want)
			if w != nil {
				w.close()
			}
			p.drain(t)
			p.wantFile(t, "a", want)
			p.wantBucket(t, map[string]string{"a": want})
			p.stop(t)
		}
	}
}

// TestRefetchedWhileTaken: what is written to a file that the kernel has open, and that was found damaged and fetched anew while it
// was opened for writing, goes to the new file.
func TestRefetchedWhileTaken(t *testing.T) {
	r := newRig(t, t.TempDir(), true)
	r.store.Set("a", []byte("1"))
	r.start(t)
	t.Cleanup(func() { r.stop(t) })
	p := newProgram(r)
	p.wantFile(t, "a", "1")
	p.stop(t)
	p.start(t)
	w, err := p.openFile(t, "a", os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	o := p.fs.open.get(w.node)
	if o == nil || !o.pass {
		t.Fatal("the kernel does not read it")
	}
	path := cachedFile(t, r.dir)
	if err := os.WriteFile(path, []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if err := r.cache.Scrub(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := o.obj.Fetch(t.Context()); err != nil || o.obj.ID() == o.file || o.obj.ID() == 0 {
		t.Fatal(err, o.obj.ID(), o.file)
	}
	// stage has looked at the file before that.
	end, err := p.fs.open.begin(t.Context(), w.node)
	if err != nil {
		t.Fatal(err)
	}
	in := o.inode
	_, err = p.fs.stageTaken(t.Context(), &in, o, true)
	end(err)
	p.fs.completeSoon(w.node.Ino())
	p.steps(t, "append a 2")
	p.wantFile(t, "a", "12")
	p.wantBucket(t, map[string]string{"a": "12"})
}

// cachedFile is the only file of an object in a cache.
func cachedFile(t *testing.T, dir string) (file string) {
	t.Helper()
	hit := 0
	if err := filepath.WalkDir(filepath.Join(dir, "objects"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			file = path
			hit++
		}
		return err
	}); err != nil || hit != 1 {
		t.Fatal(err, hit)
	}
	return file
}
