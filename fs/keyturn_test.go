package fs

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// TestNameTakenWhileCopied: a request that changes what is under a name is under way while another file gets that name, and has
// there what the request is to replace. It does not hit what the other file has put there.
func TestNameTakenWhileCopied(t *testing.T) {
	for name, c := range map[string]struct {
		before []string // the first request for b.t after it is held up
		during []string
		want   map[string]string
	}{
		"a copy, then a file": {[]string{"put a.t 1", "ln a.t b.t", "drain", "hold", "put a.t 22"}, []string{"put x.t 1", "mv x.t b.t"},
			map[string]string{"a.t": "22", "b.t": "1"}},
		"a copy, then another copy": {[]string{"put a.t 1", "ln a.t b.t", "drain", "hold", "put a.t 22"}, []string{"put x.t 1", "rm b.t", "ln x.t b.t"},
			map[string]string{"a.t": "22", "b.t": "1", "x.t": "1"}},
		"a file, then a copy": {[]string{"put b.t 1", "drain", "hold", "put b.t 22"}, []string{"put x.t 1", "mv b.t c.t", "ln x.t b.t"},
			map[string]string{"c.t": "22", "b.t": "1", "x.t": "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var hold atomic.Bool
			held, free, done := make(chan struct{}), make(chan struct{}), make(chan struct{}, 100)
			r := newRig(t, t.TempDir(), true)
			r.wrap = func(s objstore.Store) objstore.Store {
				return objstore.Around(s, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
					change := op.Key == "b.t" && (op.Class == objstore.ClassPut || op.Class == objstore.ClassCopy || op.Class == objstore.ClassDelete)
					if change && hold.CompareAndSwap(true, false) {
						close(held)
						<-free
						return call(ctx)
					}
					err := call(ctx)
					if change && err == nil {
						done <- struct{}{}
					}
					return err
				})
			}
			r.start(t)
			t.Cleanup(func() { r.stop(t) })
			p := newProgram(r)
			for _, s := range c.before {
				if s == "hold" {
					for len(done) > 0 {
						<-done
					}
					hold.Store(true)
					continue
				}
				p.steps(t, s)
			}
			<-held
			p.steps(t, c.during...)
			for range 10 { // should it not wait, it is given the time to be done
				p.hasten(t)
				select {
				case <-done:
				case <-time.After(20 * time.Millisecond):
				}
			}
			close(free)
			p.wantBucket(t, c.want)
			for file, data := range c.want {
				if got, err := p.get(t, file); err != nil || string(got) != data {
					t.Errorf("%s: %q, %v; want %q", file, got, err, data)
				}
			}
		})
	}
}

// TestCalledOtherwiseWhileRefused: a file loses the name under which the origin has just refused it, since a copy that nobody knew
// of was there. What is under its other name, which it has then, stays known as its own.
func TestCalledOtherwiseWhileRefused(t *testing.T) {
	o := newOrigin()
	var hold atomic.Bool
	held, free := make(chan struct{}), make(chan struct{})
	r := newRig(t, t.TempDir(), true)
	r.wrap = func(s objstore.Store) objstore.Store {
		return objstore.Around(o.wrap(s), func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
			err := call(ctx)
			if op.Name == "HEAD" && op.Key == "b.t" && hold.CompareAndSwap(true, false) {
				close(held)
				<-free
			}
			return err
		})
	}
	r.start(t)
	t.Cleanup(func() { o.open(); r.stop(t) })
	p := newProgram(r)
	p.steps(t, "put a.t 1", "drain")
	o.shut()
	p.steps(t, "mv a.t b.t")
	p.hasten(t)
	o.waitHeld(t, "COPY b.t")
	o.fates(func(objstore.Op) fate {
		o.gate = make(chan struct{}) // for what comes after this one
		return lost
	})
	p.steps(t, "ln b.t a.t") // the copy is given up, and made
	o.open()
	within(t, "the copy is there", func() bool { return bucket(t, p.store)["b.t"] == "1" })
	o.fates(nil)
	p.steps(t, "put a.t 22")
	hold.Store(true)
	p.hasten(t)
	o.open()
	<-held
	p.steps(t, "rm b.t")
	o.shut()
	close(free)
	p.hasten(t)
	o.waitHeld(t, "PUT a.t")
	mode := uint32(0o600)
	if err := p.setattr(t, "a.t", SetAttr{Mode: &mode}); err != nil { // its label is written anew
		t.Fatal(err)
	}
	o.open()
	p.wantBucket(t, map[string]string{"a.t": "22"})
}
