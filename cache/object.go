package cache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
)

// Object is one version of one object of an origin, as far as it is here. There is one
// Object for an identity however many ask for it; each of them must call Release. Methods
// may be called in parallel, by callers that hold a reference.
type Object struct {
	c      *Cache
	ident  Identity // as which it was asked for first
	hash   [16]byte // of as; Cache.mu guards it too
	blockN uint32   // number of blocks
	store  objstore.Store
	loaded chan struct{} // closed when the index was asked; loadErr is final then
	// loadErr is not nil when the index could not be read.
	loadErr error

	mu      sync.Mutex // guards all that follows
	refs    int        // of users
	lent    int        // open loans
	passive int        // of refs: users that only look at the file, and may find it gone
	busy    int        // background work that needs the object: completing, HEAD, verifying
	fetches int        // in progress
	begun   uint64     // fetches so far: the number of the last
	retired bool       // out of the table; must not be used any more

	src      Identity   // where the origin has it: ident, until it is moved (see Moved)
	as       Identity   // as which the index has it: src, as a rule
	was      []Identity // what src was before
	aliases  [][16]byte // other places in the table; Cache.mu guards them too
	version  string     // Identity.VersionID of src, or the one learned later
	id       ID         // 0: no file yet
	dir      *dir
	file     *objFile // open file, nil until needed
	making   chan struct{}
	gen      uint64 // counts discards
	fresh    bool   // the index has no extent of this file
	state    State
	pinned   bool
	doomed   bool
	suspect  bool  // complete, but a power loss may have harmed the file
	recheck  bool  // not complete, and the same: to be read before it is believed to be complete
	unsaid   error // why its label does not say that it is complete: it may not be lent then; nil if it does (see say)
	damaged  bool  // its bytes are wrong, of which others are being told: nobody reads them
	sum      uint64
	sumKnown bool // checksum is what the origin says (it may say none)
	checksum objstore.Checksum
	etagMD5  md5State
	sumAlg   objstore.ChecksumAlgorithm // kept per block beside CRC64, if 32 bits wide
	epoch    uint64
	usage    Usage

	resident  uint32 // blocks on disk
	loose     int    // blocks in the table, flying or full, that are not stored
	blocks    map[uint32]*block
	extents   map[uint32]*extent
	extentUse uint64
	hand      uint32   // where punching goes on
	punching  []blkRun // being punched: nothing may be stored there

	waiters  []*waiter
	changed  chan struct{} // closed at the next change of residency or state; nil when nobody waits
	gone     error         // the origin no longer has this version
	corrupt  error         // the origin's data does not match its own checksum
	mismatch int           // times that a whole object was not what its checksum said
	lastSum  uint64        // the combined CRC at the last mismatch
	heading  bool          // a HEAD is under way
	headErr  error         // of the last HEAD
	ending   bool          // being completed
	endErr   error         // why completing did not succeed, nil while not tried
	keepErr  error         // why the last blocks could not be stored

	dirty, flushing         bool // see ledger
	recordDirty, usageDirty bool
}

// blkRun is the blocks [lo, hi).
type blkRun struct{ lo, hi uint32 }

// md5State is what is known of the ETag as an MD5.
type md5State struct {
	known bool   // a whole GET was hashed
	equal bool   // and matched the ETag
	sum   uint64 // combined CRC64NVME of the bytes that were hashed
}

// waiter waits until no block of [lo, hi) is flying, or a fetch of one fails.
type waiter struct {
	lo, hi uint32
	since  uint64 // only fetches with higher numbers count for err
	left   int
	err    error // of a fetch
	done   bool
	ch     chan struct{}
}

// ID names the object's file; 0 when it has none yet. It changes when a file was found
// damaged and is made anew.
func (o *Object) ID() ID {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.id
}

// Identity is what the origin has the object as, with the version id if it became known.
func (o *Object) Identity() Identity {
	o.mu.Lock()
	defer o.mu.Unlock()
	i := o.src
	i.VersionID = o.version
	return i
}

// State is how much of the object's file can be believed.
func (o *Object) State() State {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state
}

// Complete tells whether every block is resident and passed the checksum, if there is one.
func (o *Object) Complete() bool { return o.State().Complete() }

// Passthroughable tells whether Lend would succeed: the object is complete, and not in doubt
// after a power loss. (Fetch verifies one in doubt.) Of one whose file could not be labelled it says no; Lend tries that again.
func (o *Object) Passthroughable() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lendable() == nil
}

// lendable tells why the file may not be lent; o.mu is held.
func (o *Object) lendable() error {
	switch {
	case o.blockN == 0:
		return fmt.Errorf("%s: an empty object has no file: %w", o.name(), ErrIncomplete)
	case !o.state.Complete():
		return fmt.Errorf("%s: %w", o.name(), ErrIncomplete)
	case o.suspect:
		return fmt.Errorf("%s: not verified since the machine went down: %w", o.name(), ErrIncomplete)
	case o.unsaid != nil:
		return fmt.Errorf("%s: its file cannot be labelled as complete: %w: %w", o.name(), explain(o.unsaid), ErrIncomplete)
	}
	return nil
}

// ResidentBytes is how much of the object is on disk.
func (o *Object) ResidentBytes() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.residentBytes()
}

func (o *Object) residentBytes() int64 {
	return min(int64(o.resident)*BlockSize, o.ident.Size)
}

// Missing tells whether any byte of [off, off+n) is neither on disk nor in memory.
func (o *Object) Missing(off, n int64) bool {
	lo, hi := o.blockRange(off, n)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state.Complete() {
		return false
	}
	for i := lo; i < hi; i++ {
		if b := o.blocks[i]; (b == nil || b.fetch != nil) && !o.present(i) {
			return true
		}
	}
	return false
}

// Lend opens the file for the kernel or a GPU to read by itself: read-only, close-on-exec.
// The caller closes the file when it likes, and calls Return once nobody reads it any more;
// until then the file is not removed for space. ErrIncomplete when the object cannot be lent.
func (o *Object) Lend() (*os.File, error) {
	o.mu.Lock()
	o.say()
	if err := o.lendable(); err != nil {
		o.mu.Unlock()
		return nil, err
	}
	o.lent++
	path, id := o.dir.filePath(o.id), o.id
	o.mu.Unlock()

	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err == nil && st.Size != o.ident.Size {
			err = unix.ENOENT
		}
		if err != nil {
			unix.Close(fd)
		}
	}
	o.mu.Lock()
	if err == nil {
		o.countAheadUsed()
		o.mu.Unlock()
		return os.NewFile(uintptr(fd), path), nil
	}
	o.lent--
	if errors.Is(err, unix.ENOENT) && o.id == id {
		o.c.log.Warn("an object file is missing or has the wrong size; it is fetched again", "key", o.ident.Key, "path", path)
		o.c.n.lostFiles.Add(1)
		o.discard()
	}
	o.mu.Unlock()
	if errors.Is(err, unix.ENOENT) { // as after a crash, which the index may not know of
		return nil, fmt.Errorf("%s: lend: %s is missing: %w", o.name(), path, ErrIncomplete)
	}
	return nil, fmt.Errorf("%s: lend: %w", o.name(), &os.PathError{Op: "open", Path: path, Err: err})
}

// Return ends a loan.
func (o *Object) Return() { o.giveUp(&o.lent, "cache: Return without Lend") }

// Release drops a reference. The Object must not be used after it.
func (o *Object) Release() { o.giveUp(&o.refs, "cache: Release without Object") }

// giveUp takes one from a count of users, which o.mu guards, and lets the object go if that was
// the last. It panics with misuse when there was none.
func (o *Object) giveUp(users *int, misuse string) {
	o.mu.Lock()
	if *users--; *users < 0 {
		panic(misuse)
	}
	idle := o.idle()
	o.mu.Unlock()
	if idle {
		o.c.retire(o)
	}
}

// Doom says that this version was replaced: its file is removed as soon as nobody uses it.
// Asking the cache for the identity again takes it back.
func (o *Object) Doom() {
	o.mu.Lock()
	o.doomed = true
	o.mu.Unlock()
}

// idle tells whether the object may leave the table; o.mu is held.
func (o *Object) idle() bool {
	return o.refs == 0 && o.lent == 0 && o.busy == 0 && o.fetches == 0 && !o.dirty && !o.flushing && !o.retired &&
		(len(o.blocks) == 0 || o.doomed)
}

// Use counts one use of the object, for callers that keep it over several opens. The call of
// Cache.Object counts by itself.
func (o *Object) Use() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.blockN > 0 {
		o.use()
	}
}

// use counts one use; o.mu is held. What prefetch brought is not used by that.
func (o *Object) use() {
	now := o.c.clock.Load()
	u := &o.usage
	switch {
	case u.LastUse == 0:
		u.LastUse = max(now, 1)
	case u.Hits > 0 && now-u.LastUse < o.c.coarse:
		return // a use just after another tells nothing, and need not be written
	default:
		if now > u.LastUse {
			o.c.reached(now - u.LastUse)
		}
		u.LastUse = max(now, 1)
		u.Hits++
	}
	if o.id != 0 {
		o.usageDirty = true
		o.c.ledger.mark(o)
	}
}

// name is how errors and logs call the object.
func (o *Object) name() string { return fmt.Sprintf("object %q", o.ident.Key) }

// blockRange returns the blocks that hold [off, off+n), clipped to the object.
func (o *Object) blockRange(off, n int64) (lo, hi uint32) {
	end := o.ident.Size
	if n < end-off {
		end = off + n
	}
	if off < 0 || off >= end {
		return 0, 0
	}
	return uint32(off / BlockSize), uint32((end + BlockSize - 1) / BlockSize)
}

// blockLen returns the length of block n.
func (o *Object) blockLen(n uint32) int {
	return int(min(BlockSize, o.ident.Size-int64(n)*BlockSize))
}

// small tells whether the object goes through the page cache rather than by O_DIRECT.
func (o *Object) small() bool { return o.ident.Size <= o.c.cfg.SmallLimit }

// notify wakes those who wait for a change; o.mu is held.
func (o *Object) notify() {
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
}

// change returns a channel that is closed at the next change; o.mu is held.
func (o *Object) change() <-chan struct{} {
	if o.changed == nil {
		o.changed = make(chan struct{})
	}
	return o.changed
}

// awaitFile waits until no other goroutine is making or opening the file; o.mu is held, and
// released meanwhile.
func (o *Object) awaitFile() {
	for o.making != nil {
		ch := o.making
		o.mu.Unlock()
		<-ch
		o.mu.Lock()
	}
}

// openForRead returns the object's file with a reference added; o.mu is held, released
// meanwhile. The caller looks again at what it knew of the object.
func (o *Object) openForRead() (*objFile, error) {
	o.awaitFile()
	if o.file == nil && o.id != 0 {
		o.making = make(chan struct{})
		d, id, gen := o.dir, o.id, o.gen
		o.mu.Unlock()
		f, err := openFile(d, id, o.ident.Size)
		o.mu.Lock()
		close(o.making)
		o.making = nil
		switch {
		case gen != o.gen:
			if err == nil {
				f.release()
			}
			return nil, errChanged
		case errors.Is(err, os.ErrNotExist):
			o.c.log.Warn("an object file is missing or has the wrong size; it is fetched again", "key", o.ident.Key, "err", err)
			o.c.n.lostFiles.Add(1)
			o.discard()
			return nil, errChanged
		case err != nil:
			return nil, err
		}
		o.file = f
	}
	if o.file == nil {
		return nil, errChanged
	}
	o.file.retain()
	return o.file, nil
}

// errChanged: what was decided by is no longer so; look again.
var errChanged = errors.New("cache: changed meanwhile")

// openForWrite is openForRead that makes the file if there is none. It fails when nothing may
// be stored now.
func (o *Object) openForWrite() (*objFile, error) {
	o.awaitFile()
	if o.id != 0 {
		if !o.dir.usable() {
			return nil, errDown
		}
		return o.openForRead()
	}
	if o.c.ledger.broken.Load() {
		return nil, errDown
	}
	d := o.c.place(o.ident.Size)
	if d == nil {
		return nil, errDown
	}
	o.making = make(chan struct{})
	attr := label{Identity: o.as, State: Partial}
	attr.Identity.VersionID = o.version
	o.mu.Unlock()
	id, err := o.c.newID()
	var f *objFile
	if err == nil {
		o.c.move(id) // Reconcile leaves a file alone that has no label yet
		defer o.c.moved(id)
		if err = error(errDown); d.take(fileOverhead) {
			if f, err = createFile(d, id, o.ident.Size, attr.encode()); err != nil {
				d.settle(fileOverhead, false)
			}
		} else {
			o.c.wantSpace(d)
		}
	}
	o.mu.Lock()
	close(o.making)
	o.making = nil
	if err != nil {
		if !errors.Is(err, errDown) {
			o.c.writeFailed(d, err)
		}
		return nil, err
	}
	o.id, o.dir, o.file, o.epoch = id, d, f, o.c.epoch.Load()
	o.state, o.suspect, o.recheck, o.fresh = Partial, false, false, true
	now := o.c.clock.Load()
	o.usage = Usage{ID: id, Dir: d.format.Number, Admitted: max(now, 1), LastUse: o.usage.LastUse}
	if o.usage.LastUse != 0 {
		o.usage.LastUse = max(now, 1)
	}
	o.c.sampler.admitted(id, now, o.c.capacity)
	o.recordDirty, o.usageDirty = true, true
	o.c.ledger.mark(o)
	f.retain()
	return f, nil
}

// errDown: nothing is stored at the moment.
var errDown = errors.New("the cache takes no data at the moment")

// discard forgets everything that is known of the object's bytes, and its file, which is
// removed; the next read fetches anew, into another file. Readers that hold buffers keep
// them; a file that is lent stays for those who have it open. o.mu is held.
func (o *Object) discard() {
	if o.id != 0 {
		o.c.forget(o.dir, o.id, o.usage.Bytes+fileOverhead)
	}
	o.detach()
}

// detach is discard that leaves the file to somebody else. o.mu is held.
func (o *Object) detach() {
	o.gen++
	if o.file != nil {
		o.file.release()
	}
	for _, b := range o.blocks {
		if b.fetch == nil { // one that is on its way is as good as it was
			o.drop(b)
		}
	}
	for _, e := range o.extents {
		o.c.extentBytes.Add(-e.bytes())
	}
	o.id, o.dir, o.file = 0, nil, nil
	o.state, o.suspect, o.recheck, o.sum, o.epoch = Partial, false, false, 0, 0
	o.unsaid, o.damaged = nil, false
	o.resident, o.hand, o.punching = 0, 0, nil
	o.extents = map[uint32]*extent{}
	o.etagMD5 = md5State{}
	o.recordDirty = false
	o.notify()
}

// collect adds what must be written of o to b, and tells whether there is more than fits in: what of the object is complete
// is said of it last. o.mu is held.
func (o *Object) collect(b *Batch) (more bool) {
	if o.id == 0 || o.retired {
		o.recordDirty, o.usageDirty = false, false
		return false
	}
	for n, e := range o.extents {
		if !e.dirty {
			continue
		}
		if more = len(b.Extents) >= 2*batchExtents; more {
			break
		}
		x := Extent{Present: e.Present, CRC: append([]uint64(nil), e.CRC...)}
		b.Extents = append(b.Extents, ExtentKey{ID: o.id, N: n, Extent: x})
		e.dirty, e.flushing = false, true
	}
	if more && o.state.Complete() {
		return true
	}
	if o.recordDirty {
		r := Record{ID: o.id, Dir: o.dir.format.Number, Identity: o.as, State: o.state, Pinned: o.pinned,
			Checksum: o.checksum, Sum: o.sum, Epoch: o.epoch}
		r.Identity.VersionID = o.version
		b.Records = append(b.Records, r)
	}
	if o.usageDirty {
		b.Usages = append(b.Usages, o.usage)
	}
	o.recordDirty, o.usageDirty = false, false
	return more
}

// wait blocks until ch is closed or ctx is done.
func wait(ctx context.Context, ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
