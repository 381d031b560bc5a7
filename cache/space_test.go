package cache_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
)

// diskUse is how many bytes the objects take on disk.
func (e *env) diskUse(dir string) (n int64) {
	err := filepath.Walk(filepath.Join(dir, "objects"), func(_ string, fi os.FileInfo, err error) error {
		if err == nil && fi.Mode().IsRegular() {
			n += allocated(fi)
		}
		return nil
	})
	if err != nil {
		e.Fatal(err)
	}
	return n
}

func TestEvictionKeepsCapacity(t *testing.T) {
	const size = 64 << 20
	e := newEnv(t, size, 64)
	var pinned, lent *cache.Object
	var pinnedData, lentData []byte
	for i := range 200 {
		data, ident := e.store.put(keyOf(i), 1<<20-100)
		o := e.object(ident)
		if err := o.Fetch(t.Context()); err != nil {
			t.Fatalf("object %d: %v", i, err)
		}
		switch i {
		case 3:
			pinned, pinnedData = o, data
			if err := e.Pin(o.ID()); err != nil {
				t.Fatal(err)
			}
			o.Release()
		case 4:
			lent, lentData = o, data
			if _, err := o.Lend(); err != nil {
				t.Fatal(err)
			}
			o.Release()
		default:
			o.Release()
		}
		if use := e.diskUse(e.dir); use > size {
			t.Fatalf("after %d objects %d bytes on disk, want at most %d", i, use, size)
		}
	}
	if e.Stats().Evicted == 0 {
		t.Error("nothing was evicted")
	}
	if !lent.Complete() {
		t.Error("a lent file was evicted")
	}
	e.wantLent(lent, lentData)
	lent.Return()
	o := e.object(pinned.Identity())
	if !o.Complete() {
		t.Error("a pinned file was evicted")
	}
	e.wantLent(o, pinnedData)
	o.Release()
	// The count agrees with the disk.
	eventually(t, "used equals the disk's", func() bool {
		used, disk := e.Stats().Dirs[0].Used, e.diskUse(e.dir)
		return used >= disk && used-disk < size/50
	})
}

func TestReclaimOfIdleLoans(t *testing.T) {
	const size = 32 << 20
	e := newEnv(t, size, 64)
	var mu sync.Mutex
	idle := map[cache.ID]*cache.Object{}
	e.SetReclaim(func(id cache.ID) bool {
		mu.Lock()
		defer mu.Unlock()
		o := idle[id]
		if o == nil {
			return false
		}
		delete(idle, id)
		o.Return()
		o.Release()
		return true
	})
	for i := range 100 {
		_, ident := e.store.put(keyOf(i), 1<<20)
		o := e.object(ident)
		if err := o.Fetch(t.Context()); err != nil {
			t.Fatalf("object %d: %v", i, err)
		}
		f, err := o.Lend()
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		mu.Lock()
		idle[o.ID()] = o
		mu.Unlock()
	}
	mu.Lock()
	defer mu.Unlock()
	if len(idle) == 100 || len(idle) < 16 {
		t.Errorf("%d loans are left", len(idle))
	}
	for id, o := range idle {
		delete(idle, id) // the evictor may be asking for it
		o.Return()
		o.Release()
	}
}

func TestObjectLargerThanTheCache(t *testing.T) {
	const size = 16 << 20
	e := newEnv(t, size, 64)
	var wg sync.WaitGroup
	objects := make([]*cache.Object, 3) // three at once do not lock each other out
	for i := range objects {
		data, ident := e.store.put(keyOf(i), 48<<20+i)
		o := e.object(ident)
		objects[i] = o
		wg.Go(func() {
			for off := int64(0); off < ident.Size; off += 512 << 10 {
				o.Prefetch(off+512<<10, 1<<20, objstore.Prefetch)
				e.wantRead(o, data, off, 512<<10)
				// Going back a little finds it still there, or fetches it.
				if off > 4<<20 && off%(8<<20) == 0 {
					e.wantRead(o, data, off-3<<20, 300_000)
				}
			}
		})
	}
	wg.Wait()
	if use := e.diskUse(e.dir); use > size {
		t.Errorf("%d bytes on disk, want at most %d", use, size)
	}
	s := e.Stats()
	if s.PunchedBytes == 0 {
		t.Errorf("nothing was given back: %+v", s)
	}
	for _, o := range objects {
		if o.ResidentBytes() == 0 {
			t.Error("one object has nothing on disk")
		}
		o.Release()
	}
	if s.CRCMismatches != 0 {
		t.Errorf("%d CRC mismatches", s.CRCMismatches)
	}
	if s.OriginBytes > 3*(48<<20)*12/10 {
		t.Errorf("%d bytes from the origin for %d", s.OriginBytes, 3*48<<20)
	}
}

func TestLargeObjectDoesNotEvictReused(t *testing.T) {
	const size = 64 << 20
	e := newEnv(t, size, 64)
	for i := range 20 {
		_, ident := e.store.put(keyOf(i), 1<<20)
		for range 2 {
			o := e.object(ident)
			if err := o.Fetch(t.Context()); err != nil {
				t.Fatal(err)
			}
			o.Release()
		}
	}
	data, ident := e.store.put("big", 100<<20)
	o := e.object(ident)
	for off := int64(0); off < ident.Size; off += 512 << 10 {
		e.wantRead(o, data, off, 512<<10)
	}
	o.Release()
	if got := e.Stats().Evicted; got > 0 {
		t.Errorf("%d reused files were evicted for a large one", got)
	}
}

func TestSeveralDirectories(t *testing.T) {
	d1, d2 := t.TempDir(), t.TempDir()
	e := newEnv(t, 0, 64, func(c *cache.Config) {
		c.Dirs = []cache.DirConfig{{Path: d1, Size: 64 << 20}, {Path: d2, Size: 32 << 20}}
	})
	var idents []cache.Identity
	for i := range 60 {
		_, ident := e.store.put(keyOf(i), 1<<20)
		o := e.object(ident)
		if err := o.Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		o.Release()
		idents = append(idents, ident)
	}
	a, b := e.diskUse(d1), e.diskUse(d2)
	if a < 30<<20 || b < 10<<20 || a > 64<<20 || b > 32<<20 {
		t.Errorf("%d and %d bytes, want them spread by capacity", a, b)
	}
	// A directory that is no longer there takes its objects with it, and nothing else.
	e.close()
	all := e.cfg.Dirs
	e.cfg.Dirs = all[:1]
	e.open()
	complete := 0
	for i, ident := range idents {
		o := e.object(ident)
		if o.Complete() {
			complete++
		}
		if err := o.Fetch(t.Context()); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		o.Release()
	}
	if want := int(a >> 20); complete < want-3 || complete > want+1 {
		t.Errorf("%d objects are left, want %d", complete, want)
	}
	e.close()
	e.cfg.Dirs = []cache.DirConfig{all[1], all[0]} // their order does not matter
	e.open()
	o := e.object(idents[0])
	if !o.Complete() {
		t.Error("lost by changing the order of the directories")
	}
	o.Release()
}

func TestPrefetchCounts(t *testing.T) {
	e := newEnv(t, 256<<20, 128)
	data, ident := e.store.put("big", 32<<20)
	o := e.object(ident)
	if got := o.Prefetch(0, 4<<20, objstore.Prefetch); got != 4<<20 {
		t.Fatalf("started %d, want 4 MiB", got)
	}
	if got := o.Prefetch(1<<20, 4<<20, objstore.Prefetch); got != 1<<20 {
		t.Errorf("started %d, want 1 MiB: the rest is under way", got)
	}
	e.wantRead(o, data, 0, 2<<20)
	eventually(t, "stored", func() bool { return o.ResidentBytes() == 5<<20 })
	o.Release()
	e.Trim()
	// What memory pressure drops unread is remembered as such until the object goes.
	s := e.Stats()
	if s.PrefetchedBytes != 5<<20 || s.PrefetchUsed != 2<<20 {
		t.Errorf("prefetched %d, used %d; want 5 and 2 MiB", s.PrefetchedBytes, s.PrefetchUsed)
	}
	if got := o.Prefetch(0, 32<<20, objstore.Background); got > 8<<20 {
		t.Errorf("background prefetch of %d bytes began, with 16 MiB of memory", got)
	}
}

func (e *env) Trim() { e.pool.Trim() }

func TestPrefetchDoesNotOverrunMemory(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	_, ident := e.store.put("big", 64<<20)
	gate := make(chan struct{})
	e.store.onRead = func(string, int64) error { <-gate; return nil }
	o := e.object(ident)
	var started int64
	for off := int64(0); off < ident.Size; off += 4 << 20 {
		if n := o.Prefetch(off, 4<<20, objstore.Prefetch); n != cache.NoRoom {
			started += n
		}
	}
	if started == 0 || o.Prefetch(ident.Size-(4<<20), 4<<20, objstore.Prefetch) != cache.NoRoom {
		t.Errorf("started %d bytes, and the last range was not refused", started)
	}
	if started > 6<<20 {
		t.Errorf("started %d bytes with 8 MiB of memory", started)
	}
	close(gate)
	defer func() {
		if t.Failed() {
			t.Logf("%d of %d resident: %+v", o.ResidentBytes(), started, e.Stats())
		}
	}()
	eventually(t, "stored", func() bool { return o.ResidentBytes() == started })
	o.Release()
}

func TestOpenIsQuick(t *testing.T) {
	e := newEnv(t, 1<<40, 64)
	var b cache.Batch
	for i := range 200_000 {
		id := cache.ID(i + 1)
		b.Records = append(b.Records, cache.Record{ID: id, Dir: 1, State: cache.Proven, Identity: cache.Identity{Origin: "x", Key: keyOf(i), Size: 1}})
		b.Usages = append(b.Usages, cache.Usage{ID: id, Dir: 1, Bytes: 4096})
	}
	if err := e.index.Apply(b); err != nil {
		t.Fatal(err)
	}
	e.close()
	begin := time.Now()
	e.open()
	if d := time.Since(begin); d > 500*time.Millisecond {
		t.Errorf("Open took %v", d)
	}
}
