package cache

import "time"

// Sync epochs. A file completed in epoch e is on the disk, whatever happens to the machine,
// once the disk was synced after e ended. The index says what the last such epoch is. When
// it is opened on another boot of the machine, files of later epochs are in doubt: their
// blocks are checked at every read until Scrub, or Fetch, has passed them.

// Files that are not complete carry the epoch in which they were begun. If the machine went
// down after it, they are read as a whole before they are believed to be complete: the index may
// have kept bits whose blocks never reached the disk, or lost the clearing of those that were
// punched.

// epochGap is left between the last epoch that the index tells of and the first of a new run:
// the index itself may have lost the newest.
const epochGap = 1 << 16

// restoreEpochs reads the epochs and adds to vars what must be written at Open.
func (c *Cache) restoreEpochs(vars map[string][]byte) error {
	ix := c.cfg.Index
	epoch, _, err := getUints(ix, varEpoch, 1)
	if err != nil {
		return err
	}
	synced, _, err := getUints(ix, varSynced, 1)
	if err != nil {
		return err
	}
	doubt, _, err := getUints(ix, varDoubt, 2)
	if err != nil {
		return err
	}
	boot, err := ix.Var(varBoot)
	known := err == nil
	next := epoch[0] + epochGap
	c.doubt.lo, c.doubt.hi = doubt[0], doubt[1]
	began, _, err := getUints(ix, varBegan, 1)
	if err != nil {
		return err
	}
	c.bootEpoch = began[0]
	if known && string(boot) != c.cfg.BootID {
		// Whether the cache was closed before is not asked: the note that it was opened again
		// may be what was lost.
		c.bootEpoch = next
		c.unclean = true
	}
	vars[varBegan] = uints(c.bootEpoch)
	if known && string(boot) != c.cfg.BootID && synced[0] < epoch[0] {
		if c.doubt.hi == 0 {
			c.doubt.lo = synced[0]
		}
		c.doubt.lo, c.doubt.hi = min(c.doubt.lo, synced[0]), next
		c.log.Warn("the machine went down without the cache being closed; files completed shortly before are served with checks until they are verified")
	}
	c.epoch.Store(next)
	c.synced.Store(synced[0])
	vars[varBoot] = []byte(c.cfg.BootID)
	return nil
}

// inDoubt tells whether a file completed in epoch e may be damaged.
func (c *Cache) inDoubt(e uint64) bool {
	c.doubt.RLock()
	defer c.doubt.RUnlock()
	return c.doubt.hi > 0 && e > c.doubt.lo && e < c.doubt.hi
}

func (c *Cache) doubtVar() []byte {
	c.doubt.RLock()
	defer c.doubt.RUnlock()
	return uints(c.doubt.lo, c.doubt.hi)
}

// syncer ends an epoch now and then.
func (c *Cache) syncer() {
	tick := time.NewTicker(c.cfg.SyncEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-tick.C:
			c.syncNow()
		}
	}
}

// syncNow ends the epoch, if a file was completed in it, and forces the disks.
func (c *Cache) syncNow() {
	if !c.epochUsed.Swap(false) && c.synced.Load()+1 >= c.epoch.Load() {
		return
	}
	e := c.epoch.Add(1) - 1
	for _, d := range c.dirs {
		if err := d.syncfs(); err != nil {
			c.log.Error("a cache directory cannot be synced", "dir", d.path, "err", err)
			c.epochUsed.Store(true)
			return
		}
	}
	c.synced.Store(e)
	c.ledger.touch()
}
