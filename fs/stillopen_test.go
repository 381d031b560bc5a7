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
