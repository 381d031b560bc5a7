package cache_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/cache/cachetest"
)

// files lists the object files, those set aside too.
func (e *env) files() (names []string) {
	e.Helper()
	for _, p := range []string{"objects/*/*", "lost-*/*/*"} {
		m, err := filepath.Glob(filepath.Join(e.dir, p))
		if err != nil {
			e.Fatal(err)
		}
		names = append(names, m...)
	}
	return names
}

func TestKilledBeforeTheIndexKnew(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	small, sident := e.store.put("small", 300_000)
	data, ident := e.store.put("big", 9<<20)
	o := e.object(ident)
	e.wantRead(o, data, 0, 2<<20)
	eventually(t, "stored", func() bool { return o.ResidentBytes() == 2<<20 })
	o.Release()
	e.restart(false) // so much is known
	e.index.Freeze()
	o = e.object(ident)
	e.wantRead(o, data, 0, 6<<20)
	o.Release()
	o = e.object(sident)
	if err := o.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.Release()
	e.restart(true)
	o = e.object(ident)
	if got := o.ResidentBytes(); got != 2<<20 {
		t.Errorf("resident %d after the kill, want what the index knew: 2 MiB", got)
	}
	e.wantRead(o, data, 0, ident.Size)
	o.Release()
	// The small file was complete; by its label it is taken in without a GET.
	if err := e.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	gets, _, _ := e.store.counts()
	o = e.object(sident)
	e.wantLent(o, small)
	e.wantRead(o, small, 0, sident.Size)
	o.Release()
	if g, _, _ := e.store.counts(); g != gets {
		t.Error("it was fetched again")
	}
	if got := e.Stats().Adopted; got != 1 {
		t.Errorf("adopted %d, want 1", got)
	}
}

func TestLostIndex(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	type obj struct {
		data  []byte
		ident cache.Identity
	}
	var objects []obj
	for i, n := range []int{1, 5000, block, 300_000, 3<<20 + 1, 9<<20 + 17, 20 << 20} {
		opts := []func(*stored){nil, withCRC32C, noChecksum}[i%3]
		if opts == nil {
			opts = func(*stored) {}
		}
		data, ident := e.store.put(keyOf(i), n, opts)
		o := e.object(ident)
		if err := o.Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		o.Release()
		objects = append(objects, obj{data, ident})
	}
	pdata, pident := e.store.put("partial", 9<<20)
	o := e.object(pident)
	e.wantRead(o, pdata, 0, 1<<20)
	o.Release()
	bad := objects[3]
	o = e.object(bad.ident)
	badID := o.ID()
	o.Release()
	e.damage(badID, 1234)
	e.close()

	e.index = cachetest.NewIndex()
	e.cfg.Index = e.index
	e.open()
	// While nothing is taken in yet, everything works, with IDs that collide with the old ones.
	newData, newIdent := e.store.put("new", 300_001)
	o = e.object(newIdent)
	if err := o.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.Release()
	if err := e.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := e.Stats(); s.Adopted != uint64(len(objects)-1) || s.ReconcileRemoved != 2 {
		t.Errorf("adopted %d, removed %d; want %d and 2 (the partial and the damaged one)", s.Adopted, s.ReconcileRemoved, len(objects)-1)
	}
	gets, _, _ := e.store.counts()
	check := func() {
		t.Helper()
		for i, x := range append(objects, obj{newData, newIdent}) {
			if i == 3 {
				continue
			}
			o := e.object(x.ident)
			e.wantLent(o, x.data)
			e.wantRead(o, x.data, 0, x.ident.Size)
			o.Release()
		}
		if g, _, _ := e.store.counts(); g != gets {
			t.Errorf("%d GETs for objects that were taken in", g-gets)
		}
	}
	check()
	for _, name := range e.files() {
		if strings.Contains(name, "lost-") {
			t.Errorf("%s is left", name)
		}
	}
	e.restart(false)
	check()
	if got, disk := e.Stats().Dirs[0].Used, e.diskUse(e.dir); got < disk || got > disk+1<<20 {
		t.Errorf("used %d, on disk %d", got, disk)
	}
}

func TestReconcileForgetsRecordsWithoutFile(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	for i := range 5 {
		_, ident := e.store.put(keyOf(i), 300_000)
		o := e.object(ident)
		if err := o.Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		o.Release()
	}
	e.close()
	names := e.files()
	for _, name := range names[:2] {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(e.dir, "objects", "stray"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	e.open()
	if err := e.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "two records forgotten", func() bool { return e.index.Len() == 3 })
	if got := len(e.files()); got != 3 {
		t.Errorf("%d files, want 3", got)
	}
	if _, err := os.Stat(filepath.Join(e.dir, "objects", "stray")); err == nil {
		t.Error("a file that is no object was left in objects")
	}
}

func TestPowerLoss(t *testing.T) {
	e := newEnv(t, 256<<20, 64, func(c *cache.Config) { c.BootID = "boot-1" })
	data, ident := e.store.put("big", 9<<20)
	old, oident := e.store.put("old", 9<<20)
	small, sident := e.store.put("small", 300_000)
	fetch := func(i cache.Identity) cache.ID {
		o := e.object(i)
		defer o.Release()
		if err := o.Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		return o.ID()
	}
	fetch(oident)
	e.restart(false) // closed properly: synced
	id := fetch(ident)
	for _, id := range []cache.ID{id, fetch(sident)} {
		eventually(t, "indexed", func() bool { r, err := e.index.Record(id); return err == nil && r.State.Complete() })
	}
	e.cfg.BootID = "boot-2"
	// The end of the process did not run, and the disk lost the middle of a file.
	e.restart(true)
	e.damage(id, 5<<20)

	o := e.object(oident)
	if !o.Passthroughable() {
		t.Error("a file that was synced is in doubt")
	}
	e.wantLent(o, old)
	o.Release()
	o = e.object(ident)
	if o.Passthroughable() || !o.Complete() {
		t.Errorf("passthroughable %v, complete %v; want the file in doubt", o.Passthroughable(), o.Complete())
	}
	if _, err := o.Lend(); err == nil {
		t.Error("a file in doubt was lent")
	}
	e.wantRead(o, data, 0, 1<<20) // block by block, checked
	o.Release()
	o = e.object(sident)
	gets, _, _ := e.store.counts()
	if err := o.Fetch(t.Context()); err != nil { // verifies it
		t.Fatal(err)
	}
	e.wantLent(o, small)
	o.Release()
	if g, _, _ := e.store.counts(); g != gets {
		t.Error("a good file was fetched again")
	}
	if err := e.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	o = e.object(ident)
	if o.Complete() {
		t.Error("a damaged file passed")
	}
	e.wantRead(o, data, 0, ident.Size)
	o.Release()
	e.restart(false)
	for _, i := range []cache.Identity{oident, sident} {
		o = e.object(i)
		if !o.Passthroughable() {
			t.Error("in doubt again after it was verified")
		}
		o.Release()
	}
}

// TestPowerLossOfAPart: what the index says of a file that is not complete may be wrong after a
// power loss; it must be found out before the kernel reads the file by itself.
func TestPowerLossOfAPart(t *testing.T) {
	e := newEnv(t, 256<<20, 64, func(c *cache.Config) { c.BootID = "boot-1" })
	data, ident := e.store.put("big", 9<<20)
	o := e.object(ident)
	e.wantRead(o, data, 0, 4<<20)
	eventually(t, "stored", func() bool { return o.ResidentBytes() == 4<<20 })
	id := o.ID()
	o.Release()
	eventually(t, "indexed", func() bool { u, err := e.index.Usage(id); return err == nil && u.Bytes == 4<<20 })
	e.cfg.BootID = "boot-2"
	e.restart(true)
	e.damage(id, 1<<20)
	e.restart(true) // the same boot, once more: it is still in doubt
	o = e.object(ident)
	if err := o.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o.ID() != id {
		t.Error("the whole file was given up for one block")
	}
	e.wantLent(o, data)
	o.Release()
}

func TestIndexCannotBeWritten(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	data, ident := e.store.put("big", 9<<20)
	e.index.Fail(errTest)
	o := e.object(ident)
	e.wantRead(o, data, 0, ident.Size)
	e.index.Fail(nil)
	eventually(t, "complete", func() bool { return o.Fetch(t.Context()) == nil })
	e.wantLent(o, data)
	o.Release()
	e.restart(false)
	o = e.object(ident)
	if !o.Passthroughable() {
		t.Error("what was changed while the index failed is lost")
	}
	o.Release()
}

// TestUnnoted: the statistics tell whether the index has all of the objects.
func TestUnnoted(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	_, ident := e.store.put("f", 300_000)
	e.index.Fail(errors.New("the index cannot be written"))
	o := e.object(ident)
	if err := o.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	id := o.ID()
	o.Release()
	for range 100 { // also while it is being tried
		if e.Stats().Unnoted == 0 {
			t.Fatal("all is said to be noted")
		}
		time.Sleep(time.Millisecond)
	}
	e.index.Fail(nil)
	eventually(t, "all is noted", func() bool { return e.Stats().Unnoted == 0 })
	if r, err := e.index.Record(id); err != nil || !r.State.Complete() {
		t.Errorf("the index has %+v, %v", r, err)
	}
}
