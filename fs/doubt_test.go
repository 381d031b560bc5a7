package fs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// unconditional is a store that deletes whatever is there.
type unconditional struct{ objstore.Store }

func (s unconditional) Caps() objstore.Caps {
	c := s.Store.Caps()
	c.DeleteIfMatch = false
	return c
}

// sent is a store to which a request, once it is made, has been sent with all its content.
type sent struct{ objstore.Store }

func (s sent) Put(ctx context.Context, key string, src objstore.Source, opt objstore.PutOptions) (objstore.Object, error) {
	b := make([]byte, src.Size())
	if _, err := src.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return objstore.Object{}, err
	}
	return s.Store.Put(ctx, key, bytes.NewReader(b), opt)
}

// TestStrayRequests: a request of a process that was killed is carried out when the process after it has
// looked already what became of it, and gone on.
func TestStrayRequests(t *testing.T) {
	for _, c := range []struct {
		name        string
		before      []string // the request of the last of them is under way
		request     string
		after       []string
		want        map[string]string
		conditional bool
	}{
		{"removed", []string{"put a 1"}, "PUT a", []string{"rm a"}, map[string]string{}, true},
		{"removed and made again", []string{"put a 1"}, "PUT a", []string{"rm a", "put a 2"}, map[string]string{"a": "2"}, true},
		{"changed and removed", []string{"put a 1"}, "PUT a", []string{"append a 2", "settle", "rm a"}, map[string]string{}, true},
		{"made again, removed and made again", []string{"put a 1"}, "PUT a", []string{"rm a", "put a 2", "settle", "rm a", "put a 3"}, map[string]string{"a": "3"}, true},
		{"renamed", []string{"put a 1"}, "PUT a", []string{"mv a b"}, map[string]string{"b": "1"}, true},
		{"replaced", []string{"put a 1", "drain", "append a 2"}, "PUT a", []string{"append a 3"}, map[string]string{"a": "123"}, true},
		{"deleted and made again", []string{"put a 1", "drain", "rm a"}, "DELETE a", []string{"put a 2"}, map[string]string{"a": "2"}, true},
		{"became what it was", []string{"put a 1", "drain", "put a 22"}, "PUT a", []string{"put a 1"}, map[string]string{"a": "1"}, true},
		{"published, became what it was", []string{"put a 1", "drain", "put a 22"}, "PUT a", []string{"settle", "put a 1"}, map[string]string{"a": "1"}, true},
		{"published, renamed and back, became what it was", []string{"put a 1", "drain", "put a 22"}, "PUT a", []string{"settle", "mv a c", "mv c a", "put a 1"}, map[string]string{"a": "1"}, true},
		{"published, removed, made again as it was", []string{"put a 1", "drain", "put a 22"}, "PUT a", []string{"settle", "rm a", "put b 1", "mv b a"}, map[string]string{"a": "1"}, true},
		{"deleted and made again as it was", []string{"put a 1", "drain", "rm a"}, "DELETE a", []string{"put a 1"}, map[string]string{"a": "1"}, true},
		{"deleted, made again as it was", []string{"put a 1", "drain", "rm a"}, "DELETE a", []string{"settle", "put a 1"}, map[string]string{"a": "1"}, true},
		{"directory removed, made, removed and made again", []string{"mkdir d", "drain", "rmdir d"}, "DELETE d/", []string{"mkdir d", "rmdir d", "mkdir d"}, map[string]string{"d/": ""}, true},
		{"directory removed, made and removed, made again", []string{"mkdir d", "drain", "rmdir d"}, "DELETE d/", []string{"mkdir d", "rmdir d", "settle", "mkdir d"}, map[string]string{"d/": ""}, true},
		{"second name removed and made again", []string{"put a.t 1", "ln a.t b.t", "drain", "rm b.t"}, "DELETE b.t", []string{"ln a.t b.t"}, map[string]string{"a.t": "1", "b.t": "1"}, true},
		{"second name removed, made again", []string{"put a.t 1", "ln a.t b.t", "drain", "rm b.t"}, "DELETE b.t", []string{"settle", "ln a.t b.t"}, map[string]string{"a.t": "1", "b.t": "1"}, true},
		{"second name made, removed", []string{"put a.t 1", "drain", "ln a.t b.t"}, "COPY b.t", []string{"settle", "rm b.t"}, map[string]string{"a.t": "1"}, true},
		{"deleted and made again, without conditions", []string{"put a 1", "drain", "rm a"}, "DELETE a", []string{"put a 2"}, map[string]string{"a": "2"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, o := underWay(t, c.conditional, c.before, c.request)
			p.takeOver(t)
			o.mu.Lock()
			o.stray = false
			o.mu.Unlock()
			o.open()
			for _, step := range c.after {
				if step == "settle" {
					p.settle(t)
				} else {
					p.steps(t, step)
				}
			}
			p.settle(t)
			if !p.fs.inDoubt() {
				t.Skip("this machine is too slow: what was under way would have ended by now")
			}
			if o.land() == 0 {
				t.Fatal("nothing was under way")
			}
			p.wantBucket(t, c.want)
			p.wantShown(t, c.want)
		})
	}
}

// underWay runs steps and holds up the request of the last of them.
func underWay(t *testing.T, conditional bool, steps []string, request string) (*program, *origin) {
	t.Helper()
	p, o := newStray(t, conditional)
	last := len(steps) - 1
	p.steps(t, steps[:last]...)
	o.shut()
	p.steps(t, steps[last])
	p.hasten(t)
	o.waitHeld(t, request)
	return p, o
}

// settle waits as long as what was under way may take.
func (p *program) settle(t *testing.T) {
	t.Helper()
	for range 20 {
		p.hasten(t)
		time.Sleep(5 * time.Millisecond)
	}
}

func newStray(t *testing.T, conditional bool) (*program, *origin) {
	o := newOrigin()
	o.stray = true
	r := newRig(t, t.TempDir(), true)
	r.opt.Doubt = 2 * time.Second
	r.wrap = func(s objstore.Store) objstore.Store {
		if !conditional {
			s = unconditional{s}
		}
		return sent{o.wrap(s)}
	}
	r.start(t)
	t.Cleanup(func() { o.open(); r.stop(t) })
	return newProgram(r), o
}
