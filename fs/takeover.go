package fs

import (
	"context"
	"errors"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/session"
)

// A process that takes a mount over finds in the session which nodes are open, and which files
// the kernel reads by itself. That is all it needs to answer: everything else is found in the
// index and the cache when a request comes that needs it.

// restore fills the table with what the process before had opened, and gives back in the
// background what it merely kept. It is called before anything else is.
func (f *FS) restore() {
	t := &f.open
	t.session.Handles(func(h session.Handle) {
		o := t.nodes[NodeID(h.Node)]
		if o == nil {
			// Its way of serving is not looked at again: after the last close, it goes.
			o = &openNode{node: NodeID(h.Node), restored: true, dead: true, pass: h.Backing != 0, backing: h.Backing}
			t.nodes[o.node] = o
		}
		o.handles++
		t.handles++
		if h.Flags&session.HandleWrite != 0 {
			o.writers++
			t.writing[o.node.Ino()]++
		}
	})
	var kept []session.Backing
	t.session.Backings(func(b session.Backing) {
		o := t.nodes[NodeID(b.Node)]
		if o == nil || !o.pass || o.backing != b.ID {
			kept = append(kept, b)
			return
		}
		o.ref, o.file = b.Ref, cache.ID(b.File)
		t.byFile[o.file] = o
	})
	if f.open.backing != nil && t.session.Epoch() > 1 {
		// The process before may have been killed before it had come to know their ids, or had
		// given them back. Nobody can be using them: an open is answered after its record. The
		// first must be gone before any file is registered: these ids are what comes next.
		for _, id := range t.session.Unrecorded() {
			t.backing.Unregister(id)
		}
		f.wg.Add(1)
		go func() {
			defer f.wg.Done()
			for _, b := range kept {
				t.unregister(b.ID, b.Ref)
			}
		}()
	}
	if t.session.Untold() {
		// The process before had found bytes to be wrong, and had not come to say so of all.
		for n, o := range t.nodes {
			if !o.pass {
				f.contents.add(n)
			}
		}
	}
}

// made returns the handle that a request made before it was sent again.
func (t *openTable) made(n NodeID, unique uint64) (Opened, bool) {
	fh, node, ok := t.session.HandleOf(unique)
	if !ok || NodeID(node) != n {
		return Opened{}, false
	}
	o := t.get(n)
	if o == nil {
		return Opened{}, false
	}
	return opened(o, fh), true
}

// unknown tells whether a node that the daemon serves is open, and its object was not looked up yet.
func (t *openTable) unknown(n NodeID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.nodes[n]
	return o != nil && o.restored && !o.pass && o.handles > 0
}

// revive makes a node that was taken over usable: its version is looked up in the index, and
// its object in the cache. Of one that is no longer open it returns nil.
func (f *FS) revive(ctx context.Context, n NodeID) (*openNode, error) {
	o := f.open.get(n)
	if o == nil || !o.restored {
		return o, nil
	}
	end, err := f.open.begin(ctx, n)
	if err != nil {
		return nil, err
	}
	o, err = f.revived(ctx, f.open.get(n))
	end(err)
	return o, err
}

// revived is revive for one who is the only one to open the node.
func (f *FS) revived(ctx context.Context, o *openNode) (*openNode, error) {
	if o == nil || !o.restored {
		return o, nil
	}
	if noWait(ctx) {
		return nil, ErrWouldWait
	}
	in, err := f.versionOf(o)
	if err != nil {
		return nil, err
	}
	n := &openNode{node: o.node, inode: in, backing: o.backing, ref: o.ref, file: o.file, pass: o.pass, stage: in.Stage}
	n.noPass = !o.pass && in.Flags&meta.Ours != 0 // see adopted
	if err := f.attachBase(ctx, n); err != nil {
		return nil, err
	}
	if in.Stage == 0 && in.Object.Size > 0 {
		ident, err := f.identity(&in)
		if err != nil {
			return nil, err
		}
		if n.obj, err = f.cache.Object(ctx, ident, f.store); err != nil {
			return nil, err
		}
	}
	if !f.open.replace(o, n) {
		f.open.letGo(n)
		return f.open.get(o.node), nil
	}
	return n, nil
}

// versionOf returns the inode as the version that an open node serves. ErrStale when the index
// was lost: what the node was is not known then, and not guessed.
func (f *FS) versionOf(o *openNode) (meta.Inode, error) {
	if !o.restored {
		return o.inode, nil
	}
	in, err := f.db.InodeAt(f.ino(o.node), o.node.Gen())
	if errors.Is(err, meta.ErrNotFound) {
		err = ErrStale
	}
	return in, err
}

// replace puts n in the place of o; false when o is in the table no more.
func (t *openTable) replace(o, n *openNode) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.nodes[o.node] != o {
		return false
	}
	n.handles, n.writers, n.dead = o.handles, o.writers, o.dead
	if o.idle != nil { // closed meanwhile
		t.kept.Remove(o.idle)
		o.idle, n.idle = nil, t.kept.PushBack(n)
	}
	t.put(n)
	return true
}

// holds tells whether somebody has a generation of an inode open.
func (t *openTable) holds(ino meta.Ino, gen uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.nodes[Node(ino, gen)] != nil
}
