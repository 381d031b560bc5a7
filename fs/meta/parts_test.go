package meta

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// TestParts: records of parts are what was set last, also after the index was opened again, and any bytes
// in their place are an error.
func TestParts(t *testing.T) {
	opt := Options{Dir: t.TempDir(), NoSync: true}
	db, err := Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	largest := Parts{Key: "d/large", ETag: md5 + "-6000", VersionID: "v", Size: 1 << 40, PartSize: 1 << 30, At: 5, Sums: make([]PartSum, MaxParts)}
	for i := range largest.Sums {
		largest.Sums[i].CRC, largest.Sums[i].Hash[i%32] = uint64(i), byte(i)
	}
	all := []Parts{{Key: "d/a", ETag: "odd", Size: 3, PartSize: 2, At: 7, Sums: []PartSum{{CRC: 1}, {CRC: 2}}}, largest}
	do := func(fn func(tx *Tx) error) {
		t.Helper()
		if err := db.Do(fn); err != nil {
			t.Fatal(err)
		}
	}
	do(func(tx *Tx) error { return tx.SetParts(&Parts{Key: "d/a", ETag: "old", Sums: []PartSum{}}) })
	do(func(tx *Tx) error { return tx.SetParts(&Parts{Key: "gone", Sums: []PartSum{}}) })
	for i := range all {
		do(func(tx *Tx) error { return tx.SetParts(&all[i]) })
	}
	do(func(tx *Tx) error { return errors.Join(tx.ClearParts("gone"), tx.ClearParts("never was")) })
	tooMany := Parts{Key: "k", Sums: make([]PartSum, MaxParts+1)}
	if err := db.Do(func(tx *Tx) error { return tx.SetParts(&tooMany) }); !errors.Is(err, ErrInvalid) {
		t.Errorf("too many parts: %v", err)
	}
	for range 2 {
		var got []Parts
		if err := db.WalkParts(func(p *Parts) { got = append(got, *p) }); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(all, got) {
			t.Errorf("%d records, not the %d that were set", len(got), len(all))
		}
		for _, p := range all {
			if one, err := db.Parts(p.Key); err != nil || !reflect.DeepEqual(p, one) {
				t.Errorf("%s: %v", p.Key, err)
			}
		}
		if _, err := db.Parts("gone"); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if db, err = Open(opt); err != nil {
			t.Fatal(err)
		}
	}
	defer db.Close()
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		if p, err := decodeParts("k", b); err == nil && fmt.Sprint(encodeParts(&p)) == "" {
			t.Fatal("nothing")
		}
		whole := encodeParts(&all[0])
		if _, err := decodeParts("k", whole[:rapid.IntRange(0, len(whole)-1).Draw(t, "cut")]); err == nil {
			t.Fatal("a record that was cut short is taken")
		}
	})
}
