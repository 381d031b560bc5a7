package fs

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/publish"
	"github.com/leatfs/leatfs/objstore"
)

// What an overlay lies over can vanish. Where the overlay itself was published in its place, and is open again, it lies over what
// has landed from then on: its holes are the same there, for they only become fewer. Where somebody else has
// replaced the object, what is missing may be here, or at an origin that keeps versions; else the file cannot be
// completed, and is held.

const (
	// landing is how long who reads of an overlay waits for a publication of it that has just taken the place of what it lies over.
	landing = 10 * time.Second
	// landingPoll is how often he looks.
	landingPoll = 5 * time.Millisecond
)

// heldBase is why an overlay is held.
const heldBase = "somebody else has replaced or removed the object while it was changed here in part, and not all of the rest is on this node: copy out what you need of it, and give it up with \"leatfs discard\", or put the object back and \"leatfs retry\""

// rebased has an open overlay lie over the object that its inode says. The caller is the only one to open the node.
func (f *FS) rebased(in *meta.Inode) {
	o := f.open.peek(f.nodeOf(in))
	if o == nil || o.restored || o.stage != in.Stage || !o.overlaid() || o.inode.Object.ETag == in.Object.ETag {
		return
	}
	ident, err := f.identity(in)
	var obj *cache.Object
	if err == nil {
		obj, err = f.cache.Object(f.ctx, ident, f.store)
	}
	if err != nil {
		f.log.Error("a file that is changed in part can be read in part only until it is opened anew", "path", f.path(in.Parent, in.Name), "err", err)
		return
	}
	o.overMu.Lock()
	was := f.open.lay(o, in, obj)
	o.overMu.Unlock()
	was.Release()
}

// lay gives an overlay another object to lie over, and returns the one before. By overMu.
func (t *openTable) lay(o *openNode, in *meta.Inode, obj *cache.Object) (was *cache.Object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was, o.obj = o.obj, obj
	o.inode = *in
	return was
}

// uncover takes from an overlay, which is one no more, the object that it lay over.
func (t *openTable) uncover(o *openNode) {
	if !o.over {
		return
	}
	o.overMu.Lock()
	t.mu.Lock()
	was := o.obj
	o.obj = nil
	t.mu.Unlock()
	o.overMu.Unlock()
	if was != nil {
		was.Release()
	}
}

// onBase calls fn, which reads of what an overlay lies over, again if that has been replaced meanwhile by the overlay's own
// publication. fn takes overMu, and tells which object it read of.
func (f *FS) onBase(ctx context.Context, o *openNode, fn func() (*cache.Object, error)) error {
	for {
		base, err := fn()
		if !errors.Is(err, cache.ErrStale) || !f.baseAgain(ctx, o, base) {
			return err
		}
	}
}

// baseAgain tells whether an overlay lies over something else than was, or does after its publication has landed.
func (f *FS) baseAgain(ctx context.Context, o *openNode, was *cache.Object) bool {
	for end := time.Now().Add(landing); ; {
		running := f.publisher.queue.Running(uint64(o.node.Ino()))
		o.overMu.RLock()
		now := o.obj
		o.overMu.RUnlock()
		switch {
		case now != was:
			return true
		case !running || time.Now().After(end):
			ok, err := f.ownBase(ctx, o.node.Ino())
			return ok && err == nil
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(landingPoll):
		}
	}
}

// ownBase looks whether what has taken the place of the object that an overlay lies over is an earlier content of the overlay,
// of which nobody came to know that it had landed. Then it lies over that.
func (f *FS) ownBase(ctx context.Context, ino meta.Ino) (ok bool, err error) {
	in, err := f.db.Inode(ino)
	if err != nil {
		return false, err
	}
	end, err := f.open.begin(ctx, f.nodeOf(&in))
	if err != nil {
		return false, err
	}
	defer end(nil)
	dir, err := f.db.Inode(in.Parent)
	if err != nil {
		return false, err
	}
	key := f.key(&dir, &in)
	have, err := f.store.Head(ctx, key, objstore.HeadOptions{})
	token := publish.TokenOf(have)
	if err != nil || token == "" {
		if objstore.Is(err, objstore.NotFound) {
			err = nil
		}
		return false, err
	}
	var now meta.Inode
	err = f.db.Do(func(tx *meta.Tx) error {
		ok = false
		var err error
		if now, err = tx.Inode(ino); err != nil {
			return err
		}
		if now.Flags&meta.Overlay == 0 || now.Object != in.Object || now.Parent != in.Parent || now.Name != in.Name {
			return nil
		}
		d, err := tx.Dirty(ino)
		if err := absent(err); err != nil {
			return err
		}
		own := d.Token
		t, err := tx.Tomb(key)
		if err := absent(err); err != nil {
			return err
		}
		needed := t.Key != "" && t.Needed == ino
		if needed {
			own += " " + t.Token // it was published before it was renamed
		}
		if ok = slices.Contains(strings.Fields(own), token); !ok {
			return nil
		}
		now.Object = meta.Object{Key: in.Object.Key, Size: have.Size, ETag: have.ETag, VersionID: have.VersionID, MTime: have.ModTime.UnixNano()}
		if err := tx.Update(&now); err != nil || !needed {
			return err
		}
		t.ETag, t.VersionID = have.ETag, have.VersionID
		return tx.SetTomb(&t)
	})
	if err != nil || !ok {
		return false, err
	}
	f.rebased(&now)
	f.relabel(&now)
	return true, nil
}

// baseGone deals with the publication of an overlay which does not lie over what the origin has. errRebased: it is to be
// published as it is now.
func (f *FS) baseGone(ctx context.Context, w *work) error {
	if ok, err := f.ownBase(ctx, w.in.Ino); err != nil || ok {
		if err == nil {
			err = errRebased
		}
		return err
	}
	err := f.fillHoles(ctx, w.in.Ino)
	if err == nil {
		return errRebased
	}
	if !errors.Is(err, cache.ErrStale) {
		return &PathError{Op: "publish", Path: f.path(w.dir.Ino, w.in.Name), Err: err}
	}
	if err := f.db.Do(func(tx *meta.Tx) error {
		d, err := tx.Dirty(w.in.Ino)
		if err != nil || d.Seq != w.dirty.Seq {
			return absent(err)
		}
		d.Held, d.Error = true, heldBase
		return tx.SetDirty(&d)
	}); err != nil {
		return err
	}
	f.log.Error("a file that was changed here in part is held: "+heldBase, "path", f.path(w.dir.Ino, w.in.Name))
	return publish.ErrSuperseded
}

// fillHoles makes an overlay a staging file like any other. ErrStale of package cache: what is missing is nowhere.
func (f *FS) fillHoles(ctx context.Context, ino meta.Ino) error {
	in, err := f.db.Inode(ino)
	if err != nil {
		return err
	}
	node := f.nodeOf(&in)
	end, err := f.open.begin(ctx, node)
	if err != nil {
		return err
	}
	defer end(nil)
	if in, err = f.db.Inode(ino); err != nil || in.Flags&meta.Overlay == 0 {
		return err
	}
	o, err := f.revived(ctx, f.open.peek(node))
	if err != nil {
		return err
	}
	if o == nil || o.stage != in.Stage {
		o = &openNode{node: node, inode: in, stage: in.Stage}
		if err := f.attachBase(ctx, o); err != nil {
			return err
		}
		defer f.open.letGo(o)
	}
	return f.materialise(ctx, o)
}
