package fs

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/publish"
	"github.com/leatfs/leatfs/objstore"
)

// seqOf is the place of a file in the order, 0 when it is not complete or has been published.
func (p *program) seqOf(t *testing.T, name string) uint64 {
	t.Helper()
	e, err := p.walk(name)
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.db.Dirty(e.Node.Ino())
	if err := absent(err); err != nil {
		t.Fatal(err)
	}
	return d.Seq
}

// TestKeepsItsPlace: a file that was opened again, changed and closed while its first content was published keeps the place
// that it got by that close, whatever became of the publication: what was complete after it is not published before.
func TestKeepsItsPlace(t *testing.T) {
	for _, what := range []string{"landed", "changed"} {
		t.Run(what, func(t *testing.T) {
			sent, answer := make(chan string, 10), make(chan struct{})
			var mu sync.Mutex
			var order []string
			r := newRig(t, t.TempDir(), true)
			r.wrap = func(s objstore.Store) objstore.Store {
				return objstore.Around(s, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
					err := call(ctx)
					if op.Name == "PUT" {
						mu.Lock()
						order = append(order, op.Key)
						mu.Unlock()
						sent <- op.Key
						<-answer
					}
					return err
				})
			}
			r.start(t)
			p := newProgram(r)
			p.steps(t, "put data.bin 1")
			<-sent
			before, ok, err := p.fs.look(p.ino(t, "data.bin"), p.seqOf(t, "data.bin"))
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			p.steps(t, "append data.bin 2", "put _SUCCESS 3")
			p.fs.completeClosed()
			data, marker := p.seqOf(t, "data.bin"), p.seqOf(t, "_SUCCESS")
			if data == 0 || data >= marker {
				t.Fatalf("places %d, %d", data, marker)
			}
			if what == "changed" {
				_ = p.fs.refused(t.Context(), &before, publish.ErrChanged)
			} else {
				answer <- struct{}{}
				<-sent // the second content
			}
			p.fs.completeClosed()
			if now := p.seqOf(t, "data.bin"); now != data {
				t.Errorf("its place is %d, was %d; what was complete after it is at %d", now, data, marker)
			}
			close(answer)
			r.wantBucket(t, map[string]string{"data.bin": "12", "_SUCCESS": "3"})
			if i, j := slices.Index(order, "_SUCCESS"), lastIndex(order, "data.bin"); i < j {
				t.Errorf("published in this order: %q", order)
			}
			r.stop(t)
		})
	}
}

func lastIndex(all []string, of string) int {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i] == of {
			return i
		}
	}
	return -1
}

func (p *program) ino(t *testing.T, name string) meta.Ino {
	t.Helper()
	e, err := p.walk(name)
	if err != nil {
		t.Fatal(err)
	}
	return e.Node.Ino()
}

// TestFsyncKeepsThePlace: fsync by somebody who only reads a file that waits does not put it behind what was complete after it.
func TestFsyncKeepsThePlace(t *testing.T) {
	for _, how := range []string{"fsync", "takeover and fsync"} {
		p, o := writing(t, true)
		p.fs.opt.Policies = []Policy{{Pattern: "*", FsyncRemote: true}}
		o.fates(func(objstore.Op) fate { return refused })
		p.steps(t, "put data.bin 1", "put _SUCCESS 2")
		if strings.HasPrefix(how, "takeover") {
			p.takeOver(t)
			p.fs.opt.Policies = []Policy{{Pattern: "*", FsyncRemote: true}}
		}
		w, err := p.openFile(t, "data.bin", os.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.fs.Fsync(t.Context(), w.node, w.o.FH, false); err == nil {
			t.Error("fsync promised the bucket, which refuses everything")
		}
		w.close()
		o.fates(nil)
		p.wantBucket(t, map[string]string{"data.bin": "1", "_SUCCESS": "2"})
		if got := o.took(); !slices.Equal(got, []string{"PUT data.bin", "PUT _SUCCESS"}) {
			t.Errorf("%s: published in this order: %q", how, got)
		}
	}
}

// TestOrderAfterTakeover: what the process before left is published in the order in which it was complete, whichever of it
// this one comes to know first; also when that process had not come to note that it was closed.
func TestOrderAfterTakeover(t *testing.T) {
	for _, how := range []string{"complete", "closed", "complete, and closed after it"} {
		t.Run(how, func(t *testing.T) {
			p, o := writing(t, true)
			p.steps(t, "mkdir d", "mkdir e", "put d/latest 1", "drain")
			o.took()
			o.fates(func(objstore.Op) fate { return refused })
			want := map[string]string{"d/": "", "e/": ""}
			var all []string
			put := func(name string) {
				p.steps(t, "put "+name+" 2")
				want[name] = "2"
				all = append(all, name)
			}
			for i := range 400 {
				put(fmt.Sprintf("e/other-%03d.bin", i))
			}
			put("d/data.bin")
			time.Sleep(20 * time.Millisecond) // files on a disk have coarse times
			put("d/latest")
			p.fs.completeClosed()
			switch how {
			case "closed":
				p.unnoted(t, all)
			case "complete, and closed after it":
				p.unnoted(t, all[len(all)-1:])
			}
			p.leave(t)
			o.fates(nil)
			p.start(t)
			p.wantBucket(t, want)
			got := o.took()
			if at := slices.Index(got, "PUT d/latest"); at < 0 || at < slices.Index(got, "PUT d/data.bin") {
				t.Errorf("the file that was closed last was published after %d of %d, before the other in its directory", at, len(got)-1)
			}
		})
	}
}

// unnoted makes files what they are before their close is noted.
func (p *program) unnoted(t *testing.T, files []string) {
	t.Helper()
	for _, name := range files {
		ino := p.ino(t, name)
		p.fs.unqueue(ino)
		if err := p.db.Do(func(tx *meta.Tx) error {
			d, err := tx.Dirty(ino)
			if err != nil {
				return err
			}
			d.Seq = 0
			return tx.SetDirty(&d)
		}); err != nil {
			t.Fatal(err)
		}
	}
}
