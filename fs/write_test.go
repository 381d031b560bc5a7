package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
)

// fate is what becomes of a request that changes the bucket.
type fate uint8

const (
	carriedOut fate = iota
	refused         // the origin does not take it
	lost            // it is carried out, and nobody hears of that
)

// origin stands between a file system and its store: it holds requests up, refuses them and loses
// their answers.
type origin struct {
	mu     sync.Mutex
	decide func(op objstore.Op) fate // nil: all are carried out; by mu
	gate   chan struct{}             // not nil: requests wait until it is closed; by mu
	late   bool                      // who gave up waiting at the gate is served all the same; by mu
	away   bool                      // no request gets there; by mu
	stray  bool                      // who gave up waiting at the gate is served when land is called; by mu
	strays []func()                  // by mu
	seen   []string                  // requests that were carried out, "PUT key"; by mu
	slow   time.Duration             // how long a request takes at most to get there, and its answer; set before the first
	held   chan string               // told, if there is room, of each request that comes to the gate
}

func newOrigin() *origin { return &origin{held: make(chan string, 1000)} }

// wrap puts the origin before a store.
func (o *origin) wrap(s objstore.Store) objstore.Store { return objstore.Around(s, o.do) }

func (o *origin) do(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
	o.mu.Lock()
	away := o.away
	o.mu.Unlock()
	if away {
		return &objstore.Error{Op: op.Name, Key: op.Key, Kind: objstore.Network}
	}
	if op.Class != objstore.ClassPut && op.Class != objstore.ClassCopy && op.Class != objstore.ClassDelete {
		return call(ctx)
	}
	o.mu.Lock()
	gate := o.gate
	o.mu.Unlock()
	if gate != nil {
		select {
		case o.held <- op.Name + " " + op.Key:
		default:
		}
		select {
		case <-gate:
		case <-ctx.Done():
			o.mu.Lock()
			if o.stray {
				o.strays = append(o.strays, func() { _ = o.call(context.Background(), op, call) })
			}
			late := o.late && op.Name != "CREATE MULTIPART"
			o.mu.Unlock()
			if late {
				_ = o.call(context.Background(), op, call)
			}
			return ctx.Err()
		}
	}
	o.mu.Lock()
	what := carriedOut
	if o.decide != nil {
		what = o.decide(op)
	}
	o.mu.Unlock()
	if what == refused {
		return &objstore.Error{Op: op.Name, Key: op.Key, Kind: objstore.Unavailable}
	}
	o.travel()
	err := o.call(ctx, op, call)
	o.travel()
	if what == lost && err == nil && op.Name != "CREATE MULTIPART" {
		return &objstore.Error{Op: op.Name, Key: op.Key, Kind: objstore.Timeout}
	}
	return err
}

// travel is the way of a request or an answer.
func (o *origin) travel() {
	if o.slow > 0 {
		time.Sleep(rand.N(o.slow))
	}
}

func (o *origin) call(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
	err := call(ctx)
	if err == nil {
		o.mu.Lock()
		o.seen = append(o.seen, op.Name+" "+op.Key)
		o.mu.Unlock()
	}
	return err
}

// shut holds requests up until open is called.
func (o *origin) shut() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gate == nil {
		o.gate = make(chan struct{})
	}
}

func (o *origin) open() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gate != nil {
		close(o.gate)
		o.gate = nil
	}
}

func (o *origin) fates(decide func(op objstore.Op) fate) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.decide = decide
}

// land carries out what a process had under way that is dead by now, and tells how much that was.
func (o *origin) land() int {
	o.mu.Lock()
	strays := o.strays
	o.strays = nil
	o.mu.Unlock()
	for _, s := range strays {
		s()
	}
	return len(strays)
}

// leave says whether the origin is away.
func (o *origin) leave(away bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.away = away
}

// took returns what was carried out since the last call.
func (o *origin) took() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.seen
	o.seen = nil
	return s
}

// waitHeld returns when a request has come to the gate.
func (o *origin) waitHeld(t fatal, want string) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case got := <-o.held:
			if got == want {
				return
			}
		case <-timeout:
			t.Fatalf("no request %q", want)
		}
	}
}

// program does with a rig what the kernel does for a program: it looks names up, and looks up again
// what has become stale.
type program struct {
	*rig
	unique uint64
	// resend says whether the process that serves dies between carrying out a request and answering
	// it; nil: never.
	resend func() bool
}

func newProgram(r *rig) *program { return &program{rig: r} }

// ask makes one request; fn is called again when it is sent again.
func (p *program) ask(t fatal, fn func(ctx context.Context) error) error {
	p.unique += 2
	err := fn(request{context.Background(), p.unique, false})
	if p.resend != nil && p.resend() {
		p.takeOver(t)
		first := err
		if err = fn(request{context.Background(), p.unique, true}); (err == nil) != (first == nil) {
			t.Fatalf("a request that is sent again: %v; it was %v", err, first)
		}
	}
	p.fs.Answered(p.unique)
	return err
}

// again repeats what is done with a path as long as a node is stale.
func again(fn func() error) (err error) {
	for range 5 {
		if err = fn(); !errors.Is(err, ErrStale) {
			return err
		}
	}
	return err
}

// at looks up the directory of a path.
func (p *program) at(file string) (NodeID, string, error) {
	dir, name := path.Split(file)
	e, err := p.walk(dir)
	if err == nil && e.Attr.Kind != meta.KindDir {
		err = ErrNotDir
	}
	return e.Node, name, err
}

// wfile is an open file of a program.
type wfile struct {
	p     *program
	node  NodeID
	o     Opened
	flags int
	file  *os.File // what the kernel has open, with passthrough
}

// openFile is open(2).
func (p *program) openFile(t fatal, file string, flags int, mode uint32) (*wfile, error) {
	var w *wfile
	err := again(func() error {
		dir, name, err := p.at(file)
		if err != nil {
			return err
		}
		e, err := p.fs.Lookup(context.Background(), dir, name)
		var o Opened
		node := e.Node
		switch {
		case err == nil && flags&os.O_EXCL != 0:
			return ErrExist
		case err == nil && e.Attr.Kind == meta.KindDir && flags != os.O_RDONLY:
			return ErrIsDir
		case err == nil:
			err = p.ask(t, func(ctx context.Context) (err error) {
				o, err = p.fs.Open(ctx, node, flags&^(os.O_CREATE|os.O_EXCL))
				return err
			})
		case errors.Is(err, ErrNotExist) && flags&os.O_CREATE != 0:
			err = p.ask(t, func(ctx context.Context) (err error) {
				e, o, err = p.fs.Create(ctx, dir, name, flags, mode, Caller{UID: 7, GID: 8})
				return err
			})
			node = e.Node
		}
		if err != nil {
			return err
		}
		w = &wfile{p: p, node: node, o: o, flags: flags}
		return w.attach()
	})
	return w, err
}

// attach opens what was registered for passthrough, as the kernel does for each open file.
func (w *wfile) attach() (err error) {
	if w.o.Passthrough {
		lent := w.p.kernel.file(w.o.Backing)
		if lent == nil {
			return fmt.Errorf("backing %d is not registered", w.o.Backing)
		}
		w.file, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", lent.Fd()), w.flags&(os.O_RDONLY|os.O_WRONLY|os.O_RDWR|os.O_APPEND), 0)
	}
	return err
}

func (w *wfile) writable() bool { return w.flags&(os.O_WRONLY|os.O_RDWR) != 0 }

func (w *wfile) size() (int64, error) {
	a, _, err := w.p.fs.Getattr(context.Background(), w.node)
	return a.Size, err
}

// write writes at off, or with O_APPEND at the end.
func (w *wfile) write(t fatal, off int64, data []byte) error {
	if w.file != nil {
		var err error
		if w.flags&os.O_APPEND != 0 {
			_, err = w.file.Write(data)
		} else {
			_, err = w.file.WriteAt(data, off)
		}
		return err
	}
	if w.flags&os.O_APPEND != 0 {
		var err error
		if off, err = w.size(); err != nil {
			return err
		}
	}
	return w.p.ask(t, func(ctx context.Context) error {
		return w.p.fs.Write(ctx, w.node, w.o.FH, off, data, false)
	})
}

func (w *wfile) read(off, n int64) ([]byte, error) {
	if w.file != nil {
		file := w.file
		if w.flags&os.O_WRONLY != 0 {
			return nil, ErrBadHandle
		}
		b := make([]byte, n)
		got, err := file.ReadAt(b, off)
		if err == io.EOF {
			err = nil
		}
		return b[:got], err
	}
	d, err := w.p.fs.Read(context.Background(), w.node, w.o.FH, off, n, 1)
	if err != nil {
		return nil, err
	}
	defer d.Release()
	return bytes.Join(d.Vecs, nil), nil
}

func (w *wfile) truncate(t fatal, size int64) error {
	return w.p.ask(t, func(ctx context.Context) error {
		_, _, err := w.p.fs.Setattr(ctx, w.node, w.o.FH, SetAttr{Size: &size})
		return err
	})
}

func (w *wfile) close() {
	if w.writable() {
		_ = w.p.fs.Flush(context.Background(), w.node, w.o.FH)
	}
	if w.file != nil {
		_ = w.file.Close()
	}
	w.p.fs.Release(w.o.FH)
}

// put writes a whole file.
func (p *program) put(t fatal, file string, data []byte) error {
	w, err := p.openFile(t, file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer w.close()
	return w.write(t, 0, data)
}

// get reads a whole file.
func (p *program) get(t fatal, file string) ([]byte, error) {
	w, err := p.openFile(t, file, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer w.close()
	return w.all()
}

func (w *wfile) all() (out []byte, err error) {
	for {
		b, err := w.read(int64(len(out)), 1<<20)
		if err != nil || len(b) == 0 {
			return out, err
		}
		out = append(out, b...)
	}
}

func (p *program) mkdir(t fatal, file string) error {
	return p.named(t, file, func(ctx context.Context, dir NodeID, name string) error {
		_, err := p.fs.Mkdir(ctx, dir, name, 0o755, Caller{})
		return err
	})
}

func (p *program) symlink(t fatal, target, file string) error {
	return p.named(t, file, func(ctx context.Context, dir NodeID, name string) error {
		_, err := p.fs.Symlink(ctx, dir, name, target, Caller{})
		return err
	})
}

func (p *program) unlink(t fatal, file string) error {
	return p.named(t, file, func(ctx context.Context, dir NodeID, name string) error { return p.fs.Unlink(ctx, dir, name) })
}

func (p *program) rmdir(t fatal, file string) error {
	return p.named(t, file, func(ctx context.Context, dir NodeID, name string) error { return p.fs.Rmdir(ctx, dir, name) })
}

func (p *program) link(t fatal, from, to string) error {
	return p.named(t, to, func(ctx context.Context, dir NodeID, name string) error {
		e, err := p.walk(from)
		if err != nil {
			return err
		}
		_, err = p.fs.Link(ctx, e.Node, dir, name)
		return err
	})
}

func (p *program) rename(t fatal, from, to string) error {
	return p.named(t, to, func(ctx context.Context, toDir NodeID, toName string) error {
		dir, name, err := p.at(from)
		if err != nil {
			return err
		}
		return p.fs.Rename(ctx, dir, name, toDir, toName, 0)
	})
}

// named makes a request about a name in a directory. The nodes are looked up once: a request that is
// sent again names the same.
func (p *program) named(t fatal, file string, fn func(ctx context.Context, dir NodeID, name string) error) error {
	return again(func() error {
		dir, name, err := p.at(file)
		if err != nil {
			return err
		}
		return p.ask(t, func(ctx context.Context) error { return fn(ctx, dir, name) })
	})
}

// setattr changes attributes of a path.
func (p *program) setattr(t fatal, file string, set SetAttr) error {
	return again(func() error {
		e, err := p.walk(file)
		if err != nil {
			return err
		}
		return p.ask(t, func(ctx context.Context) error {
			_, _, err := p.fs.Setattr(ctx, e.Node, 0, set)
			return err
		})
	})
}

// hasten ends all debounces and backoffs, and returns how much is still to be published or deleted.
func (r *rig) hasten(t fatal) (left []string) {
	t.Helper()
	q := r.fs.publisher.queue
	if err := r.db.WalkDirty(0, func(d meta.Dirty) bool {
		in, err := r.db.Inode(d.Ino)
		left = append(left, fmt.Sprintf("inode %d %q in %d %v stage %d seq %d tries %d token %q %s %v", d.Ino, in.Name, in.Parent, in.Kind, in.Stage, d.Seq, d.Tries, d.Token, d.Error, err))
		q.Hasten(uint64(d.Ino))
		return true
	}); err != nil {
		t.Fatalf("walk: %v", err)
	}
	if err := r.db.WalkTombs("", "", func(b meta.Tomb) bool {
		if b.Done == 0 {
			left = append(left, fmt.Sprintf("tomb %q etag %q needed %d seq %d token %q", b.Key, b.ETag, b.Needed, b.Seq, b.Token))
			q.Hasten(r.fs.tombID(b.Key))
		}
		return true
	}); err != nil {
		t.Fatalf("walk: %v", err)
	}
	return left
}

// drain waits until everything is published.
func (r *rig) drain(t fatal) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Millisecond) {
		left := r.hasten(t)
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			for _, s := range r.fs.publisher.queue.Snapshot() {
				left = append(left, fmt.Sprintf("queue: %+v", s))
			}
			p := &r.fs.publisher
			p.mu.Lock()
			left = append(left, fmt.Sprintf("to be complete: %v, again %v", p.complete, p.again))
			p.mu.Unlock()
			r.fs.open.mu.Lock()
			left = append(left, fmt.Sprintf("writing: %v", r.fs.open.writing))
			for n, b := range r.fs.open.opening {
				left = append(left, fmt.Sprintf("opening: %#x %v", n, b))
			}
			r.fs.open.mu.Unlock()
			t.Fatalf("still to be published:\n%s", strings.Join(left, "\n"))
		}
	}
}

// bucket returns the objects of a store.
func bucket(t fatal, s objstore.Store) map[string]string {
	t.Helper()
	out := map[string]string{}
	for opt := (objstore.ListOptions{}); ; {
		page, err := s.List(context.Background(), opt)
		if err != nil {
			t.Fatalf("list: %v", err)
		}
		for _, o := range page.Objects {
			g, err := s.Get(context.Background(), o.Key, objstore.GetOptions{Length: -1})
			if err != nil {
				t.Fatalf("get: %v", err)
			}
			b, err := io.ReadAll(g.Body)
			if err != nil {
				t.Fatalf("get: %v", err)
			}
			out[o.Key] = string(b)
		}
		if opt.Token = page.Next; opt.Token == "" {
			return out
		}
	}
}

// wantBucket compares the bucket with what is to be there, after draining.
func (r *rig) wantBucket(t fatal, want map[string]string) {
	t.Helper()
	r.drain(t)
	have := bucket(t, r.store)
	for k, v := range want {
		if h, ok := have[k]; !ok || h != v {
			t.Fatalf("object %q: %s (there: %v), want %s; all: %s", k, brief(h), ok, brief(v), keysOf(have))
		}
	}
	for k := range have {
		if _, ok := want[k]; !ok {
			t.Fatalf("object %q should not be there; all: %s", k, keysOf(have))
		}
	}
	r.wantClean(t)
}

// wantClean looks for what is left of publications.
func (r *rig) wantClean(t fatal) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := r.unclean()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%v", err)
		}
		r.fs.abortUploads(context.Background())
	}
}

func (r *rig) unclean() error {
	if u := r.store.Uploads(); len(u) > 0 {
		return fmt.Errorf("multipart uploads are left: %q", u)
	}
	files, err := os.ReadDir(filepath.Join(r.dir, "staging"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, f := range files {
		if n, ok := strings.CutPrefix(f.Name(), "dir-"); ok {
			ino, err := strconv.ParseUint(n, 16, 64)
			if err != nil {
				return err
			}
			if in, err := r.db.Inode(meta.Ino(ino)); err != nil || in.Flags&meta.Removed != 0 {
				return fmt.Errorf("the label of directory %d is left: %v", ino, err)
			}
			continue
		}
		if f.Name() != "ballast" {
			return fmt.Errorf("staging file %s is left", f.Name())
		}
	}
	return nil
}

func brief(s string) string {
	if len(s) > 40 {
		return fmt.Sprintf("%d bytes %q…", len(s), s[:20])
	}
	return strconv.Quote(s)
}

func keysOf(m map[string]string) string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}
