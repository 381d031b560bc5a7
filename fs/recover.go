package fs

import (
	"errors"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// recover takes up what earlier processes left: everything that is dirty, every tomb, every upload
// that is to be aborted; and removes staging files that nobody knows.
func (f *FS) recover() error {
	var dirty []meta.Dirty
	if err := f.db.WalkDirty(0, func(d meta.Dirty) bool {
		dirty = append(dirty, d)
		return true
	}); err != nil {
		return err
	}
	known := make(map[cache.ID]bool)
	for _, d := range dirty {
		in, err := f.db.Inode(d.Ino)
		if err != nil {
			continue
		}
		if in.Stage != 0 {
			known[in.Stage] = true
		}
		switch {
		case in.Flags&meta.Removed != 0:
			f.wg.Add(1)
			go func() {
				defer f.wg.Done()
				f.forget(f.ctx, d.Ino)
			}()
		case d.Held:
		case d.Seq == 0 && f.open.writers(d.Ino) > 0:
		case d.Seq == 0:
			f.completeSoon(d.Ino)
		default:
			f.enqueue(d.Ino)
		}
	}
	if err := f.db.WalkTombs("", "", func(t meta.Tomb) bool {
		f.enqueueTomb(t.Key)
		return true
	}); err != nil {
		return err
	}
	return nil
}

// lastHandle sees to what is to be done once nobody has an inode open any more.
func (f *FS) lastHandle(ino meta.Ino) {
	in, err := f.db.Inode(ino)
	if err != nil || in.Flags&(meta.Removed|meta.Local) != meta.Removed|meta.Local {
		return
	}
	f.wg.Add(1)
	go func() {
		defer f.wg.Done()
		f.forget(f.ctx, ino)
	}()
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
