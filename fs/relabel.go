package fs

import (
	"errors"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// The label of a staging file says under which name the file is, and up to where it was forced to the
// disk. It is an extended attribute: whatever makes the file durable, an msync that nobody hears of
// included, makes the label durable with it.

// label is what stands on the staging file of an inode that was never synced.
func (f *FS) label(dir, in *meta.Inode) cache.StageLabel {
	l := cache.StageLabel{Origin: f.store.String(), Ino: uint64(in.Ino), Parent: uint64(dir.Ino), Name: in.Name, Dir: dir.Prefix,
		Base: f.labelBase(dir, in), Seq: f.db.NextSeq(), Removed: in.Flags&meta.Removed != 0}
	if in.Flags&meta.Owned != 0 {
		l.Mode, l.UID, l.GID = in.Mode|labelOwned, in.UID, in.GID
	}
	return l
}

// labelOwned in the mode of a label says that mode and owner are set.
const labelOwned = unix.S_IFREG

// labelBase is the ETag of what a file is to replace at the origin, "" if nothing.
func (f *FS) labelBase(dir, in *meta.Inode) string {
	key := naturalKey(dir, in)
	if f.db.TombCount() > 0 {
		if t, err := f.db.Tomb(key); err == nil && t.Done == 0 && t.ETag != "" && t.ETag != noObject {
			return t.ETag
		}
	}
	if objectKey(in, key) == key {
		return in.Object.ETag
	}
	return ""
}

// labelledBase tells whether the version of an object is the one that a staging file was made from, as
// its label says. The index may have lost that by a power cut.
func (f *FS) labelledBase(stage cache.ID, etag string) bool {
	if stage == 0 || etag == "" {
		return false
	}
	l, err := f.cache.StageLabel(stage)
	return err == nil && l.Base == etag
}

// relabel writes the label of an inode's staging file anew, after it got another name or owner. What
// fails is made up for at the next start.
func (f *FS) relabel(in *meta.Inode) {
	if in.Stage == 0 {
		return
	}
	if err := f.relabelAs(in, true, func(*cache.StageLabel) {}); err != nil && !errors.Is(err, cache.ErrNoStage) {
		f.log.Error("the label of a staging file could not be written; until the next start a power cut would show the file as it was called before",
			"path", f.path(in.Parent, in.Name), "file", in.Stage, "err", err)
	}
}

// relabelAs writes the label as of what the index says now, and as fn changes it. With aged the label of a file
// that has the name it had keeps its number: it is no younger for another mode.
func (f *FS) relabelAs(was *meta.Inode, aged bool, fn func(*cache.StageLabel)) error {
	defer f.labels.lock(was.Ino)()
	in, err := f.db.Inode(was.Ino)
	if err != nil {
		return err
	}
	if in.Stage != was.Stage {
		return cache.ErrNoStage
	}
	dir, err := f.db.Inode(in.Parent)
	if err != nil {
		return err
	}
	l := f.label(&dir, &in)
	if in.Flags&meta.Overlay != 0 {
		if l.Source, err = f.identity(&in); err != nil {
			return err
		}
	}
	d, derr := f.db.Dirty(in.Ino)
	if derr == nil {
		l.Token = labelTokens(d.Token)
	}
	if old, err := f.cache.StageLabel(in.Stage); err == nil {
		l.Synced, l.SyncSize, l.SyncMTime = old.Synced, old.SyncSize, old.SyncMTime
		// What is complete keeps its place in the order, whoever writes its label anew: after a power
		// cut this number says what is published before what.
		if derr == nil && old.Parent == l.Parent && old.Name == l.Name {
			if d.Seq != 0 {
				l.Seq = max(old.Seq, d.Seq)
			} else if aged {
				l.Seq = old.Seq
			}
		}
	}
	fn(&l)
	err = f.cache.RelabelStage(in.Stage, l)
	if l.Token != "" && errors.Is(err, unix.ENOSPC) {
		l.Token = "" // what makes it longer
		err = f.cache.RelabelStage(in.Stage, l)
	}
	return err
}

// labelTokens are the newest of the tokens of a Dirty: an index that is lost, or older than the file, does not tell that what is
// at the origin was put there from here.
func labelTokens(token string) string {
	all := strings.Fields(token)
	return strings.Join(all[:min(len(all), maxLabelTokens)], " ")
}

// maxLabelTokens bounds what tokens take on a label, which has 4 KiB with all else.
const maxLabelTokens = 4

// labelToken has the label of an overlay say by which token its publication will be known, as durably as the label is: once it has
// landed, what the overlay lies over is nowhere any more but in what has landed.
func (f *FS) labelToken(in *meta.Inode) error {
	if err := f.relabelAs(in, true, func(*cache.StageLabel) {}); err != nil {
		return err
	}
	l, err := f.cache.StageLabel(in.Stage)
	if err != nil || !l.Synced {
		return err
	}
	return f.cache.SyncStage(in.Stage, false)
}

// labelLocks let one at a time write the label of an inode, by number, so that what is written last is
// what the index says.
type labelLocks [64]sync.Mutex

func (l *labelLocks) lock(ino meta.Ino) (unlock func()) {
	m := &l[uint64(ino)%uint64(len(l))]
	m.Lock()
	return m.Unlock
}

// syncStage forces a staging file to the disk, and then a label that says so: that must not be there
// before the content is. What is written meanwhile makes the label untrue, and shows by the file's time.
func (f *FS) syncStage(in *meta.Inode) error {
	st, err := f.cache.StatStage(in.Stage)
	if err != nil {
		return err
	}
	l, err := f.cache.StageLabel(in.Stage)
	if err == nil && synced(&l, st.Size, st.Mtim.Nano()) {
		return f.cache.SyncStage(in.Stage, false)
	}
	if err := f.cache.SyncStage(in.Stage, true); err != nil {
		return err
	}
	if err := f.relabelAs(in, false, func(l *cache.StageLabel) {
		l.Synced, l.SyncSize, l.SyncMTime = true, st.Size, st.Mtim.Nano()
	}); err != nil {
		return err
	}
	return f.cache.SyncStage(in.Stage, false)
}

// keepSynced calls set, which gives a staging file other times and no other content. If it was
// wholly on the disk before, its label says so afterwards.
func (f *FS) keepSynced(in *meta.Inode, set func() error) error {
	defer f.labels.lock(in.Ino)()
	var l cache.StageLabel
	st, err := f.cache.StatStage(in.Stage)
	if err == nil {
		l, err = f.cache.StageLabel(in.Stage)
	}
	if err != nil {
		return err
	}
	if err := set(); err != nil || !synced(&l, st.Size, st.Mtim.Nano()) {
		return err
	}
	now, err := f.cache.StatStage(in.Stage)
	if err != nil || now.Size != st.Size {
		return err
	}
	l.SyncMTime = now.Mtim.Nano()
	return f.cache.RelabelStage(in.Stage, l)
}

// synced tells whether a file of a size and time is wholly on the disk.
func synced(l *cache.StageLabel, size, mtime int64) bool {
	return l.Synced && l.SyncSize == size && l.SyncMTime == mtime
}

// labelDir writes the label of a directory that was made or renamed here.
func (f *FS) labelDir(was *meta.Inode) {
	defer f.labels.lock(was.Ino)()
	in, err := f.db.Inode(was.Ino)
	if err == nil && in.Flags&meta.Removed != 0 {
		return
	}
	var dir meta.Inode
	if err == nil {
		dir, err = f.db.Inode(in.Parent)
	}
	if err == nil {
		err = f.cache.LabelDir(uint64(in.Ino), f.label(&dir, &in))
	}
	if err != nil && !errors.Is(err, meta.ErrClosed) {
		f.log.Error("the label of a directory could not be written; a power cut would show it as it was called before", "path", f.path(was.Parent, was.Name), "err", err)
	}
}
