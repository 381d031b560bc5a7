package fs

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/publish"
)

// What is written here comes to the origin so: the last close of a file makes it complete (completer),
// its inode then stands in the queue with a number that says in which order things were
// completed, and the queue has it published when its turn has come (upload.go). All of it stands in the
// index as Dirty and Tomb, from where the next process takes it up.

// debounce is how long after its last close a file waits whose name says that it will get another:
// published under that name it would have to be copied.
const debounce = 2 * time.Second

// dirDebounce likewise for a new directory, which is often renamed, or filled, at once.
const dirDebounce = 3 * time.Second

// publisher is the part of FS that publishes.
type publisher struct {
	queue *publish.Queue
	pub   *publish.Publisher
	turns keyTurns
	seed  maphash.Seed
	turn  sync.Mutex // is held by who makes files complete; before mu and openTable.opening
	start time.Time
	// made is when the last file was made here, nanoseconds since start, and makers how many are being made.
	made, makers atomic.Int64
	hurried      atomic.Int64 // somebody waits until something is published
	renaming     atomic.Int64 // renames of which the queue may not have been told all

	mu       sync.Mutex
	complete []meta.Ino             // to be looked at by the completer, oldest first; by mu
	oldest   time.Time              // when the first of complete came; by mu
	next     time.Time              // see step; by mu
	again    map[meta.Ino]time.Time // somebody writes still: to be looked at again then; by mu
	wake     chan struct{}          // holds one when there is something to do
	conflict int64                  // by mu: conflicts since the mount began, see countConflict
	read     map[string]bool        // keys whose deletion waits for who has the object open; by mu
	growing  map[meta.Ino]*growth   // files that are uploaded while they grow; by mu
	awaited  map[meta.Ino]*awaited  // files whose publication somebody waits for, see publishNow; by mu
}

func (f *FS) startPublisher() error {
	p := &f.publisher
	p.seed, p.start = maphash.MakeSeed(), time.Now()
	p.again = make(map[meta.Ino]time.Time)
	p.wake = make(chan struct{}, 1)
	p.read = make(map[string]bool)
	p.growing = make(map[meta.Ino]*growth)
	p.awaited = make(map[meta.Ino]*awaited)
	p.conflict = f.conflictsBefore()
	p.pub = publish.New(f.store, publish.Options{PartSize: f.opt.PartSize, Parallel: f.opt.UploadParallel, Scratch: f.opt.Scratch, Reuse: f.opt.ReuseParts, Log: f.log})
	p.queue = publish.NewQueue(publish.QueueOptions{Parallel: f.opt.PublishParallel, OnFail: f.publishFailed})
	if err := f.reuse.open(f.db, f.opt.ReuseParts); err != nil {
		return err
	}
	if err := f.recover(); err != nil { // which starts the queue
		return err
	}
	f.wg.Add(4)
	go f.syncLoop()
	go f.completer()
	go f.watchGrowth()
	go f.abortLoop()
	return nil
}

// stopPublisher ends what is under way. What is not published stands in the index.
func (f *FS) stopPublisher() {
	if f.publisher.queue != nil {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			f.publisher.pub.Close() // commits under way, which the queue would wait for
		}()
		_ = f.publisher.queue.Close(context.Background())
		<-closed
		f.closeGrowths()
	}
}

// completeSoon has the completer look at a file that nobody has open for writing any more.
func (f *FS) completeSoon(ino meta.Ino) {
	p := &f.publisher
	p.mu.Lock()
	if len(p.complete) == 0 {
		p.oldest = time.Now()
	}
	p.complete = append(p.complete, ino)
	f.noteClosed(ino)
	p.mu.Unlock()
	p.poke()
}

// noteClosed notes for the next process that a file was closed, unless somebody has opened it again, or is about to: who
// gives that up comes here then. By publisher.mu.
func (f *FS) noteClosed(ino meta.Ino) {
	if err := f.db.Closes().Closed(ino, func() bool { return f.open.writes(ino) == 0 }); err != nil {
		f.log.Debug(notNoted, "inode", ino, "err", err)
	}
}

const notNoted = "should both processes of the mount be killed now, a file that was closed is held"

// noteMapped notes for the next mount that what is still mapped for writing was closed: this one ends as it should, and whoever
// has it mapped goes on.
func (f *FS) noteMapped() {
	p := &f.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	for ino := range p.again {
		f.noteClosed(ino)
	}
}

// poke has the completer look.
func (p *publisher) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// mappedPoll is how often a file is looked at that is mapped for writing though it was closed.
const mappedPoll = time.Second

// completer makes files complete, in the order in which they were closed.
func (f *FS) completer() {
	defer f.wg.Done()
	p := &f.publisher
	for {
		some, next := f.completeTurn(f.ctx, soon)
		if f.ctx.Err() != nil {
			return
		}
		if !some {
			var timer <-chan time.Time
			if next >= 0 {
				timer = time.After(next)
			}
			select {
			case <-f.ctx.Done():
				return
			case <-p.wake:
			case <-timer:
			}
		}
	}
}

// What completeTurn makes complete.
const (
	soon       = iota // what is due
	closedAll         // also what gives way to who makes files
	closedEver        // also what is to be looked at later
)

// completeTurn makes files complete that were closed. It tells whether there were any, and in how long there is more to
// come, negative when nothing is known to.
func (f *FS) completeTurn(ctx context.Context, which int) (some bool, next time.Duration) {
	p := &f.publisher
	p.turn.Lock()
	defer p.turn.Unlock()
	todo, again, next := f.closed(which)
	if len(todo)+len(again) == 0 {
		return false, next
	}
	rest := f.completeEach(ctx, append(todo, again...), len(todo))
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(rest) > 0 {
		p.complete = append(rest, p.complete...)
	} else if len(todo) > 0 {
		if err := f.db.Closes().Done(); err != nil {
			f.log.Error("a file that is closed may be looked at again at the next start", "err", err)
		}
	}
	return true, next
}

// closed takes what completeTurn is to look at: all that was closed or nothing, and what was looked at before and is due
// again. By turn.
func (f *FS) closed(which int) (todo, again []meta.Ino, next time.Duration) {
	p := &f.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	next = -1
	if wait := p.busy(p.oldest); wait > 0 && which == soon && len(p.complete) > 0 {
		next = wait
	} else if len(p.complete) > 0 {
		todo, p.complete = p.complete, nil
		f.db.Closes().Turn()
		for ino := range p.again { // it is not among those that are forgotten once they are complete
			if err := f.db.Closes().Again(ino); err != nil {
				f.log.Debug(notNoted, "inode", ino, "err", err)
			}
		}
	}
	for ino, at := range p.again {
		if d := time.Until(at); d <= 0 || which == closedEver {
			again = append(again, ino)
			delete(p.again, ino)
		} else if next < 0 || d < next {
			next = d
		}
	}
	return todo, again, next
}

// completeClosed returns when all that was closed before is complete: what gets its name now comes
// after it. The caller is not the one to open any node.
func (f *FS) completeClosed() { f.completeTurn(f.ctx, closedAll) }

// completeLast is completeClosed at the end of the file system, also of what is to be looked at later: who has it
// mapped may have gone.
func (f *FS) completeLast(ctx context.Context) { f.completeTurn(ctx, closedEver) }

// tombID is the number of a tomb in the queue: none that an inode has.
func (f *FS) tombID(key string) uint64 {
	return maphash.String(f.publisher.seed, key) | 1<<63
}

// enqueue puts an inode that is dirty and complete into the queue.
func (f *FS) enqueue(ino meta.Ino) {
	in, err := f.db.Inode(ino)
	if err != nil {
		return
	}
	d, err := f.db.Dirty(ino)
	if err != nil {
		return
	}
	f.enqueueAs(&in, &d)
}

// enqueueAs is enqueue of what the index says of an inode.
func (f *FS) enqueueAs(in *meta.Inode, d *meta.Dirty) {
	if d.Seq == 0 || d.Held || in.Flags&meta.Removed != 0 {
		return
	}
	dir, err := f.db.Inode(in.Parent)
	if err != nil {
		return
	}
	ino, seq := in.Ino, d.Seq
	it := publish.Item{ID: uint64(ino), Key: naturalKey(&dir, in), Seq: seq, Tries: d.Tries, Error: d.Error,
		Run: func(ctx context.Context, order func(context.Context) error) error {
			return f.publishInode(ctx, ino, seq, order)
		}}
	if t, err := f.db.Tomb(it.Key); err == nil && t.Done == 0 {
		if t.Needed != 0 && t.Needed != ino {
			it.After = uint64(t.Needed)
		}
		defer f.publisher.queue.Retry(f.tombID(it.Key)) // what it may have waited for is no matter any more
	}
	if in.Stage != 0 {
		if st, err := f.cache.StatStage(in.Stage); err == nil {
			it.Ahead = st.Size > 16<<20
		}
	}
	switch {
	case in.Kind == meta.KindDir:
		it.NotBefore = time.Now().Add(dirDebounce)
	case publish.Temporary(in.Name) || f.temporaryAbove(&dir):
		it.NotBefore = time.Now().Add(debounce)
	}
	f.publisher.queue.Add(it)
}

// naturalKey is the key that an inode's name says.
func naturalKey(dir, in *meta.Inode) string {
	if in.Kind == meta.KindDir {
		return in.Prefix
	}
	return dir.Prefix + in.Name
}

// temporaryAbove tells whether a directory, or one above it, has a name that it will not keep.
func (f *FS) temporaryAbove(dir *meta.Inode) bool {
	for d := *dir; d.Ino != f.root.Ino; {
		if publish.Temporary(d.Name) {
			return true
		}
		var err error
		if d, err = f.db.Inode(d.Parent); err != nil {
			return false
		}
	}
	return false
}

// enqueueTomb puts the deletion of an object into the queue.
func (f *FS) enqueueTomb(key string) {
	t, err := f.db.Tomb(key)
	if err != nil || t.Done != 0 {
		return
	}
	it := publish.Item{ID: f.tombID(key), Key: key, Seq: t.Seq, Delete: true, Tries: t.Tries, Error: t.Error,
		After: uint64(t.Needed),
		Run: func(ctx context.Context, order func(context.Context) error) error {
			err := f.bury(ctx, key, order)
			if err != nil && ctx.Err() == nil && f.ctx.Err() == nil && !errors.Is(err, errLater) {
				f.buryFailed(key, err)
			}
			return err
		}}
	if f.mayBury(&t) != nil {
		it.NotBefore = f.doubtUntil
	}
	f.publisher.queue.Add(it)
}

// rekey tells the queue that an inode is called otherwise.
func (f *FS) rekey(in *meta.Inode) {
	if d, err := f.db.Dirty(in.Ino); err != nil || d.Seq == 0 || d.Held {
		f.unqueue(in.Ino) // it has become clean, or is open
	}
	f.enqueue(in.Ino) // also what has become complete since: it may have been taken out just now
}

// unqueue takes an inode out of the queue. It waits for nothing: what is under way ends by itself, and
// finds that it was overtaken.
func (f *FS) unqueue(ino meta.Ino) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = f.publisher.queue.Cancel(ctx, uint64(ino))
}

// publishFailed notes a failure for the ledger.
func (f *FS) publishFailed(id uint64, tries uint32, next time.Time, err error) {
	if f.ctx.Err() != nil {
		return // the mount ends, and with it what was under way
	}
	if errors.Is(err, errLater) {
		f.log.Debug("publication waits", "id", id, "err", err)
		return
	}
	if id&(1<<63) != 0 {
		f.log.Warn("an object that is no longer wanted cannot be deleted yet; tried again", "tries", tries, "at", next, "err", err)
		return
	}
	ino := meta.Ino(id)
	in, ierr := f.db.Inode(ino)
	if ierr != nil {
		return
	}
	f.log.Warn("a file cannot be published yet; it is safe on this node's disk, and tried again", "path", f.path(in.Parent, in.Name), "tries", tries, "at", next, "err", err)
	_ = f.db.Do(func(tx *meta.Tx) error {
		d, err2 := tx.Dirty(ino)
		if err2 != nil {
			return nil
		}
		if d.Tries > 0 && f.db.FreeSpaceLow() {
			return nil // this can go on for days, and what is kept for a full disk is for what makes room
		}
		d.Tries, d.Next, d.Error = tries, next.UnixNano(), clip(err.Error())
		return tx.SetDirty(&d)
	})
}

// clip bounds what stands in the index of an error.
func clip(s string) string { return s[:min(len(s), 500)] }
