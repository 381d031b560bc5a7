package meta

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/leatfs/leatfs/cache"
)

// Options say where the index is and what it may use.
type Options struct {
	// Dir is the index's own directory; it is made (0700) where missing. One process at a
	// time may have it open.
	Dir string
	Log *slog.Logger
	// Memory is what the index should keep to, in bytes; 0 means 64 MiB. The share that
	// it governs is how many tables wait to be written out; the least is about 40 MiB.
	Memory int64
	// Killed says that the process that had the index before was killed from outside: that it died
	// early says nothing of the index then.
	Killed bool
	// NoSync leaves out all syncs. For tests: numbers may repeat after a power cut.
	NoSync bool
	// Floor is the free space in bytes below which nothing new is written (ErrNoSpace), and
	// Ballast the size of the files that hold space for what makes room then. 0
	// means the defaults, which suit the size of the file system; see space.go.
	Floor, Ballast int64
}

// DB is the index. All methods may be called in parallel, except Close, which waits for
// calls under way and after which all return ErrClosed.
//
// What a method wrote survives the death of the process at once, and a power cut only after
// Sync. A method's change is whole or absent after either.
//
// Locks, in the order in which they are taken:
//
//  1. life, shared, by each public method for as long as it touches the database; never
//     while a caller's function runs that may call back (Readdir, WalkRecords, OnChange).
//  2. prune: shared by transactions of Do, alone by who removes directories with what is in them.
//  3. originMu, or some of dirs in the order of their numbers. Functions of callers run under
//     them, so they must not call the index. A lock out of order is only tried.
//  4. applyMu.
//  5. marks.mu, space.mu, snaps.mu, results.mu.
//
// dirs[ino] guards the dentries and inode bodies below directory ino, its Listing and times, the body
// of ino itself while it is under the inode's own key (origin roots, removed inodes, those of several
// names), its names, its Dirty and its attributes: who reads them to write
// them holds it. The flag Removed and the Prefix of a directory are changed under its own
// lock, too. The same locks, by a hash of the key, guard tombs. Plain readers take no lock: each runs in one snapshot of the database.
// applyMu guards the table of identities: whoever changes it holds it exclusively.
type DB struct {
	opt     Options
	log     *slog.Logger
	path    string // of the badger directory
	lock    *lockFile
	marks   *marks
	closes  *CloseLog
	space   *space
	rebuilt bool

	life   sync.RWMutex
	closed bool // by life
	b      *badger.DB

	prune    sync.RWMutex
	dirs     [stripes]sync.Mutex
	originMu sync.Mutex
	applyMu  sync.RWMutex

	damage  atomic.Bool // reported once
	scrub   scrubber
	batches sync.Pool // of *[]Inode, for Readdir
	writes  atomic.Int64
	snaps   snapshots
	results results

	seed         maphash.Seed // of lockKey
	seq          atomic.Uint64
	dirty, tombs atomic.Int64 // how many records there are
}

var _ cache.Index = (*DB)(nil)

// Rebuilt tells whether Open found the index lost or damaged and started a fresh one.
func (db *DB) Rebuilt() bool { return db.rebuilt }

// Closes is where it is noted which files were closed. It must not be used after Close.
func (db *DB) Closes() *CloseLog { return db.closes }

// RaiseMarks makes all inode numbers and cache IDs given out from now on greater than ino and
// id: for who finds larger ones in use. A damaged or lost database needs none of it, since the
// marks file outlives it; where the whole directory was lost, only the caller knows what
// numbers the kernel still has. To be called before any other method. It costs nothing when
// the numbers are above already.
func (db *DB) RaiseMarks(ino Ino, id cache.ID) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.life.RUnlock()
	return db.marks.raise(uint64(ino)+1, uint64(id)+1)
}

// enter begins a public method, which ends with life.RUnlock.
func (db *DB) enter() error {
	db.life.RLock()
	if db.closed {
		db.life.RUnlock()
		return ErrClosed
	}
	return nil
}

// dirLock is the lock of a directory.
func (db *DB) dirLock(dir Ino) *sync.Mutex {
	return &db.dirs[stripe(uint64(dir))]
}

const (
	stripeBits = 9
	stripes    = 1 << stripeBits
)

// stripe is which of the locks is that of a directory.
func stripe(n uint64) uint16 { return uint16(n * 0x9e3779b97f4a7c15 >> (64 - stripeBits)) }

// view runs fn in a snapshot. Caller has entered.
func (db *DB) view(fn func(tx *badger.Txn) error) (err error) {
	defer db.guard(&err)
	s := db.snaps.acquire(db.b)
	defer db.snaps.release(s)
	return fn(s.tx)
}

// update runs fn in a transaction and commits it. The database's own conflict detection is
// off: the locks above keep writers of the same keys apart. Caller has entered.
func (db *DB) update(fn func(tx *badger.Txn) error) error {
	if !db.space.allow() {
		return ErrNoSpace
	}
	return db.write(fn)
}

// updateSmall is update for what makes room, or must be done on a full disk.
func (db *DB) updateSmall(fn func(tx *badger.Txn) error) error {
	if !db.space.allowSmall() {
		return ErrNoSpace
	}
	return db.write(fn)
}

// write does update's work.
func (db *DB) write(fn func(tx *badger.Txn) error) (err error) {
	defer db.guard(&err)
	tx := db.b.NewTransaction(true)
	defer tx.Discard()
	if err := fn(tx); err != nil {
		return err
	}
	db.writes.Add(1)
	defer db.snaps.committed()
	return tx.Commit()
}

// guard turns what badger returns, or dies of, into this package's errors.
func (db *DB) guard(err *error) {
	if p := recover(); p != nil {
		*err = db.damaged(fmt.Errorf("panic: %v", p))
		return
	}
	switch e := *err; {
	case e == nil, errors.Is(e, ErrNotFound), errors.Is(e, ErrExist), errors.Is(e, ErrInvalid),
		errors.Is(e, cache.ErrNoRecord), errors.Is(e, ErrNewer), errors.Is(e, ErrTooBig), errors.Is(e, errRetry),
		errors.As(e, new(*callerError)):
	case errors.Is(e, badger.ErrTxnTooBig):
		*err = ErrTooBig
	case errors.Is(e, badger.ErrDBClosed), errors.Is(e, badger.ErrBlockedWrites):
		*err = ErrClosed
	default:
		*err = db.damaged(e)
	}
}

// errRetry: what was read before the lock is no longer so.
var errRetry = errors.New("retry")

// callerError carries the error of a caller's function through guard.
type callerError struct{ error }

func (e *callerError) Unwrap() error { return e.error }

// damagedFile in the database's directory makes the next Open start afresh.
const damagedFile = "DAMAGED"

func (db *DB) damaged(cause error) error {
	if db.damage.CompareAndSwap(false, true) {
		err := os.WriteFile(filepath.Join(db.path, damagedFile), []byte(cause.Error()+"\n"), 0o600)
		db.log.Error("the index is damaged; the next start makes a fresh one",
			"index", db.opt.Dir, "err", cause, "noted", err == nil)
	}
	return fmt.Errorf("%w: %w", ErrDamaged, cause)
}

// get reads a key and decodes it in place; ErrNotFound when there is none. The bytes are
// valid in decode only.
func get(tx *badger.Txn, key []byte, decode func(v []byte) error) error {
	item, err := tx.Get(key)
	if err != nil {
		if errors.Is(err, badger.ErrKeyNotFound) {
			return ErrNotFound
		}
		return err
	}
	return item.Value(decode)
}

// Sync makes durable all that was written before the call.
func (db *DB) Sync() error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.life.RUnlock()
	if db.opt.NoSync {
		return nil
	}
	// Badger's own Sync covers the newest log only, not those that wait to be made tables.
	// Tables themselves are synced when made, before their log goes.
	names, err := os.ReadDir(db.path)
	if err != nil {
		return fmt.Errorf("index %s: sync: %w", db.opt.Dir, err)
	}
	for _, n := range names {
		if !strings.HasSuffix(n.Name(), ".mem") {
			continue
		}
		if err := syncPath(filepath.Join(db.path, n.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("index %s: sync: %w", db.opt.Dir, err)
		}
	}
	if err := syncPath(db.path); err != nil {
		return fmt.Errorf("index %s: sync: %w", db.opt.Dir, err)
	}
	return nil
}

// syncPath syncs a file or directory.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// FreeSpaceLow tells whether the index refuses writes for want of space.
func (db *DB) FreeSpaceLow() bool { return db.space.full.Load() }

// Floor is the free space of Dir's file system, in bytes, below which that happens: others
// who write there by the gigabyte, the cache above all, must leave more than that free.
func (db *DB) Floor() int64 { return db.space.floor }

// Size is what the index takes on disk, in bytes, apart from its spares.
func (db *DB) Size() int64 {
	var n int64
	_ = filepath.WalkDir(db.path, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if fi, err := d.Info(); err == nil && fi.Mode().IsRegular() {
			n += allocated(fi)
		}
		return nil
	})
	return n
}

// Close writes out what is in memory and releases the index.
func (db *DB) Close() error {
	db.life.Lock()
	defer db.life.Unlock()
	if db.closed {
		return nil
	}
	db.closed = true
	db.scrub.stop()
	db.space.stop()
	if err := db.marks.close(); err != nil {
		db.log.Warn("index: marks not written at close", "index", db.opt.Dir, "err", err)
	}
	if err := db.closes.close(); err != nil {
		db.log.Warn("index: what was noted of closed files cannot be closed", "index", db.opt.Dir, "err", err)
	}
	if !db.space.roomToClose() {
		// Writing tables out would fault on a full disk. Everything is in the logs, which
		// the next Open replays. The lock stays held until the process ends, since badger
		// still has the files.
		return db.leave()
	}
	db.snaps.close()
	err := db.closeBadger()
	if errors.Is(err, ErrNoSpace) {
		return err
	}
	db.space.forget()
	db.lock.write(0, 0)
	if err = errors.Join(err, db.lock.unlock()); err != nil {
		return fmt.Errorf("index %s: close: %w", db.opt.Dir, err)
	}
	return nil
}

// leave is the error of a database that stays open until the process ends.
func (db *DB) leave() error {
	return fmt.Errorf("index %s: %w; left as it is, nothing is lost", db.opt.Dir, ErrNoSpace)
}

// closeBadger closes the database, unless the disk gets full meanwhile.
func (db *DB) closeBadger() error {
	const patience = 10 * time.Second
	done := make(chan error, 1)
	go func() { done <- db.b.Close() }()
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for since := time.Now(); ; {
		select {
		case err := <-done:
			return err
		case <-t.C:
			if !db.space.stuck() {
				since = time.Now()
			} else if time.Since(since) > patience {
				return db.leave()
			}
		}
	}
}

// logger passes badger's words on: its errors and warnings as such, the rest for debugging.
type logger struct {
	log   *slog.Logger
	space *space
}

func (l logger) say(level slog.Level, format string, v []any) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, "index: badger: "+strings.TrimSpace(fmt.Sprintf(format, v...)))
	}
}

// notFlushed begins what badger says when a memory table could not be written out; it tries again a second later.
const notFlushed = "error flushing memtable"

func (l logger) Errorf(f string, v ...any) {
	if strings.HasPrefix(f, notFlushed) {
		l.space.makeRoom()
	}
	l.say(slog.LevelError, f, v)
}

func (l logger) Warningf(f string, v ...any) { l.say(slog.LevelWarn, f, v) }
func (l logger) Infof(f string, v ...any)    { l.say(slog.LevelDebug, f, v) }

// beforeTable is in what badger says in the course of a compaction each time before it makes a table.
const beforeTable = "LOG Compact. Added"

// beforeLog begins what it says before it makes a log.
const beforeLog = "Flushing memtable"

func (l logger) Debugf(f string, v ...any) {
	if strings.Contains(f, beforeTable) {
		l.space.compaction()
	}
	if strings.HasPrefix(f, beforeLog) {
		l.space.makeRoom()
	}
	l.say(slog.LevelDebug-4, f, v)
}
