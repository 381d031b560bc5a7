package cache_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
)

// path is where the object file of an ID is.
func (e *env) path(id cache.ID) string {
	return filepath.Join(e.dir, "objects", formatID(id)[14:], formatID(id))
}

// TestPowerLossUnderTheIndex: what the index, older than the disk after a power loss, says of a file that was changed and
// published since, or is gone, is not believed: not even of one that was known to be on the disk.
func TestPowerLossUnderTheIndex(t *testing.T) {
	for _, how := range []string{"another version", "another version, larger", "gone"} {
		for _, then := range []string{"lent", "taken"} {
			t.Run(how+", "+then, func(t *testing.T) {
				e := newEnv(t, 64<<20, 64, func(c *cache.Config) { c.BootID = "boot-1" })
				data, ident := e.store.put("a", 300_000)
				o := e.fetched(ident)
				id := o.ID()
				o.Release()
				e.restart(false) // closed properly: it is on the disk
				e.index.Freeze()
				switch how {
				case "gone":
					if err := os.Remove(e.path(id)); err != nil {
						t.Fatal(err)
					}
				default:
					o = e.object(ident)
					if _, err := e.TakeStage(o, 0, label("a")); err != nil {
						t.Fatal(err)
					}
					o.Release()
					changed := bytes.Repeat([]byte("new"), len(data)/3)
					if strings.Contains(how, "larger") {
						changed = append(changed, "more"...)
					}
					f, err := e.OpenStage(id, os.O_RDWR|os.O_TRUNC)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := f.Write(changed); err != nil {
						t.Fatal(err)
					}
					f.Close()
					now := ident
					now.ETag, now.Size = "new", int64(len(changed))
					e.adopt(id, now, changed)
				}
				e.cfg.BootID = "boot-2"
				e.restart(true)
				if r, err := e.index.Record(id); err != nil || !r.State.Complete() {
					t.Fatalf("the index should know the file still: %v", err)
				}
				o = e.object(ident)
				defer o.Release()
				if !o.Passthroughable() {
					if err := o.Fetch(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if then == "lent" {
					e.wantLent(o, data)
					return
				}
				staged, err := e.TakeStage(o, 0, label("a"))
				if err != nil {
					t.Fatal(err)
				}
				e.wantStage(staged, data)
			})
		}
	}
}

// TestPowerLossAfterCleanClose: the note that the cache was opened again may be lost too. What was on its way from an object file
// to a staging file is an object file again, and not both.
func TestPowerLossAfterCleanClose(t *testing.T) {
	e := newEnv(t, 64<<20, 64, func(c *cache.Config) { c.BootID = "boot-1" })
	data, ident := e.store.put("a", 300_000)
	o := e.fetched(ident)
	id := o.ID()
	o.Release()
	other := e.stage("b", nil)
	e.close()
	staged := func(id cache.ID) string { return filepath.Join(e.dir, "staging", formatID(id)) }
	attr := make([]byte, 4096)
	n, err := unix.Lgetxattr(staged(other), "user.leatfs.stage", attr)
	if err == nil {
		err = unix.Lsetxattr(e.path(id), "user.leatfs.stage", attr[:n], 0)
	}
	if err == nil {
		err = os.Link(e.path(id), staged(id))
	}
	if err != nil {
		t.Fatal(err)
	}
	e.cfg.BootID = "boot-2"
	e.open()
	ids, err := e.StageIDs()
	if err != nil || len(ids) != 1 || ids[0] != other {
		t.Errorf("staging files %x, %v; want %x", ids, err, other)
	}
	e.wantNoLinks()
	if got := e.LargestStage(); got < other {
		t.Errorf("the largest ID is %x, want %x", got, other)
	}
	o = e.object(ident)
	defer o.Release()
	e.wantLent(o, data)
}

// slow makes one writer of what is not small, which takes its time.
func slow(c *cache.Config) { c.SmallLimit, c.Writers = 1, 1 }

// part makes an object of which the index knows that its first block is here.
func (e *env) part(key string, blocks int) (data []byte, ident cache.Identity, id cache.ID) {
	e.Helper()
	data, ident = e.store.put(key, blocks*block)
	o := e.object(ident)
	defer o.Release()
	e.wantRead(o, data, 0, block)
	eventually(e, "stored", func() bool { return o.ResidentBytes() == block })
	id = o.ID()
	eventually(e, "indexed", func() bool { u, err := e.index.Usage(id); return err == nil && u.Bytes == block })
	return data, ident, id
}

// TestPartIsGone: the file of an object that is here in part may be gone after a crash. Then all of it is fetched, however slow the
// disk is.
func TestPartIsGone(t *testing.T) {
	e := newEnv(t, 64<<20, 64, slow)
	data, ident, id := e.part("a", 3)
	e.restart(true)
	if err := os.Remove(e.path(id)); err != nil {
		t.Fatal(err)
	}
	cache.SetBeforeWrite(e.Cache, func() { time.Sleep(50 * time.Millisecond) })
	o := e.fetched(ident)
	defer o.Release()
	e.wantLent(o, data)
}

// TestMoreIsCountedThanIsHere: a process that is killed between two batches of one flush leaves a usage that counts blocks of
// which the extents are not in the index.
func TestMoreIsCountedThanIsHere(t *testing.T) {
	e := newEnv(t, 64<<20, 64, slow)
	data, ident, id := e.part("a", 16)
	e.restart(true)
	u, err := e.index.Usage(id)
	if err != nil {
		t.Fatal(err)
	}
	u.Bytes += 7 * block // as many as are still being written when the first eight of the others are here
	if err := e.index.Apply(cache.Batch{Usages: []cache.Usage{u}}); err != nil {
		t.Fatal(err)
	}
	cache.SetBeforeWrite(e.Cache, func() { time.Sleep(50 * time.Millisecond) })
	o := e.fetched(ident)
	defer o.Release()
	e.wantLent(o, data)
}

// TestPowerLossInTheMiddle: of the last changes of the index a power loss may take some and leave younger ones: that a file was
// taken, and not that it was published as another version, under the same number.
func TestPowerLossInTheMiddle(t *testing.T) {
	e := newEnv(t, 64<<20, 64, func(c *cache.Config) { c.BootID = "boot-1" })
	data, ident := e.store.put("a", 300_000)
	o := e.fetched(ident)
	o.Release()
	e.restart(false)
	e.index.Freeze()
	o = e.object(ident)
	id, err := e.TakeStage(o, 0, label("a"))
	if err != nil {
		t.Fatal(err)
	}
	o.Release()
	changed, now := bytes.Repeat([]byte("new"), len(data)/3), ident
	now.ETag = "new"
	if err := os.WriteFile(filepath.Join(e.dir, "staging", formatID(id)), changed, 0); err != nil {
		t.Fatal(err)
	}
	sum, blocks, checksum := sums(changed)
	b, commit, err := e.AdoptStage(id, now, sum, blocks, checksum)
	if err != nil {
		t.Fatal(err)
	}
	commit(true)
	e.close()
	e.index.Thaw()
	if err := e.index.Apply(b); err != nil {
		t.Fatal(err)
	}
	e.cfg.BootID = "boot-2"
	e.open()
	o = e.object(ident)
	e.wantRead(o, data, 0, ident.Size)
	o.Release()
	o = e.fetched(ident)
	e.wantLent(o, data)
	o.Release()
	o = e.fetched(now)
	if o.ID() != id {
		t.Errorf("what was published is in file %x, want %x", o.ID(), id)
	}
	e.wantLent(o, changed)
	o.Release()
}

// TestAdoptAgainAtOnce: a large file whose adoption is given up, and done again before the index has forgotten the first, is known
// to the index with its blocks.
func TestAdoptAgainAtOnce(t *testing.T) {
	e := newEnv(t, 2<<30, 64, func(c *cache.Config) { c.FlushEvery = 300 * time.Millisecond })
	const blocks = 4*cache.ExtentBlocks + 1 // more than goes into the caller's transaction
	id := e.stage("a", nil)
	if err := os.Truncate(filepath.Join(e.dir, "staging", formatID(id)), blocks*block); err != nil {
		t.Fatal(err)
	}
	zeros, whole := make([]byte, block), crc64nvme.New()
	crcs := make([]uint64, blocks)
	for i := range crcs {
		crcs[i] = crc64nvme.Checksum(zeros)
		whole.Write(zeros)
	}
	// The origin does not answer: there is nothing of it there.
	ident := cache.Identity{Origin: e.store.String(), Key: "a", ETag: "e", Size: blocks * block}
	checksum := objstore.Checksum{Algorithm: objstore.CRC64NVME, Value: whole.Sum64()}
	for _, ok := range []bool{false, true} {
		b, commit, err := e.AdoptStage(id, ident, whole.Sum64(), crcs, checksum)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			if err := e.index.Apply(b); err != nil {
				t.Fatal(err)
			}
		}
		commit(ok)
	}
	e.restart(false)
	o := e.object(ident)
	defer o.Release()
	if d, err := o.Read(t.Context(), 0, block); err != nil {
		t.Error(err)
	} else {
		d.Release()
	}
}
