package cache_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
)

// lentAndKilled has an object completed and its file lent, by a process that is killed before the
// index knows more than the first part bytes, and returns what the kernel still reads.
func lentAndKilled(e *env, data []byte, ident cache.Identity, part int64) (file *os.File, id cache.ID) {
	e.Helper()
	o := e.object(ident)
	e.stored(o, data, part)
	id = o.ID()
	eventually(e, "indexed", func() bool { u, err := e.index.Usage(id); return err == nil && u.Bytes == part })
	e.index.Freeze()
	if err := o.Fetch(e.Context()); err != nil {
		e.Fatal(err)
	}
	file, err := o.Lend()
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { file.Close() })
	e.restart(true)
	r, err := e.index.Record(id)
	if err != nil || r.State != cache.Partial {
		e.Fatalf("the index says %v (%v), want a partial file", r.State, err)
	}
	return file, id
}

// stored reads the first n bytes of o until they are on disk.
func (e *env) stored(o *cache.Object, data []byte, n int64) {
	e.Helper()
	eventually(e, "stored", func() bool {
		e.wantRead(o, data, 0, n)
		return o.ResidentBytes() == n
	})
}

func wantFile(t testing.TB, f *os.File, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, int64(len(want))), got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatal("the file that the kernel reads has changed")
	}
}

// fill reads so much of another object, which is used often, that the cache, of 32 MiB, gives up
// what it may.
func (e *env) fill() {
	e.Helper()
	data, ident := e.store.put("fill", 48<<20)
	o := e.object(ident)
	defer o.Release()
	for off := int64(0); off < ident.Size; off += 1 << 20 {
		e.wantRead(o, data, off, 1<<20)
		o.Use()
	}
	eventually(e, "below the mark", func() bool { return e.Stats().Dirs[0].Used < 32<<20 })
}

// TestLentByAKilledProcess: what the kernel reads by itself stays as it is, whatever the index
// has missed of it: also a file of which only a mapping is left, that no open tells of.
func TestLentByAKilledProcess(t *testing.T) {
	for name, open := range map[string]bool{"open": true, "mapped": false} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, 32<<20, 64)
			data, ident := e.store.put("big", 20<<20)
			file, id := lentAndKilled(e, data, ident, 18<<20)
			e.SetReclaim(func(i cache.ID) bool { return i != id || !open })
			o := e.object(ident)
			e.wantRead(o, data, 0, 4<<20)
			e.fill()
			wantFile(t, file, data)
			e.wantRead(o, data, 0, ident.Size)
			e.fill()
			wantFile(t, file, data)
			o.Release()
		})
	}
	t.Run("wrong bytes from the origin", func(t *testing.T) {
		e := newEnv(t, 64<<20, 64)
		data, ident := e.store.put("big", 20<<20)
		file, id := lentAndKilled(e, data, ident, 4<<20)
		e.SetReclaim(func(i cache.ID) bool { return i != id })
		var once atomic.Bool
		e.store.mangle = func(_ string, _ int64, p []byte) {
			if !once.Swap(true) {
				p[len(p)/2] ^= 4
			}
		}
		o := e.object(ident)
		defer o.Release()
		_, _ = read(o, 8<<20, 1<<20)
		wantFile(t, file, data)
		if err := o.Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		e.wantLent(o, data)
		wantFile(t, file, data)
	})
	t.Run("whole in the index", func(t *testing.T) {
		e := newEnv(t, 64<<20, 64)
		data, ident := e.store.put("big", 9<<20)
		file, id := func() (*os.File, cache.ID) {
			o := e.object(ident)
			e.wantRead(o, data, 0, ident.Size)
			id := o.ID()
			if err := o.Fetch(t.Context()); err != nil {
				t.Fatal(err)
			}
			f, err := o.Lend()
			if err != nil {
				t.Fatal(err)
			}
			return f, id
		}()
		defer file.Close()
		eventually(t, "indexed", func() bool { r, err := e.index.Record(id); return err == nil && r.State.Complete() })
		// What was the last of it is lost.
		r, _ := e.index.Record(id)
		e.index.Freeze()
		e.close()
		e.index.Thaw()
		r.State, r.Sum = cache.Partial, 0
		if err := e.index.Apply(cache.Batch{Records: []cache.Record{r}}); err != nil {
			t.Fatal(err)
		}
		e.open()
		gets, _, _ := e.store.counts()
		o := e.object(ident)
		defer o.Release()
		if !o.Passthroughable() || o.ID() != id {
			t.Error("a file that was complete, and of which all blocks are known, is not taken as such")
		}
		e.wantLent(o, data)
		e.wantRead(o, data, 0, ident.Size)
		if g, _, _ := e.store.counts(); g != gets {
			t.Error("it was fetched again")
		}
	})
}

// TestKernelHasAPart: a file that is not complete, but that the kernel is said to have, gets no
// hole: another takes its place.
func TestKernelHasAPart(t *testing.T) {
	e := newEnv(t, 32<<20, 64)
	data, ident := e.store.put("big", 20<<20)
	o := e.object(ident)
	defer o.Release()
	e.stored(o, data, 19<<20)
	id := o.ID()
	file, err := os.Open(e.files()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var asked atomic.Bool
	e.SetReclaim(func(i cache.ID) bool {
		if i == id {
			asked.Store(true)
			o.ID() // no lock is held
		}
		return i != id
	})
	e.fill()
	if !asked.Load() || o.ID() == id {
		t.Errorf("asked %v, another file %v; want both", asked.Load(), o.ID() != id)
	}
	wantFile(t, file, data[:19<<20])
	e.wantRead(o, data, 0, ident.Size)
}

// TestDamagedIsToldFirst: who is to have wrong bytes forgotten is told while they are still there
// to be found again, should the process be killed; nobody is given them any more.
func TestDamagedIsToldFirst(t *testing.T) {
	e := newEnv(t, 64<<20, 64)
	data, ident := e.store.put("big", 9<<20)
	var once atomic.Bool
	e.store.mangle = func(_ string, _ int64, p []byte) {
		if !once.Swap(true) {
			p[len(p)/2] ^= 4
		}
	}
	o := e.object(ident)
	defer o.Release()
	told, goOn := make(chan cache.Identity, 8), make(chan struct{})
	e.SetDamaged(func(i cache.Identity) {
		told <- i
		<-goOn
	})
	done := make(chan error, 1)
	go func() { done <- o.Fetch(t.Context()) }()
	select {
	case i := <-told:
		if i.Key != ident.Key {
			t.Errorf("told of %q", i.Key)
		}
	case err := <-done:
		t.Fatalf("Fetch ended (%v), and nobody was told", err)
	}
	if n := len(e.files()); n != 1 || o.ResidentBytes() != ident.Size || e.Stats().SumMismatches != 0 {
		t.Errorf("%d files, %d bytes resident; want the damaged file as it is", n, o.ResidentBytes())
	}
	id := o.ID()
	got := make(chan []byte, 1)
	go func() {
		b, err := read(o, 0, ident.Size)
		if err != nil {
			t.Error(err)
		}
		got <- b
	}()
	var b []byte
	select {
	case b = <-got:
		t.Error("a reader was given bytes that are known to be wrong")
	case <-time.After(50 * time.Millisecond):
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if b == nil {
		b = <-got
	}
	if !bytes.Equal(b, data) {
		t.Error("wrong bytes")
	}
	if o.ID() == id {
		t.Error("the damaged file was kept")
	}
	e.wantLent(o, data)
}

// TestNotLabelledNotLent: a file that does not say itself that it is complete is not lent, since
// the next process could not know; it is read, and lent when the index knows it.
func TestNotLabelledNotLent(t *testing.T) {
	for _, opt := range []func(*stored){func(*stored) {}, noChecksum} {
		e := newEnv(t, 64<<20, 64)
		cache.SetBeforeLabel(e.Cache, func() error { return errTest })
		data, ident := e.store.put("big", 9<<20, opt)
		o := e.object(ident)
		if err := o.Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := o.Lend(); !errors.Is(err, cache.ErrIncomplete) || o.Passthroughable() {
			t.Errorf("Lend: %v, want ErrIncomplete", err)
		}
		e.wantRead(o, data, 0, ident.Size)
		o.Release()
		e.restart(false)
		o = e.object(ident)
		e.wantLent(o, data)
		o.Release()
	}
}

// TestLabelledLater: an object whose file could not be labelled when it became complete, as on a full disk, can be lent and changed as
// soon as it can, and until then who wants that is told why not.
func TestLabelledLater(t *testing.T) {
	for _, how := range []string{"lent", "taken"} {
		e := newEnv(t, 64<<20, 64)
		var full atomic.Bool
		full.Store(true)
		cache.SetBeforeLabel(e.Cache, func() error {
			if full.Load() {
				return unix.ENOSPC
			}
			return nil
		})
		data, ident := e.store.put("a", 300_000)
		o := e.fetched(ident)
		use := func() (err error) {
			if how == "lent" {
				var f *os.File
				if f, err = o.Lend(); err == nil {
					wantFile(t, f, data)
					f.Close()
					o.Return()
				}
				return err
			}
			id, err := e.TakeStage(o, 0, label("a"))
			if err == nil {
				e.wantStage(id, data)
			}
			return err
		}
		if err := use(); !errors.Is(err, unix.ENOSPC) || !errors.Is(err, cache.ErrIncomplete) {
			t.Errorf("%s while the disk is full: %v", how, err)
		}
		e.wantRead(o, data, 0, ident.Size)
		full.Store(false)
		if err := use(); err != nil {
			t.Errorf("%s: %v", how, err)
		}
		if how == "lent" {
			if !o.Passthroughable() {
				t.Error("it is not passed through")
			}
			// The label says so to a process whose index has missed it.
			if l, err := e.labelOf(o.ID()); err != nil || l[1] == byte(cache.Partial) {
				t.Errorf("label %v, %v", l, err)
			}
		}
		gets, _, _ := e.store.counts()
		if gets != 1 {
			t.Errorf("%s: %d GETs", how, gets)
		}
		o.Release()
	}
}

// labelOf is the label of an object file, as it stands on the disk.
func (e *env) labelOf(id cache.ID) ([]byte, error) {
	b := make([]byte, 4096)
	n, err := unix.Getxattr(e.path(id), "user.leatfs.object", b)
	return b[:max(n, 0)], err
}
