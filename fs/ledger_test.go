package fs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
)

// readOnlyStore refuses all changes while it is shut.
type readOnlyStore struct {
	objstore.Store
	shut atomic.Bool
}

func (s *readOnlyStore) refuse(op, key string) error {
	if !s.shut.Load() {
		return nil
	}
	return &objstore.Error{Op: op, Key: key, Kind: objstore.AccessDenied, Hint: "shut by the test"}
}

func (s *readOnlyStore) Put(ctx context.Context, key string, src objstore.Source, opt objstore.PutOptions) (objstore.Object, error) {
	if err := s.refuse("PUT", key); err != nil {
		return objstore.Object{}, err
	}
	return s.Store.Put(ctx, key, src, opt)
}

func (s *readOnlyStore) Delete(ctx context.Context, key string, opt objstore.DeleteOptions) error {
	if err := s.refuse("DELETE", key); err != nil {
		return err
	}
	return s.Store.Delete(ctx, key, opt)
}

func (s *readOnlyStore) Copy(ctx context.Context, src, dst string, opt objstore.CopyOptions) (objstore.Object, error) {
	if err := s.refuse("COPY", dst); err != nil {
		return objstore.Object{}, err
	}
	return s.Store.Copy(ctx, src, dst, opt)
}

// ledgerRig is a file system whose store can be shut.
type ledgerRig struct {
	*rig
	t    *testing.T
	shut *readOnlyStore
}

func newLedgerRig(t *testing.T) *ledgerRig {
	r := &ledgerRig{rig: newRig(t, t.TempDir(), true), t: t, shut: &readOnlyStore{}}
	r.opt.Now = time.Now
	r.opt.TTL = time.Hour // what shows again does so because it is said to
	r.wrap = func(s objstore.Store) objstore.Store { r.shut.Store = s; return r.shut }
	return r
}

func (r *ledgerRig) begin() *ledgerRig {
	r.start(r.t)
	r.t.Cleanup(func() { r.stop(r.t) })
	return r
}

// dirOf is the node of the directory of a path.
func (r *ledgerRig) dirOf(file string) NodeID {
	r.t.Helper()
	e, err := r.walk(path.Dir("/" + file))
	if err != nil {
		r.t.Fatal(err)
	}
	return e.Node
}

// create opens a new or cut file with some content; the caller releases the handle.
func (r *ledgerRig) create(file, data string) (fh uint64) {
	r.t.Helper()
	ctx := context.Background()
	e, o, err := r.fs.Create(ctx, r.dirOf(file), path.Base(file), os.O_RDWR|os.O_TRUNC, 0o644, Caller{})
	for range 3 {
		if !errors.Is(err, ErrStale) {
			break
		}
		if e, err = r.walk(file); err == nil {
			o, err = r.fs.Open(ctx, e.Node, os.O_RDWR|os.O_TRUNC)
		}
	}
	if err != nil {
		r.t.Fatalf("create %s: %v", file, err)
	}
	if o.Passthrough {
		in, err := r.fs.inode(e.Node)
		if err != nil {
			r.t.Fatal(err)
		}
		f, err := r.cache.OpenStage(in.Stage, os.O_WRONLY)
		if err != nil {
			r.t.Fatal(err)
		}
		if _, err := f.WriteString(data); err != nil {
			r.t.Fatal(err)
		}
		_ = f.Close()
	} else if err := r.fs.Write(ctx, e.Node, o.FH, 0, []byte(data), false); err != nil {
		r.t.Fatal(err)
	}
	return o.FH
}

func (r *ledgerRig) write(file, data string) { r.t.Helper(); r.fs.Release(r.create(file, data)) }

func (r *ledgerRig) unlink(file string) {
	r.t.Helper()
	if err := r.fs.Unlink(context.Background(), r.dirOf(file), path.Base(file)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *ledgerRig) rename(from, to string) {
	r.t.Helper()
	if err := r.fs.Rename(context.Background(), r.dirOf(from), path.Base(from), r.dirOf(to), path.Base(to), 0); err != nil {
		r.t.Fatal(err)
	}
}

// sync is Sync for at most d.
func (r *ledgerRig) sync(d time.Duration) (SyncResult, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return r.fs.Sync(ctx, nil)
}

// clean fails unless all comes to the store.
func (r *ledgerRig) clean() {
	r.t.Helper()
	if res, err := r.sync(time.Minute); err != nil || res.Left.Total() != 0 {
		r.t.Fatalf("sync: %v, left %+v", err, res.Left)
	}
}

// stored is what the store has, as "key=content", sorted; markers of directories are left out.
func (r *ledgerRig) stored() (out []string) {
	r.t.Helper()
	page, err := r.store.List(context.Background(), objstore.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, o := range page.Objects {
		if strings.HasSuffix(o.Key, "/") {
			continue
		}
		rd, err := r.store.Get(context.Background(), o.Key, objstore.GetOptions{Length: -1})
		if err != nil {
			r.t.Fatal(err)
		}
		b, err := io.ReadAll(rd.Body)
		if err != nil {
			r.t.Fatal(err)
		}
		_ = rd.Body.Close()
		out = append(out, o.Key+"="+string(b))
	}
	slices.Sort(out)
	return out
}

func (r *ledgerRig) wantStored(want ...string) {
	r.t.Helper()
	if got := r.stored(); !slices.Equal(got, want) {
		r.t.Errorf("the store has %q, want %q", got, want)
	}
}

func (r *ledgerRig) content(file, want string) {
	r.t.Helper()
	h, err := r.open(file)
	if err != nil {
		r.t.Errorf("open %s: %v", file, err)
		return
	}
	defer h.close()
	if b, err := h.all(); err != nil || string(b) != want {
		r.t.Errorf("%s has %q, %v; want %q", file, b, err, want)
	}
}

func (r *ledgerRig) missing(file string) {
	r.t.Helper()
	if _, err := r.walk(file); !errors.Is(err, ErrNotExist) {
		r.t.Errorf("%s: %v, want that it is not there", file, err)
	}
}

// names are the paths in a ledger, with their states.
func names(l *Ledger) (out []string) {
	for _, e := range l.Entries {
		out = append(out, fmt.Sprintf("%s %s %s", e.State, e.Kind, e.Path))
	}
	return out
}

// TestSync: what was closed is there when Sync returns, however long it would have waited by itself;
// what is open is told.
func TestSync(t *testing.T) {
	r := newLedgerRig(t).begin()
	r.store.Set("old", []byte("old"))
	r.clean() // nothing to do
	ctx := context.Background()
	if _, err := r.fs.Mkdir(ctx, RootNode, "d", 0o755, Caller{}); err != nil { // waits 3 s
		t.Fatal(err)
	}
	r.write("d/a.tmp", "a") // waits 2 s
	r.write("d/b", "b")
	r.unlink("old")
	began := time.Now()
	r.clean()
	if d := time.Since(began); d > 1500*time.Millisecond {
		t.Errorf("sync took %v", d)
	}
	r.wantStored("d/a.tmp=a", "d/b=b")
	if l, err := r.fs.Ledger(10); err != nil || l.Total() != 0 || len(l.Entries) != 0 {
		t.Errorf("the ledger after sync: %+v %v", l, err)
	}

	fh := r.create("open", "half")
	r.write("closed", "whole")
	res, err := r.sync(time.Minute)
	if got := names(&res.Left); err != nil || !slices.Equal(got, []string{"open file /open"}) || res.Left.Open != 1 || res.Left.Bytes != 4 {
		t.Errorf("sync beside an open file: %v, left %q %+v", err, got, res.Left)
	}
	r.unlink("open")
	if l, err := r.fs.Ledger(10); err != nil || l.Total() != 0 || l.Unlinked != 1 || l.UnlinkedBytes != 4 {
		t.Errorf("a file that is open and has no name: %+v %v", l, err)
	}
	r.fs.Release(fh)
	r.clean()
	r.wantStored("closed=whole", "d/a.tmp=a", "d/b=b")
}

// TestSyncClosing: a file that is closed a moment after the call is waited for, since the kernel tells
// of a close late.
func TestSyncClosing(t *testing.T) {
	r := newLedgerRig(t).begin()
	fh := r.create("f", "data")
	go func() {
		time.Sleep(100 * time.Millisecond)
		r.fs.Release(fh)
	}()
	r.clean()
	r.wantStored("f=data")
}

// TestSyncFinds: what is complete and is not in the queue is published.
func TestSyncFinds(t *testing.T) {
	r := newLedgerRig(t).begin()
	r.write("f", "f")
	r.clean()
	e, err := r.walk("f")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.fs.db.Do(func(tx *meta.Tx) error {
		return tx.SetDirty(&meta.Dirty{Ino: r.fs.ino(e.Node), Since: r.fs.now(), Seq: r.fs.db.NextSeq()})
	}); err != nil {
		t.Fatal(err)
	}
	r.clean()
}

// TestSyncFails: Sync waits for what fails, and says what and why when its time is over; it ends well
// once the store takes it.
func TestSyncFails(t *testing.T) {
	r := newLedgerRig(t).begin()
	r.store.Set("e/gone", []byte("x"))
	r.store.Set("e/stays", []byte("y"))
	r.store.Set("p/z", []byte("z"))
	r.write("kept", "k")
	r.clean()
	if _, err := r.list("e", 10); err != nil { // it does not become empty
		t.Fatal(err)
	}
	r.shut.shut.Store(true)
	r.unlink("e/gone")
	r.write("p/a", "aa")
	res, err := r.sync(700 * time.Millisecond)
	l := res.Left
	if !errors.Is(err, context.DeadlineExceeded) || l.Failing != 1 || l.Deletes != 1 || l.DeletesFailing != 1 || l.Bytes != 2 ||
		!strings.Contains(l.FirstError(), "shut by the test") || !slices.Equal(names(&l), []string{"failing file /p/a", "failing delete /e/gone"}) {
		t.Errorf("sync to a store that refuses: %v, %q %+v", err, names(&l), l)
	}
	if l.Entries[0].Tries == 0 || l.Entries[0].Since.IsZero() {
		t.Errorf("an entry that fails: %+v", l.Entries[0])
	}
	told := make(chan Ledger, 100)
	done := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	go func() {
		_, err := r.fs.Sync(ctx, func(l Ledger) { told <- l })
		done <- err
	}()
	if l := <-told; l.Failing != 1 || l.FirstError() == "" {
		t.Errorf("progress: %+v", l)
	}
	r.shut.shut.Store(false)
	if err := <-done; err != nil {
		t.Error(err)
	}
	r.wantStored("e/stays=y", "kept=k", "p/a=aa", "p/z=z")
}

// TestRetry: what is held is not published by itself, nor by Sync, and is by Retry.
func TestRetry(t *testing.T) {
	r := newLedgerRig(t)
	r.start(t)
	r.shut.shut.Store(true)
	r.write("d1", "d1")
	r.write("h", "held")
	r.rename("d1", "d2")
	if _, err := r.sync(time.Second); err == nil {
		t.Fatal("sync to a store that refuses ended well")
	}
	e, err := r.walk("h")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.fs.db.Do(func(tx *meta.Tx) error {
		d, err := tx.Dirty(r.fs.ino(e.Node))
		if err != nil {
			return err
		}
		d.Held = true
		return tx.SetDirty(&d)
	}); err != nil {
		t.Fatal(err)
	}
	r.stop(t)
	r.shut.shut.Store(false)
	r.begin()
	res, err := r.sync(time.Minute)
	if err != nil || !slices.Equal(names(&res.Left), []string{"held file /h"}) || res.Left.Held != 1 {
		t.Fatalf("sync beside a held file: %v, %+v", err, res.Left)
	}
	r.wantStored("d2=d1")
	ctx := context.Background()
	if _, err := r.fs.Retry(ctx, "/d2"); !errors.Is(err, ErrNothingLocal) {
		t.Errorf("retry of what is published: %v", err)
	}
	if n, err := r.fs.Retry(ctx, "h"); n != 1 || err != nil {
		t.Errorf("retry: %d, %v", n, err)
	}
	r.clean()
	r.wantStored("d2=d1", "h=held")
	if n, err := r.fs.Retry(ctx, ""); n != 0 || err != nil {
		t.Errorf("retry of nothing: %d, %v", n, err)
	}
	fh := r.create("open", "half")
	if n, err := r.fs.Retry(ctx, "/open"); n != 0 || !errors.Is(err, errWritten) {
		t.Errorf("retry of what is open for writing: %d, %v", n, err)
	}
	r.fs.Release(fh)
}

// TestRetryHastens: what backs off is tried at once.
func TestRetryHastens(t *testing.T) {
	r := newLedgerRig(t).begin()
	r.shut.shut.Store(true)
	r.write("f", "f")
	if _, err := r.sync(6 * time.Second); err == nil { // several tries: the next is seconds away
		t.Fatal("sync to a store that refuses ended well")
	}
	r.shut.shut.Store(false)
	if n, err := r.fs.Retry(context.Background(), "/f"); n != 1 || err != nil {
		t.Errorf("retry: %d, %v", n, err)
	}
	deadline := time.Now().Add(900 * time.Millisecond)
	for r.fs.db.DirtyCount() > 0 {
		if time.Now().After(deadline) {
			t.Fatal("it was not tried at once")
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.wantStored("f=f")
}

// TestDiscard: each kind of local change is given up, and nothing of it comes to the store.
func TestDiscard(t *testing.T) {
	r := newLedgerRig(t).begin()
	for _, k := range []string{"changed", "deleted", "renamed", "dir/x", "dir/y", "over", "from"} {
		r.store.Set(k, []byte(k))
	}
	ctx := context.Background()
	if _, err := r.list("dir", 100); err != nil {
		t.Fatal(err)
	}
	if _, err := r.list("/", 100); err != nil {
		t.Fatal(err)
	}
	r.shut.shut.Store(true)
	r.write("new", "new")
	r.write("changed", "otherwise")
	r.unlink("deleted")
	r.rename("renamed", "other")
	r.unlink("dir/x")
	r.unlink("dir/y")
	if err := r.fs.Rmdir(ctx, RootNode, "dir"); err != nil {
		t.Fatal(err)
	}
	r.rename("from", "over")
	if _, err := r.fs.Symlink(ctx, RootNode, "link", "new", Caller{}); err != nil {
		t.Fatal(err)
	}
	fh := r.create("open", "x")
	if _, err := r.sync(time.Second); err == nil {
		t.Fatal("sync to a store that refuses ended well")
	}
	if err := r.fs.Discard(ctx, "open"); !errors.Is(err, errOpen) {
		t.Errorf("discard of an open file: %v", err)
	}
	if err := r.fs.Discard(ctx, "/none/at/all"); !errors.Is(err, ErrNothingLocal) {
		t.Errorf("discard of what is not there: %v", err)
	}
	if err := r.fs.Discard(ctx, "/"); !errors.Is(err, ErrInvalid) {
		t.Errorf("discard of the mount: %v", err)
	}
	if err := r.fs.Discard(ctx, "renamed"); !errors.Is(err, errMoved) {
		t.Errorf("discard of the old name of a renamed file: %v", err)
	}
	r.fs.Release(fh)
	for _, file := range []string{"new", "/changed", "deleted", "other", "dir", "over", "link", "open"} {
		if err := r.fs.Discard(ctx, file); err != nil {
			t.Errorf("discard %s: %v", file, err)
		}
	}
	if l, err := r.fs.Ledger(100); err != nil || l.Total() != 0 {
		t.Errorf("after all was discarded: %q %+v %v", names(&l), l, err)
	}
	r.shut.shut.Store(false)
	r.clean()
	all := []string{"changed=changed", "deleted=deleted", "dir/x=dir/x", "dir/y=dir/y", "from=from", "over=over", "renamed=renamed"}
	r.wantStored(all...)
	for _, kv := range all {
		k, v, _ := strings.Cut(kv, "=")
		r.content(k, v)
	}
	for _, k := range []string{"new", "other", "link", "open"} {
		r.missing(k)
	}
	got, err := r.list("/", 100)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if want := []string{"changed", "deleted", "dir/", "from", "over", "renamed"}; !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
	if err := r.fs.Discard(ctx, "changed"); !errors.Is(err, ErrNothingLocal) {
		t.Errorf("discard of what is published: %v", err)
	}
	var stages []string
	if err := r.cache.WalkStages(func(id cache.ID, l cache.StageLabel, err error) bool {
		stages = append(stages, fmt.Sprintf("%v: %+v %v", id, l, err))
		return true
	}); err != nil || len(stages) != 0 {
		t.Errorf("staging files are left: %q %v", stages, err)
	}
}

// TestDiscardBelow: one of several deleted objects of a removed directory shows again.
func TestDiscardBelow(t *testing.T) {
	r := newLedgerRig(t).begin()
	r.store.Set("d/x", []byte("x"))
	r.store.Set("d/y", []byte("y"))
	r.shut.shut.Store(true)
	r.unlink("d/x")
	r.unlink("d/y")
	if err := r.fs.Rmdir(context.Background(), RootNode, "d"); err != nil {
		t.Fatal(err)
	}
	r.missing("d")
	if err := r.fs.Discard(context.Background(), "/d/x"); err != nil {
		t.Fatal(err)
	}
	r.content("d/x", "x")
	r.missing("d/y")
	r.shut.shut.Store(false)
	r.clean()
	r.wantStored("d/x=x")
	r.content("d/x", "x")
}

// TestLedgerLarge: a large ledger is not walked each time.
func TestLedgerLarge(t *testing.T) {
	r := newLedgerRig(t).begin()
	r.shut.shut.Store(true)
	const n = 400
	for i := range n {
		r.write(fmt.Sprintf("f%03d", i), "x")
	}
	l, err := r.fs.Ledger(7)
	if err != nil || l.Files() != n || l.Bytes != n || len(l.Entries) != 7 || l.Oldest.IsZero() {
		t.Fatalf("%+v %v", l, err)
	}
	again, err := r.fs.Ledger(5)
	if err != nil || len(again.Entries) != 5 {
		t.Fatalf("%+v %v", again, err)
	}
	if r.fs.ledger.cost > 0 && !again.At.Equal(l.At) {
		t.Error("a ledger that took long was walked again at once")
	}
	r.shut.shut.Store(false)
	r.clean()
	if l, err := r.fs.ledgerNow(1, nil); err != nil || l.Total() != 0 {
		t.Errorf("%+v %v", l, err)
	}
}

// TestLedgerShort: what a walk took, on a busy machine, keeps nobody from seeing what has happened since, while there
// is little to see.
func TestLedgerShort(t *testing.T) {
	r := newLedgerRig(t)
	r.shut.shut.Store(true)
	r.begin()
	r.write("a", "a")
	slow := func() {
		m := &r.fs.ledger
		m.mu.Lock()
		defer m.mu.Unlock()
		m.last.At, m.cost = time.Now(), time.Hour
	}
	for want := 1; want <= 2; want++ {
		if l, err := r.fs.Ledger(10); err != nil || l.Files() != want {
			t.Errorf("%d files, %v; want %d", l.Files(), err, want)
		}
		slow()
		r.write("b", "b")
	}
	r.shut.shut.Store(false)
	if _, err := r.sync(time.Minute); err != nil {
		t.Fatal(err)
	}
	slow()
	if l, err := r.fs.Ledger(10); err != nil || l.Total() != 0 {
		t.Errorf("after a sync: %+v, %v", l, err)
	}
}
