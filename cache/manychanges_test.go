package cache_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/cache/buf"
	"github.com/leatfs/leatfs/fs/meta"
)

// onIndex opens a cache of size bytes in dir, on a real index, and returns how to close both.
func onIndex(t *testing.T, dir string, size int64) (*cache.Cache, *meta.DB, func()) {
	t.Helper()
	index, err := meta.Open(meta.Options{Dir: filepath.Join(dir, "index"), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := buf.New(buf.Options{Cap: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	c, err := cache.Open(cache.Config{Dirs: []cache.DirConfig{{Path: dir, Size: size}}, Index: index, Pool: pool, ReserveFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	return c, index, func() {
		t.Helper()
		for what, err := range map[string]error{"cache": c.Close(), "index": index.Close(), "pool": pool.Close()} {
			if err != nil {
				t.Errorf("close %s: %v", what, err)
			}
		}
	}
}

// TestManyFilesGo: more files are found to be gone at a time than one transaction of the index can forget.
func TestManyFilesGo(t *testing.T) {
	const files = 12_000
	dir := t.TempDir()
	_, _, end := onIndex(t, dir, 1<<30)
	b, err := os.ReadFile(filepath.Join(dir, "leatfs-cache.json"))
	if err != nil {
		t.Fatal(err)
	}
	var format struct {
		UUID   string
		Number uint32
	}
	if err := json.Unmarshal(b, &format); err != nil {
		t.Fatal(err)
	}
	end()
	index, err := meta.Open(meta.Options{Dir: filepath.Join(dir, "index"), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < files; {
		var b cache.Batch
		for range 250 {
			id, err := index.NewID()
			if err != nil {
				t.Fatal(err)
			}
			b.Records = append(b.Records, cache.Record{ID: id, Dir: format.Number, State: cache.Proven,
				Identity: cache.Identity{Origin: "test://bucket", Key: fmt.Sprint("file", n), ETag: "e", Size: 4096}})
			b.Usages = append(b.Usages, cache.Usage{ID: id, Dir: format.Number, Bytes: 4096, Admitted: 1, LastUse: 1})
			n++
		}
		if err := index.Apply(b); err != nil {
			t.Fatal(err)
		}
	}
	used := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(format.Number)), files*8192)
	if err := index.Apply(cache.Batch{Vars: map[string][]byte{"cache/dir/" + format.UUID: used}}); err != nil {
		t.Fatal(err)
	}
	if err := index.Close(); err != nil {
		t.Fatal(err)
	}

	c, index, end := onIndex(t, dir, 1<<30)
	defer end()
	if err := c.Reconcile(context.Background()); err != nil {
		t.Fatal(err)
	}
	left := 0
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		left = 0
		if err := index.WalkRecords(0, func(cache.Record) bool { left++; return true }); err != nil {
			t.Fatal(err)
		}
		if left == 0 {
			return
		}
	}
	t.Errorf("the index has %d files still, of %d", left, files)
}

// TestLargeObjectInOneFlush: more of an object comes while the index does not answer than one transaction can take.
func TestLargeObjectInOneFlush(t *testing.T) {
	dir := t.TempDir()
	c, index, end := onIndex(t, dir, 64<<30)
	const extents = 200
	ident := cache.Identity{Origin: "test://bucket", Key: "large", ETag: "e", Size: extents * cache.ExtentBlocks * cache.BlockSize}
	o, err := c.Object(context.Background(), ident, newOrigin())
	if err == nil {
		err = cache.FillIn(o)
	}
	if err != nil {
		t.Fatal(err)
	}
	id := o.ID()
	o.Release()
	missing := func() error {
		for k := range uint32(extents) {
			if x, err := index.Extent(id, k); err != nil || x.CRC[1] != uint64(k)*cache.ExtentBlocks+2 {
				return fmt.Errorf("extent %d: %w", k, err)
			}
		}
		return nil
	}
	for until := time.Now().Add(30 * time.Second); missing() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal(missing())
		}
	}
	end()
}
