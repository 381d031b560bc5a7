package meta

import (
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/leatfs/leatfs/cache"
)

// TestDoomedAndBack: the record of a file that was deleted, of which the extents could not be, and that came back under the same ID, keeps
// the extents that it got then.
func TestDoomedAndBack(t *testing.T) {
	dir := t.TempDir()
	db := openAt(t, dir)
	id, err := db.NewID()
	if err != nil {
		t.Fatal(err)
	}
	batch := cache.Batch{Records: []cache.Record{{ID: id, Dir: 1, Identity: cache.Identity{Origin: "o", Key: "k", ETag: "e", Size: cache.BlockSize}, State: cache.Unverifiable}},
		Extents: []cache.ExtentKey{{ID: id, Extent: cache.Extent{Present: [16]uint64{1}, CRC: []uint64{7}}}}}
	if err := db.Apply(batch); err != nil {
		t.Fatal(err)
	}
	// Delete, of which the second half fails.
	if err := db.update(func(tx *badger.Txn) error { return deleteRecord(tx, id) }); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Record(id); err == nil {
		t.Fatal("it was not deleted; the test shows nothing")
	}
	batch.Extents[0].Extent.CRC[0] = 8
	if err := db.Apply(batch); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = openAt(t, dir)
	if _, err := db.Record(id); err != nil {
		t.Error(err)
	}
	if x, err := db.Extent(id, 0); err != nil || x.CRC[0] != 8 {
		t.Errorf("%v, %v", x.CRC, err)
	}
	// What is deleted for good goes, also when that fails as before.
	if err := db.update(func(tx *badger.Txn) error { return deleteRecord(tx, id) }); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = openAt(t, dir)
	if _, err := db.Extent(id, 0); err == nil {
		t.Error("an extent of a deleted file is left")
	}
}
