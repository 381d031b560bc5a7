package fs

import (
	"context"
	"errors"
	"os"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
)

// Opened is the answer to an open.
type Opened struct {
	FH uint64 // unique for the life of the mount, whatever process serves it
	// Passthrough: the kernel shall read the file registered as Backing itself. Otherwise it
	// asks Read, and may keep what it has cached of the node: a node id is one version.
	Passthrough bool
	Backing     int32
	// Flush: the daemon wants to see each close of the handle.
	Flush bool
	// Direct: the kernel must keep no pages of it (O_DIRECT of a file that the daemon serves).
	Direct bool
}

// Open opens a node. flags are those of open(2).
//
// How it is served is decided here, for the node id as a whole: an object that is complete
// in the cache by the kernel itself, a small one after fetching it, others by Read. When a
// node is open through the daemon and its object has become complete, the inode gets a new
// generation and the answer is ErrStale: the kernel looks the name up again and opens the new
// node, which it reads itself, while the old handles stay as they are.
//
// An open that the process before this one carried out, and did not come to answer, is not
// carried out again: it gets the handle that it got.
//
// A file opened for writing has a staging file from then on, which the kernel writes by itself.
//
// Errors: ErrStale also when the object has changed, ErrReadOnly for an open for writing of a mount
// that is so, ErrIsDir, or the origin's.
func (f *FS) Open(ctx context.Context, node NodeID, flags int) (Opened, error) {
	write := writes(flags)
	if write && f.opt.ReadOnly {
		return Opened{}, ErrReadOnly
	}
	if unique, resent := requestOf(ctx); resent {
		if o, ok := f.open.made(node, unique); ok {
			o.Flush = write && f.flushed(node, o.Passthrough, flags)
			return o, nil
		}
	}
	o, err := f.openNode(ctx, node, flags)
	if errors.Is(err, ErrWouldWait) {
		return o, err // it will be asked again
	}
	f.stats.opens.Add(1)
	if errors.Is(err, ErrStale) {
		f.stats.stale.Add(1)
	}
	if o.Passthrough {
		f.stats.passthrough.Add(1)
	} else if err == nil {
		f.stats.daemon.Add(1)
	}
	return o, err
}

func (f *FS) openNode(ctx context.Context, node NodeID, flags int) (Opened, error) {
	in, err := f.inode(node)
	if err != nil {
		return Opened{}, err
	}
	switch in.Kind {
	case meta.KindDir:
		return Opened{}, ErrIsDir
	case meta.KindFile:
	default:
		return Opened{}, ErrInvalid
	}
	if in.Flags&meta.Local == 0 || in.Gen != node.Gen() {
		in, err = f.fresh(ctx, node)
		if errors.Is(err, ErrStale) && in.Ino != 0 {
			return f.reopen(ctx, node, &in)
		}
		if err != nil {
			return Opened{}, err
		}
	}
	if noWait(ctx) && (writes(flags) || in.Stage != 0) {
		return Opened{}, ErrWouldWait
	}
	end, err := f.open.begin(ctx, node)
	if err != nil {
		return Opened{}, err
	}
	opened, err := f.openAlone(ctx, node, flags)
	end(err)
	return opened, err
}

// openAlone opens the present node of an inode. The caller is the only one to open it.
func (f *FS) openAlone(ctx context.Context, node NodeID, flags int) (Opened, error) {
	in, err := f.inode(node) // it may have been staged, or published, meanwhile
	if err != nil {
		return Opened{}, err
	}
	if in.Gen != node.Gen() {
		return Opened{}, ErrStale
	}
	switch {
	case writes(flags):
		o, err := f.openToWrite(ctx, node, &in, flags)
		if err != nil {
			f.completeSoon(in.Ino) // it may have been staged all the same, and nobody will close it
		}
		return o, err
	case in.Stage != 0:
		o, err := f.openStaged(ctx, node, &in, flags)
		if err != nil {
			f.completeSoon(in.Ino)
		}
		return o, err
	}
	return f.openFresh(ctx, node, &in)
}

// openToWrite is openAlone for writing. Who closed the file last may come to say so only now: it does not count as closed any
// more before anything of it is changed.
func (f *FS) openToWrite(ctx context.Context, node NodeID, in *meta.Inode, flags int) (Opened, error) {
	defer f.open.willWrite(in.Ino)()
	if err := f.db.Closes().Opened(in.Ino); err != nil {
		return Opened{}, err
	}
	now := *in
	if now.Stage == 0 {
		var err error
		if now, err = f.stage(ctx, node, in, flags&os.O_TRUNC != 0); err != nil {
			return Opened{}, err
		}
	}
	return f.openStaged(ctx, node, &now, flags)
}

// writes is writers and the opens for writing that are under way.
func (t *openTable) writes(ino meta.Ino) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.writing[ino] + t.toWrite[ino]
}

// willWrite says that an open of an inode for writing is under way, until done is called.
func (t *openTable) willWrite(ino meta.Ino) (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.toWrite[ino]++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.toWrite[ino]--; t.toWrite[ino] == 0 {
			delete(t.toWrite, ino)
		}
	}
}

// openFresh opens the present node of an inode. The caller is the only one to open it.
func (f *FS) openFresh(ctx context.Context, node NodeID, in *meta.Inode) (Opened, error) {
	o, err := f.revived(ctx, f.open.peek(node))
	if err != nil {
		return Opened{}, err
	}
	if o != nil && f.outdated(o) && !f.open.drop(node) {
		err := f.anew(node)
		if err == nil {
			return Opened{}, ErrStale
		}
		// The index cannot be written. What the daemon serves goes on so; a file that the
		// kernel reads and that turned out damaged is given to nobody any more.
		if o.pass {
			return Opened{}, err
		}
	}
	if o != nil {
		unique, _ := requestOf(ctx)
		fh, err := f.open.join(o, unique, false)
		if err != nil {
			return Opened{}, err
		}
		if fh != 0 {
			if o.obj != nil {
				o.obj.Use()
			}
			return opened(o, fh), nil
		}
	}
	return f.openNew(ctx, node, in)
}

// anew gives the inode of a node another one, for the opens that come: who has this one open keeps what it is.
func (f *FS) anew(node NodeID) error {
	_, err := f.db.Update(f.ino(node), func(in *meta.Inode) error {
		if in.Gen == node.Gen() {
			in.Gen = (in.Gen + 1) & genMask
		}
		return nil
	})
	return err
}

// outdated tells whether an open or kept node should be served in another way by now: the
// object has become complete, or its file was found damaged and it got another.
func (f *FS) outdated(o *openNode) bool {
	switch {
	case o.obj == nil:
		return false
	case o.pass:
		return o.obj.ID() != o.file
	}
	return f.open.backing != nil && !o.noPass && o.obj.Passthroughable()
}

// reopen is an open of a node id that is no longer its inode's: through /proc/self/fd, or
// because another open has just switched it. Handles of the same version may be added to
// those that are open; anything else has to be looked up again.
func (f *FS) reopen(ctx context.Context, node NodeID, in *meta.Inode) (Opened, error) {
	old, err := f.revive(ctx, node)
	if err != nil {
		return Opened{}, err
	}
	if old != nil && old.pass && f.outdated(old) {
		// Its file was found damaged: those who have it keep it, and nobody else gets it.
		f.open.drop(node)
		return Opened{}, ErrStale
	}
	unique, _ := requestOf(ctx)
	o, fh, err := f.open.joinOpen(node, &in.Object, unique)
	if err != nil {
		return Opened{}, err
	}
	if fh == 0 {
		f.open.drop(node)
		return Opened{}, ErrStale
	}
	return opened(o, fh), nil
}

func opened(o *openNode, fh uint64) Opened {
	return Opened{FH: fh, Passthrough: o.pass, Backing: o.backing}
}

// openNew opens a node that has no handle yet. The caller is the only one to open it.
func (f *FS) openNew(ctx context.Context, node NodeID, in *meta.Inode) (Opened, error) {
	if noWait(ctx) {
		return Opened{}, ErrWouldWait // the cache's disk, if not the origin
	}
	o := &openNode{node: node, inode: *in}
	if in.Object.Size > 0 {
		if err := f.attach(ctx, o); err != nil {
			return Opened{}, err
		}
	}
	unique, _ := requestOf(ctx)
	fh, err := f.open.add(o, unique, false)
	if err != nil {
		f.open.close(o)
		return Opened{}, err
	}
	return opened(o, fh), nil
}

// attach gives o its object, fetched when it is small, and lends it to the kernel when it
// is complete.
func (f *FS) attach(ctx context.Context, o *openNode) error {
	in := &o.inode
	ident, err := f.identity(in)
	if err != nil {
		return err
	}
	if o.obj, err = f.cache.Object(ctx, ident, f.store); err != nil {
		return err
	}
	if in.Flags&meta.Archived != 0 && !o.obj.Complete() {
		o.obj.Release()
		return &objstore.Error{Op: "GET", Key: ident.Key, Kind: objstore.Archived,
			Hint: "the object is in an archive storage class: restore it first (aws s3api restore-object)"}
	}
	for missing := false; ; missing = true {
		if in.Object.Size <= f.opt.SmallObject && !o.obj.Complete() {
			// What the disk has no room for is served all the same, from memory.
			if err := o.obj.Fetch(ctx); err != nil && !errors.Is(err, cache.ErrNotKept) {
				o.obj.Release()
				return f.fetchFailed(ctx, o, err)
			}
		}
		if f.open.backing == nil || !o.obj.Passthroughable() {
			return nil
		}
		// Once for each node id: a node that cannot be registered stays with the daemon.
		err := f.open.register(o)
		if errors.Is(err, cache.ErrIncomplete) && !missing {
			continue // its file was not there; that is known now
		}
		if err != nil {
			// Slower, not different: the daemon serves it.
			f.log.Warn("no passthrough for this file; the daemon serves it",
				"path", f.path(in.Parent, in.Name), "err", err)
		}
		return nil
	}
}

// identity is what the cache knows a file's present version as.
func (f *FS) identity(in *meta.Inode) (cache.Identity, error) {
	dir, err := f.db.Inode(in.Parent)
	return cache.Identity{Origin: f.store.String(), Key: f.key(&dir, in), ETag: in.Object.ETag,
		VersionID: in.Object.VersionID, Size: in.Object.Size, Inode: uint64(in.Ino)}, err
}

// doom gives up the cache file of a version that no name stands for any more. Who has it
// open keeps it until then.
func (f *FS) doom(old *meta.Inode) {
	if old.Kind != meta.KindFile || old.Object.Size == 0 {
		return
	}
	ident, err := f.identity(old)
	if err != nil {
		return // its directory is gone too; the cache evicts the file in time
	}
	if _, err := f.db.Find(ident); err != nil {
		return // nothing of it is kept
	}
	if f.open.unknown(f.nodeOf(old)) {
		return // who opened it under the process before has not read since, and may; it is evicted in time
	}
	f.open.drop(f.nodeOf(old))
	o, err := f.cache.Object(f.ctx, ident, f.store)
	if err != nil {
		f.log.Debug("replaced version stays in the cache", "key", ident.Key, "err", err)
		return
	}
	o.Doom()
	o.Release()
}

// fetchFailed turns an object that is no longer the version the index says into ErrStale,
// after asking the origin what it is now.
func (f *FS) fetchFailed(ctx context.Context, o *openNode, err error) error {
	if !errors.Is(err, cache.ErrStale) {
		return &PathError{Op: "open", Path: f.path(o.inode.Parent, o.inode.Name), Err: err}
	}
	dir, derr := f.db.Inode(o.inode.Parent)
	if derr != nil {
		return derr
	}
	if _, herr := f.head(ctx, &dir, &o.inode); herr != nil {
		return herr
	}
	return ErrStale
}

// Release closes a handle. One that is unknown, or was released before, is ignored.
func (f *FS) Release(fh uint64) {
	f.engine.Close(fh)
	f.open.release(fh)
}
