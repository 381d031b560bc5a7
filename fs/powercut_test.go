package fs

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// keepIndex copies the index as it is at this moment. What it returns puts the copy in the place of what there is then, as
// after a power cut that took what came later.
func (r *rig) keepIndex(t *testing.T) (restore func()) {
	t.Helper()
	index, kept := filepath.Join(r.dir, "index"), t.TempDir()
	if err := fs.WalkDir(os.DirFS(index), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path == "spare":
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(kept, path), 0o700)
		}
		b, err := os.ReadFile(filepath.Join(index, path))
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(kept, path), b, 0o600)
	}); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.RemoveAll(index); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(index, os.DirFS(kept)); err != nil {
			t.Fatal(err)
		}
		anotherBoot(t, index)
	}
}

// anotherBoot makes an index one of another run of the machine.
func anotherBoot(t *testing.T, index string) {
	t.Helper()
	db, err := meta.Open(meta.Options{Dir: index, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Apply(cache.Batch{Vars: map[string][]byte{varBoot: []byte("another")}, Needed: true}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// loseIndex removes the index.
func (r *rig) loseIndex(t *testing.T) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(r.dir, "index")); err != nil {
		t.Fatal(err)
	}
}

// synced writes to a file and has it synced.
func (w *wfile) synced(t *testing.T, off int64, data string) {
	t.Helper()
	if err := w.write(t, off, []byte(data)); err != nil {
		t.Fatal(err)
	}
	if err := w.p.fs.Fsync(context.Background(), w.node, w.o.FH, false); err != nil {
		t.Fatal(err)
	}
}

// keepStage copies the staging file of a path, with its label. What it returns puts the copy where it was.
func (p *program) keepStage(t *testing.T, file string) (restore func()) {
	t.Helper()
	dir, name, err := p.at(file)
	if err != nil {
		t.Fatal(err)
	}
	in, err := p.db.Lookup(p.fs.ino(dir), name)
	if err != nil || in.Stage == 0 {
		t.Fatalf("%s: staging file %d, %v", file, in.Stage, err)
	}
	at := filepath.Join(p.dir, "staging", fmt.Sprintf("%016x", uint64(in.Stage)))
	kept := filepath.Join(t.TempDir(), "stage")
	cp := func(from, to string) {
		t.Helper()
		if out, err := exec.Command("cp", "-a", "--sparse=auto", from, to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	cp(at, kept)
	return func() { t.Helper(); cp(kept, at) }
}

// TestCutKeepsWhatLanded: what was published stays in the bucket when the power is cut before the index has that on the disk: also
// where something that may have come to the same key before was to be deleted.
func TestCutKeepsWhatLanded(t *testing.T) {
	p, o := writing(t, true)
	p.steps(t, "mkdir d", "put d/other 0", "drain")
	o.leave(true)
	f := func() (d meta.Dirty) {
		if e, err := p.walk("d/f"); err == nil {
			d, _ = p.db.Dirty(e.Node.Ino())
		}
		return d
	}
	p.steps(t, "put d/f 1")
	within(t, "f is tried", func() bool { return newest(f().Token) != "" })
	p.steps(t, "mv d/f d/g", "put d/f 2")
	within(t, "f is complete again", func() bool { return f().Seq != 0 })
	want := map[string]string{"d/": "", "d/f": "2", "d/g": "1", "d/other": "0"}
	restore := p.keepIndex(t)
	o.leave(false)
	p.wantBucket(t, want)
	p.stop(t)
	restore()
	p.start(t)
	p.wantBucket(t, want)
	p.wantFile(t, "d/f", "2")
	p.wantFile(t, "d/g", "1")
}

// TestCutKeepsWhatWasToBeReplaced: an object that a file was to take the place of stays when the power cut has taken that file.
func TestCutKeepsWhatWasToBeReplaced(t *testing.T) {
	for _, linked := range []bool{false, true} {
		p, o := writing(t, true)
		p.steps(t, "put f old", "put l old", "drain")
		o.shut()
		p.steps(t, "put f.tmp new", "mv f.tmp f")
		if linked {
			p.steps(t, "rm l", "ln f l")
		}
		restore := p.keepIndex(t)
		p.stop(t)
		restore()
		ids, err := filepath.Glob(filepath.Join(p.dir, "staging", strings.Repeat("[0-9a-f]", 16)))
		if err != nil || len(ids) != 1 {
			t.Fatalf("%q, %v", ids, err)
		}
		if err := os.Remove(ids[0]); err != nil {
			t.Fatal(err)
		}
		o.open()
		p.start(t)
		p.wantBucket(t, map[string]string{"f": "old", "l": "old"})
		p.wantFile(t, "f", "old")
		p.wantFile(t, "l", "old")
	}
}

// TestCutAfterKilledRmdir: a directory stays removed after a power cut, though who removed it was killed before its label was
// gone, and the index has forgotten it since.
func TestCutAfterKilledRmdir(t *testing.T) {
	p, o := writing(t, true)
	o.shut()
	p.steps(t, "mkdir d")
	var l cache.StageLabel
	if err := p.cache.WalkDirLabels(func(x cache.StageLabel) bool { l = x; return false }); err != nil || l.Name != "d" {
		t.Fatalf("%+v, %v", l, err)
	}
	p.steps(t, "rmdir d")
	if err := p.cache.LabelDir(l.Ino, l); err != nil { // as if it had come no further
		t.Fatal(err)
	}
	p.takeOver(t)
	time.Sleep(100 * time.Millisecond)
	if n, err := p.db.Purge(time.Now().Add(time.Hour).UnixNano(), 1000, nil); err != nil || n == 0 {
		t.Fatalf("%d purged, %v", n, err)
	}
	p.stop(t)
	anotherBoot(t, filepath.Join(p.dir, "index"))
	o.open()
	p.start(t)
	p.wantBucket(t, nil)
	if got, err := p.list("", 100); err != nil || len(got) > 0 {
		t.Errorf("%q, %v", got, err)
	}
}

// TestCutAfterOverlayLanded: a large file that is changed in part was published, and the power is cut before anything here has that
// on the disk; with the index, and without one. What was synced is under its name, whole, also what was written after that.
func TestCutAfterOverlayLanded(t *testing.T) {
	for _, index := range []string{"older", "lost"} {
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s again %v", index, again), func(t *testing.T) {
				data := pattern(overlaid, 1)
				p, o := overlaying(t, slices.Clone(data))
				o.shut()
				w, err := p.openFile(t, "big", os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				w.synced(t, 1<<20+10, "first")
				copy(data[1<<20+10:], "first")
				w.close()
				select {
				case <-o.held:
				case <-time.After(30 * time.Second):
					t.Fatal("nothing is uploaded")
				}
				landed := string(data)
				if again {
					w = p.change(t, "big", 1<<19+3, []byte("sec"))
					w.synced(t, 1<<19+6, "ond")
					copy(data[1<<19+3:], "second")
				}
				restoreIndex, restore := p.keepIndex(t), p.keepStage(t, "big")
				o.open()
				within(t, "it is in the bucket", func() bool { return bucket(t, p.store)["big"] == landed })
				if again {
					time.Sleep(50 * time.Millisecond)
					o.shut()
					w.close()
				} else {
					p.drain(t)
				}
				p.stop(t)
				if have := bucket(t, p.store); have["big"] != landed {
					t.Fatal("the second change is in the bucket too")
				}
				restore()
				if restoreIndex(); index == "lost" {
					p.loseIndex(t)
				}
				p.start(t)
				if w, err = p.openFile(t, "big", os.O_RDONLY, 0); err != nil {
					t.Fatal(err)
				}
				w.want(t, data)
				w.close()
				o.open()
				within(t, "it is in the bucket", func() bool { return bucket(t, p.store)["big"] == string(data) })
				if l, err := p.fs.Ledger(10); err != nil || l.Held > 0 {
					t.Errorf("%+v, %v", l, err)
				}
				p.wantBucket(t, map[string]string{"big": string(data)})
			})
		}
	}
}

// TestCutAfterEarlierContentLanded: what was synced while the content before it was published is under its name when the index is lost,
// and not beside its own earlier content as somebody else's.
func TestCutAfterEarlierContentLanded(t *testing.T) {
	for _, index := range []string{"older", "lost"} {
		t.Run(index, func(t *testing.T) {
			p, o := writing(t, true)
			p.steps(t, "put f 1", "drain")
			o.shut()
			p.steps(t, "append f 2")
			o.waitHeld(t, "PUT f")
			w, err := p.openFile(t, "f", os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			w.synced(t, 2, "3")
			restoreIndex, restore := p.keepIndex(t), p.keepStage(t, "f")
			o.open()
			within(t, "it is in the bucket", func() bool { return bucket(t, p.store)["f"] == "12" })
			time.Sleep(50 * time.Millisecond)
			o.shut()
			w.close()
			p.stop(t)
			restore()
			if restoreIndex(); index == "lost" {
				p.loseIndex(t)
			}
			p.start(t)
			o.open()
			p.wantBucket(t, map[string]string{"f": "123"})
			p.wantFile(t, "f", "123")
		})
	}
}

// TestCutWithoutLabel: a file that the index knows, and of which the label cannot be read, as after a copy of the cache directory
// without extended attributes, is under the name that the index says, and held.
func TestCutWithoutLabel(t *testing.T) {
	p, o := writing(t, true)
	p.steps(t, "mkdir d", "put d/f 1", "drain")
	o.shut()
	p.steps(t, "append d/f 2", "put d/g 3")
	var files []string
	for _, name := range []string{"f", "g"} {
		dir, err := p.walk("d")
		if err != nil {
			t.Fatal(err)
		}
		in, err := p.db.Lookup(dir.Node.Ino(), name)
		if err != nil {
			t.Fatal(err)
		}
		within(t, "it is complete", func() bool {
			d, err := p.db.Dirty(in.Ino)
			return err == nil && d.Seq != 0
		})
		files = append(files, filepath.Join(p.dir, "staging", fmt.Sprintf("%016x", uint64(in.Stage))))
	}
	restore := p.keepIndex(t)
	p.stop(t)
	restore()
	for _, file := range files {
		if err := unix.Removexattr(file, "user.leatfs.stage"); err != nil {
			t.Fatal(err)
		}
	}
	p.start(t)
	if l, err := p.fs.Ledger(10); err != nil || l.Held != 2 {
		t.Errorf("%+v, %v", l, err)
	}
	p.wantFile(t, "d/f", "12")
	p.wantFile(t, "d/g", "3")
	o.open()
	if n, err := p.fs.Retry(t.Context(), ""); err != nil || n == 0 {
		t.Fatalf("%d, %v", n, err)
	}
	p.wantBucket(t, map[string]string{"d/": "", "d/f": "12", "d/g": "3"})
}
