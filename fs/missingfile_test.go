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
			hit := 0
			if err := filepath.WalkDir(filepath.Join(r.dir, "objects"), func(path string, e fs.DirEntry, err error) error {
				if err != nil || !e.Type().IsRegular() {
					return err
				}
				hit++
				if how == "damaged and written" {
					return os.WriteFile(path, []byte("x"), 0)
				}
				return os.Remove(path)
			}); err != nil || hit != 1 {
				t.Fatal(err, hit)
			}
			if how == "damaged and written" {
				if err := r.cache.Scrub(t.Context()); err != nil {
					t.Fatal(err)
				}
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
