package fs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

// TestReadWhileAdopted: who reads a file, or asks for its size, while it comes to be an object is told nothing else.
func TestReadWhileAdopted(t *testing.T) {
	for _, pass := range []bool{true, false} {
		t.Run(fmt.Sprintf("passthrough=%v", pass), func(t *testing.T) {
			p, _ := writing(t, pass)
			data := bytes.Repeat([]byte("0123456789"), 1000)
			stop := time.Now().Add(2 * time.Second)
			var tasks sync.WaitGroup
			for g := range 4 {
				tasks.Go(func() {
					own := newProgram(p.rig)
					own.unique = uint64(g+1) << 40
					for i := 0; time.Now().Before(stop) && !t.Failed(); i++ {
						name := fmt.Sprint("f", g, "-", i)
						w, err := own.openFile(t, name, os.O_CREATE|os.O_WRONLY, 0o644)
						if err == nil {
							err = w.write(t, 0, data)
						}
						if err != nil {
							t.Errorf("%s: %v", name, err)
							return
						}
						r, err := own.openFile(t, name, os.O_RDONLY, 0)
						if err != nil {
							t.Errorf("%s: %v", name, err)
							return
						}
						w.close()
						for published := 0; published < 3; {
							if got, err := r.read(0, int64(len(data))); err != nil || !bytes.Equal(got, data) {
								t.Errorf("%s: %d bytes, %v", name, len(got), err)
								break
							}
							if a, _, err := p.fs.Getattr(context.Background(), r.node); err != nil || a.Size != int64(len(data)) {
								t.Errorf("%s: %d bytes, %v", name, a.Size, err)
								break
							}
							if in, err := p.fs.inode(r.node); err != nil || in.Stage == 0 {
								published++
							}
						}
						r.close()
					}
				})
			}
			tasks.Wait()
		})
	}
}

// TestRenamedWhileStaged: a file that is renamed while it is opened for writing has the new name on its label too.
func TestRenamedWhileStaged(t *testing.T) {
	p, _ := writing(t, true)
	p.steps(t, "put a 1", "drain")
	e, err := p.walk("a")
	if err != nil {
		t.Fatal(err)
	}
	in, err := p.fs.inode(e.Node)
	if err != nil {
		t.Fatal(err)
	}
	id, file, err := p.cache.NewStage(p.fs.label(&p.fs.root, &in))
	if err != nil {
		t.Fatal(err)
	}
	closeFile(file)
	p.steps(t, "mv a b")
	if _, err := p.fs.staged(&in, id, 0, false); err != nil {
		t.Fatal(err)
	}
	if l, err := p.cache.StageLabel(id); err != nil || l.Name != "b" {
		t.Errorf("the label says %q, %v", l.Name, err)
	}
	p.fs.completeSoon(in.Ino)
	p.wantBucket(t, map[string]string{"b": ""})
}
