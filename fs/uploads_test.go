package fs

import (
	"os"
	"slices"
	"testing"

	"github.com/leatfs/leatfs/objstore"
)

// TestGrowthWhilePublished: a file that is opened again while it is published, and grows, is uploaded meanwhile; that the content
// before has landed does not end that, nor make it unknown.
func TestGrowthWhilePublished(t *testing.T) {
	for _, lose := range []bool{false, true} {
		p, o := writing(t, true)
		o.shut()
		p.steps(t, "put a 1")
		o.waitHeld(t, "PUT a")
		w, err := p.openFile(t, "a", os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.write(t, growMin, []byte("!")); err != nil {
			t.Fatal(err)
		}
		o.waitHeld(t, "CREATE MULTIPART a")
		o.open()
		began := func() string {
			d, err := p.db.Dirty(w.node.Ino())
			if err != nil {
				t.Fatal(err)
			}
			return d.Upload.ID
		}
		within(t, "the first content landed, and the second is being uploaded", func() bool {
			in, err := p.fs.inode(w.node)
			return err == nil && in.Object.ETag != "" && len(p.store.Uploads()) == 1
		})
		within(t, "the upload is known", func() bool { return began() != "" || len(aborts(t, p)) > 0 })
		if all := aborts(t, p); len(all) > 0 {
			t.Errorf("to be aborted while the file is open: %q", all)
		}
		if lose {
			o.fates(func(op objstore.Op) fate {
				if op.Name == "COMPLETE MULTIPART" {
					o.away = true // by mu
					return lost
				}
				return carriedOut
			})
			w.close()
			within(t, "it is published, and nobody knows", func() bool { return slices.Contains(o.took(), "COMPLETE MULTIPART a") })
			p.takeOver(t)
			o.fates(nil)
			o.leave(false)
			p.steps(t, "append a ?")
			p.drain(t)
			if have := bucket(t, p.store); len(have) != 1 || len(have["a"]) != growMin+2 {
				t.Errorf("the bucket holds %s", keysOf(have))
			}
			p.wantClean(t)
			continue
		}
		w.close()
		p.drain(t)
		p.wantClean(t)
		n := 0
		for _, s := range o.took() {
			if s == "CREATE MULTIPART a" {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d uploads were begun", n)
		}
	}
}

func aborts(t *testing.T, p *program) (out []string) {
	t.Helper()
	all, err := p.db.Aborts()
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range all {
		out = append(out, u.Key+" "+u.ID)
	}
	return out
}

// TestUploadOfWhatShrank: the upload of a large file that became a small one is aborted, also when the process that began it is
// gone.
func TestUploadOfWhatShrank(t *testing.T) {
	p, _ := writing(t, true)
	w, err := p.openFile(t, "a", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.write(t, growMin, []byte("!")); err != nil {
		t.Fatal(err)
	}
	within(t, "it is being uploaded", func() bool { return len(p.store.Uploads()) == 1 })
	within(t, "that is noted", func() bool { d, err := p.db.Dirty(w.node.Ino()); return err == nil && d.Upload.ID != "" })
	if err := w.truncate(t, 3); err != nil {
		t.Fatal(err)
	}
	p.takeOver(t)
	w.close()
	p.wantBucket(t, map[string]string{"a": "\x00\x00\x00"})
}
