package fs

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// What was closed is published at once as a rule. While the origin is away it stays here, and is
// forced to the disk, so that a power cut later finds it whole; and when the mount ends, all of it is.
const (
	syncEvery = 5 * time.Second
	syncBatch = 1000
	// syncEach is how many files are forced to the disk one by one when a mount ends. Of more the whole
	// disk is, twice.
	syncEach = 64
)

// unsynced is a complete file of which not all is known to be on the disk.
type unsynced struct {
	in  meta.Inode
	seq uint64 // when it was complete
}

// syncLoop forces files to the disk that were closed and are not published yet.
func (f *FS) syncLoop() {
	defer f.wg.Done()
	f.every(syncEvery, func() {
		if f.db.DirtyCount() == 0 {
			return
		}
		all, err := f.allUnsynced(f.now() - int64(syncEvery))
		if err != nil {
			f.log.Debug("files that are not published yet", "err", err)
		}
		for i := range all[:min(len(all), syncBatch)] {
			if f.ctx.Err() != nil {
				return
			}
			f.syncOne(&all[i])
		}
	})
}

// allUnsynced returns the complete files that are not forced to the disk, in the order in which they became
// complete, up to the last one that waits since before: in this order they are to be on the disk, so that
// none is found whole after a power cut when one that is to be published before it is not.
func (f *FS) allUnsynced(before int64) (all []unsynced, err error) {
	var due uint64
	err = f.db.WalkDirty(0, func(d meta.Dirty) bool {
		if d.Seq == 0 || d.Held {
			return true
		}
		in, err := f.db.Inode(d.Ino)
		if err != nil || in.Stage == 0 || in.Flags&meta.Removed != 0 {
			return true
		}
		st, err := f.cache.StatStage(in.Stage)
		if err != nil {
			return true
		}
		if l, err := f.cache.StageLabel(in.Stage); err != nil || synced(&l, st.Size, st.Mtim.Nano()) {
			return true
		}
		if d.Since <= before {
			due = max(due, d.Seq)
		}
		all = append(all, unsynced{in, d.Seq})
		return true
	})
	slices.SortFunc(all, func(a, b unsynced) int { return cmp.Compare(a.seq, b.seq) })
	n, _ := slices.BinarySearchFunc(all, due+1, func(u unsynced, seq uint64) int { return cmp.Compare(u.seq, seq) })
	return all[:n], err
}

func (f *FS) syncOne(u *unsynced) {
	if err := f.syncStage(&u.in); err != nil && !errors.Is(err, cache.ErrNoStage) && !errors.Is(err, meta.ErrNotFound) {
		f.log.Warn("a file that is not published yet cannot be forced to the disk", "path", f.path(u.in.Parent, u.in.Name), "err", err)
	}
}

// syncLast forces to the disk all that is complete and not published, with its names and with what the index
// knows of it: the mount ends, and the machine may stop after it.
func (f *FS) syncLast() error {
	if f.db.DirtyCount()+f.db.TombCount() == 0 {
		return nil
	}
	all, err := f.allUnsynced(f.now())
	if len(all) <= syncEach {
		for i := range all {
			f.syncOne(&all[i])
		}
	} else {
		err = errors.Join(err, f.syncMany(all))
	}
	return errors.Join(err, f.cache.SyncStaging(), f.db.Sync())
}

// syncMany is syncStage of many files: the disk is forced once for what they hold, and once for their labels.
func (f *FS) syncMany(all []unsynced) error {
	type stamp struct{ size, mtime int64 }
	stamps := make([]stamp, len(all))
	for i := range all {
		st, err := f.cache.StatStage(all[i].in.Stage)
		if err != nil {
			stamps[i].size = -1
			continue
		}
		stamps[i] = stamp{st.Size, st.Mtim.Nano()}
	}
	if err := f.cache.SyncDisks(); err != nil {
		return err
	}
	for i := range all {
		if stamps[i].size < 0 {
			continue
		}
		if err := f.relabelAs(&all[i].in, false, func(l *cache.StageLabel) {
			l.Synced, l.SyncSize, l.SyncMTime = true, stamps[i].size, stamps[i].mtime
		}); err != nil && !errors.Is(err, cache.ErrNoStage) && !errors.Is(err, meta.ErrNotFound) {
			return err
		}
	}
	return f.cache.SyncDisks()
}
