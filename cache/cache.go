package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/leatfs/leatfs/cache/buf"
	"github.com/leatfs/leatfs/objstore"
)

// DirConfig is one cache directory. Size is its capacity in bytes; 0 means four fifths of what
// is free on its disk at the first use.
type DirConfig struct {
	Path string
	Size int64
}

// Config makes a Cache. Dirs, Index and Pool are required; the zero value of the others
// means the default.
type Config struct {
	Dirs  []DirConfig
	Index Index
	Pool  *buf.Pool // its SetReclaim is taken by the cache
	Log   *slog.Logger

	// Writers is the number of writes under way per directory: 4 by default, which with
	// writes of 1 MiB keeps an NVMe busy.
	Writers int
	// ReserveFree is how many bytes of each disk are left free, for the index and others;
	// by default 1 GiB, but not more than a fiftieth of the disk. Negative means none.
	ReserveFree int64
	// Ballast is how many bytes of each disk are kept for data that is not published yet, by a
	// file that shrinks when they are needed. By default the smallest of 1 GiB, a fiftieth of the
	// disk and an eighth of the capacity; none where ReserveFree is negative, or in memory. Negative
	// means none.
	Ballast int64
	// SmallLimit is the size in bytes up to which objects are written through the page cache,
	// so that the first read by the kernel finds them in memory; 4 MiB by default.
	SmallLimit int64
	// MaxGet is the most bytes one ranged GET asks for, 8 MiB by default.
	MaxGet int64
	// FlushEvery is how long changes of the index are collected, 100 ms by default;
	// SyncEvery how often completed files are forced to the disk, 30 s by default.
	FlushEvery, SyncEvery time.Duration
	// VerifyRate limits in bytes per second what Scrub and Reconcile read; 200 MB/s by default.
	VerifyRate int64
	// AllowTmpfs permits a directory in memory, without O_DIRECT; for tests.
	AllowTmpfs bool
	// BootID tells one run of the machine from another; the kernel's by default.
	BootID string
	// Now is the clock, time.Now by default.
	Now func() time.Time
}

// The errors of Open and of a closed cache.
var (
	ErrInUse  = errors.New("in use")
	ErrClosed = errors.New("the cache is closed")
)

// Cache holds objects on one or more directories. All methods may be called in parallel.
type Cache struct {
	cfg    Config
	log    *slog.Logger
	pool   *buf.Pool
	ledger *ledger
	claims *semaphore.Weighted // blocks that readers may hold or wait for together
	inline *semaphore.Weighted // blocks of small objects being written by their fetches
	lists  lists
	n      counters
	dirs   []*dir

	maxRead  int64  // bytes
	maxGet   uint32 // blocks
	runMax   int    // blocks written together
	capacity uint64 // of all directories
	coarse   uint64 // uses nearer than this to each other count once; bytes of clock

	ctx    context.Context // of fetches
	cancel context.CancelFunc
	work   tasks // fetches and completions
	stop   chan struct{}
	loops  sync.WaitGroup // evictor, syncer
	stores sync.WaitGroup // writers
	books  sync.WaitGroup // the ledger
	evict  chan struct{}

	unclean bool // not closed properly the last time, or the index is new

	clean       atomic.Uint64 // 1 at the end of Close
	clock       atomic.Uint64 // bytes admitted since the cache was made
	reach       reach
	sampler     sampler
	flying      atomic.Int64 // blocks on their way from the origin
	extentBytes atomic.Int64
	epoch       atomic.Uint64
	synced      atomic.Uint64
	epochUsed   atomic.Bool
	hints       sync.Map     // origin → objstore.ChecksumAlgorithm seen there last
	beforeWrite func()       // for tests: called before each write
	beforeLabel func() error // for tests: called before a file is labelled as complete
	atStep      func(string) // for tests: called on the way from a staging file to an object file, or back
	reclaimFn   atomic.Pointer[func(ID) bool]
	damagedFn   atomic.Pointer[func(Identity)]

	stageFloor ID            // no ID up to it is given out
	moving     sync.Map      // IDs of files that have a name of each kind just now
	stageKick  chan struct{} // there are staging files

	bootEpoch uint64 // files begun before it have seen the machine go down

	doubt struct {
		sync.RWMutex
		lo, hi uint64 // files of epochs in between are suspect; hi == 0: none
	}

	mu     sync.Mutex
	active map[[16]byte]*Object
	closed bool
}

// tasks are goroutines that Close waits for.
type tasks struct {
	mu     sync.Mutex
	wg     sync.WaitGroup
	closed bool
}

// goFunc starts fn unless wait was called.
func (t *tasks) goFunc(fn func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.wg.Go(fn)
	return true
}

func (t *tasks) wait() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.wg.Wait()
}

// Open takes possession of the directories. It reads a few variables of the index and no
// objects, so it takes milliseconds whatever the cache holds. Errors are one line for people.
func Open(cfg Config) (_ *Cache, err error) {
	if cfg.Index == nil || cfg.Pool == nil || len(cfg.Dirs) == 0 {
		return nil, errors.New("cache: Dirs, Index and Pool are required")
	}
	def(&cfg.Writers, 4)
	def(&cfg.SmallLimit, 4<<20)
	def(&cfg.MaxGet, 8<<20)
	def(&cfg.FlushEvery, 100*time.Millisecond)
	def(&cfg.SyncEvery, 30*time.Second)
	def(&cfg.VerifyRate, 200_000_000)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.BootID == "" {
		id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return nil, fmt.Errorf("cache: the machine's boot id cannot be read: %w", err)
		}
		cfg.BootID = strings.TrimSpace(string(id))
	}
	c := &Cache{cfg: cfg, log: cfg.Log, pool: cfg.Pool, active: map[[16]byte]*Object{},
		stop: make(chan struct{}), evict: make(chan struct{}, 1), stageKick: make(chan struct{}, 1)}
	claims := int64(c.pool.Buffers()) * 3 / 8
	c.claims = semaphore.NewWeighted(claims)
	c.maxRead = min(MaxRead, claims/2*BlockSize)
	c.maxGet = uint32(max(cfg.MaxGet/BlockSize, 1))
	// What is being written cannot be taken back: with all directories' writers at it, that is at
	// most a quarter of the pool. So is what small objects have in writing.
	quarter := max(c.pool.Buffers()/4, len(cfg.Dirs))
	c.runMax = min(runBlocks, max(quarter/len(cfg.Dirs), 1))
	cfg.Writers = max(min(cfg.Writers, quarter/len(cfg.Dirs)/c.runMax), 1)
	c.inline = semaphore.NewWeighted(int64(quarter))
	c.ledger = newLedger(cfg.Index, cfg.FlushEvery, cfg.Log)
	c.ledger.vars, c.ledger.done = c.vars, c.retire
	defer func() {
		if err != nil {
			for _, d := range c.dirs {
				d.lock.Close()
			}
		}
	}()
	for _, dc := range cfg.Dirs {
		d, err := openDir(dc, cfg.AllowTmpfs, cfg.Now)
		if err != nil {
			return nil, err
		}
		c.dirs = append(c.dirs, d)
	}
	if err := c.restore(); err != nil {
		return nil, err
	}
	total := int64(0)
	for _, d := range c.dirs {
		total += d.size
	}
	c.capacity = uint64(total)
	c.coarse = c.capacity / 100
	c.reach.start(total, c.clock.Load())
	c.pool.SetReclaim(c.reclaim)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.books.Go(func() { c.ledger.run(c.stop) })
	for _, d := range c.dirs {
		for range cfg.Writers {
			c.stores.Go(func() { c.writer(d) })
		}
	}
	c.loops.Go(c.evictor)
	c.loops.Go(c.syncer)
	c.loops.Go(c.stageWatch)
	return c, nil
}

// def sets *p to v if it is zero.
func def[T int | int64 | time.Duration](p *T, v T) {
	if *p == 0 {
		*p = v
	}
}

// Object returns the object of this identity, new to the cache or not. It touches no disk
// but the index, and of an object that is here in part, or since before the machine went down, the
// label of its file. Called with a
// ctx of priority Demand it counts as a use of the object, and its bytes may be asked of the
// origin again if that once said it had them no longer.
func (c *Cache) Object(ctx context.Context, ident Identity, store objstore.Store) (*Object, error) {
	if ident.Size < 0 || ident.Size > math.MaxUint32*BlockSize {
		return nil, fmt.Errorf("object %q: a size of %d bytes is out of range", ident.Key, ident.Size)
	}
	hash := ident.Hash()
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	o := c.active[hash]
	isNew := o == nil
	if isNew {
		o = &Object{c: c, ident: ident, src: ident, as: ident, hash: hash, store: store, version: ident.VersionID,
			blockN: uint32((ident.Size + BlockSize - 1) / BlockSize),
			loaded: make(chan struct{}), blocks: map[uint32]*block{}, extents: map[uint32]*extent{}}
		if ident.Size == 0 {
			o.state = Proven
		}
		if alg, ok := c.hints.Load(ident.Origin); ok {
			o.sumAlg = alg.(objstore.ChecksumAlgorithm)
		}
		c.active[hash] = o
	}
	o.mu.Lock()
	o.refs++
	o.doomed = false
	if o.store == nil {
		o.store = store
	}
	if o.version == "" && o.src.Key == ident.Key {
		o.version = ident.VersionID
	}
	o.mu.Unlock()
	c.mu.Unlock()
	if isNew {
		if o.blockN > 0 {
			o.loadErr = o.load()
		}
		close(o.loaded)
	} else {
		<-o.loaded
	}
	if o.loadErr != nil {
		err := o.loadErr
		o.Release()
		return nil, err
	}
	if objstore.PriorityOf(ctx) == objstore.Demand && o.blockN > 0 {
		o.mu.Lock()
		o.gone = nil
		o.use()
		o.mu.Unlock()
	}
	return o, nil
}

// retire takes an idle object out of the table.
func (c *Cache) retire(o *Object) {
	c.mu.Lock()
	o.mu.Lock()
	o.forgetAliases()
	if !o.idle() {
		o.mu.Unlock()
		c.mu.Unlock()
		return
	}
	if o.doomed {
		o.discard()
		for _, b := range o.blocks { // none is flying: there are no fetches
			o.drop(b)
		}
	}
	o.retired = true
	for k, e := range o.extents {
		o.dropExtent(k, e)
	}
	f := o.file
	o.file = nil
	delete(c.active, o.hash)
	o.mu.Unlock()
	c.mu.Unlock()
	if f != nil {
		f.release()
	}
}

// lookup returns the object of an identity if it is in the table, with a reference added.
func (c *Cache) lookup(hash [16]byte) *Object {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.active[hash]
	if o != nil {
		o.mu.Lock()
		o.refs++
		o.mu.Unlock()
	}
	return o
}

// withObject calls fn on the object of file id, under its lock, loading it if need be.
func (c *Cache) withObject(id ID, fn func(o *Object)) error {
	rec, err := c.cfg.Index.Record(id)
	if err != nil {
		if !errors.Is(err, ErrNoRecord) {
			return err
		}
		// Perhaps it is so new that the index has not got it.
		if err := c.ledger.sync(c.ctx); err != nil {
			return err
		}
		if rec, err = c.cfg.Index.Record(id); err != nil {
			return err
		}
	}
	o, err := c.Object(objstore.WithPriority(c.ctx, objstore.Background), rec.Identity, nil)
	if err != nil {
		return err
	}
	defer o.Release()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.id != id {
		return ErrNoRecord
	}
	fn(o)
	return nil
}

// Pin keeps a file from being evicted, also over restarts; ErrNoRecord when there is no such file.
func (c *Cache) Pin(id ID) error { return c.setPinned(id, true) }

// Unpin undoes Pin.
func (c *Cache) Unpin(id ID) error { return c.setPinned(id, false) }

func (c *Cache) setPinned(id ID, on bool) error {
	return c.withObject(id, func(o *Object) {
		if o.pinned != on {
			o.pinned, o.recordDirty = on, true
			c.ledger.mark(o)
		}
	})
}

// SetReclaim names the one who holds loans that are idle. When space is needed fn is asked to
// end the loan of a file: it returns true if it has called Return and Release for it, or knows
// of no such loan; false while the kernel reads the file. It is called without locks.
func (c *Cache) SetReclaim(fn func(ID) bool) { c.reclaimFn.Store(&fn) }

// MaxRead is the most bytes that one Read returns.
func (c *Cache) MaxRead() int64 { return c.maxRead }

// Stacked tells whether a cache directory lies on a file system that itself lies on another:
// the mount then needs MaxStackDepth 2.
func (c *Cache) Stacked() bool {
	for _, d := range c.dirs {
		if d.stacked {
			return true
		}
	}
	return false
}

// largest is the size of the largest object that fits.
func (c *Cache) largest() (n int64) {
	for _, d := range c.dirs {
		n = max(n, d.low-fileOverhead)
	}
	return n
}

// dirOf returns the directory with this number, nil if it is not configured.
func (c *Cache) dirOf(number uint32) *dir {
	for _, d := range c.dirs {
		if d.format.Number == number {
			return d
		}
	}
	return nil
}

// forget has a file of d removed: first from the index, then from the disk. bytes is what
// was counted for it.
func (c *Cache) forget(d *dir, id ID, bytes int64) {
	d.doomed.Add(bytes)
	d.used.Add(-bytes)
	c.ledger.remove(id, func() {
		if err := os.Remove(d.filePath(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
			c.log.Error("an object file cannot be removed", "err", err)
		}
		d.doomed.Add(-bytes)
		d.free.Add(bytes)
		d.announce()
	})
}

// prefetchRoom is how many blocks more may be on their way at priority p.
func (c *Cache) prefetchRoom(p objstore.Priority) int64 {
	st := c.pool.Stats()
	limit := int64(st.Cap) * 3 / 4
	if p == objstore.Background {
		limit = int64(st.Cap) / 2
	}
	return limit - int64(st.InUse-c.lists.spentLen()) - c.flying.Load()
}

// Close ends fetches, waits until what arrived is stored, writes the index and lets go of the
// directories. Readers that still wait get errors. Objects must not be used after it.
func (c *Cache) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.work.wait()
	for _, d := range c.dirs {
		d.queue.close()
	}
	c.stores.Wait()
	close(c.stop)
	c.loops.Wait()
	c.syncNow()
	c.books.Wait()
	c.clean.Store(1)
	c.moving.Range(func(any, any) bool { // some file was left with two names, for the next start
		c.clean.Store(0)
		return false
	})
	c.ledger.flush() // what the last flush left, and the epoch
	err := c.ledger.err
	c.mu.Lock()
	objects := make([]*Object, 0, len(c.active))
	for _, o := range c.active {
		objects = append(objects, o)
	}
	c.mu.Unlock()
	for _, o := range objects {
		o.mu.Lock()
		for _, b := range o.blocks {
			o.drop(b)
		}
		f := o.file
		o.file = nil
		o.mu.Unlock()
		if f != nil {
			f.release()
		}
	}
	for _, d := range c.dirs {
		d.lock.Close()
	}
	return err
}
