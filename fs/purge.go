package fs

import "time"

// Inodes of names that are gone, and what inodes were under earlier generations, stay in the
// index for a while: the kernel may still ask for them. This takes them out.
const (
	purgeEvery = 10 * time.Minute
	purgeAfter = time.Hour
	purgeBatch = 10_000
)

func (f *FS) purgeLoop() {
	defer f.wg.Done()
	t := time.NewTicker(purgeEvery)
	defer t.Stop()
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-t.C:
		}
		for f.ctx.Err() == nil {
			n, err := f.db.Purge(f.now()-int64(purgeAfter), purgeBatch, f.open.holds)
			if err != nil {
				f.log.Warn("removed names and replaced versions stay in the index", "err", err)
			}
			if err != nil || n < purgeBatch {
				break
			}
		}
	}
}
