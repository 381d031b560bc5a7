package cache

// SetBeforeWrite has fn called before each write of a run; call it before the first read.
func SetBeforeWrite(c *Cache, fn func()) { c.beforeWrite = fn }

// SetBeforeLabel has fn called before a file is labelled as complete, and its error taken for that
// of the label; call it before the first read.
func SetBeforeLabel(c *Cache, fn func() error) { c.beforeLabel = fn }

// SetAtStep has fn called at each step of TakeStage and AdoptStage; call it before them.
func SetAtStep(c *Cache, fn func(step string)) { c.atStep = fn }

// Waiting is how many readers wait for a download of o.
func Waiting(o *Object) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.waiters)
}

// FillIn makes a file for o and marks all of its blocks as stored, in memory only: as if they had come while the index did not answer.
func FillIn(o *Object) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	f, err := o.openForWrite()
	if err != nil {
		return err
	}
	defer f.release()
	for n := range o.blockN {
		o.setPresent(&block{n: n, crc: uint64(n) + 1})
	}
	o.recordDirty = true
	o.c.ledger.mark(o)
	return nil
}

// Evict has file id evicted, if it may be.
func Evict(c *Cache, id ID) bool {
	u, err := c.cfg.Index.Usage(id)
	return err == nil && c.evictFile(c.dirs[0], u)
}
