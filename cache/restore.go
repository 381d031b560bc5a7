package cache

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// restore reads the variables of the index and gives each directory its number and size.
func (c *Cache) restore() error {
	ix := c.cfg.Index
	fail := func(err error) error { return fmt.Errorf("the index cannot be read: %w", err) }
	v, _, err := getUints(ix, varClock, 1)
	if err != nil {
		return fail(err)
	}
	c.clock.Store(max(v[0], 1))
	v, ok, err := getUints(ix, varReach, 2)
	if err != nil {
		return fail(err)
	}
	if ok {
		c.reach.restore(v[0], v[1])
	}
	num, _, err := getUints(ix, varNumber, 1)
	if err != nil {
		return fail(err)
	}
	next := num[0]
	for _, d := range c.dirs {
		v, known, err := getUints(ix, varDir+d.format.UUID, 2)
		if err != nil {
			return fail(err)
		}
		if known {
			d.format.Number = uint32(v[0])
			d.used.Store(int64(v[1]))
		} else {
			if err := c.setAside(d); err != nil {
				return err
			}
			next++
			d.format.Number = uint32(next)
			if err := writeFormat(d.path, d.format); err != nil {
				return err
			}
		}
		if err := c.measure(d, known); err != nil {
			return err
		}
	}
	clean, _, err := getUints(ix, varClean, 1)
	if err != nil {
		return fail(err)
	}
	c.unclean = clean[0] == 0
	for _, d := range c.dirs {
		c.unclean = c.unclean || d.lost.Load()
	}
	vars := map[string][]byte{varNumber: uints(next)}
	if err := c.restoreEpochs(vars); err != nil { // before unclean is asked: it knows of the machine
		return fail(err)
	}
	if c.unclean {
		for _, d := range c.dirs {
			if err := c.mendStages(d); err != nil {
				return err
			}
		}
		if r, ok := ix.(IDRaiser); ok && c.stageFloor > 0 {
			if err := r.RaiseID(c.stageFloor); err != nil {
				return fmt.Errorf("the index cannot be written: %w", err)
			}
		}
	}
	for k, v := range c.vars() {
		vars[k] = v
	}
	if err := ix.Apply(Batch{Vars: vars, Needed: true}); err != nil {
		return fmt.Errorf("the index cannot be written: %w", err)
	}
	return nil
}

// setAside puts objects that the index knows nothing of where their IDs do not collide with
// those that the index is going to give out. Reconcile takes them in from there.
func (c *Cache) setAside(d *dir) error {
	entries, err := filepath.Glob(filepath.Join(d.objects, "[0-9a-f][0-9a-f]"))
	if err != nil || len(entries) == 0 {
		return err
	}
	for i := 1; ; i++ {
		to := filepath.Join(d.path, fmt.Sprintf("%s%d", lostPrefix, i))
		if _, err := os.Lstat(to); err == nil {
			continue
		}
		if err := os.Rename(d.objects, to); err != nil {
			return fmt.Errorf("cache directory %s: %w", d.path, explain(err))
		}
		break
	}
	d.lost.Store(true)
	c.log.Warn("the index does not know the cache directory; its complete objects are taken in after being verified", "dir", d.path)
	if err := os.Mkdir(d.objects, 0o700); err != nil {
		return fmt.Errorf("cache directory %s: %w", d.path, explain(err))
	}
	return nil
}

// measure fixes the capacity of d by its disk. used says that it was a cache before: then it is taken however full the disk
// is, for what is in it must be had, and may be all that there is.
func (c *Cache) measure(d *dir, used bool) error {
	var st unix.Statfs_t
	if err := unix.Statfs(d.path, &st); err != nil {
		return fmt.Errorf("cache directory %s: %w", d.path, err)
	}
	free, disk := int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize
	d.free.Store(free)
	d.ballast.find(d.staging)
	reserve := c.cfg.ReserveFree
	if reserve == 0 {
		reserve = min(1<<30, disk/50)
	}
	size := d.size
	if size <= 0 {
		size = (free + d.used.Load() + d.ballast.bytes.Load()) / 5 * 4
		if size < disk/5 { // it may be full of what is not published yet, which is the cache's, too
			staged, err := d.stagedBytes()
			if err != nil {
				return fmt.Errorf("cache directory %s: %w", d.path, err)
			}
			size += staged / 5 * 4
			used = used || staged > 0
		}
		if used {
			size = max(size, 16*BlockSize)
		}
	}
	if size < 16*BlockSize {
		return fmt.Errorf("cache directory %s: %d bytes are too little for a cache; free some space, or choose another cache directory", d.path, size)
	}
	d.setSize(size, max(reserve, 0))
	d.ballast.want = c.cfg.Ballast
	if c.cfg.Ballast == 0 && reserve > 0 && !d.ballast.inMemory {
		d.ballast.want = min(1<<30, disk/50, size/8)
	}
	d.ballast.want = max(d.ballast.want, 0)
	return nil
}

// stagedBytes counts what the staging files take on the disk.
func (d *dir) stagedBytes() (n int64, err error) {
	ids, err := d.stages()
	for _, id := range ids {
		var st unix.Stat_t
		if unix.Stat(d.stagePath(id), &st) == nil { // else it has just gone
			n += st.Blocks * 512
		}
	}
	return n, err
}

// vars are the variables written with each batch.
func (c *Cache) vars() map[string][]byte {
	hi, at := c.reach.save()
	m := map[string][]byte{
		varClock:  uints(c.clock.Load()),
		varReach:  uints(hi, at),
		varEpoch:  uints(c.epoch.Load()),
		varSynced: uints(c.synced.Load()),
		varDoubt:  c.doubtVar(),
		varClean:  uints(c.clean.Load()),
	}
	for _, d := range c.dirs {
		m[varDir+d.format.UUID] = uints(uint64(d.format.Number), uint64(max(d.used.Load(), 0)))
	}
	return m
}
