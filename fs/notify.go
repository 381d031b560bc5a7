package fs

import (
	"errors"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// change is a name, or the content of a node, that no longer is what the kernel may believe.
type change struct {
	parent NodeID
	name   string
	node   NodeID // not 0: its content; else name in parent
}

// changed queues a notification. It never waits: a full queue drops (and counts) it, and the
// kernel learns of the change when its own timeout, at most the TTL, is over.
func (f *FS) changed(parent meta.Ino, name string) {
	p := NodeID(parent)
	if parent == f.root.Ino {
		p = RootNode
	}
	f.notify(change{parent: p, name: name})
}

func (f *FS) notify(c change) {
	select {
	case f.changes <- c:
	default:
		f.stats.changesDropped.Add(1)
	}
}

// damaged is told by the cache that bytes of a version were wrong, after readers may have
// got some. The kernel must not keep them: the inode gets a new generation, and with it a node
// id that has no pages yet, and the pages of nodes that are open are dropped.
//
// The inode that the identity names is where the object was first asked for, which may have been
// in an index that was lost since. So the open nodes that serve the object are asked too.
func (f *FS) damaged(ident cache.Identity) {
	inodes := map[meta.Ino]bool{meta.Ino(ident.Inode): true}
	nodes := f.open.nodesOf(meta.Ino(ident.Inode))
	for _, n := range f.open.serving(&ident) {
		nodes = append(nodes, n)
		inodes[n.Ino()] = true
	}
	for ino := range inodes {
		in, err := f.db.Update(ino, func(in *meta.Inode) error {
			in.Gen = (in.Gen + 1) & genMask
			return nil
		})
		if err == nil {
			f.changed(in.Parent, in.Name)
		} else if !errors.Is(err, meta.ErrNotFound) {
			f.log.Error("the kernel may keep wrong bytes of this file until it drops them; remount to be sure", "key", ident.Key, "err", err)
		}
	}
	for _, n := range nodes {
		f.notify(change{node: n})
	}
}

func (f *FS) notifyLoop(n Notifier) {
	defer f.wg.Done()
	for {
		select {
		case <-f.ctx.Done():
			return
		case c := <-f.changes:
			switch {
			case n == nil:
			case c.node != 0:
				n.ContentChanged(c.node)
			default:
				n.EntryChanged(c.parent, c.name)
			}
		}
	}
}
