package cache_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/leatfs/leatfs/cache"
)

// TestStageBesideOthers takes and adopts files, over and over, while Scrub and Reconcile look at
// all files and others read the versions that were published.
func TestStageBesideOthers(t *testing.T) {
	e := newEnv(t, 256<<20, 128, func(c *cache.Config) { c.VerifyRate = 1 << 40 })
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, fn := range []func() error{
		func() error { return e.Scrub(t.Context()) },
		func() error { return e.Reconcile(t.Context()) },
	} {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := fn(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var writers sync.WaitGroup
	for w := range 3 {
		writers.Go(func() {
			data, ident := e.store.put(keyOf(w), 700_000+w)
			o := e.fetched(ident)
			for round := range 15 {
				id, err := e.TakeStage(o, 0, label("a"))
				for until := time.Now().Add(30 * time.Second); errors.Is(err, cache.ErrInUse) && time.Now().Before(until); {
					id, err = e.TakeStage(o, 0, label("a")) // who looked at it was kept from going on
				}
				o.Release()
				if err != nil {
					t.Errorf("round %d: %v", round, err)
					return
				}
				data = bytes.Clone(data)
				data[round*1000]++
				f, err := e.OpenStage(id, 2)
				if err == nil {
					_, err = f.WriteAt(data, 0)
					f.Close()
				}
				if err != nil {
					t.Error(err)
					return
				}
				ident.ETag = keyOf(round)
				sum, blocks, checksum := sums(data)
				b, commit, err := e.AdoptStage(id, ident, sum, blocks, checksum)
				if err != nil {
					t.Errorf("round %d: %v", round, err)
					return
				}
				o = e.object(ident)
				if round%4 == 3 {
					commit(false)
					if b, commit, err = e.AdoptStage(id, ident, sum, blocks, checksum); err != nil {
						t.Error(err)
						return
					}
				}
				time.Sleep(time.Millisecond)
				if err := e.index.Apply(b); err != nil {
					t.Error(err)
				}
				commit(true)
				if o.ID() != id || !o.Passthroughable() {
					t.Errorf("round %d: file %x, want %x", round, o.ID(), id)
				}
				e.wantLent(o, data)
				e.wantRead(o, data, 0, ident.Size)
			}
			o.Release()
		})
	}
	writers.Wait()
	close(stop)
	wg.Wait()
	if s := e.Stats(); s.CRCMismatches != 0 || s.LostFiles != 0 {
		t.Errorf("%d CRC mismatches, %d lost files", s.CRCMismatches, s.LostFiles)
	}
	e.wantNoLinks()
}
