package fs

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// At the start everything is taken up that earlier processes left. While the machine runs the
// index is the truth: what it says survives any killed process. After a power cut, or when the index was
// lost, it may say less than it did, and the labels of the staging files are the truth: they are as
// durable as the files (relabel.go).

// varBoot is where the index says during which run of the machine it was used last.
const varBoot = "fs.boot"

// recover finds out what is dirty, and hands it to the queue and the completer.
func (f *FS) recover() error {
	if err := f.claim(); err != nil {
		return err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fmt.Errorf("which run of the machine this is: %w", err)
	}
	last, err := f.db.Var(varBoot)
	if err != nil && !errors.Is(err, cache.ErrNoRecord) {
		return err
	}
	// The labels that are written from now on are younger than all that there are.
	f.db.RaiseSeq(uint64(f.now()))
	dirty, known, err := f.allDirty()
	if err != nil {
		return err
	}
	f.beginDoubt(len(dirty) > 0 || f.db.TombCount() > 0)
	if !bytes.Equal(last, boot) {
		if err := f.afterCut(dirty); err != nil {
			return fmt.Errorf("files that were written and not published: %w", err)
		}
		if err := f.db.Closes().Reset(); err != nil {
			return err
		}
		if err := f.db.Apply(cache.Batch{Vars: map[string][]byte{varBoot: boot}, Needed: true}); err != nil {
			return err
		}
		if dirty, known, err = f.allDirty(); err != nil {
			return err
		}
	}
	orphans, err := f.orphans(known)
	if err != nil {
		return err
	}
	if err := f.closedBefore(dirty); err != nil {
		return err
	}
	f.wg.Add(1)
	go func() {
		defer f.wg.Done()
		if err := f.takeUp(dirty, orphans); err != nil && f.ctx.Err() == nil {
			f.log.Error("not all that was written and not published could be taken up; unmount and mount again", "err", err)
		}
	}()
	return nil
}

// left is an inode with what is to be published of it.
type left struct {
	in meta.Inode
	d  meta.Dirty
}

// allDirty reads all that is dirty below the root of this mount, and which staging files the index knows, of all mounts.
func (f *FS) allDirty() (all []left, stages map[cache.ID]bool, err error) {
	stages = make(map[cache.ID]bool)
	var found []meta.Dirty
	if err := f.db.WalkDirty(0, func(d meta.Dirty) bool {
		found = append(found, d)
		return true
	}); err != nil {
		return nil, nil, err
	}
	for _, d := range found {
		in, err := f.db.Inode(d.Ino)
		if errors.Is(err, meta.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if in.Stage != 0 {
			stages[in.Stage] = true
		}
		if f.below(&in) {
			all = append(all, left{in, d})
		}
	}
	return all, stages, nil
}

// below tells whether an inode is below the root of this mount: others may share the index.
func (f *FS) below(in *meta.Inode) bool {
	for range 4096 {
		if in.Ino == f.root.Ino {
			return true
		}
		if in.Parent == in.Ino {
			return false
		}
		up, err := f.db.Inode(in.Parent)
		if err != nil {
			return false
		}
		in = &up
	}
	return false
}

// takeUp goes on with what was dirty at the start and every tomb, and removes the orphans. Nothing is published before the
// queue knows of all of it: what says that something is there may be what it comes to know first.
func (f *FS) takeUp(dirty []left, orphans []cache.ID) error {
	for i := range dirty {
		if f.ctx.Err() != nil {
			return nil
		}
		f.takeUpOne(&dirty[i])
	}
	err := f.db.WalkTombs("", "", func(t meta.Tomb) bool {
		if t.Done == 0 && strings.HasPrefix(t.Key, f.root.Prefix) {
			f.enqueueTomb(t.Key)
		}
		return f.ctx.Err() == nil
	})
	f.publisher.queue.Start()
	for i := range dirty {
		if in := &dirty[i].in; in.Flags&meta.Removed != 0 {
			f.forget(f.ctx, in.Ino)
		}
	}
	return errors.Join(err, f.removeDirLabels(), f.removeOrphans(orphans))
}

// closedBefore has the completer look first at what was closed before the process that was told of it was killed, in the
// order of the closes. What that had not come to note is held, since nobody said that it is whole, also when somebody waited
// for the bucket to have it; but where who has it open lives on with the mount, it was closed last: in the order in which it
// was written last. It is to be called before anything is opened.
func (f *FS) closedBefore(dirty []left) error {
	noted, err := f.db.Closes().Left()
	if err != nil {
		return err
	}
	place := make(map[meta.Ino]int, len(noted))
	for i, ino := range noted {
		if f.open.writers(ino) == 0 {
			place[ino] = i - len(noted) // before what was not noted
		} else if err := f.db.Closes().Opened(ino); err != nil {
			return err
		}
	}
	type closed struct {
		ino   meta.Ino
		place int
		at    int64 // nanoseconds since 1970
	}
	var all []closed
	for i := range dirty {
		l := &dirty[i]
		if l.in.Flags&meta.Removed != 0 || placed(&l.d) || l.d.Held || f.open.writers(l.in.Ino) > 0 {
			continue
		}
		c := closed{ino: l.in.Ino, place: place[l.in.Ino]}
		if c.place == 0 && f.open.session.Epoch() == 1 {
			f.holdUnclosed(c.ino)
			continue
		}
		if st, err := f.cache.StatStage(l.in.Stage); err == nil {
			c.at = st.Ctim.Nano()
		}
		all = append(all, c)
	}
	slices.SortStableFunc(all, func(a, b closed) int { return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.at, b.at)) })
	for _, c := range all {
		f.completeSoon(c.ino)
	}
	return nil
}

// removeDirLabels removes the labels of directories that are gone, of which who removed them was killed before it had: a power
// cut would bring them back once the index has forgotten them.
func (f *FS) removeDirLabels() error {
	var gone []uint64
	var inner error
	err := f.cache.WalkDirLabels(func(l cache.StageLabel) bool {
		if l.Origin == f.store.String() && strings.HasPrefix(l.Dir, f.root.Prefix) {
			switch d, err := f.db.Inode(meta.Ino(l.Ino)); {
			case errors.Is(err, meta.ErrNotFound), err == nil && d.Flags&meta.Removed != 0:
				gone = append(gone, l.Ino)
			default:
				inner = err
			}
		}
		return inner == nil && f.ctx.Err() == nil
	})
	for _, num := range gone {
		err = errors.Join(err, f.cache.RemoveDirLabel(num))
	}
	return errors.Join(err, inner)
}

func (f *FS) takeUpOne(l *left) {
	var err error
	if l.in, err = f.db.Inode(l.in.Ino); err != nil {
		return // gone meanwhile
	}
	if l.d, err = f.db.Dirty(l.in.Ino); err != nil {
		return
	}
	if l.in.Flags&meta.Removed == 0 {
		if l.in.Stage != 0 {
			f.mendLabel(&l.in)
		} else if l.in.Kind == meta.KindDir && l.in.Ino != f.root.Ino {
			f.labelDir(&l.in)
		}
	}
	if l.in.Flags&meta.Removed == 0 && !l.d.Held && l.d.Seq != 0 {
		f.enqueue(l.in.Ino)
	}
}

// Why a file is held.
const (
	heldOpen = "it was open for writing when both processes of the mount ended"
	heldTorn = "not all of it was known to be on the disk when the machine stopped"
)

// placed tells whether a file has its place in the order because it was complete, and not only because somebody waited for the
// bucket to have what it held then.
func placed(d *meta.Dirty) bool { return d.Seq != 0 && !d.Early }

// holdUnclosed keeps a file that was not closed when its writer or the machine ended: it is there, and not published.
func (f *FS) holdUnclosed(ino meta.Ino) {
	var in meta.Inode
	err := f.db.Do(func(tx *meta.Tx) error {
		d, err := tx.Dirty(ino)
		if err != nil || d.Held || placed(&d) {
			return absent(err)
		}
		if in, err = tx.Inode(ino); err != nil {
			return err
		}
		d.Seq, d.Early, d.Held, d.Error = 0, false, true, heldOpen
		return tx.SetDirty(&d)
	})
	if err != nil {
		f.log.Error("a file that was not closed cannot be noted as such", "inode", ino, "err", err)
	} else if in.Ino != 0 {
		f.log.Warn("a file was being written when the mount ended: it is kept on this node and not published; look at it, then \"leatfs retry\" publishes it and \"leatfs discard\" gives it up",
			"path", f.path(in.Parent, in.Name))
	}
}

// mendLabel writes the label of a staging file anew if the process before was killed before it had.
func (f *FS) mendLabel(in *meta.Inode) {
	l, err := f.cache.StageLabel(in.Stage)
	if err == nil && l.Parent == uint64(in.Parent) && l.Name == in.Name && !l.Removed {
		return
	}
	f.relabel(in)
}

// orphans returns the staging files that the index knows nothing of: their making, or their end, was cut short. It
// is to be called before anything is opened: what is opened for writing later may become a staging file under an old
// number before the index knows it as one.
func (f *FS) orphans(known map[cache.ID]bool) (ids []cache.ID, err error) {
	all, err := f.cache.StageIDs()
	for _, id := range all {
		if !known[id] {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// removeOrphans removes orphans. Those of other origins, and of which nothing can be read, stay.
func (f *FS) removeOrphans(ids []cache.ID) error {
	for _, id := range ids {
		if f.ctx.Err() != nil {
			return nil
		}
		l, err := f.cache.StageLabel(id)
		switch {
		case errors.Is(err, cache.ErrNoStage):
		case err != nil:
			f.log.Error("a staging file says not whose it is; it stays where it is, and may hold what somebody wrote", "file", id, "err", err)
		case l.Origin == f.store.String() && strings.HasPrefix(l.Dir, f.root.Prefix):
			f.removeStage(id)
		}
	}
	return nil
}

// lastHandle sees to what is to be done once nobody has an inode open any more.
func (f *FS) lastHandle(ino meta.Ino) {
	in, err := f.db.Inode(ino)
	if err != nil || in.Flags&(meta.Removed|meta.Local) != meta.Removed|meta.Local || f.ctx.Err() != nil {
		return
	}
	f.unread(&in)
	f.wg.Add(1)
	go func() {
		defer f.wg.Done()
		f.forget(f.ctx, ino)
	}()
}
