package cache

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
)

// load reads what the index knows of the object. It is called once, before anybody else can
// use o.
func (o *Object) load() error {
	rec, err := o.c.cfg.Index.Find(o.ident)
	if errors.Is(err, ErrNoRecord) || err == nil && o.c.ledger.deleted(rec.ID) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: the index cannot be read: %w", o.name(), err)
	}
	if rec.Identity.Hash() != o.hash {
		return nil // a power loss took the deletion of its record and left that of what has the number since
	}
	d := o.c.dirOf(rec.Dir)
	if d == nil { // its directory is no longer configured
		o.c.ledger.remove(rec.ID, func() {})
		return nil
	}
	u, err := o.c.cfg.Index.Usage(rec.ID)
	unused := errors.Is(err, ErrNoRecord)
	if unused {
		// It goes with the record: the index has just deleted both, or a power loss has taken the change with the one, and not a
		// later one with the other.
		if _, err = o.c.cfg.Index.Record(rec.ID); errors.Is(err, ErrNoRecord) {
			return nil
		}
		now := max(o.c.clock.Load(), 1)
		u = Usage{ID: rec.ID, Dir: rec.Dir, Admitted: now, LastUse: now}
	}
	if err != nil {
		return fmt.Errorf("%s: the index cannot be read: %w", o.name(), err)
	}
	file := foundPart
	var l label
	switch {
	case !rec.State.Complete():
		if file, l, err = o.missed(d, &rec); err != nil {
			return fmt.Errorf("%s: the index cannot be read: %w", o.name(), err)
		}
	case rec.Epoch < o.c.bootEpoch:
		file = o.replaced(d, &rec)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.id, o.dir, o.state, o.pinned = rec.ID, d, rec.State, rec.Pinned
	o.checksum, o.sum, o.epoch, o.usage = rec.Checksum, rec.Sum, rec.Epoch, u
	if o.version == "" {
		o.version = rec.Identity.VersionID
	}
	o.sumKnown = rec.State.Complete() || rec.Checksum.Algorithm != objstore.ChecksumNone
	if is32(rec.Checksum.Algorithm) {
		o.sumAlg = rec.Checksum.Algorithm
	}
	o.suspect = rec.State.Complete() && (o.c.inDoubt(rec.Epoch) || file == foundUnread)
	o.recheck = !rec.State.Complete() && rec.Epoch < o.c.bootEpoch
	switch {
	case rec.State.Complete() || file == foundWhole:
		o.resident = o.blockN
	case unused:
		o.resident = o.counted()
	default:
		o.resident = min(uint32((u.Bytes+BlockSize-1)/BlockSize), o.blockN)
	}
	if unused { // the directory's count of bytes has it
		o.usage.Bytes, o.usageDirty = o.onDisk(), true
		o.c.ledger.mark(o)
	}
	switch file {
	case foundWhole:
		o.checksum, o.sumKnown = l.Checksum, true
		o.completed(l.State, l.Sum)
	case foundUnknown:
		o.discard()
	}
	return nil
}

// What a file is that the index takes for a part.
type found uint8

const (
	foundPart    found = iota // what the index says
	foundWhole                // complete by its label, and the index has all of its blocks
	foundUnknown              // complete by its label, and the index has not; or not what the index says
	foundUnread               // its label cannot be read
)

// missed tells what the index has missed of a file that it takes for a part. The file is complete
// if its label says so: then the kernel may read it by itself, given it by a process that was
// killed before it told the index, and even a mapping that nobody knows of may be left. So nothing
// may be written into it or taken out of it any more. If the index has all of its blocks, the file
// is as good as any; if not, it has to go, and another is made.
func (o *Object) missed(d *dir, rec *Record) (found, label, error) {
	l, err := readLabel(d.filePath(rec.ID))
	switch {
	case errors.Is(err, fs.ErrNotExist): // found out when it is needed
		return foundPart, l, nil
	case err == nil && !l.State.Complete():
		return foundPart, l, nil
	case err == nil && rec.Epoch >= o.c.bootEpoch && l.Identity.Hash() == o.hash:
		ok, err := o.wholeBy(rec.ID, l.Sum)
		if err != nil {
			return foundUnknown, l, err
		}
		if ok {
			return foundWhole, l, nil
		}
		o.c.log.Info("the index missed the end of an object; it is fetched again, into another file", "key", o.ident.Key)
	case err != nil:
		o.c.log.Warn("an object file cannot be told to be a part; it is fetched again", "key", o.ident.Key, "err", err)
	}
	return foundUnknown, l, nil
}

// replaced tells whether a file that the index takes for whole is what it says, if the machine has gone down since. The
// index may have lost its last changes then, and the disk not: the file may be gone, or have been changed, and published as another
// version (see TakeStage). Its label tells.
func (o *Object) replaced(d *dir, rec *Record) found {
	path := d.filePath(rec.ID)
	l, err := readLabel(path)
	switch {
	case err == nil && l.State.Complete() && l.Sum == rec.Sum && l.Identity.Size == rec.Identity.Size:
		return foundPart
	case err == nil, errors.Is(err, unix.ENODATA), errors.Is(err, errLabel):
		o.c.log.Warn("an object file is not what the index says, which lost its last changes when the machine went down; it is fetched again",
			"key", o.ident.Key, "path", path, "err", err)
	case errors.Is(err, fs.ErrNotExist):
		o.c.log.Warn("an object file is missing; it is fetched again", "key", o.ident.Key, "path", path)
		o.c.n.lostFiles.Add(1)
	default:
		o.c.log.Error("the label of an object file cannot be read; it is served with checks", "key", o.ident.Key, "err", err)
		return foundUnread
	}
	return foundUnknown
}

// wholeBy tells whether the index has every block of file id, with the checksum sum.
func (o *Object) wholeBy(id ID, sum uint64) (bool, error) {
	c := newCombiner(objstore.CRC64NVME)
	for k := uint32(0); k*ExtentBlocks < o.blockN; k++ {
		x, err := o.c.cfg.Index.Extent(id, k)
		if errors.Is(err, ErrNoRecord) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		n := o.extentLen(k)
		if uint32(len(x.CRC)) != n || count(&x.Present) != n {
			return false, nil
		}
		for i := range n {
			c.add(x.CRC[i], int64(o.blockLen(k*ExtentBlocks+i)))
		}
	}
	return c.sum == sum, nil
}
