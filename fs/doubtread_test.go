package fs

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// TestRemovedInDoubt: who has a file open reads it to the end when it is removed, also where what is in the cache of it is in doubt
// after a power cut, and turns out to be damaged.
func TestRemovedInDoubt(t *testing.T) {
	for _, pass := range []bool{true, false} {
		r := newRig(t, t.TempDir(), pass)
		data := bytes.Repeat([]byte("0123456789abcdef"), 32<<10)
		r.store.Set("a", data)
		r.start(t)
		p := newProgram(r)
		if b, err := p.get(t, "a"); err != nil || !bytes.Equal(b, data) {
			t.Fatal(len(b), err)
		}
		p.stop(t)
		// Another run of the machine: nothing is known to be on the disk, and something is not.
		db, err := meta.Open(meta.Options{Dir: filepath.Join(r.dir, "index"), NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Apply(cache.Batch{Vars: map[string][]byte{"cache/boot": []byte("another"), "cache/synced": make([]byte, 8)}, Needed: true}); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		hit := 0
		if err := filepath.WalkDir(filepath.Join(r.dir, "objects"), func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			hit++
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			if _, err := f.WriteAt([]byte("torn"), 300_000); err != nil {
				return err
			}
			return f.Close()
		}); err != nil || hit != 1 {
			t.Fatal(err, hit)
		}
		p.start(t)
		w, err := p.openFile(t, "a", os.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		p.steps(t, "rm a", "drain")
		p.wantBucket(t, map[string]string{})
		if b, err := w.all(); err != nil || !bytes.Equal(b, data) {
			t.Errorf("passthrough=%v: who has it open reads %d bytes, %v", pass, len(b), err)
		}
		w.close()
		p.stop(t)
	}
}
