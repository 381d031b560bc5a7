// Package fs is the file system itself: what a file, a directory and an open file mean over
// an object store, an index and a cache. It knows nothing of FUSE; package fuse translates.
//
// A read goes: Lookup (index, or the origin when the index is too old) → Open (decides
// whether the kernel may read the cache file itself, see open.go) → Read (only for files
// that the daemon serves: cache, and prefetch told of it). Directories are listed into the
// index page by page, and read from the index (listing.go, readdir.go).
package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/session"
	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/prefetch"
)

// Options are the choices of one mount.
type Options struct {
	// TTL is how long what the origin said of a name is believed; 0 asks at every use.
	TTL time.Duration
	// NegativeTTL likewise for names that were missing.
	NegativeTTL time.Duration
	// StaleIfError is for how long after the TTL what was last heard of a name is shown while the origin does not
	// answer, see away.go. 0: directories, and files that this mount published, only; negative: of nothing.
	StaleIfError time.Duration
	// Immutable: objects never change and what was once listed is the truth for ever.
	Immutable bool
	// UID and GID own every file; FileMode and DirMode are its permission bits.
	UID, GID          uint32
	FileMode, DirMode uint32
	// Metadata: modes, times and symbolic links are believed that the metadata of objects tell, see told.go.
	Metadata bool
	// ReadOnly refuses all changes.
	ReadOnly bool
	// Protect: what this mount did not publish may be neither replaced nor deleted.
	Protect bool
	// LastWins: what somebody else put under a key meanwhile is overwritten; else ours is published
	// beside it.
	LastWins bool
	// Policies are looked through in order for each path; the first whose pattern matches holds.
	Policies []Policy
	// OverlayMin is the size in bytes from which on an object that is not here is changed without
	// being fetched, see overlay.go.
	OverlayMin int64
	// PartSize of multipart uploads, in bytes; UploadParallel parts are under way at once, and
	// PublishParallel files. 0: the defaults of package publish.
	PartSize                        int64
	UploadParallel, PublishParallel int
	// ReuseParts has the origin copy the parts of a file that are as in an earlier one, see reuse.go.
	ReuseParts bool
	// Scratch is a directory for temporary files of package publish.
	Scratch string
	// Doubt is how long after the death of a process requests of it may still be carried out.
	Doubt time.Duration
	// SmallObject is the size in bytes up to which a file is fetched whole at open.
	SmallObject int64
	// ListParallel is how many LIST requests one directory may have in flight.
	ListParallel int
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Defaults returns the options of a mount that was given none.
func Defaults() Options {
	return Options{
		TTL:          60 * time.Second,
		NegativeTTL:  time.Second,
		StaleIfError: time.Hour,
		FileMode:     0o644,
		DirMode:      0o755,
		// What one 90 MB/s connection brings in about the time of one 20 ms round trip:
		// waiting for the whole costs at most as much again as waiting for the first byte.
		SmallObject:  2 << 20,
		ListParallel: 16,
		// Smaller ones are here in less than a second, and then written by the kernel itself.
		OverlayMin: 32 << 20,
		Doubt:      defaultDoubt,
	}
}

// Backing registers cache files with the kernel, so that it reads them itself. A nil
// Backing means that there is no passthrough. Methods may be called in parallel.
type Backing interface {
	// Register returns an id under which f is known until Unregister. f may be closed then.
	Register(f *os.File) (int32, error)
	Unregister(id int32)
}

// Notifier tells the kernel that a name it may have cached is another file now, or none, and
// that it must drop what it has cached of a node's content. It is called without any lock of
// this package held, from one goroutine.
type Notifier interface {
	EntryChanged(parent NodeID, name string)
	ContentChanged(node NodeID)
}

// FS is one mounted origin. All methods may be called in parallel.
//
// Lock order: FS.listMu → openTable.mu, FS.labels → (locks of cache, meta); publisher.mu → meta.CloseLog → openTable.mu. Network is never waited
// for under a lock; singleflight groups are not locks and are entered holding none.
// A key's turn (keyTurns) is no lock either: it is taken before a node is (openTable.begin), and kept over requests.
type FS struct {
	opt    Options
	log    *slog.Logger
	db     *meta.DB
	cache  *cache.Cache
	store  objstore.Store
	engine *prefetch.Engine
	root   meta.Inode
	began  int64 // when the mount began, nanoseconds since 1970
	// firstSeq is greater than what earlier processes have numbered, and until doubtUntil their
	// requests may still be carried out, see doubt.go. deletions are keys whose tombs are newer, and were
	// older: no more than there were tombs when this process began.
	firstSeq   uint64
	doubtUntil time.Time
	deletions  sync.Map

	ctx    context.Context // done at Close; background work runs under it
	cancel context.CancelFunc
	wg     sync.WaitGroup // background listings, notifier

	resolves singleflight.Group // by directory and name: HEAD + LIST of one name
	heads    singleflight.Group // by inode: HEAD of one object

	listMu sync.Mutex
	lists  map[meta.Ino]*listJob // listings under way

	negatives *expiring // names lately found missing
	staleHits *expiring // directories with stale names, see relist

	publisher publisher
	reuse     reuse
	ledger    ledgerMemo
	labels    labelLocks
	foreign   foreign
	away      away
	retimed   retimed

	open       openTable
	ownSession *session.Session // when the caller gave none
	changes    chan change      // to the notifier; see notify.go
	contents   contents
	stats      counters
}

type counters struct {
	lookups, opens, passthrough, daemon, stale, reads, readBytes atomic.Int64
	lists, changesDropped, writes, writeBytes                    atomic.Int64
}

// Config is what a mount is made of.
type Config struct {
	Options  Options
	Log      *slog.Logger
	DB       *meta.DB
	Cache    *cache.Cache
	Store    objstore.Store
	Prefix   string // key prefix of the root, "" or ending in "/"
	Engine   *prefetch.Engine
	Backing  Backing  // nil: no passthrough
	Notifier Notifier // nil: the kernel is not told of changes
	// Session holds what the kernel has open, for the next process; New takes from it what
	// the one before had opened. nil: nobody is to go on with this mount.
	Session *session.Session
}

// New makes the file system of cfg. The caller keeps DB, Cache, Store, Engine and Session and
// closes them after Close.
func New(cfg Config) (*FS, error) {
	if s := cfg.Session; s != nil {
		// Should the index have been lost under the mount, nothing gets a number that was used.
		ino, file := s.Largest()
		if err := cfg.DB.RaiseMarks(meta.Ino(ino), cache.ID(file)); err != nil {
			return nil, fmt.Errorf("index: %w", err)
		}
	}
	root, err := cfg.DB.Origin(cfg.Store.String()+"/"+cfg.Prefix, cfg.Prefix)
	if err != nil {
		return nil, fmt.Errorf("index: root of %s: %w", cfg.Store, err)
	}
	f := &FS{
		opt: cfg.Options, log: cfg.Log, db: cfg.DB, cache: cfg.Cache, store: cfg.Store,
		engine: cfg.Engine, root: root,
		lists:     make(map[meta.Ino]*listJob),
		negatives: newExpiring(16384),
		staleHits: newExpiring(1024),
		changes:   make(chan change, 4096),
		contents:  contents{nodes: make(map[NodeID]struct{}), wake: make(chan struct{}, 1)},
	}
	if f.opt.Now == nil {
		f.opt.Now = time.Now
	}
	f.began = f.now()
	s := cfg.Session
	if s == nil {
		if s, err = session.Create(); err != nil {
			return nil, err
		}
		f.ownSession = s
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.open.init(cfg.Backing, s)
	f.contents.session = s
	f.open.lastWriter = f.completeSoon
	f.open.lastHandle = f.lastHandle
	f.open.unstage = f.removeStage
	f.restore()
	f.cache.SetReclaim(f.open.reclaim)
	f.cache.SetDamaged(f.damaged)
	f.wg.Add(2)
	go f.notifyLoop(cfg.Notifier)
	go f.purgeLoop()
	if err := f.startPublisher(); err != nil {
		return nil, errors.Join(err, f.close(true))
	}
	return f, nil
}

// Close stops background work and waits for it. Open files must have been released, or
// are released now.
func (f *FS) Close() error { return f.close(false) }

// closeWait bounds what Close waits for opens of files that were closed just before.
const closeWait = 5 * time.Second

// Leave is Close of a mount that goes on: what is open stays so for the next process.
func (f *FS) Leave() error { return f.close(true) }

func (f *FS) close(leave bool) error {
	if f.publisher.queue != nil {
		last, done := context.WithTimeout(f.ctx, closeWait)
		f.completeLast(last)
		done()
	}
	f.halt()
	if f.publisher.queue != nil {
		// What was changed while it was published is to be published again; what was closed last may have been open
		// in this process still.
		f.open.closing.Wait()
		last, done := context.WithTimeout(context.Background(), closeWait)
		f.completeLast(last)
		done()
		if !leave {
			f.noteMapped()
			if err := f.syncLast(); err != nil {
				f.log.Error("what is not published yet is on this node, and could not all be forced to the disk: a power cut now may tear it", "err", err)
			}
		}
	}
	return f.letGo(leave)
}

// halt ends what goes on in the background.
func (f *FS) halt() {
	f.cancel()
	f.stopPublisher()
	f.wg.Wait()
}

// letGo closes what is open, or with leave leaves it to the next process.
func (f *FS) letGo(leave bool) error {
	f.cache.SetReclaim(func(cache.ID) bool { return true })
	f.cache.SetDamaged(func(cache.Identity) {})
	f.open.closeAll(leave)
	if f.ownSession != nil {
		return f.ownSession.Close()
	}
	return nil
}

// every calls work again and again, with d between, until the file system ends.
func (f *FS) every(d time.Duration, work func()) {
	t := time.NewTicker(d)
	defer t.Stop()
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-t.C:
		}
		work()
	}
}

// now in nanoseconds since 1970.
func (f *FS) now() int64 { return f.opt.Now().UnixNano() }

// ino is the inode number behind a node id.
func (f *FS) ino(n NodeID) meta.Ino {
	if n == RootNode {
		return f.root.Ino
	}
	return n.Ino()
}

// nodeOf is the node id under which the kernel shall know in.
func (f *FS) nodeOf(in *meta.Inode) NodeID {
	if in.Ino == f.root.Ino {
		return RootNode
	}
	f.open.session.Saw(uint64(in.Ino))
	return Node(in.Ino, in.Gen)
}

// path is the path of a name for messages, relative to the root. It costs a few index reads.
func (f *FS) path(dir meta.Ino, name string) string {
	p := name
	for i := 0; dir != f.root.Ino && i < 64; i++ {
		in, err := f.db.Inode(dir)
		if err != nil {
			return path.Join("…", p)
		}
		p = path.Join(in.Name, p)
		dir = in.Parent
	}
	return "/" + p
}

// PathOf is the path of a node for messages.
func (f *FS) PathOf(n NodeID) string {
	in, err := f.inode(n)
	if err != nil {
		return fmt.Sprintf("node %#x", uint64(n))
	}
	return f.path(in.Parent, in.Name)
}

// key is the object key of a file inode.
func (f *FS) key(dir *meta.Inode, in *meta.Inode) string {
	if in.Object.Key != "" {
		return in.Object.Key
	}
	return dir.Prefix + in.Name
}

// Stats is a snapshot for status and metrics.
type Stats struct {
	Lookups, Opens, OpensPassthrough, OpensDaemon, OpensStale int64
	Reads, ReadBytes, Lists, NotifyDropped                    int64
	// Stale is how many names were shown as they were last heard of, since the origin did not answer.
	Stale                            int64
	OpenFiles, Handles, KeptBackings int
}

// Stats may be called at any time.
func (f *FS) Stats() Stats {
	s := Stats{
		Lookups: f.stats.lookups.Load(), Opens: f.stats.opens.Load(),
		OpensPassthrough: f.stats.passthrough.Load(), OpensDaemon: f.stats.daemon.Load(),
		OpensStale: f.stats.stale.Load(), Reads: f.stats.reads.Load(),
		ReadBytes: f.stats.readBytes.Load(), Lists: f.stats.lists.Load(),
		NotifyDropped: f.stats.changesDropped.Load(), Stale: f.away.count(),
	}
	s.OpenFiles, s.Handles, s.KeptBackings = f.open.counts()
	return s
}
