package fs

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// TestWrittenWhilePublished: what is published by fsync while somebody has the file open, and is written to after
// it was read without that its time shows it (a page that is dirty already, a time that was set, a clock that
// ticks coarsely), is published again, though it is closed when the first one lands.
func TestWrittenWhilePublished(t *testing.T) {
	for _, pass := range []bool{true, false} {
		sent, answer := make(chan struct{}, 10), make(chan struct{})
		r := newRig(t, t.TempDir(), pass)
		r.opt.Policies = []Policy{{Pattern: "*", FsyncRemote: true}}
		r.wrap = func(s objstore.Store) objstore.Store {
			return objstore.Around(s, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
				err := call(ctx)
				if op.Name == "PUT" {
					sent <- struct{}{}
					<-answer
				}
				return err
			})
		}
		r.start(t)
		p := newProgram(r)
		w, err := p.openFile(t, "a", os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		mtime := time.Unix(1234567890, 987).UnixNano()
		write := func(data string) {
			if err := w.write(t, 0, []byte(data)); err != nil {
				t.Fatal(err)
			}
			if err := p.setattr(t, "a", SetAttr{MTime: &mtime}); err != nil {
				t.Fatal(err)
			}
		}
		write("1")
		synced := make(chan error, 1)
		go func() { synced <- r.fs.Fsync(context.Background(), w.node, w.o.FH, false) }()
		<-sent
		write("2")
		r.fs.publisher.turn.Lock() // the completer is late
		w.close()
		close(answer)
		err = <-synced
		r.fs.publisher.turn.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		r.wantBucket(t, map[string]string{"a": "2"})
		if got, err := p.get(t, "a"); string(got) != "2" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		r.stop(t)
	}
}

// TestFsyncRemoteOvertaken: fsync that promises the bucket does not return before the bucket has it, though somebody
// else opens the file for writing meanwhile, so that what was under way is given up.
func TestFsyncRemoteOvertaken(t *testing.T) {
	o := newOrigin()
	r := newRig(t, t.TempDir(), true)
	r.opt.Policies = []Policy{{Pattern: "*", FsyncRemote: true}}
	r.wrap = o.wrap
	r.start(t)
	defer r.stop(t)
	defer o.open()
	p := newProgram(r)
	data := string(pattern(17<<20, 1))
	w, err := p.openFile(t, "a", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	if err := w.write(t, 0, []byte(data)); err != nil {
		t.Fatal(err)
	}
	synced := make(chan error, 1)
	has := ""
	o.shut()
	go func() {
		err := r.fs.Fsync(context.Background(), w.node, w.o.FH, false)
		has = bucket(t, r.store)["a"]
		synced <- err
	}()
	o.waitHeld(t, "CREATE MULTIPART a")
	v, err := p.openFile(t, "a", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer v.close()
	select {
	case err := <-synced:
		t.Fatalf("fsync returned %v, and the bucket holds %d bytes", err, len(has))
	case <-time.After(3 * time.Second):
	}
	o.open()
	if err := <-synced; err != nil || has != data {
		t.Errorf("fsync returned %v, and the bucket held %d bytes", err, len(has))
	}
}
