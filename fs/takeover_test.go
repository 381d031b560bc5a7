package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/session"
	"github.com/leatfs/leatfs/objstore"
)

// request is the context of a request with a number.
type request struct {
	context.Context
	unique uint64
	resent bool
}

func (r request) Request() (uint64, bool) { return r.unique, r.resent }

func begin(t *testing.T, pass bool) *rig {
	t.Helper()
	r := newRig(t, t.TempDir(), pass)
	r.opt.TTL = 0
	r.start(t)
	t.Cleanup(func() { r.stop(t) })
	return r
}

func mustOpen(t *testing.T, r *rig, path string) *handle {
	t.Helper()
	h, err := r.open(path)
	if err != nil {
		t.Fatalf("open %s: %v", path, err)
	}
	return h
}

func (h *handle) check(t *testing.T, want []byte) {
	t.Helper()
	if got, err := h.all(); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(want))
	}
}

// TestReplacedBeforeItIsRead: a version that was whole here stays for who has it open, though it is replaced after a
// takeover and before he reads again.
func TestReplacedBeforeItIsRead(t *testing.T) {
	r := newRig(t, t.TempDir(), false)
	r.opt.TTL = 0
	var gone atomic.Bool // the origin has only what is newest
	r.wrap = func(s objstore.Store) objstore.Store {
		return objstore.Around(s, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
			if op.Name == "GET" && gone.Load() {
				return &objstore.Error{Op: op.Name, Key: op.Key, Kind: objstore.PreconditionFailed}
			}
			return call(ctx)
		})
	}
	r.start(t)
	defer r.stop(t)
	older, newer := bytes.Repeat([]byte("old"), 100<<10), bytes.Repeat([]byte("newer"), 10<<10)
	r.store.Set("f", older)
	h := mustOpen(t, r, "f")
	h.check(t, older)
	r.takeOver(t)
	r.store.Set("f", newer)
	h2 := mustOpen(t, r, "f") // finds that it was replaced
	h2.check(t, newer)
	gone.Store(true)
	time.Sleep(500 * time.Millisecond)
	h.check(t, older)
	h2.close()
	h.close()
}

// TestOldVersionOutlivesProcess: a handle on a version that was replaced before the process that
// opened it died shows that version, and its size; a new open shows the new one.
func TestOldVersionOutlivesProcess(t *testing.T) {
	for _, pass := range []bool{true, false} {
		r := begin(t, pass)
		older, newer := bytes.Repeat([]byte("old"), 100<<10), bytes.Repeat([]byte("newer"), 10<<10)
		r.store.Set("f", older)
		h := mustOpen(t, r, "f")
		h.check(t, older)
		r.store.Set("f", newer)
		h2 := mustOpen(t, r, "f")
		h2.check(t, newer)
		for range 3 {
			r.takeOver(t)
			h.check(t, older)
			h2.check(t, newer)
			if a, _, err := r.fs.Getattr(context.Background(), h.node); err != nil || a.Size != int64(len(older)) {
				t.Errorf("size %d, %v; want %d", a.Size, err, len(older))
			}
			h3 := mustOpen(t, r, "f")
			h3.check(t, newer)
			if h3.node == h.node || h3.o.FH == h.o.FH || h3.o.FH == h2.o.FH {
				t.Errorf("nodes %#x %#x, handles %#x %#x %#x", h.node, h3.node, h.o.FH, h2.o.FH, h3.o.FH)
			}
			h3.close()
		}
		h.close()
		h.close() // twice: the answer to the first may have been lost
		h2.close()
	}
}

// TestSameBacking: all opens of a node carry the same id, whichever process answers them.
func TestSameBacking(t *testing.T) {
	r := begin(t, true)
	data := bytes.Repeat([]byte("x"), 300<<10)
	r.store.Set("f", data)
	h := mustOpen(t, r, "f")
	if !h.o.Passthrough {
		t.Fatal("no passthrough")
	}
	r.takeOver(t)
	h2 := mustOpen(t, r, "f")
	if h2.node == h.node && h2.o.Backing != h.o.Backing {
		t.Errorf("ids %d and %d of one node", h.o.Backing, h2.o.Backing)
	}
	h2.check(t, data)
	h.close()
	r.takeOver(t)
	h2.check(t, data)
	h2.close()
	if s := r.fs.Stats(); s.Handles != 0 || s.OpenFiles != 0 {
		t.Errorf("%+v", s)
	}
}

// TestNewFilesAfterTakeover: what the process before may have registered and not recorded is given
// back, and never a file that was registered since, which has the id that comes next.
func TestNewFilesAfterTakeover(t *testing.T) {
	r := begin(t, true)
	data := bytes.Repeat([]byte("x"), 300<<10)
	for i := range 5 {
		r.store.Set(fmt.Sprint("f", i), data)
	}
	mustOpen(t, r, "f0").close()
	r.kernel.slow = 5 * time.Millisecond
	r.takeOver(t)
	var opened []*handle
	for i := range 4 {
		opened = append(opened, mustOpen(t, r, fmt.Sprint("f", i+1)))
	}
	time.Sleep(50 * r.kernel.slow) // whatever goes on in the background is done by then
	for _, h := range opened {
		if !h.o.Passthrough || r.kernel.file(h.o.Backing) == nil {
			t.Errorf("the file with id %d is not registered (passthrough %v)", h.o.Backing, h.o.Passthrough)
		}
		h.close()
	}
}

// TestOpenSentAgain: an open that was carried out and not answered gets the handle that it got,
// once.
func TestOpenSentAgain(t *testing.T) {
	for _, pass := range []bool{true, false} {
		r := begin(t, pass)
		r.store.Set("f", bytes.Repeat([]byte("x"), 300<<10))
		e, err := r.walk("f")
		if err != nil {
			t.Fatal(err)
		}
		first, err := r.fs.Open(request{context.Background(), 42, false}, e.Node, os.O_RDONLY)
		if err != nil {
			t.Fatal(err)
		}
		r.takeOver(t)
		again, err := r.fs.Open(request{context.Background(), 42, true}, e.Node, os.O_RDONLY)
		if err != nil || again != first {
			t.Errorf("got %+v %v, want %+v", again, err, first)
		}
		// One that was sent again, but had not been carried out.
		other, err := r.fs.Open(request{context.Background(), 44, true}, e.Node, os.O_RDONLY)
		if err != nil || other.FH == first.FH {
			t.Errorf("got %+v %v", other, err)
		}
		r.fs.Release(first.FH)
		r.fs.Release(other.FH)
		if n := r.fs.Stats().Handles; n != 0 {
			t.Errorf("%d handles", n)
		}
	}
}

// TestKeptAreGivenBack: what a process merely kept, or had been given and not recorded, its
// successor gives back.
func TestKeptAreGivenBack(t *testing.T) {
	r := begin(t, true)
	r.store.Set("f", bytes.Repeat([]byte("x"), 300<<10))
	mustOpen(t, r, "f").close()
	if n := len(r.kernel.files); n != 1 {
		t.Fatalf("%d files are kept", n)
	}
	r.leave(t)
	// Killed between being given an id and recording it.
	f, err := os.Open(filepath.Join(r.dir, "leatfs-cache.json"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.kernel.Register(f); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	r.start(t)
	deadline := time.Now().Add(30 * time.Second)
	for r.kernel.count() != 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d files are still registered", r.kernel.count())
		}
		time.Sleep(time.Millisecond)
	}
	h := mustOpen(t, r, "f")
	r.takeOver(t)
	if n := r.kernel.count(); n != 1 {
		t.Errorf("%d files are registered, of one that is open", n)
	}
	h.close()
}

func (k *kernel) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.files)
}

// TestIndexLost: when the index is lost together with the process, node ids that the kernel has
// mean what they meant, or nothing.
func TestIndexLost(t *testing.T) {
	r := begin(t, true)
	data, other := bytes.Repeat([]byte("a"), 300<<10), bytes.Repeat([]byte("b"), 300<<10)
	r.store.Set("f", data)
	r.store.Set("g", other)
	h := mustOpen(t, r, "f")
	e, err := r.walk("g")
	if err != nil {
		t.Fatal(err)
	}
	r.leave(t)
	if err := os.RemoveAll(filepath.Join(r.dir, "index")); err != nil {
		t.Fatal(err)
	}
	r.start(t)
	h.check(t, data) // the kernel reads it by itself
	if _, _, err := r.fs.Getattr(context.Background(), e.Node); !errors.Is(err, ErrStale) {
		t.Errorf("a node of the lost index: %v", err)
	}
	for path, want := range map[string][]byte{"f": data, "g": other} {
		now, err := r.walk(path)
		if err != nil {
			t.Fatal(err)
		}
		if now.Node.Ino() <= max(e.Node.Ino(), h.node.Ino()) {
			t.Errorf("%s has the inode number %d, which may have been another's", path, now.Node.Ino())
		}
		n := mustOpen(t, r, path)
		n.check(t, want)
		n.close()
	}
	h.close()
}

// TestDamageOfAnotherInode: bytes that turn out wrong are dropped from the nodes that serve them,
// also when the cache knows the object by an inode number of long ago.
func TestDamageOfAnotherInode(t *testing.T) {
	r := begin(t, false)
	r.store.Set("f", bytes.Repeat([]byte("x"), 3<<20))
	h := mustOpen(t, r, "f")
	in, err := r.db.Inode(h.node.Ino())
	if err != nil {
		t.Fatal(err)
	}
	r.fs.damaged(cache.Identity{Key: "f", ETag: in.Object.ETag, Size: in.Object.Size, Inode: 1 << 30})
	now, err := r.db.Inode(h.node.Ino())
	if err != nil || now.Gen == in.Gen {
		t.Errorf("generation %d, %v: the kernel keeps what it has of the node", now.Gen, err)
	}
	h.close()
}

// TestTooManyHandles is an error of its own, and leaves nothing open.
func TestTooManyHandles(t *testing.T) {
	r := begin(t, true)
	r.store.Set("f", bytes.Repeat([]byte("x"), 3000))
	for {
		if _, err := r.memory.NewHandle(uint64(Node(meta.MaxIno, 1)), 0, 0, 0); err != nil {
			break
		}
	}
	if _, err := r.open("f"); !errors.Is(err, session.ErrFull) {
		t.Errorf("open: %v", err)
	}
	if n := r.kernel.count(); n != 0 {
		t.Errorf("%d files are registered", n)
	}
	r.memory.Handles(func(h session.Handle) { r.memory.FreeHandle(h.FH) })
	h := mustOpen(t, r, "f")
	h.close()
}

// TestTwoRecordsOfOneNode: a process may be killed while the file that the one before kept for a
// node is not given back yet, and another is open for the node. The open one's id is what counts.
func TestTwoRecordsOfOneNode(t *testing.T) {
	r := begin(t, true)
	data := bytes.Repeat([]byte("x"), 300<<10)
	r.store.Set("f", data)
	h := mustOpen(t, r, "f")
	o := r.fs.open.peek(h.node)
	f, err := os.Open(filepath.Join(r.dir, "leatfs-cache.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 3 { // below and above the one in use
		if _, err := r.memory.NewBacking(uint64(h.node), uint64(o.file), func() (int32, error) { return r.kernel.Register(f) }); err != nil {
			t.Fatal(err)
		}
	}
	r.takeOver(t)
	h2 := mustOpen(t, r, "f")
	if h2.node != h.node || h2.o.Backing != h.o.Backing {
		t.Errorf("node %#x with id %d, want %#x with %d", h2.node, h2.o.Backing, h.node, h.o.Backing)
	}
	h2.check(t, data)
	h2.close()
	h.close()
}

// notified records what the kernel is told.
type notified struct {
	content chan NodeID
	stuck   chan struct{} // ContentChanged waits until it is closed
}

func (n *notified) EntryChanged(NodeID, string) {}

func (n *notified) ContentChanged(node NodeID) {
	<-n.stuck
	n.content <- node
}

// TestUntold: wrong bytes that the kernel may have, and was not told of by a process that died, it is
// told of by the next; and of nothing else.
func TestUntold(t *testing.T) {
	r := begin(t, false)
	n := &notified{content: make(chan NodeID, 100), stuck: make(chan struct{})}
	close(n.stuck)
	r.notifier = n
	r.store.Set("f", bytes.Repeat([]byte("x"), 3<<20))
	h := mustOpen(t, r, "f")
	r.takeOver(t)
	in, err := r.db.Inode(h.node.Ino())
	if err != nil {
		t.Fatal(err)
	}
	r.fs.damaged(cache.Identity{Key: "f", ETag: in.Object.ETag, Size: in.Object.Size, Inode: uint64(in.Ino)})
	if got := <-n.content; got != h.node {
		t.Errorf("told of %#x, want %#x", got, h.node)
	}
	for r.memory.Untold() {
		time.Sleep(time.Millisecond)
	}
	// As a process that is killed in telling leaves it.
	r.memory.SetUntold(true)
	r.takeOver(t)
	if got := <-n.content; got != h.node {
		t.Errorf("told of %#x, want %#x", got, h.node)
	}
	for r.memory.Untold() {
		time.Sleep(time.Millisecond)
	}
	r.takeOver(t)
	if len(n.content) != 0 {
		t.Errorf("told of %d nodes more", len(n.content))
	}
	h.close()
}
