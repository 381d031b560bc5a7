package fs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// TestGiveWay: while files are made nothing is published but what somebody waits for; then all is, in the
// order of its completion.
func TestGiveWay(t *testing.T) {
	r := newRig(t, filepath.Join(t.TempDir(), "cache"), false)
	r.givesWay = true
	o := newOrigin()
	r.wrap = o.wrap
	r.start(t)
	defer r.stop(t)
	p := newProgram(r)
	done := r.fs.publisher.making()
	for _, name := range []string{"b.1", "a.22", "c.333"} {
		if err := p.put(t, name, []byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(300 * time.Millisecond)
	if got := o.took(); len(got) > 0 {
		t.Errorf("published while files are made: %q", got)
	}
	w, err := p.openFile(t, "urgent", os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.write(t, 0, []byte("now")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), giveWay/2)
	defer cancel()
	if err := r.fs.publishNow(ctx, w.node); err != nil {
		t.Errorf("what is waited for: %v", err)
	}
	w.close()
	done()
	if !slices.Contains(o.took(), "PUT urgent") {
		t.Errorf("not published: %q", o.took())
	}
	r.drain(t)
	var order []string
	for _, req := range o.took() {
		if name, ok := strings.CutPrefix(req, "PUT "); ok && name != "urgent" {
			order = append(order, name)
		}
	}
	if want := []string{"b.1", "a.22", "c.333"}; !slices.Equal(order, want) {
		t.Errorf("published as %q, want %q", order, want)
	}
}

// TestGiveWayEnds: who makes files without end is given way for some seconds, not for ever.
func TestGiveWayEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 5 s")
	}
	t.Parallel()
	r := newRig(t, filepath.Join(t.TempDir(), "cache"), false)
	r.givesWay = true
	r.opt.Now = time.Now
	o := newOrigin()
	r.wrap = o.wrap
	r.start(t)
	defer r.stop(t)
	p := newProgram(r)
	defer r.fs.publisher.making()()
	began := time.Now()
	if err := p.put(t, "f", []byte("f")); err != nil {
		t.Fatal(err)
	}
	for len(o.took()) == 0 && time.Since(began) < 10*giveWay {
		time.Sleep(10 * time.Millisecond)
	}
	if d := time.Since(began); d < giveWay-time.Second || d > 5*giveWay {
		t.Errorf("published after %v, want about %v", d, giveWay)
	}
}

// TestMissingMeanwhile: who makes files in a directory made here does not wait for its listings; what
// others put there is seen all the same.
func TestMissingMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t, filepath.Join(t.TempDir(), "cache"), false)
	r.givesWay = true
	var clock atomic.Int64
	r.opt.Now = func() time.Time { return time.Unix(1e9, clock.Load()) }
	gate := make(chan struct{})
	var lists atomic.Int64
	r.wrap = func(s objstore.Store) objstore.Store {
		return objstore.Around(s, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
			if op.Class == objstore.ClassList {
				lists.Add(1)
				select {
				case <-gate:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return call(ctx)
		})
	}
	r.start(t)
	defer r.stop(t)
	p := newProgram(r)
	close(gate)
	if err := p.mkdir(t, "d"); err != nil {
		t.Fatal(err)
	}
	r.drain(t)
	gate = make(chan struct{})
	r.store.Set("d/theirs", []byte("theirs"))
	done := r.fs.publisher.making()
	clock.Add(int64(r.opt.NegativeTTL + time.Millisecond))
	before := lists.Load()
	for range 3 {
		if _, err := r.walk("d/theirs"); !errors.Is(err, ErrNotExist) {
			t.Fatalf("a lookup while the directory is listed: %v", err)
		}
	}
	if n := lists.Load() - before; n > 1 {
		t.Errorf("%d listings", n)
	}
	close(gate)
	deadline := time.Now().Add(30 * time.Second)
	for {
		if _, err := r.walk("d/theirs"); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("never seen: %v", err)
		}
		time.Sleep(time.Millisecond)
	}
	done()
	// Without anybody who makes files a lookup waits for the answer.
	r.store.Set("d/more", []byte("more"))
	r.fs.publisher.made.Store(0)
	clock.Add(int64(r.opt.NegativeTTL + time.Millisecond))
	if _, err := r.walk("d/more"); err != nil {
		t.Errorf("a second after it was put: %v", err)
	}
}

// TestStep: while files are made, publications begin one pace of a processor after the other.
func TestStep(t *testing.T) {
	var p publisher
	const n = 100
	var last time.Duration
	for i := range n {
		wait := p.step()
		if i == 0 && wait != 0 || wait < 0 {
			t.Fatalf("step %d waits %v", i, wait)
		}
		last = wait
	}
	each := pace / time.Duration(runtime.NumCPU())
	if want := (n - 1) * each; last > want || last < want/2 {
		t.Errorf("the last of %d waits %v, want about %v", n, last, want)
	}
	time.Sleep(last + time.Millisecond)
	p.next = p.next.Add(-each)
	if wait := p.step(); wait != 0 {
		t.Errorf("after a while the first waits %v", wait)
	}
}
