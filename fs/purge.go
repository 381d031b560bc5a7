package fs

import (
	"time"

	"github.com/leatfs/leatfs/fs/meta"
)

// Inodes of names that are gone, and what inodes were under earlier generations, stay in the
// index for a while: the kernel may still ask for them. This takes them out.
const (
	purgeEvery = 10 * time.Minute
	purgeAfter = time.Hour
	purgeBatch = 10_000
)

func (f *FS) purgeLoop() {
	defer f.wg.Done()
	f.every(purgeEvery, func() {
		f.purgeTombs()
		for f.ctx.Err() == nil {
			n, err := f.db.Purge(f.now()-int64(purgeAfter), purgeBatch, f.open.holds)
			if err != nil {
				f.log.Warn("removed names and replaced versions stay in the index", "err", err)
			}
			if err != nil || n < purgeBatch {
				break
			}
		}
	})
}

// purgeTombs forgets deletions that no listing under way can contradict any more.
func (f *FS) purgeTombs() {
	if f.db.TombCount() == 0 {
		return
	}
	before := f.now() - int64(purgeAfter)
	var old []string
	if err := f.db.WalkTombs("", "", func(t meta.Tomb) bool {
		if t.Done != 0 && t.Done < before {
			old = append(old, t.Key)
		}
		return len(old) < purgeBatch
	}); err != nil {
		f.log.Debug("deletions stay noted", "err", err)
	}
	for _, key := range old {
		if err := f.db.Do(func(tx *meta.Tx) error {
			t, err := tx.Tomb(key)
			if err != nil || t.Done == 0 {
				return absent(err)
			}
			return tx.ClearTomb(key)
		}); err != nil {
			f.log.Debug("a deletion stays noted", "key", key, "err", err)
			return
		}
	}
}
