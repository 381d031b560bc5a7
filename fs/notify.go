package fs

import (
	"errors"
	"sync"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/session"
)

// change is a name that no longer is what the kernel may believe.
type change struct {
	parent NodeID
	name   string
}

// changed queues a notification. It never waits: a full queue drops (and counts) it, and the
// kernel learns of the change when its own timeout, at most the TTL, is over.
func (f *FS) changed(parent meta.Ino, name string) {
	p := NodeID(parent)
	if parent == f.root.Ino {
		p = RootNode
	}
	select {
	case f.changes <- change{parent: p, name: name}:
	default:
		f.stats.changesDropped.Add(1)
	}
}

// contents are the nodes whose content the kernel is to drop. Unlike names they have no time after
// which the kernel asks by itself, so none is dropped.
type contents struct {
	session *session.Session // is told while there are some

	mu    sync.Mutex
	nodes map[NodeID]struct{} // by mu
	wake  chan struct{}       // holds one when there are some
}

func (c *contents) add(n NodeID) {
	c.mu.Lock()
	c.session.SetUntold(true)
	c.nodes[n] = struct{}{}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// told says that the kernel was told of all that take returned.
func (c *contents) told() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.nodes) == 0 {
		c.session.SetUntold(false)
	}
}

// take returns all.
func (c *contents) take() map[NodeID]struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes
	c.nodes = make(map[NodeID]struct{})
	return n
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
		f.contents.add(n)
	}
}

func (f *FS) notifyLoop(n Notifier) {
	defer f.wg.Done()
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-f.contents.wake:
			for node := range f.contents.take() {
				if n != nil {
					n.ContentChanged(node)
				}
			}
			if f.ctx.Err() == nil {
				f.contents.told() // else some may not have been
			}
		case c := <-f.changes:
			if n != nil {
				n.EntryChanged(c.parent, c.name)
			}
		}
	}
}
