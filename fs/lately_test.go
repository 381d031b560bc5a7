package fs

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// down is a store that can be told to fail every GET.
type down struct {
	objstore.Store
	failing atomic.Bool
	gets    atomic.Int64
}

func (d *down) Get(ctx context.Context, key string, opt objstore.GetOptions) (*objstore.Reader, error) {
	d.gets.Add(1)
	if d.failing.Load() {
		return nil, &objstore.Error{Op: "GET", Key: key, Kind: objstore.Timeout}
	}
	return d.Store.Get(ctx, key, opt)
}

// TestFailureIsAnsweredOnce: what the kernel asks again after a failed readahead is answered
// with that failure; a second later the origin is asked again. Who has opened the file since has
// nothing to do with it.
func TestFailureIsAnsweredOnce(t *testing.T) {
	r := newRig(t, t.TempDir(), false)
	r.store.Set("f", make([]byte, 8<<20))
	d := &down{}
	r.wrap = func(s objstore.Store) objstore.Store { d.Store = s; return d }
	r.start(t)
	defer r.stop(t)
	h, err := r.open("f")
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	d.failing.Store(true)
	if _, err := h.read(4<<20, 256<<10); !objstore.Is(err, objstore.Timeout) {
		t.Fatalf("read of a dead origin: %v", err)
	}
	asked := d.gets.Load()
	var pe *PathError
	if _, err := h.read(4<<20+4096, 4096); !errors.As(err, &pe) || d.gets.Load() != asked {
		t.Errorf("the page itself: %v, %d more GETs", err, d.gets.Load()-asked)
	}
	d.failing.Store(false)
	later, err := r.open("f")
	if err != nil {
		t.Fatal(err)
	}
	defer later.close()
	if b, err := later.read(4<<20, 4096); err != nil || len(b) != 4096 {
		t.Errorf("through a later handle, with the origin back: %d bytes, %v", len(b), err)
	}
	if b, err := h.read(4<<20+8192, 4096); err != nil || len(b) != 4096 {
		t.Errorf("what is in the cache by now: %d bytes, %v", len(b), err)
	}
	if _, err := h.read(4<<20+128<<10, 4096); !errors.As(err, &pe) {
		t.Errorf("what is not: %v, want the error of before", err)
	}
	r.clock.Add(int64(2 * time.Second))
	if b, err := h.read(4<<20+128<<10, 4096); err != nil || len(b) != 4096 {
		t.Errorf("with the origin back: %d bytes, %v", len(b), err)
	}
}
