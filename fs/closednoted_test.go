package fs

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
)

// noted tells whether the next process would know that a file was closed, should both be killed now.
func (r *rig) noted(t *testing.T, ino meta.Ino) bool {
	t.Helper()
	all, err := r.db.Closes().Left()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Contains(all, ino)
}

// TestPutBackStaysNoted: what the completer did not come to is noted as closed still when it has looked at something else.
func TestPutBackStaysNoted(t *testing.T) {
	r := newRig(t, t.TempDir(), true)
	r.givesWay = true
	r.start(t)
	t.Cleanup(func() { r.stop(t) })
	p := newProgram(r)
	p.fs.publisher.makers.Add(1) // somebody makes files all the time: the completer leaves them alone
	defer p.fs.publisher.makers.Add(-1)
	p.steps(t, "put a 1", "put b 1")
	a, b := p.ino(t, "a"), p.ino(t, "b")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	p.fs.completeTurn(over, closedAll)
	pub := &p.fs.publisher
	pub.mu.Lock()
	pub.oldest = time.Now()
	if !slices.Equal(pub.complete, []meta.Ino{a, b}) {
		t.Errorf("put back: %v", pub.complete)
	}
	pub.complete = pub.complete[:1]
	pub.again[b] = time.Now()
	pub.mu.Unlock()
	p.fs.completeTurn(p.fs.ctx, soon)
	if p.seqOf(t, "a") != 0 {
		t.Fatal("it was noted as complete; the test shows nothing")
	}
	if !p.noted(t, a) {
		t.Error("it is not noted any more that a file was closed which is not complete yet")
	}
}

// closer is a kernel that has somebody say, while a file is being opened, that it was closed.
type closer struct {
	*kernel
	during func()
}

func (c *closer) Register(f *os.File) (int32, error) {
	if c.during != nil {
		c.during()
	}
	return c.kernel.Register(f)
}

// TestOpeningIsNotClosed: a file that is being opened for writing, and may be cut by that, does not come to count as closed when
// who closed it before comes to say so only now.
func TestOpeningIsNotClosed(t *testing.T) {
	r := newRig(t, t.TempDir(), true)
	r.givesWay = true
	r.start(t)
	t.Cleanup(func() { r.stop(t) })
	p := newProgram(r)
	p.fs.publisher.makers.Add(1)
	defer func() { p.fs.publisher.makers.Add(-1) }()
	p.steps(t, "put a 1")
	e, err := p.walk("a")
	if err != nil {
		t.Fatal(err)
	}
	p.fs.open.drop(e.Node) // so that it is registered anew
	p.fs.open.closing.Wait()
	k := &closer{kernel: r.kernel}
	p.fs.open.backing = k
	times := 0
	k.during = func() {
		times++
		p.fs.completeSoon(e.Node.Ino())
		if p.noted(t, e.Node.Ino()) {
			t.Error("a file that is being opened for writing counts as closed")
		}
	}
	w, err := p.openFile(t, "a", os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	k.during = nil
	if times == 0 {
		t.Error("nobody said so; the test shows nothing")
	}
	if p.noted(t, e.Node.Ino()) {
		t.Error("a file that is open for writing counts as closed")
	}
	w.close()
	if !p.noted(t, e.Node.Ino()) {
		t.Error("that it was closed is not noted")
	}
}

// asker is a request during which something happens when it is asked for its number.
type asker struct {
	context.Context
	during func()
}

func (a *asker) Request() (uint64, bool) {
	a.during()
	return 2, false
}

// TestCutAndGivenBack: a file that is cut by an open, and of which what was kept for the next one is given back at this moment, is
// open then, and does not count as closed.
func TestCutAndGivenBack(t *testing.T) {
	r := newRig(t, t.TempDir(), true)
	r.givesWay = true
	r.start(t)
	t.Cleanup(func() { r.stop(t) })
	p := newProgram(r)
	p.fs.publisher.makers.Add(1)
	defer p.fs.publisher.makers.Add(-1)
	p.steps(t, "put a 1")
	e, err := p.walk("a")
	if err != nil {
		t.Fatal(err)
	}
	node, stage := e.Node, p.fs.open.peek(e.Node)
	if stage == nil || stage.stage == 0 {
		t.Fatal("nothing is kept of it; the test shows nothing")
	}
	cut := false
	ctx := &asker{t.Context(), func() {
		if st, err := p.cache.StatStage(stage.stage); err != nil {
			t.Error(err)
		} else if st.Size == 0 && !cut {
			cut = true
			p.fs.open.drop(node)
		}
	}}
	o, err := p.fs.Open(ctx, node, os.O_WRONLY|os.O_TRUNC)
	if err != nil {
		t.Errorf("open: %v", err)
	} else {
		defer p.fs.Release(o.FH)
	}
	if !cut {
		t.Error("it was not cut; the test shows nothing")
	}
	if p.noted(t, node.Ino()) {
		t.Error("a file that was cut counts as closed")
	}
}

// TestMappedWhenBothDied: what was closed and is mapped for writing when both processes of the mount are killed is held, and when the mount
// ends as it should, published once it is not mapped any more.
func TestMappedWhenBothDied(t *testing.T) {
	for _, killed := range []bool{true, false} {
		r := newRig(t, t.TempDir(), true)
		r.start(t)
		p := newProgram(r)
		w, err := p.openFile(t, "a", os.O_CREATE|os.O_RDWR, 0o644)
		if err == nil {
			err = w.write(t, 0, []byte("1"))
		}
		if err != nil {
			t.Fatal(err)
		}
		mem, err := unix.Mmap(int(w.file.Fd()), 0, 1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		unmap := sync.OnceFunc(func() { _ = unix.Munmap(mem) })
		t.Cleanup(unmap)
		ino := w.node.Ino()
		w.close()
		within(t, "it does not count as closed", func() bool { return p.fs.mapped(ino) && !p.noted(t, ino) })
		if killed {
			p.die(t)
			if err := r.memory.Close(); err != nil {
				t.Fatal(err)
			}
			r.memory = nil
			r.kernel.forget()
			unmap() // who had it mapped is killed too
			p.start(t)
			if l, err := p.fs.Ledger(10); err != nil || l.Held != 1 {
				t.Errorf("killed: %+v, %v", l, err)
			}
			p.steps(t, "rm a")
			p.wantBucket(t, map[string]string{})
		} else {
			p.stop(t)
			p.start(t)
			if l, err := p.fs.Ledger(10); err != nil || l.Held != 0 {
				t.Errorf("unmounted: %+v, %v", l, err)
			}
			mem[0] = '2'
			unmap()
			p.wantBucket(t, map[string]string{"a": "2"})
		}
		p.stop(t)
	}
}

// TestAwaitedWhenBothDied: what is open when both processes of the mount are killed is held also when it has a place in the order
// because somebody waited for the bucket to have it, and failed; what was closed after that is published.
func TestAwaitedWhenBothDied(t *testing.T) {
	p, o := writing(t, true)
	p.fs.opt.Policies = []Policy{{Pattern: "*", FsyncRemote: true}}
	o.fates(func(objstore.Op) fate { return refused })
	written := func(name string) *wfile {
		t.Helper()
		w, err := p.openFile(t, name, os.O_CREATE|os.O_WRONLY, 0o644)
		if err == nil {
			err = w.write(t, 0, []byte("whole"))
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := p.fs.Fsync(t.Context(), w.node, w.o.FH, false); err == nil {
			t.Fatal("the bucket took it; the test shows nothing")
		}
		if p.seqOf(t, name) == 0 {
			t.Fatal("it has no place in the order; the test shows nothing")
		}
		return w
	}
	written("closed").close()
	w := written("open")
	if err := w.write(t, 0, []byte("TO")); err != nil {
		t.Fatal(err)
	}
	p.killBoth(t)
	o.fates(nil)
	within(t, "what was closed is published", func() bool { p.hasten(t); return bucket(t, p.store)["closed"] == "whole" })
	var l Ledger
	var err error
	within(t, "that is noted", func() bool { l, err = p.fs.Ledger(10); return err != nil || l.Files() <= 1 })
	if err != nil || l.Held != 1 || len(l.Entries) != 1 || !strings.Contains(l.Entries[0].Error, heldOpen) {
		t.Errorf("%+v, %v", l, err)
	}
	if have := bucket(t, p.store); len(have) != 1 {
		t.Errorf("the bucket has %q", have)
	}
	p.steps(t, "rm open")
	p.wantBucket(t, map[string]string{"closed": "whole"})
}
