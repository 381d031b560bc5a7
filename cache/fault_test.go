package cache_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
)

func TestOneDownloadPerBlock(t *testing.T) {
	e := newEnv(t, 256<<20, 128)
	data, ident := e.store.put("big", 8<<20)
	gate := make(chan struct{})
	e.store.onRead = func(string, int64) error { <-gate; return nil }
	o := e.object(ident)
	defer o.Release()
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			off := int64(i%4) * 512 << 10
			d, err := o.Read(t.Context(), off, 1<<20)
			if err != nil {
				t.Error(err)
				return
			}
			if string(d.AppendTo(nil)) != string(data[off:off+1<<20]) {
				t.Error("wrong bytes")
			}
			d.Release()
		})
	}
	eventually(t, "GETs begun", func() bool { g, _, _ := e.store.counts(); return g > 0 })
	close(gate)
	wg.Wait()
	if got, want := e.Stats().OriginBytes, uint64(3*512<<10+1<<20); got != want {
		t.Errorf("%d bytes from the origin, want %d: each block once", got, want)
	}
}

func TestCanceledReaderLeavesDownload(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	_, ident := e.store.put("big", 8<<20)
	gate := make(chan struct{})
	e.store.onRead = func(string, int64) error { <-gate; return nil }
	o := e.object(ident)
	defer o.Release()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { _, err := o.Read(ctx, 0, 1<<20); done <- err }()
	eventually(t, "a GET", func() bool { g, _, _ := e.store.counts(); return g == 1 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Read: %v, want Canceled", err)
	}
	close(gate)
	eventually(t, "the blocks resident", func() bool { return o.ResidentBytes() == 1<<20 })
}

func TestBlocksAreReadableAsTheyArrive(t *testing.T) {
	e := newEnv(t, 256<<20, 128)
	data, ident := e.store.put("big", 8<<20)
	gate := make(chan struct{})
	e.store.onRead = func(_ string, off int64) error {
		if off >= 4*block {
			<-gate
		}
		return nil
	}
	o := e.object(ident)
	defer o.Release()
	o.Prefetch(0, 8<<20, objstore.Prefetch)
	e.wantRead(o, data, 0, 4*block) // while the body stands still
	close(gate)
	e.wantRead(o, data, 0, ident.Size)
}

func TestFetchErrorAndRetry(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	data, ident := e.store.put("big", 8<<20)
	var fail atomic.Bool
	fail.Store(true)
	e.store.onRead = func(key string, off int64) error {
		if fail.Load() && off >= 2*block {
			return unavailable(key)
		}
		return nil
	}
	o := e.object(ident)
	defer o.Release()
	if _, err := o.Read(t.Context(), 0, 1<<20); !objstore.Is(err, objstore.Unavailable) || !errors.Is(err, errTest) {
		t.Fatalf("Read: %v, want the origin's error", err)
	}
	e.wantRead(o, data, 0, 2*block) // what came before the error stays
	fail.Store(false)
	e.wantRead(o, data, 0, ident.Size)
	if err := o.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.wantLent(o, data)
}

func TestShortBodyIsUnavailable(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	_, ident := e.store.put("big", 1<<20)
	e.store.onRead = func(_ string, off int64) error {
		if off > 3*block {
			return io.EOF // a store that breaks its contract
		}
		return nil
	}
	o := e.object(ident)
	defer o.Release()
	if _, err := o.Read(t.Context(), 0, 1<<20); !objstore.Is(err, objstore.Unavailable) {
		t.Errorf("Read: %v, want Unavailable", err)
	}
}

func TestVersionReplaced(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	data, ident := e.store.put("big", 8<<20)
	o := e.object(ident)
	e.wantRead(o, data, 0, 1<<20)
	eventually(t, "stored", func() bool { return o.ResidentBytes() == 1<<20 })
	e.store.put("big", 8<<20+1)
	if _, err := o.Read(t.Context(), 2<<20, 1<<20); !errors.Is(err, cache.ErrStale) {
		t.Errorf("Read of absent blocks: %v, want ErrStale", err)
	}
	if err := o.Fetch(t.Context()); !errors.Is(err, cache.ErrStale) {
		t.Errorf("Fetch: %v, want ErrStale", err)
	}
	if n := o.Prefetch(4<<20, 1<<20, objstore.Prefetch); n != 0 {
		t.Errorf("Prefetch started %d bytes of a version that is gone", n)
	}
	e.wantRead(o, data, 0, 1<<20) // resident blocks stay readable
	o.Doom()
	path := filepath.Join(e.dir, "objects", "01", "0000000000000001")
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the file of a doomed object went while it was in use: %v", err)
	}
	o.Release()
	eventually(t, "the file removed", func() bool { _, err := os.Stat(path); return errors.Is(err, os.ErrNotExist) })
	eventually(t, "the record removed", func() bool { return e.index.Len() == 0 })
}

func TestVersionIDIsNamed(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	data, ident := e.store.put("v", 1<<20, func(x *stored) { x.version = "v1" })
	o := e.object(ident)
	defer o.Release()
	e.wantRead(o, data, 0, block) // learns the version
	e.wantRead(o, data, 2*block, block)
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	if got := e.store.opened[1]; got.VersionID != "v1" || got.IfMatch != ident.ETag {
		t.Errorf("second GET with %+v, want version v1 and the ETag", got)
	}
	if got := o.Identity().VersionID; got != "v1" {
		t.Errorf("Identity has version %q, want v1", got)
	}
}

func TestOriginSendsAnotherVersion(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	_, ident := e.store.put("x", 1<<20)
	ident.ETag = "" // cannot ask for it by ETag, but the size tells
	ident.Size += 5
	o := e.object(ident)
	defer o.Release()
	if _, err := o.Read(t.Context(), 0, block); !errors.Is(err, cache.ErrStale) {
		t.Errorf("Read: %v, want ErrStale", err)
	}
}

// TestChecksums goes through what origins hold, for small and large objects.
func TestChecksums(t *testing.T) {
	for _, tc := range []struct {
		name        string
		opt         func(*stored)
		small, big  cache.State
		afterwards  bool // completed by another process than the one that fetched it
		restartAtMB int64
	}{
		{name: "CRC64NVME", opt: func(*stored) {}, small: cache.Proven, big: cache.Proven},
		{name: "CRC32C", opt: withCRC32C, small: cache.Proven, big: cache.Proven},
		{name: "CRC32", opt: withCRC32, small: cache.Proven, big: cache.Proven},
		{name: "MD5", opt: onlyMD5, small: cache.Proven, big: cache.Unverifiable},
		{name: "none", opt: noChecksum, small: cache.Unverifiable, big: cache.Unverifiable},
	} {
		for _, crash := range []bool{false, true} {
			t.Run(tc.name, func(t *testing.T) {
				e := newEnv(t, 256<<20, 64)
				data, ident := e.store.put("small", 300_000, tc.opt)
				o := e.object(ident)
				if err := o.Fetch(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := o.State(); got != tc.small {
					t.Errorf("small: state %v, want %v", got, tc.small)
				}
				e.wantLent(o, data)
				o.Release()
				data, ident = e.store.put("big", 9<<20+321, tc.opt)
				o = e.object(ident)
				e.wantRead(o, data, 5<<20, 2<<20)
				if crash { // half of the 32-bit sums are lost with the process
					eventually(t, "stored", func() bool { return o.ResidentBytes() == 2<<20 })
					o.Release()
					e.restart(false)
					o = e.object(ident)
				}
				if err := o.Fetch(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := o.State(); got != tc.big {
					t.Errorf("big: state %v, want %v", got, tc.big)
				}
				e.wantLent(o, data)
				o.Release()
			})
		}
	}
}

func TestOriginCorruptsOnce(t *testing.T) {
	for _, size := range []int{200_000, 9 << 20} {
		e := newEnv(t, 256<<20, 64)
		data, ident := e.store.put("x", size)
		var done atomic.Bool
		e.store.mangle = func(_ string, off int64, p []byte) {
			if !done.Swap(true) {
				p[len(p)/2] ^= 4
			}
		}
		o := e.object(ident)
		if err := o.Fetch(t.Context()); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if o.State() != cache.Proven {
			t.Errorf("%d bytes: state %v", size, o.State())
		}
		e.wantLent(o, data)
		e.wantRead(o, data, 0, int64(size))
		if got := e.Stats().SumMismatches; got != 1 {
			t.Errorf("%d mismatches counted, want 1", got)
		}
		o.Release()
	}
}

func TestOriginIsCorrupt(t *testing.T) {
	for _, opt := range []func(*stored){func(*stored) {}, withCRC32C} {
		for _, size := range []int{200_000, 9 << 20} {
			e := newEnv(t, 256<<20, 64)
			_, ident := e.store.put("x", size, opt, func(x *stored) { x.checksum.Value ^= 1 })
			o := e.object(ident)
			err := o.Fetch(t.Context())
			if !objstore.Is(err, objstore.Corrupt) || !strings.Contains(err.Error(), "does not match its CRC") {
				t.Errorf("%d bytes: Fetch: %v, want Corrupt", size, err)
			}
			if _, err := o.Read(t.Context(), 0, 10); !objstore.Is(err, objstore.Corrupt) {
				t.Errorf("%d bytes: Read: %v, want Corrupt", size, err)
			}
			if o.Complete() {
				t.Error("complete")
			}
			o.Release()
		}
	}
}

func TestETagThatIsNoMD5(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	data, ident := e.store.put("x", 200_000, onlyMD5, func(x *stored) { x.etag = strings.Repeat("ab", 16) })
	o := e.object(ident)
	defer o.Release()
	if err := o.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o.State() != cache.Unverifiable {
		t.Errorf("state %v, want Unverifiable: the same bytes came twice", o.State())
	}
	e.wantLent(o, data)
	if g, _, _ := e.store.counts(); g != 2 {
		t.Errorf("%d GETs, want 2", g)
	}
}

// damage flips a byte of the object's file.
func (e *env) damage(id cache.ID, off int64) {
	e.Helper()
	names, err := filepath.Glob(filepath.Join(e.dir, "objects", "*", "*"))
	if err != nil {
		e.Fatal(err)
	}
	for _, name := range names {
		if !strings.HasSuffix(name, strings.ToLower(formatID(id))) {
			continue
		}
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			e.Fatal(err)
		}
		var b [1]byte
		if _, err := f.ReadAt(b[:], off); err != nil {
			e.Fatal(err)
		}
		b[0] ^= 0x10
		if _, err := f.WriteAt(b[:], off); err != nil {
			e.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			e.Fatal(err)
		}
		f.Close()
		return
	}
	e.Fatalf("no file of id %d", id)
}

func TestDamagedBlockOnDisk(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	data, ident := e.store.put("big", 9<<20)
	o := e.object(ident)
	e.wantRead(o, data, 0, 4<<20)
	eventually(t, "stored", func() bool { return o.ResidentBytes() == 4<<20 })
	id := o.ID()
	o.Release()
	e.damage(id, 5*block+77)
	e.restart(false)
	o = e.object(ident)
	defer func() { o.Release() }()
	e.wantRead(o, data, 0, 4<<20)
	if s := e.Stats(); s.CRCMismatches != 1 || s.OriginBytes != block {
		t.Errorf("%d mismatches, %d bytes fetched; want 1 and one block", s.CRCMismatches, s.OriginBytes)
	}
	if o.ID() != id {
		t.Error("a file that never was complete was replaced for one bad block")
	}
	// In a complete file, which the kernel may have, nothing is repaired: it is replaced.
	if err := o.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.Release()
	e.restart(false)
	o = e.object(ident)
	f, err := o.Lend()
	if err != nil {
		t.Fatal(err)
	}
	e.damage(id, 40*block)
	e.wantRead(o, data, 0, ident.Size)
	if o.ID() == id {
		t.Error("a complete file with a bad block was kept")
	}
	o.Return()
	f.Close()
	if err := o.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.wantLent(o, data)
}

func TestFileVanishes(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	data, ident := e.store.put("x", 300_000)
	o := e.object(ident)
	defer o.Release()
	if err := o.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(e.dir, "objects", formatID(o.ID())[14:])); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Lend(); err == nil {
		t.Fatal("Lend of a file that is not there")
	}
	if o.Complete() {
		t.Error("complete without a file")
	}
	if err := o.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.wantLent(o, data)
}

func TestPoolSmallerThanDemand(t *testing.T) {
	// 32 buffers, 24 readers of 1 MiB each, and prefetch: everybody gets through.
	e := newEnv(t, 512<<20, 32)
	data, ident := e.store.put("big", 64<<20)
	o := e.object(ident)
	defer o.Release()
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			for k := range 8 {
				off := int64((i*7+k*13)%64) << 20
				o.Prefetch(off+1<<20, 4<<20, objstore.Prefetch)
				e.wantRead(o, data, off+77, 1<<20)
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatalf("stuck: %+v", e.Stats())
	}
}

func TestSlowDiskDoesNotStopReaders(t *testing.T) {
	e := newEnv(t, 512<<20, 32)
	gate := make(chan struct{})
	cache.SetBeforeWrite(e.Cache, func() { <-gate })
	data, ident := e.store.put("big", 32<<20)
	o := e.object(ident)
	for off := int64(0); off < ident.Size; off += 1 << 20 {
		e.wantRead(o, data, off, 1<<20)
	}
	if got := e.Stats().Dropped; got == 0 {
		t.Error("nothing was dropped although the disk stood still")
	}
	close(gate)
	if err := o.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.wantLent(o, data)
	o.Release()
}

// TestDiscardUnderAWaitingReader: a reader holds blocks and waits for another while the whole
// object is found lost and discarded.
func TestDiscardUnderAWaitingReader(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	data, ident := e.store.put("big", 9<<20)
	o := e.object(ident)
	e.wantRead(o, data, 4*block, 3*block)
	eventually(t, "stored", func() bool { return o.ResidentBytes() == 3*block })
	o.Release()
	e.restart(false)
	if err := os.RemoveAll(filepath.Join(e.dir, "objects", "01")); err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	e.store.onRead = func(_ string, off int64) error {
		if off >= 7*block {
			<-gate
		}
		return nil
	}
	o = e.object(ident)
	defer o.Release()
	done := make(chan []byte)
	go func() {
		got, err := read(o, 0, 6*block) // MaxRead is small here
		if err != nil {
			t.Error(err)
		}
		done <- got
	}()
	rest := make(chan []byte)
	go func() {
		got, err := read(o, 2*block, 6*block)
		if err != nil {
			t.Error(err)
		}
		rest <- got
	}()
	eventually(t, "the loss found", func() bool { return e.Stats().LostFiles > 0 })
	close(gate)
	if got := <-done; string(got) != string(data[:6*block]) {
		t.Error("wrong bytes")
	}
	if got := <-rest; string(got) != string(data[2*block:8*block]) {
		t.Error("wrong bytes")
	}
}

// TestRaised: a prefetch that a reader comes to wait for becomes Demand, also for the store.
func TestRaised(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	data, ident := e.store.put("big", 9<<20)
	var urgent atomic.Int32
	e.store.onGet = func(ctx context.Context, _ string, _ objstore.GetOptions) error {
		if objstore.PriorityOf(ctx) == objstore.Demand {
			return nil
		}
		select {
		case <-objstore.Raised(ctx):
			urgent.Add(1)
		case <-ctx.Done():
		}
		return nil
	}
	o := e.object(ident)
	defer o.Release()
	o.Prefetch(0, 1<<20, objstore.Background)
	eventually(t, "a GET", func() bool { g, _, _ := e.store.counts(); return g == 1 })
	e.wantRead(o, data, 0, 1<<20)
	if urgent.Load() != 1 {
		t.Error("the GET was not raised")
	}
}
