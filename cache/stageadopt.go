package cache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
)

// adoptExtents is how many extents AdoptStage leaves to the caller's transaction; of larger files
// it writes the others itself before.
const adoptExtents = 4

// AdoptStage turns a staging file that equals a published version into that version's complete
// object file, with the same ID. sum is the CRC64NVME of the whole, blocks those of its blocks of
// BlockSize, checksum what the origin holds (as it answered the commit). The caller knows that
// nobody changes the file any more (StageBusy), and that nobody will until commit has returned.
//
// The Batch is what the caller writes into the index, in one transaction with what it changes
// itself; then it calls commit(true). If that transaction did not come about, it calls
// commit(false), and the file is a staging file as before. One of both must be called, once.
// In between the file has both names, and can be used as a staging file. After commit(true) there
// is no staging file of this ID any more, and Object with ident finds the file. A caller that goes
// on using the file asks for the Object before it calls commit(true), and lends it after: else it may
// be evicted in between. Another file of the same identity, should there be one, is superseded.
//
// An empty version has no object file: the Batch is empty, and commit(true) removes the file.
//
// ErrNoStage when there is no such file, ErrChanged when it has not ident.Size bytes, or the sums
// do not agree with each other, ErrInUse when it is just being taken or adopted.
func (c *Cache) AdoptStage(id ID, ident Identity, sum uint64, blocks []uint64, checksum objstore.Checksum) (Batch, func(ok bool), error) {
	if !c.move(id) {
		return Batch{}, nil, fmt.Errorf("staging file %s: another is at it: %w", stageName(id), ErrInUse)
	}
	a := &adoption{c: c, id: id, ident: ident, sum: sum, checksum: checksum}
	b, err := a.prepare(blocks)
	if err != nil {
		c.moved(id)
		return Batch{}, nil, err
	}
	return b, a.commit, nil
}

// adoption is one AdoptStage between its beginning and its commit.
type adoption struct {
	c        *Cache
	id       ID
	ident    Identity
	sum      uint64
	checksum objstore.Checksum
	state    State
	d        *dir
	o        *Object // with a reference, nil for an empty version
	usage    Usage
	early    bool // extents are in the index already
}

// prepare does all that can fail.
func (a *adoption) prepare(blocks []uint64) (b Batch, err error) {
	c := a.c
	var st unix.Stat_t
	err = c.onStage(a.id, func(d *dir, path string) error {
		a.d = d
		return unix.Lstat(path, &st)
	})
	if err != nil {
		return b, err
	}
	if err := a.check(st.Size, blocks); err != nil {
		return b, fmt.Errorf("staging file %s, %q: %w", stageName(a.id), a.ident.Key, err)
	}
	if a.ident.Size == 0 {
		return b, nil
	}
	// With the object in the table nobody asks the index for it before commit.
	if a.o, err = c.Object(objstore.WithPriority(context.Background(), objstore.Background), a.ident, nil); err != nil {
		return b, err
	}
	defer func() {
		if err != nil {
			a.o.Release()
		}
	}()
	if err := a.forgetStale(); err != nil {
		return b, err
	}
	file, staged := a.d.filePath(a.id), a.d.stagePath(a.id)
	if err := a.label(staged); err != nil {
		return b, err
	}
	c.stageStep("adopt: labelled")
	if err = linkObject(staged, file); err != nil {
		return b, errors.Join(err, dropXattr(staged, xattrName))
	}
	c.stageStep("adopt: linked")
	if b, err = a.batch(blocks); err != nil {
		a.undo()
		return Batch{}, err
	}
	c.stageStep("adopt: prepared")
	return b, nil
}

// check compares the sums and sizes with each other.
func (a *adoption) check(size int64, blocks []uint64) error {
	n := (a.ident.Size + BlockSize - 1) / BlockSize
	if size != a.ident.Size {
		return fmt.Errorf("it has %d bytes, %d were published: %w", size, a.ident.Size, ErrChanged)
	}
	if int64(len(blocks)) != n {
		return fmt.Errorf("%d blocks, want %d: %w", len(blocks), n, ErrChanged)
	}
	whole := newCombiner(objstore.CRC64NVME)
	for i, crc := range blocks {
		whole.add(crc, min(BlockSize, size-int64(i)*BlockSize))
	}
	if n > 0 && whole.sum != a.sum {
		return fmt.Errorf("the checksums of its blocks do not make that of the whole: %w", ErrChanged)
	}
	a.state = Unverifiable
	if a.checksum.Algorithm == objstore.CRC64NVME {
		if a.checksum.Value != a.sum {
			return fmt.Errorf("its checksum is not that of the origin: %w", ErrChanged)
		}
		a.state = Proven
	}
	return nil
}

// label puts the label of an object on the file, beside that of a staging file. Both together may
// be too long; then that one goes which matters no more: what the holes of the file are.
func (a *adoption) label(path string) error {
	l := label{Identity: a.ident, State: a.state, Sum: a.sum, Checksum: a.checksum}
	attr := l.encode()
	err := unix.Lsetxattr(path, xattrName, attr, 0)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ERANGE) {
		s, serr := readStageLabel(path)
		if serr == nil && s.Source != (Identity{}) {
			s.Source = Identity{}
			if err := a.c.RelabelStage(a.id, s); err != nil {
				return err
			}
			err = unix.Lsetxattr(path, xattrName, attr, 0)
		}
	}
	if err != nil {
		return &os.PathError{Op: "setxattr", Path: path, Err: err}
	}
	return nil
}

// linkObject gives a staging file its name among the objects.
func linkObject(staged, file string) error {
	err := os.Link(staged, file)
	if errors.Is(err, os.ErrNotExist) {
		if err = os.Mkdir(filepath.Dir(file), 0o700); err == nil || errors.Is(err, os.ErrExist) {
			err = os.Link(staged, file)
		}
	}
	if errors.Is(err, os.ErrExist) { // left by one that failed
		if err = os.Remove(file); err == nil {
			err = os.Link(staged, file)
		}
	}
	return err
}

// forgetStale forgets what an index that is behind the disk, after a power loss, says of this ID:
// another identity, of which the file is long gone. So it does with what an adoption that was given up
// has left, if the index is still to forget that: else it would forget this one.
func (a *adoption) forgetStale() error {
	c := a.c
	rec, err := c.cfg.Index.Record(a.id)
	switch {
	case errors.Is(err, ErrNoRecord) && !c.ledger.deleted(a.id):
		return nil
	case errors.Is(err, ErrNoRecord):
	case err != nil:
		return err
	default:
		o, err := c.Object(objstore.WithPriority(c.ctx, objstore.Background), rec.Identity, nil)
		if err != nil {
			return err
		}
		defer o.Release()
		o.mu.Lock()
		o.awaitFile()
		if o.id == a.id {
			o.dir.used.Add(-o.usage.Bytes - fileOverhead)
			o.detach()
		}
		o.mu.Unlock()
	}
	gone := make(chan struct{})
	c.ledger.remove(a.id, func() { close(gone) })
	if err := c.ledger.sync(c.ctx); err != nil && c.ledger.deleted(a.id) {
		return fmt.Errorf("the index cannot be written: %w", err)
	}
	<-gone
	return nil
}

// batch is what the index is to know of the file.
func (a *adoption) batch(blocks []uint64) (b Batch, err error) {
	c := a.c
	var xs []ExtentKey
	flush := func() error {
		if len(xs) == 0 {
			return nil
		}
		err := c.cfg.Index.Apply(Batch{Extents: xs, Needed: true})
		a.early, xs = true, nil
		return err
	}
	all := (len(blocks) + ExtentBlocks - 1) / ExtentBlocks
	for k := range all {
		n := min(ExtentBlocks, len(blocks)-k*ExtentBlocks)
		x := ExtentKey{ID: a.id, N: uint32(k), Extent: Extent{CRC: append([]uint64(nil), blocks[k*ExtentBlocks:][:n]...)}}
		for i := range n {
			set(&x.Extent.Present, uint32(i))
		}
		xs = append(xs, x)
		if len(xs) == batchExtents || all > adoptExtents && k == all-1 {
			if err := flush(); err != nil {
				return b, fmt.Errorf("the index cannot be written: %w", err)
			}
		}
	}
	now := max(c.clock.Load(), 1)
	a.usage = Usage{ID: a.id, Dir: a.d.format.Number, Bytes: (a.ident.Size + dioAlign - 1) &^ (dioAlign - 1), Admitted: now, LastUse: now}
	b = Batch{Extents: xs, Usages: []Usage{a.usage}, Records: []Record{{ID: a.id, Dir: a.d.format.Number, Identity: a.ident,
		State: a.state, Checksum: a.checksum, Sum: a.sum, Epoch: c.epoch.Load()}}}
	return b, nil
}

// undo makes the file a staging file only.
func (a *adoption) undo() {
	c := a.c
	err := os.Remove(a.d.filePath(a.id))
	if err == nil {
		err = dropXattr(a.d.stagePath(a.id), xattrName)
	}
	if err != nil {
		c.log.Error("a staging file keeps the name or the label of an object until the next start", "err", err)
	}
	if a.early {
		c.ledger.remove(a.id, func() {})
	}
}

// commit ends it.
func (a *adoption) commit(ok bool) {
	c := a.c
	defer c.moved(a.id)
	switch {
	case !ok && a.o != nil:
		a.undo()
	case ok && a.o != nil:
		c.stageStep("adopt: indexed")
		a.install()
	}
	if ok {
		// The name goes last: until then the file is found by either.
		staged := a.d.stagePath(a.id)
		if err := os.Remove(staged); err == nil {
			a.d.stage.files.Add(-1)
		} else if !errors.Is(err, os.ErrNotExist) {
			c.log.Error("a staging file that was published keeps its name until the next start", "path", staged, "err", err)
		}
		c.stageStep("adopt: unlinked")
		if a.o != nil {
			if err := dropXattr(a.d.filePath(a.id), stageXattr); err != nil && !errors.Is(err, os.ErrNotExist) {
				c.log.Warn("an object file keeps the label that it had as a staging file", "err", err)
			}
		}
	}
	if a.o != nil {
		a.o.Release()
	}
}

// install makes the file that of the object.
func (a *adoption) install() {
	c, o, d := a.c, a.o, a.d
	o.mu.Lock()
	defer o.mu.Unlock()
	o.awaitFile()
	if o.id != 0 {
		o.discard()
	}
	o.id, o.dir, o.fresh = a.id, d, false
	o.checksum, o.sumKnown = a.checksum, true
	o.resident, o.extents = o.blockN, map[uint32]*extent{}
	o.usage = a.usage
	o.doomed, o.gone, o.corrupt = false, nil, nil
	c.clock.Add(uint64(a.usage.Bytes))
	c.sampler.admitted(a.id, c.clock.Load(), c.capacity)
	d.used.Add(a.usage.Bytes + fileOverhead)
	// Written once more, for a record of the file that it supersedes may have come in between.
	o.usageDirty = true
	o.completed(a.state, a.sum)
}
