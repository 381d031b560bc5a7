package fs

import (
	"errors"
	"time"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// The label of a staging file says under which name the file is, and up to where it was forced to the
// disk. It is an extended attribute: whatever makes the file durable, an msync that nobody hears of
// included, makes the label durable with it.

// label is what stands on the staging file of an inode that was never synced.
func (f *FS) label(dir, in *meta.Inode) cache.StageLabel {
	return cache.StageLabel{Origin: f.store.String(), Ino: uint64(in.Ino), Parent: uint64(dir.Ino), Name: in.Name, Dir: dir.Prefix,
		Base: in.Object.ETag, Mode: in.Mode, UID: in.UID, GID: in.GID, Seq: f.db.NextSeq(), Removed: in.Flags&meta.Removed != 0}
}

// relabel writes the label of an inode's staging file anew, after it got another name or owner. What
// fails is made up for at the next start.
func (f *FS) relabel(in *meta.Inode) {
	if in.Stage == 0 {
		return
	}
	if err := f.relabelAs(in, func(*cache.StageLabel) {}); err != nil && !errors.Is(err, cache.ErrNoStage) {
		f.log.Error("the label of a staging file could not be written; until the next start a power cut would show the file as it was called before",
			"path", f.path(in.Parent, in.Name), "file", in.Stage, "err", err)
	}
}

func (f *FS) relabelAs(in *meta.Inode, fn func(*cache.StageLabel)) error {
	dir, err := f.db.Inode(in.Parent)
	if err != nil {
		return err
	}
	l := f.label(&dir, in)
	if old, err := f.cache.StageLabel(in.Stage); err == nil {
		l.Synced, l.SyncSize, l.SyncMTime, l.Source = old.Synced, old.SyncSize, old.SyncMTime, old.Source
	}
	fn(&l)
	return f.cache.RelabelStage(in.Stage, l)
}

// syncStage forces a staging file to the disk, with a label that says so: that goes with it. What is
// written meanwhile makes the label untrue, and shows by the file's time.
func (f *FS) syncStage(in *meta.Inode) error {
	st, err := f.cache.StatStage(in.Stage)
	if err != nil {
		return err
	}
	if l, err := f.cache.StageLabel(in.Stage); err != nil || !synced(&l, st.Size, st.Mtim.Nano()) {
		if err := f.relabelAs(in, func(l *cache.StageLabel) {
			l.Synced, l.SyncSize, l.SyncMTime = true, st.Size, st.Mtim.Nano()
		}); err != nil {
			return err
		}
	}
	return f.cache.SyncStage(in.Stage, false)
}

// synced tells whether a file of a size and time is wholly on the disk.
func synced(l *cache.StageLabel, size, mtime int64) bool {
	return l.Synced && l.SyncSize == size && l.SyncMTime == mtime
}

// labelDir writes the label of a directory that was made or renamed here.
func (f *FS) labelDir(in *meta.Inode) {
	dir, err := f.db.Inode(in.Parent)
	if err == nil {
		err = f.cache.LabelDir(uint64(in.Ino), f.label(&dir, in))
	}
	if err != nil && !errors.Is(err, meta.ErrClosed) {
		f.log.Error("the label of a directory could not be written; a power cut would show it as it was called before", "path", f.path(in.Parent, in.Name), "err", err)
	}
}

// What was closed is published at once as a rule. While the origin is away it stays here, and is
// forced to the disk, so that a power cut later finds it whole.
const (
	syncEvery = 5 * time.Second
	syncBatch = 1000
)

// syncLoop forces files to the disk that were closed and are not published yet.
func (f *FS) syncLoop() {
	defer f.wg.Done()
	t := time.NewTicker(syncEvery)
	defer t.Stop()
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-t.C:
		}
		if f.db.DirtyCount() == 0 {
			continue
		}
		before := f.now() - int64(syncEvery)
		n := 0
		if err := f.db.WalkDirty(0, func(d meta.Dirty) bool {
			if d.Seq == 0 || d.Since > before {
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
			if err := f.syncStage(&in); err != nil && !errors.Is(err, cache.ErrNoStage) {
				f.log.Warn("a file that is not published yet cannot be forced to the disk", "path", f.path(in.Parent, in.Name), "err", err)
			}
			n++
			return n < syncBatch && f.ctx.Err() == nil
		}); err != nil {
			f.log.Debug("files that are not published yet", "err", err)
		}
	}
}
