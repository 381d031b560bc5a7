package cache_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/minio/crc64nvme"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
)

func label(name string) cache.StageLabel {
	return cache.StageLabel{Origin: "test://bucket", Ino: 7, Parent: 1, Name: name, Dir: "k/", Base: "etag", Mode: 0o100644, UID: 1, GID: 2, Seq: 3}
}

// stage makes a staging file with content.
func (e *env) stage(name string, data []byte) cache.ID {
	e.Helper()
	id, f, err := e.NewStage(label(name))
	if err != nil {
		e.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		e.Fatal(err)
	}
	return id
}

func (e *env) wantStage(id cache.ID, data []byte) {
	e.Helper()
	f, err := e.OpenStage(id, os.O_RDONLY)
	if err != nil {
		e.Fatal(err)
	}
	defer f.Close()
	got, err := io.ReadAll(f)
	if err != nil || !bytes.Equal(got, data) {
		e.Fatalf("staging file %x: %d bytes (%v), want %d others", id, len(got), err, len(data))
	}
}

// sums are what AdoptStage needs to know of data.
func sums(data []byte) (sum uint64, blocks []uint64, checksum objstore.Checksum) {
	for off := 0; off < len(data); off += block {
		blocks = append(blocks, crc64nvme.Checksum(data[off:min(off+block, len(data))]))
	}
	sum = crc64nvme.Checksum(data)
	return sum, blocks, objstore.Checksum{Algorithm: objstore.CRC64NVME, Value: sum}
}

// adopt makes a staging file the object that it was published as.
func (e *env) adopt(id cache.ID, ident cache.Identity, data []byte) {
	e.Helper()
	sum, blocks, checksum := sums(data)
	b, commit, err := e.AdoptStage(id, ident, sum, blocks, checksum)
	if err != nil {
		e.Fatal(err)
	}
	if err := e.index.Apply(b); err != nil {
		e.Fatal(err)
	}
	commit(true)
}

func (e *env) fetched(ident cache.Identity) *cache.Object {
	e.Helper()
	o := e.object(ident)
	if err := o.Fetch(e.Context()); err != nil {
		e.Fatal(err)
	}
	return o
}

// TestStageRound: an object is fetched, taken, changed, and adopted as what it was published as;
// all the time it is the same file.
func TestStageRound(t *testing.T) {
	for _, size := range []int{1, 300_000, 9<<20 + 17} {
		e := newEnv(t, 256<<20, 64)
		data, ident := e.store.put("a", size)
		o := e.fetched(ident)
		id := o.ID()
		loan, err := o.Lend()
		if err != nil {
			t.Fatal(err)
		}
		defer loan.Close()
		got, err := e.TakeStage(o, 1, label("a"))
		if err != nil || got != id {
			t.Fatalf("TakeStage: %x, %v; want %x", got, err, id)
		}
		if _, err := e.index.Record(id); !errors.Is(err, cache.ErrNoRecord) {
			t.Errorf("the index knows the file still: %v", err)
		}
		if o.Complete() || o.ID() != 0 || o.ResidentBytes() != 0 {
			t.Errorf("the object has a file still: %x", o.ID())
		}
		if l, err := e.StageLabel(id); err != nil || l != label("a") {
			t.Errorf("label %+v, %v", l, err)
		}
		o.Return()
		e.wantStage(id, data)
		f, err := e.OpenStage(id, os.O_RDWR)
		if err != nil {
			t.Fatal(err)
		}
		changed := bytes.Clone(data)
		changed[size/2] ^= 0x55
		if _, err := f.WriteAt(changed, 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
		wantFile(t, loan, changed) // it is the same file
		e.wantRead(o, data, 0, ident.Size)
		if err := o.Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		if o.ID() == id {
			t.Error("fetched into the staging file")
		}
		o.Release()
		e.wantStage(id, changed)

		now := ident
		now.ETag = "changed"
		e.adopt(id, now, changed)
		if _, err := e.StatStage(id); !errors.Is(err, cache.ErrNoStage) {
			t.Errorf("the staging file is still there: %v", err)
		}
		gets, _, _ := e.store.counts()
		for range 2 {
			o = e.object(now)
			if o.ID() != id || o.State() != cache.Proven {
				t.Fatalf("file %x in state %v, want %x, proven", o.ID(), o.State(), id)
			}
			e.wantLent(o, changed)
			e.wantRead(o, changed, 0, now.Size)
			o.Release()
			e.restart(false)
		}
		if g, _, _ := e.store.counts(); g != gets {
			t.Error("it was fetched")
		}
		if left, _ := filepath.Glob(filepath.Join(e.dir, "staging", "*")); len(left) > 0 {
			t.Errorf("left in staging: %v", left)
		}
		if err := e.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, disk := e.Stats().Dirs[0].Used, e.diskUse(e.dir); got < disk || got > disk+1<<20 {
			t.Errorf("used %d, on disk %d", got, disk)
		}
	}
}
