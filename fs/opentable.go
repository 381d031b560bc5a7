package fs

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/session"
	"github.com/leatfs/leatfs/objstore"
)

// openNode is a node id with at least one handle, or whose backing id is kept for the next
// open. All handles of a node id are served in the same way: the kernel refuses a mix.
type openNode struct {
	node    NodeID
	inode   meta.Inode    // as it was at the first open: the version that is served
	obj     *cache.Object // nil for an empty file, and for a staging file
	stage   cache.ID      // the staging file that is served; 0: obj
	backing int32         // valid when passthrough
	ref     uint32        // its record in the session
	file    cache.ID      // the file that is lent; the object gets another when it is damaged
	pass    bool          // the kernel reads the cache file itself
	noPass  bool          // the daemon serves it to the end: registering it failed, or it was changed while it was served so
	empty   cache.ID      // of an empty object: the staging file that it was, which those have who had it open
	failed  failure       // of a read, lately
	// restored: the process before this one opened it. inode and obj are not known; revive
	// finds them when they are needed, and puts another openNode in this one's place.
	restored bool
	lent     bool          // obj.Lend was called and is to be returned
	handles  int           // guarded by openTable.mu
	writers  int           // of them, those that can write; guarded by openTable.mu
	dead     bool          // not to be kept after its last close; guarded by openTable.mu
	idle     *list.Element // in openTable.kept while handles == 0

	// use is held, shared, by who reads of obj; exclusively by who makes its file a staging file.
	use   sync.RWMutex
	moved bool // another openNode is in the table for this one; guarded by use

	syncs  atomic.Bool  // somebody has opened it for writing with O_SYNC or O_DSYNC
	over   bool         // stage is an overlay of obj, see overlay.go
	whole  atomic.Bool  // it is none any more
	overMu sync.RWMutex // exclusively by who writes to an overlay

	io      sync.Mutex // guards rw, ro and that ioUsers grows from 0
	rw, ro  *os.File   // the staging file, for requests that come to the daemon; ro for those that read
	ioUsers sync.WaitGroup
}

// openTable holds the open nodes. mu is held over map changes only, never over a request or
// a system call that may wait. What the kernel believes to be open also stands in the session,
// from where restore takes it.
type openTable struct {
	backing Backing // nil: nothing new is given to the kernel
	session *session.Session

	closing sync.WaitGroup // closes that go on in the background

	mu      sync.Mutex
	nodes   map[NodeID]*openNode   // by mu
	byFile  map[cache.ID]*openNode // passthrough nodes, by mu
	kept    *list.List             // *openNode with no handle, oldest first; by mu
	opening map[NodeID]*opening    // by mu; see begin
	handles int                    // by mu
	// writing counts the handles of an inode that can write; by mu. lastWriter is told, without a
	// lock, when there is none any more; lastHandle, when an inode has no handle any more.
	writing    map[meta.Ino]int
	toWrite    map[meta.Ino]int // opens for writing that are under way; by mu
	lastWriter func(meta.Ino)
	lastHandle func(meta.Ino)
	unstage    func(cache.ID) // removes a staging file
	atLent     func()         // for tests: called when a file was lent and is not used yet
}

// maxKept is how many backing ids are kept after the last close. An open that finds one
// saves opening the file and an ioctl; each holds about 1 KiB of kernel memory and, until
// the cache asks for it back, the file's space.
const maxKept = 16384

func (t *openTable) init(b Backing, s *session.Session) {
	t.backing, t.session = b, s
	t.nodes = make(map[NodeID]*openNode)
	t.byFile = make(map[cache.ID]*openNode)
	t.kept = list.New()
	t.opening = make(map[NodeID]*opening)
	t.writing = make(map[meta.Ino]int)
	t.toWrite = make(map[meta.Ino]int)
}

// opening is an open under way. err is set before done is closed.
type opening struct {
	done chan struct{}
	err  error
}

// begin enters the one open of a node that may be under way; end leaves it and says how it
// went. Opens of other nodes go on meanwhile. Who had to wait for one that failed gets its
// error: the origin is not asked again by each in turn. Only the first that one waits for may have
// begun long before, and its error, if it is one that passes, say nothing of the origin by now.
func (t *openTable) begin(ctx context.Context, n NodeID) (end func(error), err error) {
	for older := true; ; older = false {
		t.mu.Lock()
		w, busy := t.opening[n]
		if !busy {
			w = &opening{done: make(chan struct{})}
			t.opening[n] = w
			t.mu.Unlock()
			return func(err error) {
				t.mu.Lock()
				delete(t.opening, n)
				t.mu.Unlock()
				w.err = err
				close(w.done)
			}, nil
		}
		t.mu.Unlock()
		if noWait(ctx) {
			return nil, ErrWouldWait
		}
		select {
		case <-w.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		// One that did not wait, or was killed, says nothing of the others.
		if w.err == nil || errors.Is(w.err, ErrWouldWait) || errors.Is(w.err, context.Canceled) {
			continue
		}
		if !older || !objstore.KindOf(w.err).Temporary() {
			return nil, w.err
		}
	}
}

// peek returns a node that is open or kept, nil if it is neither.
func (t *openTable) peek(n NodeID) *openNode {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.nodes[n]
}

// join adds a handle, made by the request unique, to o; 0 when it is in the table no more.
func (t *openTable) join(o *openNode, unique uint64, write bool) (fh uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.nodes[o.node] != o {
		return 0, nil
	}
	return t.addHandle(o, unique, write)
}

// joinOpen adds a handle to a node that has handles already and is of the version given.
func (t *openTable) joinOpen(n NodeID, version *meta.Object, unique uint64) (o *openNode, fh uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o = t.nodes[n]
	if o == nil || o.handles == 0 || o.inode.Object.ETag != version.ETag || o.inode.Object.Size != version.Size {
		return nil, 0, nil
	}
	fh, err = t.addHandle(o, unique, false)
	return o, fh, err
}

func (t *openTable) addHandle(o *openNode, unique uint64, write bool) (fh uint64, err error) {
	backing, flags := int32(0), uint32(0)
	if o.pass {
		backing = o.backing
	}
	if write {
		flags = session.HandleWrite
	}
	if fh, err = t.session.NewHandle(uint64(o.node), unique, backing, flags); err != nil {
		return 0, err
	}
	if o.idle != nil {
		t.kept.Remove(o.idle)
		o.idle = nil
	}
	o.handles++
	t.handles++
	if write {
		o.writers++
		t.writing[o.node.Ino()]++
	}
	return fh, nil
}

// add puts a new node in the table, with its first handle.
func (t *openTable) add(o *openNode, unique uint64, write bool) (fh uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if fh, err = t.addHandle(o, unique, write); err == nil {
		t.put(o)
	}
	return fh, err
}

// put enters o. By mu.
func (t *openTable) put(o *openNode) {
	t.nodes[o.node] = o
	if o.pass {
		t.byFile[o.file] = o
	}
}

// release drops a handle; one that is not known, or was released before, is ignored. The last
// one of a passthrough node keeps its backing id; of others it gives everything back.
func (t *openTable) release(fh uint64) {
	flags := t.session.HandleFlags(fh)
	n, ok := t.session.FreeHandle(fh)
	if !ok {
		return
	}
	t.handleGone(NodeID(n), flags&session.HandleWrite != 0)
}

// handleGone counts a handle of a node less.
func (t *openTable) handleGone(n NodeID, write bool) {
	var drop []*openNode
	t.mu.Lock()
	ino, last := n.Ino(), false
	if write {
		t.writing[ino]--
		if last = t.writing[ino] <= 0; last {
			delete(t.writing, ino)
		}
	}
	o := t.nodes[n]
	if o == nil || o.handles == 0 {
		t.mu.Unlock()
		if last {
			t.lastWriter(ino)
		}
		return
	}
	o.handles--
	t.handles--
	if write && o.writers > 0 {
		o.writers--
	}
	gone := o.handles == 0
	if o.handles == 0 {
		if o.pass && !o.dead {
			o.idle = t.kept.PushBack(o)
			for t.kept.Len() > maxKept {
				drop = append(drop, t.remove(t.kept.Front().Value.(*openNode)))
			}
		} else {
			drop = append(drop, t.remove(o))
		}
	}
	t.mu.Unlock()
	if last {
		t.lastWriter(ino)
	}
	if gone {
		t.lastHandle(ino)
	}
	if len(drop) == 0 {
		return
	}
	// The last user of a file that has no name any more frees its blocks, which can take seconds.
	t.closing.Add(1)
	go func() {
		defer t.closing.Done()
		for _, o := range drop {
			t.close(o)
		}
	}()
}

// remove takes o out of the table; the caller closes it without the lock. By mu.
func (t *openTable) remove(o *openNode) *openNode {
	if o.idle != nil {
		t.kept.Remove(o.idle)
		o.idle = nil
	}
	delete(t.nodes, o.node)
	if o.pass && t.byFile[o.file] == o {
		delete(t.byFile, o.file)
	}
	return o
}

func (t *openTable) close(o *openNode) {
	if o.pass {
		t.unregister(o.backing, o.ref)
	}
	t.letGo(o)
}

// unregister takes a file back from the kernel.
func (t *openTable) unregister(id int32, ref uint32) {
	if t.backing != nil {
		t.backing.Unregister(id)
	}
	t.session.FreeBacking(ref)
}

// letGo gives back what o holds in this process.
func (t *openTable) letGo(o *openNode) {
	if o.lent {
		o.obj.Return()
	}
	if o.obj != nil {
		o.obj.Release()
	}
	if o.empty != 0 {
		t.unstage(o.empty)
	}
	o.retire()
}

// retire closes what o has of its staging file, once nobody uses that.
func (o *openNode) retire() {
	if o.stage != 0 || o.rw != nil || o.ro != nil {
		o.closeStage()
	}
}

// writers counts the handles of an inode that can write.
func (t *openTable) writers(ino meta.Ino) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.writing[ino]
}

// written returns the inodes that have handles which can write.
func (t *openTable) written() (all []meta.Ino) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ino := range t.writing {
		all = append(all, ino)
	}
	return all
}

// openHandles tells whether any node of an inode has a handle.
func (t *openTable) openHandles(ino meta.Ino) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n, o := range t.nodes {
		if n.Ino() == ino && o.handles > 0 {
			return true
		}
	}
	return false
}

// get returns the open node of a node id, nil when it has no handle.
func (t *openTable) get(n NodeID) *openNode {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.nodes[n]; o != nil && o.handles > 0 {
		return o
	}
	return nil
}

// nodesOf returns the open nodes of an inode, of all generations.
func (t *openTable) nodesOf(ino meta.Ino) (out []NodeID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n := range t.nodes {
		if n.Ino() == ino {
			out = append(out, n)
		}
	}
	return out
}

// elsewhere tells whether an older generation of o's inode is open with the same object: who has that open keeps it.
func (t *openTable) elsewhere(o *openNode) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n, other := range t.nodes {
		if n.Ino() == o.node.Ino() && other != o && other.obj == o.obj {
			return true
		}
	}
	return false
}

// serving returns the open nodes that serve a version: all with its ETag and size, which may be
// more than those that are meant.
func (t *openTable) serving(v *cache.Identity) (out []NodeID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n, o := range t.nodes {
		if o.inode.Object.ETag == v.ETag && o.inode.Object.Size == v.Size {
			out = append(out, n)
		}
	}
	return out
}

// reclaim gives back a kept backing id whose file the cache wants to remove. False when the
// file is in use.
func (t *openTable) reclaim(id cache.ID) bool {
	t.mu.Lock()
	o := t.byFile[id]
	if o == nil {
		t.mu.Unlock()
		return true
	}
	if o.handles > 0 {
		t.mu.Unlock()
		return false
	}
	t.remove(o)
	t.mu.Unlock()
	t.close(o)
	return true
}

// drop gives back a node whose version is no longer the inode's: at once when it is merely
// kept, else, and then it answers false, at its last close.
func (t *openTable) drop(n NodeID) bool {
	t.mu.Lock()
	o := t.nodes[n]
	if o == nil {
		t.mu.Unlock()
		return true
	}
	if o.handles > 0 {
		o.dead = true
		t.mu.Unlock()
		return false
	}
	t.remove(o)
	t.mu.Unlock()
	t.close(o)
	return true
}

// closeAll gives everything back, at the end of the mount. With leave the mount goes on under
// another process, and what the kernel and the session know stays.
func (t *openTable) closeAll(leave bool) {
	t.closing.Wait()
	t.mu.Lock()
	var all []*openNode
	for _, o := range t.nodes {
		all = append(all, o)
	}
	for _, o := range all {
		t.remove(o)
	}
	t.handles = 0
	t.mu.Unlock()
	for _, o := range all {
		if leave {
			t.letGo(o)
		} else {
			t.close(o)
		}
	}
}

func (t *openTable) counts() (files, handles, kept int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.nodes) - t.kept.Len(), t.handles, t.kept.Len()
}

// errReplaced: an object's file was found damaged at this moment, and has made way for another.
var errReplaced = fmt.Errorf("its file was found damaged just now: %w", cache.ErrIncomplete)

// lend is Object.Lend, with the ID of the file.
func (t *openTable) lend(obj *cache.Object) (*os.File, cache.ID, error) {
	id := obj.ID()
	file, err := obj.Lend()
	if err != nil {
		return nil, 0, err
	}
	if t.atLent != nil {
		t.atLent()
	}
	if obj.ID() != id { // no file of an object comes back: what was lent is id else
		closeFile(file)
		obj.Return()
		return nil, 0, errReplaced
	}
	return file, id, nil
}

// register lends the object's file to the kernel. The descriptor is not needed afterwards.
func (t *openTable) register(o *openNode) error {
	file, id, err := t.lend(o.obj)
	if err != nil {
		return err
	}
	o.lent, o.file = true, id
	b, err := t.session.NewBacking(uint64(o.node), uint64(o.file), func() (int32, error) { return t.backing.Register(file) })
	closeFile(file)
	if err != nil {
		o.obj.Return()
		o.lent, o.noPass = false, true
		return err
	}
	o.backing, o.ref, o.pass = b.ID, b.Ref, true
	return nil
}

func closeFile(f *os.File) { _ = f.Close() } // read-only: nothing can be lost
