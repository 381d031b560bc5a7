package fs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/cache/buf"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/session"
	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/memstore"
	"github.com/leatfs/leatfs/prefetch"
)

// kernel stands in for the kernel's side of passthrough: it keeps registered files open and
// reads them.
type kernel struct {
	mu    sync.Mutex
	next  int32
	files map[int32]*os.File // by mu
	slow  time.Duration      // how long it takes to give a file back
}

func (k *kernel) Register(f *os.File) (int32, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next++
	k.files[k.next] = os.NewFile(uintptr(fd), f.Name())
	return k.next, nil
}

func (k *kernel) Unregister(id int32) {
	time.Sleep(k.slow)
	k.mu.Lock()
	defer k.mu.Unlock()
	// Of an id that there is not, nothing is heard.
	if f := k.files[id]; f != nil {
		_ = f.Close()
		delete(k.files, id)
	}
}

// forget gives all files back, as the end of a mount does.
func (k *kernel) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, f := range k.files {
		_ = f.Close()
		delete(k.files, id)
	}
}

func (k *kernel) file(id int32) *os.File {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.files[id]
}

// rig is a file system over a store in memory, an index and a cache on disk.
type rig struct {
	tb     testing.TB
	dir    string
	store  *memstore.Store
	wrap   func(objstore.Store) objstore.Store // faults
	opt    Options
	clock  atomic.Int64
	kernel *kernel // nil: no passthrough
	pool   *buf.Pool
	db     *meta.DB
	cache  *cache.Cache
	fs     *FS
	memory *session.Session

	notifier Notifier // nil: the kernel is not told
	room     int64    // of the cache, in bytes; 0: 1 GiB
	givesWay bool     // to who makes files; else all is published at once
}

// fatal is what rapid's T and testing's have in common.
type fatal interface {
	Fatalf(string, ...any)
	Helper()
}

func newRig(tb testing.TB, dir string, pass bool) *rig {
	r := &rig{tb: tb, dir: dir, store: memstore.New(), opt: Defaults()}
	r.opt.Doubt = 0 // what a takeover leaves under way is over when it returns, unless a test says otherwise
	r.opt.Now = func() time.Time { return time.Unix(1e9, r.clock.Add(int64(time.Millisecond))) }
	if pass {
		r.kernel = &kernel{files: make(map[int32]*os.File)}
	}
	return r
}

func (r *rig) start(t fatal) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	if os.Getenv("LEATFS_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	must := func(err error) {
		if err != nil {
			t.Fatalf("start: %v", err)
		}
	}
	must(os.MkdirAll(r.dir, 0o700))
	var err error
	r.db, err = meta.Open(meta.Options{Dir: filepath.Join(r.dir, "index"), Log: log, NoSync: true})
	must(err)
	r.pool, err = buf.New(buf.Options{Cap: 32 << 20, Poison: true})
	must(err)
	r.cache, err = cache.Open(cache.Config{Dirs: []cache.DirConfig{{Path: r.dir, Size: cmp.Or(r.room, 1<<30)}}, Index: r.db, Pool: r.pool, Log: log})
	must(err)
	var store objstore.Store = r.store
	if r.wrap != nil {
		store = r.wrap(store)
	}
	cfg := Config{Options: r.opt, Log: log, DB: r.db, Cache: r.cache, Store: store, Engine: prefetch.New(prefetch.Options{Budget: 8 << 20})}
	if r.kernel != nil {
		cfg.Backing = r.kernel
	}
	if r.memory == nil {
		r.memory, err = session.Create()
		must(err)
	}
	cfg.Session, cfg.Notifier = r.memory, r.notifier
	r.fs, err = New(cfg)
	must(err)
	if !r.givesWay {
		r.fs.publisher.hurried.Add(1)
	}
}

func (r *rig) stop(t fatal) {
	t.Helper()
	if err := r.fs.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	if r.kernel != nil && len(r.kernel.files) > 0 {
		t.Fatalf("%d files still registered for passthrough", len(r.kernel.files))
	}
	left := 0
	r.memory.Handles(func(session.Handle) { left++ })
	r.memory.Backings(func(session.Backing) { left++ })
	if r.kernel != nil && left > 0 {
		t.Fatalf("%d handles and files are still in the session", left)
	}
	r.closeBelow(t)
	if err := r.memory.Close(); err != nil {
		t.Fatalf("close session: %v", err)
	}
	r.memory = nil
}

func (r *rig) closeBelow(t fatal) {
	t.Helper()
	for what, err := range map[string]error{"cache": r.cache.Close(), "index": r.db.Close(), "pool": r.pool.Close()} {
		if err != nil {
			t.Fatalf("close %s: %v", what, err)
		}
	}
}

// takeOver has another file system go on with what is open, as after the death of the process, which left the cache as it was, what
// that had begun, and what was closed and not noted as complete.
func (r *rig) takeOver(t fatal) {
	t.Helper()
	r.die(t)
	r.handOver(t)
	r.start(t)
}

// killBoth has another file system start, as after the death of both processes of the mount: what was open is so no more.
func (r *rig) killBoth(t fatal) {
	t.Helper()
	r.die(t)
	if err := r.memory.Close(); err != nil {
		t.Fatalf("close session: %v", err)
	}
	r.memory = nil
	if r.kernel != nil {
		r.kernel.forget()
	}
	r.start(t)
}

// die ends the file system as the death of its process does, and leaves what is open.
func (r *rig) die(t fatal) {
	t.Helper()
	r.fs.halt()
	r.fs.open.closing.Wait()
	if err := r.fs.letGo(true); err != nil {
		t.Fatalf("die: %v", err)
	}
	r.closeBelow(t)
	db, err := meta.Open(meta.Options{Dir: filepath.Join(r.dir, "index"), NoSync: true})
	if err != nil {
		t.Fatalf("index: %v", err)
	}
	if err := db.Apply(cache.Batch{Vars: map[string][]byte{"cache/clean": make([]byte, 8)}, Needed: true}); err != nil {
		t.Fatalf("index: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatalf("index: %v", err)
	}
}

// leave ends the file system as an upgrade does, and leaves what is open.
func (r *rig) leave(t fatal) {
	t.Helper()
	if err := r.fs.Leave(); err != nil {
		t.Fatalf("leave: %v", err)
	}
	r.closeBelow(t)
	r.handOver(t)
}

// handOver gives the session to the next process.
func (r *rig) handOver(t fatal) {
	t.Helper()
	fd, err := unix.FcntlInt(r.memory.File().Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("session: %v", err)
	}
	if err := r.memory.Close(); err != nil {
		t.Fatalf("close session: %v", err)
	}
	if r.memory, err = session.Attach(os.NewFile(uintptr(fd), "session")); err != nil {
		t.Fatalf("attach: %v", err)
	}
}

// walk looks a path up as the kernel does, name by name.
func (r *rig) walk(path string) (Entry, error) {
	ctx := context.Background()
	e := Entry{Node: RootNode, Attr: Attr{Kind: meta.KindDir}}
	for _, name := range strings.Split(path, "/") {
		if name == "" {
			continue
		}
		var err error
		if e, err = r.fs.Lookup(ctx, e.Node, name); err != nil {
			return e, err
		}
	}
	return e, nil
}

// handle is an open file as a program has it.
type handle struct {
	r    *rig
	node NodeID
	o    Opened
	size int64
}

// open opens a path. Like the kernel it looks the name up again after ErrStale.
func (r *rig) open(path string) (*handle, error) {
	var err error
	for range 4 {
		var e Entry
		if e, err = r.walk(path); err != nil {
			return nil, err
		}
		var o Opened
		if o, err = r.fs.Open(context.Background(), e.Node, os.O_RDONLY); err == nil {
			return &handle{r: r, node: e.Node, o: o, size: e.Attr.Size}, nil
		}
		if !errors.Is(err, ErrStale) {
			return nil, err
		}
	}
	return nil, err
}

func (h *handle) read(off, n int64) ([]byte, error) {
	if h.o.Passthrough {
		b := make([]byte, n)
		got, err := h.r.kernel.file(h.o.Backing).ReadAt(b, off)
		if err == io.EOF {
			err = nil
		}
		return b[:got], err
	}
	d, err := h.r.fs.Read(context.Background(), h.node, h.o.FH, off, n, 1)
	if err != nil {
		return nil, err
	}
	defer d.Release()
	return bytes.Join(d.Vecs, nil), nil
}

func (h *handle) all() ([]byte, error) {
	var out []byte
	for int64(len(out)) < h.size {
		b, err := h.read(int64(len(out)), 1<<20)
		if err != nil {
			return nil, err
		}
		if len(b) == 0 {
			return nil, fmt.Errorf("the file ends at %d, want %d", len(out), h.size)
		}
		out = append(out, b...)
	}
	return out, nil
}

func (h *handle) close() { h.r.fs.Release(h.o.FH) }

// list reads a directory to its end, as many small readdir calls, and returns its names;
// directories end in "/".
func (r *rig) list(path string, batch int) ([]string, error) {
	e, err := r.walk(path)
	if err != nil {
		return nil, err
	}
	h, err := r.fs.Opendir(context.Background(), e.Node)
	if err != nil {
		return nil, err
	}
	var out []string
	var cookie uint64
	for {
		n := 0
		err := h.Readdir(context.Background(), cookie, func(e *DirEntry) bool {
			if n == batch {
				return false
			}
			n++
			cookie = e.Cookie
			if e.Name == "." || e.Name == ".." {
				return true
			}
			name := e.Name
			if e.Entry.Attr.Kind == meta.KindDir {
				name += "/"
			}
			out = append(out, name)
			return true
		})
		if err != nil || n == 0 {
			return out, err
		}
	}
}
