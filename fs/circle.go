package fs

import (
	"context"
	"errors"

	"github.com/leatfs/leatfs/fs/meta"
)

// What is published under a key waits for a copy that still has the object there as its source. That
// ends if the copy is earlier in the order of completion. Else the copy may have to wait for what waits for
// it: when two files swap their names, or one is renamed again after its old name was taken. Then the
// source is fetched, and the file uploaded instead of copied.

// fetchSource makes the file that waits to be copied from key one that needs no copy.
func (f *FS) fetchSource(ctx context.Context, ino meta.Ino, key string) error {
	in, err := f.db.Inode(ino)
	if err != nil {
		return absent(err)
	}
	node := f.nodeOf(&in)
	f.unqueue(ino)
	end, err := f.open.begin(ctx, node)
	if err != nil {
		f.enqueue(ino) // who asks for it may have been stopped meanwhile
		return err
	}
	err = f.fetchSourceNow(ctx, node, key)
	end(err)
	if d, derr := f.db.Dirty(ino); derr == nil && d.Seq == 0 {
		f.completeSoon(ino) // unless somebody has it open
	}
	f.enqueue(ino)
	if err == nil || errors.Is(err, ErrStale) {
		return errRebased // it is looked at again
	}
	return err
}

// fetchSourceNow is fetchSource for the only one to open the node.
func (f *FS) fetchSourceNow(ctx context.Context, node NodeID, key string) error {
	in, err := f.inode(node)
	if err != nil {
		return err
	}
	if in.Gen != node.Gen() || in.Object.Key != key {
		return ErrStale
	}
	d, err := f.db.Dirty(in.Ino)
	if err != nil {
		return absent(err)
	}
	name := in
	if in.Stage == 0 {
		if in, err = f.stage(ctx, node, &in, false); err != nil {
			f.changed(name.Parent, name.Name) // it may be another node now
			return err
		}
	}
	if in.Flags&meta.Overlay != 0 {
		o := f.open.peek(node)
		if o == nil || o.stage != in.Stage {
			o = &openNode{node: node, inode: in, stage: in.Stage}
			if err := f.attachBase(ctx, o); err != nil {
				return err
			}
			defer f.open.letGo(o)
		}
		if err := f.materialise(ctx, o); err != nil {
			return err
		}
	}
	return f.db.Do(func(tx *meta.Tx) error {
		now, err := tx.Inode(in.Ino)
		if err != nil {
			return absent(err)
		}
		if now.Stage == 0 || now.Object.Key != key {
			return nil
		}
		now.Object = meta.Object{}
		if err := tx.Update(&now); err != nil {
			return err
		}
		is, err := tx.Dirty(in.Ino)
		if err != nil {
			return absent(err)
		}
		if is.Seq == 0 && f.open.writers(in.Ino) == 0 {
			is.Seq = d.Seq // its place in the order
		}
		if err := tx.SetDirty(&is); err != nil {
			return err
		}
		t, err := tx.Tomb(key)
		if err != nil || t.Needed != in.Ino {
			return absent(err)
		}
		t.Needed = 0
		return tx.SetTomb(&t)
	})
}
