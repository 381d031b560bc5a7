package fs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// counting makes a program over a store whose requests of one name are counted.
func counting(t *testing.T, pass bool, name string, set func(*rig)) (*program, *atomic.Int64) {
	t.Helper()
	n := new(atomic.Int64)
	r := newRig(t, t.TempDir(), pass)
	r.wrap = func(s objstore.Store) objstore.Store {
		return objstore.Around(s, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
			if op.Name == name {
				n.Add(1)
			}
			return call(ctx)
		})
	}
	if set != nil {
		set(r)
	}
	r.start(t)
	t.Cleanup(func() { r.stop(t) })
	return newProgram(r), n
}

// TestRenamedStaysCached: what is in the cache of a directory that is renamed is not fetched again, nor for
// what another process of the mount has open since before.
func TestRenamedStaysCached(t *testing.T) {
	for _, pass := range []bool{true, false} {
		t.Run(fmt.Sprint("passthrough=", pass), func(t *testing.T) {
			p, gets := counting(t, pass, "GET", nil)
			big := bytes.Repeat([]byte("0123456789abcdef"), 256<<10)
			p.store.Set("d/big", big)
			p.store.Set("d/sub/small", []byte("small"))
			want := map[string][]byte{"big": big, "sub/small": []byte("small")}
			look := func(dir string) {
				t.Helper()
				for name, data := range want {
					if b, err := p.get(t, dir+"/"+name); err != nil || !bytes.Equal(b, data) {
						t.Fatalf("%s/%s: %d bytes, %v", dir, name, len(b), err)
					}
				}
			}
			w, err := p.openFile(t, "d/big", os.O_RDONLY, 0) // served by the daemon, under the first generation
			if err != nil {
				t.Fatal(err)
			}
			look("d")
			look("d")
			before := gets.Load()
			p.steps(t, "mv d e", "drain")
			look("e")
			p.steps(t, "mv e f", "drain")
			look("f")
			p.takeOver(t)
			look("f")
			if got, err := w.all(); err != nil || !bytes.Equal(got, big) {
				t.Errorf("who has it open since the beginning: %d bytes, %v", len(got), err)
			}
			w.close()
			if n := gets.Load() - before; n != 0 {
				t.Errorf("%d GETs of what was here", n)
			}
		})
	}
}

// TestNoRoomForReaders: a removed object that is open, and does not fit into the cache, is deleted once it is
// closed; nothing else waits for that, and a new file of the same name does not either.
func TestNoRoomForReaders(t *testing.T) {
	p, _ := counting(t, false, "GET", func(r *rig) { r.room = 16 << 20 })
	p.store.Set("big", bytes.Repeat([]byte("x"), 40<<20))
	p.store.Set("also", bytes.Repeat([]byte("y"), 40<<20))
	var open []*wfile
	for _, name := range []string{"big", "also"} {
		w, err := p.openFile(t, name, os.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.read(0, 4096); err != nil {
			t.Fatal(err)
		}
		open = append(open, w)
	}
	p.steps(t, "rm big", "put other 1", "rm also", "put also 2")
	eventually := func(what string, ok func(map[string]string) bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			if ok(bucket(t, p.store)) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("in vain: %s", what)
			}
		}
	}
	eventually("what was written is published", func(b map[string]string) bool { return b["other"] == "1" && b["also"] == "2" })
	if got, err := open[0].read(30<<20, 4096); err != nil || len(got) != 4096 {
		t.Errorf("a read of what is removed, and not here: %d bytes, %v", len(got), err)
	}
	// Who wants to know whether all is done is told that it is not, and does not wait for the close.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if s, err := p.fs.Sync(ctx, nil); err != nil || s.Left.Deletes != 1 || s.Left.Files() != 0 {
		t.Errorf("sync: %+v, %v", s.Left, err)
	}
	open[0].close()
	open[1].close()
	if s, err := p.fs.Sync(ctx, nil); err != nil || s.Left.Total() != 0 {
		t.Errorf("sync after the close: %+v, %v", s.Left, err)
	}
	eventually("what is closed is deleted", func(b map[string]string) bool { _, there := b["big"]; return !there })
}
