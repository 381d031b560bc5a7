package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/leatfs/leatfs/objstore"
)

// Maintain does what is due after an Open: Reconcile when the cache was not closed properly or
// the index was lost, Scrub when files are in doubt. It is slow on purpose; run it in the
// background. It returns early when ctx is done or the cache closes.
func (c *Cache) Maintain(ctx context.Context) error {
	if c.unclean {
		if err := c.Reconcile(ctx); err != nil {
			return err
		}
	}
	c.doubt.RLock()
	due := c.doubt.hi > 0
	c.doubt.RUnlock()
	if due {
		return c.scrub(ctx, func(r Record) bool { return c.inDoubt(r.Epoch) })
	}
	return nil
}

// pace limits background reading.
func (c *Cache) pace(ctx context.Context) func(int64) error {
	l := rate.NewLimiter(rate.Limit(c.cfg.VerifyRate), 4<<20)
	return func(n int64) error { return l.WaitN(ctx, int(n)) }
}

// Scrub reads every complete file and checks its blocks; what is damaged is dropped, to be
// fetched again when it is asked for.
func (c *Cache) Scrub(ctx context.Context) error {
	return c.scrub(ctx, func(Record) bool { return true })
}

func (c *Cache) scrub(ctx context.Context, want func(Record) bool) error {
	ctx, cancel := c.until(ctx)
	defer cancel()
	pace := c.pace(ctx)
	var failed error
	err := c.cfg.Index.WalkRecords(0, func(r Record) bool {
		if failed = ctx.Err(); failed != nil {
			return false
		}
		if !r.State.Complete() || !want(r) || c.ledger.deleted(r.ID) {
			return true
		}
		o, err := c.Object(objstore.WithPriority(ctx, objstore.Background), r.Identity, nil)
		if err != nil {
			failed = err
			return false
		}
		o.look(1)
		defer func() { o.look(-1); o.Release() }()
		if o.ID() != r.ID || !o.Complete() {
			return true
		}
		err = o.verify(ctx, objstore.Background, pace)
		switch {
		case err == nil, errors.Is(err, errChanged), errors.Is(err, errBlock):
		case ctx.Err() != nil:
			failed = err
			return false
		default:
			failed = err // goes on with the others
		}
		return true
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("verifying the cache: %w", err)
	}
	c.doubt.Lock()
	done := c.doubt.hi > 0
	c.doubt.lo, c.doubt.hi = 0, 0
	c.doubt.Unlock()
	if done {
		c.log.Info("all files that were in doubt are verified")
		c.ledger.touch()
	}
	return nil
}

// until returns a ctx that ends with the cache too.
func (c *Cache) until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// Reconcile makes index and disks agree. Files that no record names are taken in, if they are
// complete by their label and every byte agrees with the checksum in it, else removed; records
// whose file is gone are forgotten; the count of bytes used is set right.
//
// IDs cannot collide: files of an index that was lost were set aside by Open and get new IDs;
// others keep the one that this index once gave out for them.
func (c *Cache) Reconcile(ctx context.Context) error {
	ctx, cancel := c.until(ctx)
	defer cancel()
	r := reconciler{c: c, ctx: ctx, pace: c.pace(ctx)}
	for _, d := range c.dirs {
		lost, err := filepath.Glob(filepath.Join(d.path, lostPrefix+"*"))
		if err != nil {
			return err
		}
		for _, dir := range append(lost, d.objects) {
			if err := r.walk(d, dir, dir != d.objects); err != nil {
				return fmt.Errorf("cache directory %s: reconcile: %w", d.path, err)
			}
		}
		for _, dir := range lost {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
		d.lost.Store(false)
	}
	return r.records()
}

type reconciler struct {
	c    *Cache
	ctx  context.Context
	pace func(int64) error
}

// walk looks at all files under root.
func (r *reconciler) walk(d *dir, root string, lost bool) error {
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // evicted meanwhile
		}
		if err != nil || e.IsDir() {
			return err
		}
		if err := r.ctx.Err(); err != nil {
			return err
		}
		return r.file(d, path, e.Name(), lost)
	})
}

// file takes in or removes one file that may be unknown.
func (r *reconciler) file(d *dir, path, name string, lost bool) error {
	c := r.c
	n, err := strconv.ParseUint(name, 16, 64)
	id := ID(n)
	if err != nil || !lost && path != d.filePath(id) {
		return r.remove(path, "not an object file")
	}
	if !lost && c.isMoving(id) { // it is becoming a staging file, or was one; asked before the index
		return nil
	}
	l, lerr := readLabel(path)
	if lerr == nil {
		if o := c.lookup(l.Identity.Hash()); o != nil {
			o.mu.Lock()
			mine := o.id == id || o.making != nil
			o.mu.Unlock()
			o.Release()
			if mine && !lost {
				return nil
			}
		}
	}
	if lost {
		if id, err = c.newID(); err != nil {
			return err
		}
	}
	if !c.move(id) {
		return nil
	}
	defer c.moved(id)
	// A file whose object is not active has been written to the index, if it was at all.
	if !lost {
		if c.ledger.deleted(id) {
			return nil // on its way out
		}
		_, err := c.cfg.Index.Record(id)
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrNoRecord) {
			return err
		}
		l, lerr = readLabel(path) // it may have been a staging file meanwhile, and be another object's
	}
	if lerr != nil {
		if errors.Is(lerr, fs.ErrNotExist) {
			return nil
		}
		return r.remove(path, lerr.Error())
	}
	if !l.State.Complete() {
		return r.remove(path, "which blocks of it are there is not known")
	}
	return r.adopt(d, path, id, l)
}

func (r *reconciler) remove(path, why string) error {
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	r.c.n.reconcileRemoved.Add(1)
	r.c.log.Debug("removed a file the index does not know", "path", path, "because", why)
	return nil
}

// adopt verifies the file at path and enters it into the index as id, which the caller has claimed (Cache.move).
func (r *reconciler) adopt(d *dir, path string, id ID, l label) error {
	c := r.c
	size := l.Identity.Size
	bytes := (size+dioAlign-1)&^(dioAlign-1) + fileOverhead
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil || st.Size != size || size == 0 {
		return r.remove(path, "its size is not the object's")
	}
	if st.Nlink > 1 {
		return r.remove(path, "it is a staging file")
	}
	if d.used.Load()+bytes > d.high {
		return r.remove(path, "there is no room for it")
	}
	if rec, err := c.cfg.Index.Find(l.Identity); err == nil && !c.ledger.deleted(rec.ID) {
		return r.remove(path, "the cache has another file of that object")
	} else if err != nil && !errors.Is(err, ErrNoRecord) {
		return err
	}
	undo := func() error { return c.cfg.Index.Apply(Batch{Delete: []ID{id}}) }
	ok, err := r.verify(path, id, l)
	if err != nil || !ok {
		if uerr := undo(); uerr != nil || err != nil {
			return errors.Join(err, uerr)
		}
		return r.remove(path, "its bytes do not match its checksum")
	}
	if to := d.filePath(id); to != path {
		err := os.Rename(path, to)
		if errors.Is(err, fs.ErrNotExist) {
			if err = os.Mkdir(filepath.Dir(to), 0o700); err == nil || errors.Is(err, fs.ErrExist) {
				err = os.Rename(path, to)
			}
		}
		if err != nil {
			return errors.Join(err, undo())
		}
		path = to
	}
	o, err := c.Object(objstore.WithPriority(r.ctx, objstore.Background), l.Identity, nil)
	if err != nil {
		return errors.Join(err, undo())
	}
	defer o.Release()
	o.mu.Lock()
	o.awaitFile()
	if o.id != 0 || o.loose > 0 { // somebody fetched it meanwhile
		o.mu.Unlock()
		if err := undo(); err != nil {
			return err
		}
		return r.remove(path, "the cache has another file of that object")
	}
	o.id, o.dir, o.fresh = id, d, false
	o.state, o.sum, o.checksum, o.sumKnown = l.State, l.Sum, l.Checksum, true
	o.resident = o.blockN
	o.epoch = c.epoch.Load()
	c.epochUsed.Store(true)
	o.extents = map[uint32]*extent{}
	o.usage = Usage{ID: id, Dir: d.format.Number, Bytes: bytes - fileOverhead, Admitted: max(c.clock.Load(), 1), LastUse: max(c.clock.Load(), 1)}
	o.recordDirty, o.usageDirty = true, true
	c.ledger.mark(o)
	d.used.Add(bytes)
	o.notify()
	o.mu.Unlock()
	c.n.adopted.Add(1)
	return nil
}

// verify reads the file, enters its extents and tells whether all of it matches the label.
func (r *reconciler) verify(path string, id ID, l label) (bool, error) {
	c := r.c
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	b, err := c.pool.Acquire(r.ctx, objstore.Background)
	if err != nil {
		return false, err
	}
	defer b.Release()
	blocks := (l.Identity.Size + BlockSize - 1) / BlockSize
	whole := newCombiner(objstore.CRC64NVME)
	var origin *combiner
	if is32(l.Checksum.Algorithm) {
		origin = newCombiner(l.Checksum.Algorithm)
	}
	var x ExtentKey
	for n := range blocks {
		data := b.Bytes()[:min(BlockSize, l.Identity.Size-n*BlockSize)]
		if _, err := f.ReadAt(data, n*BlockSize); err != nil {
			return false, nil
		}
		if err := r.pace(int64(len(data))); err != nil {
			return false, err
		}
		crc := crc64nvme.Checksum(data)
		whole.add(crc, int64(len(data)))
		if origin != nil {
			origin.add(sumOf(l.Checksum.Algorithm, data), int64(len(data)))
		}
		i := uint32(n % ExtentBlocks)
		set(&x.Extent.Present, i)
		x.Extent.CRC = append(x.Extent.CRC, crc)
		if i == ExtentBlocks-1 || n == blocks-1 {
			x.ID, x.N = id, uint32(n/ExtentBlocks)
			if err := c.cfg.Index.Apply(Batch{Extents: []ExtentKey{x}}); err != nil {
				return false, err
			}
			x = ExtentKey{}
		}
	}
	ok := whole.sum == l.Sum
	switch {
	case origin != nil:
		ok = ok && origin.sum == l.Checksum.Value
	case l.Checksum.Algorithm == objstore.CRC64NVME:
		ok = ok && whole.sum == l.Checksum.Value
	}
	return ok, nil
}

// records forgets records without a file, makes the usages that are missing, and sets the bytes used right.
func (r *reconciler) records() error {
	c := r.c
	if err := c.ledger.sync(r.ctx); err != nil {
		return err
	}
	type tally struct{ before, sum int64 }
	sums := map[*dir]*tally{}
	for _, d := range c.dirs {
		sums[d] = &tally{before: d.used.Load()}
	}
	var failed error
	err := c.cfg.Index.WalkRecords(0, func(rec Record) bool {
		if failed = r.ctx.Err(); failed != nil {
			return false
		}
		d := c.dirOf(rec.Dir)
		if d == nil || c.ledger.deleted(rec.ID) {
			return true
		}
		u, uerr := c.cfg.Index.Usage(rec.ID)
		if _, err := os.Lstat(d.filePath(rec.ID)); errors.Is(err, fs.ErrNotExist) {
			c.dropRecord(d, rec, u)
		} else if errors.Is(uerr, ErrNoRecord) {
			// Nobody would count it, nor evict it. Who asks for the object has it made.
			uerr = c.withObject(rec.ID, func(o *Object) { u = o.usage })
		}
		switch {
		case uerr == nil:
			sums[d].sum += u.Bytes + fileOverhead
		case !errors.Is(uerr, ErrNoRecord): // else it is gone by now
			failed = uerr
		}
		return failed == nil
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	for d, t := range sums {
		// Only when little happened meanwhile, and the difference is more than noise.
		after := d.used.Load()
		if drift := t.sum - t.before; abs(after-t.before) < d.size/100 && abs(drift) > d.size/100 {
			d.used.Add(drift)
			c.log.Info("the count of bytes used was set right", "dir", d.path, "by", drift)
		}
	}
	return nil
}

// dropRecord forgets a record whose file is gone, if it still is: the ID may have been a staging file's since the record was read,
// and be another object's.
func (c *Cache) dropRecord(d *dir, rec Record, u Usage) {
	if !c.move(rec.ID) {
		return
	}
	defer c.moved(rec.ID)
	if _, err := os.Lstat(d.filePath(rec.ID)); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.active[rec.Identity.Hash()]; o != nil {
		return // it finds out by itself
	}
	if c.ledger.deleted(rec.ID) { // asked before the index: what is deleted since is not there
		return
	}
	if now, err := c.cfg.Index.Record(rec.ID); err != nil || now.Identity != rec.Identity {
		return
	}
	c.n.lostFiles.Add(1)
	c.forget(d, rec.ID, u.Bytes+fileOverhead)
}

func abs(n int64) int64 { return max(n, -n) }

// shedLost removes files that were set aside and are not yet taken in, when their space is
// needed more; it returns how many bytes.
func (c *Cache) shedLost(d *dir, need int64) (got int64) {
	if !d.lost.Load() {
		return 0
	}
	names, err := filepath.Glob(filepath.Join(d.path, lostPrefix+"*", "[0-9a-f][0-9a-f]", "*"))
	if err != nil {
		return 0
	}
	for _, name := range names {
		if got >= need {
			break
		}
		fi, err := os.Lstat(name)
		if err != nil {
			continue
		}
		if os.Remove(name) == nil {
			c.n.reconcileRemoved.Add(1)
			got += fi.Size()
		}
	}
	return got
}
