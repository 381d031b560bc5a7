package fs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// writes tells whether flags of open(2) allow to change the file.
func writes(flags int) bool {
	return flags&(os.O_WRONLY|os.O_RDWR) != 0 || flags&os.O_TRUNC != 0
}

// stage gives the inode of a node a staging file, so that it can be changed. The file of a
// version that is here whole becomes it, in place: who has it open for reading sees the changes.
// What is not here is fetched first, unless empty says that nothing of it is wanted. The caller is the only
// one to open the node.
//
// ErrStale: others use the file, so that the changed file is a copy and a new node.
func (f *FS) stage(ctx context.Context, node NodeID, in *meta.Inode, empty bool) (meta.Inode, error) {
	if err := f.mayReplace(in); err != nil {
		return *in, err
	}
	o, err := f.revived(ctx, f.open.peek(node))
	if err != nil {
		return *in, err
	}
	open := o != nil && f.open.get(node) != nil
	if o != nil && !open {
		f.open.drop(node)
		o = nil
	}
	switch {
	case in.Object.Size == 0 || empty && !open:
		return f.stageNew(in, o)
	case o == nil:
		o = &openNode{node: node, inode: *in}
		ident, err := f.identity(in)
		if err != nil {
			return *in, err
		}
		if o.obj, err = f.cache.Object(ctx, ident, f.store); err != nil {
			return *in, err
		}
		defer func() {
			if o.obj != nil {
				o.obj.Release()
			}
		}()
	}
	for missing := false; ; missing = true {
		if open && o.pass && f.outdated(o) {
			// The kernel has a file that was found damaged, or is gone: what is written must not go there.
			if err := f.anew(node); err != nil {
				return *in, err
			}
			return *in, ErrStale
		}
		if !o.obj.Passthroughable() {
			if in.Object.Size >= f.opt.OverlayMin && in.Flags&meta.Archived == 0 {
				return f.stageOverlay(in, o)
			}
			if err := o.obj.Fetch(ctx); err != nil {
				return *in, f.fetchFailed(ctx, o, err)
			}
		}
		now, err := f.stageTaken(ctx, in, o, open)
		if missing || !errors.Is(err, cache.ErrIncomplete) {
			return now, err
		}
		// Its file was not there, as after a crash; that is known now.
	}
}

// stageNew stages an empty file.
func (f *FS) stageNew(in *meta.Inode, o *openNode) (meta.Inode, error) {
	dir, err := f.db.Inode(in.Parent)
	if err != nil {
		return *in, err
	}
	if o != nil && o.empty != 0 {
		return f.stageAgain(&dir, in, o)
	}
	id, file, err := f.cache.NewStage(f.label(&dir, in))
	if err != nil {
		return *in, &PathError{Op: "open", Path: f.path(in.Parent, in.Name), Err: err}
	}
	closeFile(file)
	another := o != nil && o.pass // the kernel has a file that is nowhere any more
	now, err := f.staged(in, id, 0, another)
	if err != nil {
		f.removeStage(id)
		return *in, err
	}
	if another {
		f.open.drop(o.node)
		return now, ErrStale
	}
	if o != nil {
		f.open.replace(o, &openNode{node: o.node, inode: now, stage: id})
	} else if in.Object.Size > 0 {
		f.doom(in)
	}
	return now, nil
}

// stageAgain stages an empty file that was a staging file before, which those have who had it open then.
func (f *FS) stageAgain(dir, in *meta.Inode, o *openNode) (meta.Inode, error) {
	id := o.empty
	err := f.cache.RelabelStage(id, f.label(dir, in))
	if err == nil {
		err = f.keepTimes(in, id)
	}
	if err != nil {
		return *in, &PathError{Op: "open", Path: f.path(in.Parent, in.Name), Err: err}
	}
	now, err := f.staged(in, id, 0, false)
	if err != nil {
		return *in, err
	}
	n := &openNode{node: o.node, inode: now, stage: id, backing: o.backing, ref: o.ref, file: o.file, pass: o.pass}
	if f.open.replace(o, n) {
		o.empty = 0
		return now, nil
	}
	return now, ErrStale
}

// stageTaken makes the file of a complete object the staging file, or a copy of it.
func (f *FS) stageTaken(ctx context.Context, in *meta.Inode, o *openNode, open bool) (meta.Inode, error) {
	dir, err := f.db.Inode(in.Parent)
	if err != nil {
		return *in, err
	}
	patience := time.Duration(0)
	if open && !f.open.elsewhere(o) {
		patience = takePatience
	}
	id, err := f.takeStage(ctx, o, f.label(&dir, in), patience)
	defer o.use.Unlock()
	copied := errors.Is(err, cache.ErrInUse)
	if copied {
		id, err = f.copyStage(o.obj, f.label(&dir, in))
	}
	if err == nil {
		err = f.keepTimes(in, id)
	}
	if err != nil {
		return *in, &PathError{Op: "open", Path: f.path(in.Parent, in.Name), Err: err}
	}
	// The file may have been found damaged, and fetched anew, at this moment: the kernel has the old one.
	another := open && (copied || o.pass && id != o.file)
	now, err := f.staged(in, id, 0, another)
	if err != nil {
		// What was taken is found at the next start, equal to the object.
		return *in, err
	}
	switch {
	case another:
		f.open.drop(o.node)
		return now, ErrStale
	case copied || !open:
		return now, nil
	}
	n := &openNode{node: o.node, inode: now, stage: id, backing: o.backing, ref: o.ref, file: o.file, pass: o.pass, noPass: o.noPass}
	if f.open.replace(o, n) {
		o.moved = true
		f.open.letGo(o)
		o.obj = nil
	}
	return now, nil
}

// takePatience is how long who opens a file for writing waits for somebody who reads the cache's file of it, as "leatfs verify"
// does. After that it gets a copy, and who has it open does not see what becomes of that.
const takePatience = 10 * time.Second

// takeStage has the cache make the file of o a staging file. It returns with o.use held: reads under way are over.
func (f *FS) takeStage(ctx context.Context, o *openNode, l cache.StageLabel, patience time.Duration) (cache.ID, error) {
	lent := 0
	if o.lent {
		lent = 1
	}
	for until := time.Now().Add(patience); ; {
		o.use.Lock()
		id, err := f.cache.TakeStage(o.obj, lent, l)
		if !errors.Is(err, cache.ErrInUse) || ctx.Err() != nil || time.Now().After(until) {
			return id, err
		}
		o.use.Unlock()
	}
}

// keepTimes gives a staging file the times of its inode: from now on the file's are shown.
func (f *FS) keepTimes(in *meta.Inode, id cache.ID) error {
	a := f.attr(in)
	if a.ATime == 0 {
		a.ATime = a.MTime
	}
	staged := *in
	staged.Stage = id
	return f.setStageTimes(&staged, &SetAttr{MTime: &a.MTime, ATime: &a.ATime})
}

// copyStage makes a staging file with the content of an object whose file others need as it is.
func (f *FS) copyStage(obj *cache.Object, l cache.StageLabel) (id cache.ID, err error) {
	from, was, err := f.open.lend(obj)
	if err != nil {
		return 0, err
	}
	defer obj.Return()
	defer closeFile(from)
	id, to, err := f.cache.NewStage(l)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(to, from)
	if err == nil && obj.ID() != was {
		err = errReplaced
	}
	if err = errors.Join(err, to.Close()); err != nil {
		f.removeStage(id)
		return 0, err
	}
	return id, nil
}

// staged notes in the index that an inode's content is in a staging file, with flags. another says
// that it is another file than the one that its node has open.
func (f *FS) staged(in *meta.Inode, id cache.ID, flags meta.Flags, another bool) (now meta.Inode, err error) {
	err = f.db.Do(func(tx *meta.Tx) error {
		var err error
		if now, err = tx.Inode(in.Ino); err != nil {
			return err
		}
		if now.Stage != 0 || now.Gen != in.Gen || now.Object.ETag != in.Object.ETag {
			return ErrStale
		}
		now.Stage = id
		now.Flags = now.Flags&^meta.Overlay | meta.Local | flags
		if another {
			now.Gen = (now.Gen + 1) & genMask
		}
		if err := tx.Update(&now); err != nil {
			return err
		}
		// A copy of what it was may be under way. Of a file without a name the record tells the next process whose the
		// staging file is, as it does of one that lost its name later.
		d, err := tx.Dirty(in.Ino)
		if err := absent(err); err != nil {
			return err
		}
		if d.Upload.ID != "" {
			if err := tx.AddAbort(d.Upload.Key, d.Upload.ID); err != nil {
				return err
			}
		}
		return tx.SetDirty(&meta.Dirty{Ino: in.Ino, Since: f.now(), Token: outdated(d.Token)})
	})
	if err == nil && (now.Parent != in.Parent || now.Name != in.Name) {
		f.relabel(&now) // it was renamed since its label was written
	}
	return now, err
}

// openStaged adds a handle to the node of an inode that has a staging file. The caller is the only
// one to open it.
func (f *FS) openStaged(ctx context.Context, node NodeID, in *meta.Inode, flags int) (Opened, error) {
	o, err := f.revived(ctx, f.open.peek(node))
	if err != nil {
		return Opened{}, err
	}
	if o != nil && o.stage != in.Stage {
		// Kept from when it was another file.
		if !f.open.drop(node) {
			return Opened{}, fmt.Errorf("inode %d: open with file %d, staged in %d", in.Ino, o.stage, in.Stage)
		}
		o = nil
	}
	fresh := o == nil
	if fresh {
		o = &openNode{node: node, inode: *in, stage: in.Stage}
		if err := f.attachBase(ctx, o); err != nil {
			return Opened{}, err
		}
		if f.open.backing != nil && !o.over {
			if err := f.registerStage(o); err != nil {
				f.log.Warn("no passthrough for this file; the daemon serves it", "path", f.path(in.Parent, in.Name), "err", err)
			}
		}
	}
	write := writes(flags)
	if write {
		f.unqueue(in.Ino)
		err = f.reopened(in)
	}
	if err == nil && flags&os.O_TRUNC != 0 {
		err = f.truncate(ctx, o, 0)
	}
	if err != nil {
		if fresh {
			f.open.close(o)
		}
		return Opened{}, err
	}
	unique, _ := requestOf(ctx)
	var fh uint64
	if fresh {
		if fh, err = f.open.add(o, unique, write); err != nil {
			f.open.close(o)
		}
	} else {
		if fh, err = f.open.join(o, unique, write); err == nil && fh == 0 {
			// Given back meanwhile. Not ErrStale: it may be cut, and would count as closed until the kernel asks again.
			return f.openStaged(ctx, node, in, flags)
		}
	}
	if err != nil {
		return Opened{}, err
	}
	a := opened(o, fh)
	if write && flags&unix.O_DSYNC != 0 {
		o.syncs.Store(true)
	}
	a.Flush = write && f.flushed(node, o.pass, flags)
	a.Direct = !o.pass && flags&unix.O_DIRECT != 0
	return a, nil
}

// reopened notes that a file is open for writing again: it is not complete.
func (f *FS) reopened(in *meta.Inode) error {
	if in.Flags&meta.Removed != 0 {
		return nil
	}
	return f.db.Do(func(tx *meta.Tx) error {
		now, err := tx.Inode(in.Ino)
		if err != nil || now.Flags&meta.Removed != 0 {
			return err
		}
		d, err := tx.Dirty(in.Ino)
		switch {
		case errors.Is(err, meta.ErrNotFound):
			d = meta.Dirty{Ino: in.Ino, Since: f.now()}
		case err != nil:
			return err
		case d.Seq == 0 && !d.Held:
			return nil
		}
		d.Seq, d.Held, d.Early = 0, false, false
		return tx.SetDirty(&d)
	})
}

// registerStage lends a staging file to the kernel, which opens it anew with each handle's own
// flags.
func (f *FS) registerStage(o *openNode) error {
	file, err := f.cache.OpenStage(o.stage, os.O_RDONLY)
	if err != nil {
		return err
	}
	o.file = o.stage
	t := &f.open
	b, err := t.session.NewBacking(uint64(o.node), uint64(o.file), func() (int32, error) { return t.backing.Register(file) })
	closeFile(file)
	if err != nil {
		o.noPass = true
		return err
	}
	o.backing, o.ref, o.pass = b.ID, b.Ref, true
	return nil
}

// attachBase gives an open overlay the object that is in its holes.
func (f *FS) attachBase(ctx context.Context, o *openNode) error {
	if o.inode.Flags&meta.Overlay == 0 {
		return nil
	}
	ident, err := f.identity(&o.inode)
	if err != nil {
		return err
	}
	o.over, o.noPass = true, true
	o.obj, err = f.cache.Object(ctx, ident, f.store)
	return err
}

// truncate sets the size of a staging file.
func (f *FS) truncate(ctx context.Context, o *openNode, size int64) error {
	if o.overlaid() && size < o.inode.Object.Size {
		// What is cut off must not come back out of the object when the file grows again.
		var err error
		if size == 0 {
			o.overMu.Lock()
			err = f.noOverlay(o)
			o.overMu.Unlock()
		} else {
			err = f.materialise(ctx, o)
		}
		if err != nil {
			return err
		}
	}
	file, err := f.cache.OpenStage(o.stage, os.O_WRONLY)
	if err != nil {
		return err
	}
	err = file.Truncate(size)
	return errors.Join(err, file.Close())
}

// stageFile is the staging file of a node, for the daemon to read and write. The caller closes it
// by calling done.
func (f *FS) stageFile(o *openNode) (file *os.File, done func(), err error) {
	return f.stageFileAs(o, &o.rw, os.O_RDWR)
}

// stageToRead is stageFile to read only: that is not taken for somebody who may still write.
func (f *FS) stageToRead(o *openNode) (file *os.File, done func(), err error) {
	return f.stageFileAs(o, &o.ro, os.O_RDONLY)
}

func (f *FS) stageFileAs(o *openNode, file **os.File, flags int) (_ *os.File, done func(), err error) {
	o.io.Lock()
	defer o.io.Unlock()
	if *file == nil {
		if *file, err = f.cache.OpenStage(o.stage, flags); err != nil {
			*file = nil
			return nil, nil, err
		}
	}
	o.ioUsers.Add(1)
	return *file, func() { o.ioUsers.Done() }, nil
}

// closeStage closes the daemon's own descriptors, so that a lease can tell whether others write.
func (o *openNode) closeStage() {
	o.io.Lock()
	defer o.io.Unlock()
	o.ioUsers.Wait()
	for _, file := range []**os.File{&o.rw, &o.ro} {
		if *file != nil {
			closeFile(*file)
			*file = nil
		}
	}
}
