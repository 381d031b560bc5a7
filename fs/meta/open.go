package meta

import (
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// What lies in the index's directory:
//
//	lock      who has it
//	marks     the numbers given out, see marks.go
//	spare     space held in reserve, see spares.go
//	closes-N  files that were closed and are not noted as complete, see closelog.go
//	db-N      the database; N grows with each fresh start
//	bad-N-T   a damaged one, put aside at time T for whoever wants to look; one at most
const (
	dbPrefix  = "db-"
	badPrefix = "bad-"
)

// A start that dies while badger opens the database leaves a tally. A database that killed
// this many starts in a row is damaged in a way that verify does not see.
const maxDeadOpens = 5

// Starts that die soon after, this many in a row, make verify read every block: it may be
// a compaction that meets a garbled one and ends the process.
const maxEarlyDeaths = 8

// settled is how long a start must live to count as good.
const settled = time.Minute

// memTableSize is fixed: a log written with one size cannot be replayed with a smaller one.
const memTableSize = 8 << 20

// Open opens the index in opt.Dir, or makes one. A damaged index is put aside and a fresh
// one made, whose numbers begin above all that the old one gave out; Rebuilt tells. An index
// in use, one of a newer format (ErrNewer) and a full disk (ErrNoSpace) are errors, and
// nothing is touched.
func Open(opt Options) (*DB, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("index %s: %w", opt.Dir, err)
	}
	lock, err := lockDir(filepath.Join(opt.Dir, "lock"), opt.Dir)
	if err != nil {
		return nil, err
	}
	db := &DB{opt: opt, log: opt.Log, lock: lock, seed: maphash.MakeSeed()}
	if err := db.open(); err != nil {
		if db.marks != nil {
			db.marks.f.Close()
		}
		if db.closes != nil {
			db.closes.close()
		}
		lock.unlock()
		return nil, fmt.Errorf("index %s: %w", opt.Dir, err)
	}
	return db, nil
}

// open does Open's work under the lock.
func (db *DB) open() (err error) {
	n, lost, err := db.find()
	if err != nil {
		return err
	}
	db.path = filepath.Join(db.opt.Dir, dbPrefix+strconv.Itoa(n))
	if err := checkFormat(db.path); err != nil {
		return err
	}
	if db.space, err = newSpace(&db.opt, db.path); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			db.space.forget()
		}
	}()
	if !db.space.roomToOpen() {
		return fmt.Errorf("%w: %d MiB must be free to open it", ErrNoSpace, min(needToOpen, db.space.floor)>>20)
	}
	var marked bool
	if db.marks, marked, err = openMarks(filepath.Join(db.opt.Dir, "marks"), db.opt.NoSync); err != nil {
		return err
	}
	if db.closes, err = openCloses(db.opt.Dir); err != nil {
		return err
	}
	last := db.lock.read()
	opening, early := last.opening, last.early
	if db.opt.Killed {
		opening, early = max(opening-1, 0), max(early-1, 0)
	}
	since, cause := db.openBadger(opening, early)
	if errors.Is(cause, ErrNewer) || passing(cause) {
		return cause
	}
	if cause != nil {
		aside, err := db.putAside(n)
		if err != nil {
			return fmt.Errorf("damaged (%w), and cannot be put aside: %w", cause, err)
		}
		db.log.Error("the index was damaged; a fresh one was made", "index", db.opt.Dir, "err", cause, "put aside", aside)
		db.rebuilt = true
		db.path = filepath.Join(db.opt.Dir, dbPrefix+strconv.Itoa(n+1))
		db.space.follow(db.path)
		if _, err := db.openBadger(0, 0); err != nil {
			return err
		}
	} else if lost && marked {
		db.log.Error("the index was lost; a fresh one was made", "index", db.opt.Dir)
		db.rebuilt = true
	}
	if cause == nil && last.boot != bootID() {
		err = db.repair(since)
	}
	if err == nil {
		err = db.restoreMarks(marked)
	}
	if err == nil {
		err = db.results.load(db)
	}
	if err == nil {
		err = db.loadCounts()
	}
	if err != nil {
		return errors.Join(err, db.closeBadger())
	}
	db.lock.write(0, early+1)
	db.batches.New = func() any { b := make([]Inode, 0, readdirBatch); return &b }
	db.space.settled = func() { db.lock.write(0, 0) }
	db.space.start()
	db.resumeDoomed()
	db.scrub.start(db)
	return nil
}

// find returns the number of the database to open; lost when there was none though there may
// have been one.
func (db *DB) find() (n int, lost bool, err error) {
	names, err := os.ReadDir(db.opt.Dir)
	if err != nil {
		return 0, false, err
	}
	top, live := 0, 0
	for _, e := range names {
		if s, ok := strings.CutPrefix(e.Name(), dbPrefix); ok {
			if i, err := strconv.Atoi(s); err == nil {
				live = max(live, i)
			}
		} else if s, ok := strings.CutPrefix(e.Name(), badPrefix); ok {
			s, _, _ = strings.Cut(s, "-")
			if i, err := strconv.Atoi(s); err == nil {
				top = max(top, i)
			}
		}
	}
	if live > top {
		return live, false, nil
	}
	return top + 1, true, nil
}

// putAside renames the database out of the way and removes the one put aside before.
func (db *DB) putAside(n int) (string, error) {
	names, err := os.ReadDir(db.opt.Dir)
	if err != nil {
		return "", err
	}
	for _, e := range names {
		if strings.HasPrefix(e.Name(), badPrefix) {
			if err := os.RemoveAll(filepath.Join(db.opt.Dir, e.Name())); err != nil {
				return "", err
			}
		}
	}
	name := badPrefix + strconv.Itoa(n) + "-" + time.Now().UTC().Format("20060102T150405")
	if err := os.Rename(db.path, filepath.Join(db.opt.Dir, name)); err != nil {
		return "", err
	}
	return name, syncPath(db.opt.Dir)
}

// openBadger verifies and opens the database in db.path. since is the newest version in its
// tables; what is newer was in logs.
func (db *DB) openBadger(opening, early int) (since uint64, err error) {
	if err := os.MkdirAll(db.path, 0o700); err != nil {
		return 0, err
	}
	if opening >= maxDeadOpens {
		return 0, fmt.Errorf("%d starts in a row died opening it", opening)
	}
	start := time.Now()
	if since, err = verify(db.path, early >= maxEarlyDeaths); err != nil {
		return 0, err
	}
	verified := time.Since(start)
	if err := tidy(db.path); err != nil {
		return 0, err
	}
	// The boot id stays that of before until what a power cut may have left is repaired.
	db.lock.tally(opening+1, early+1)
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	db.space.makeRoom()
	db.b, err = badger.Open(db.badgerOptions())
	db.log.Debug("index opened", "index", db.opt.Dir, "took", time.Since(start), "of that verifying", verified, "err", err)
	return since, err
}

// tidy removes what badger would trip over and nobody needs. No value is so large that it
// goes to the value log, so that and what is kept about it is empty; a damaged one shall not
// matter. A log of no bytes is left by a kill while badger made or deleted it, and badger
// takes it for an error.
func tidy(dir string) error {
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range names {
		drop := strings.HasSuffix(e.Name(), ".vlog") || e.Name() == "DISCARD"
		if strings.HasSuffix(e.Name(), ".mem") {
			fi, err := e.Info()
			drop = err == nil && fi.Size() == 0
		}
		if drop {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxValue is the largest value that badger keeps in its tables; larger ones would go to the
// value log, which is never used.
const maxValue = 256 << 10

// stallTables is how many tables of the first level there may be before no memory table is written out: as
// many as come to be on a full disk, where there are no compactions.
const stallTables = 60

func (db *DB) badgerOptions() badger.Options {
	memory := db.opt.Memory
	if memory == 0 {
		memory = 64 << 20
	}
	// A memory table takes about 11 MiB; one is written, one is flushed, the rest wait.
	waiting := max(1, min(8, int(memory/(11<<20))-3))
	db.space.tables = waiting
	return badger.DefaultOptions(db.path).
		WithLogger(logger{db.log, db.space}).
		WithBypassLockGuard(true). // lock.go
		WithExternalMagic(formatVersion).
		WithMetricsEnabled(false).
		WithDetectConflicts(false).
		WithMemTableSize(memTableSize).
		WithNumMemtables(waiting).
		WithNumLevelZeroTablesStall(stallTables).
		WithNumCompactors(2).
		WithNumGoroutines(1).
		WithCompression(options.None).
		WithBlockCacheSize(0). // tables are mapped: the page cache is the cache
		WithChecksumVerificationMode(options.OnBlockRead).
		WithValueThreshold(maxValue).
		WithValueLogFileSize(1 << 20)
}

// restoreMarks makes sure that no number is given out again when the marks file was lost.
func (db *DB) restoreMarks(marked bool) error {
	db.marks.onReserve = db.copyMarks
	if marked {
		return nil
	}
	ino, id, err := db.largest()
	if err != nil {
		return err
	}
	if ino != 0 || id != 0 {
		db.log.Warn("index: the marks file was lost; numbers go on far above those in use", "index", db.opt.Dir)
		ino, id = ino+lostMarks, id+lostMarks
	}
	return db.marks.create(max(ino, firstIno), max(id, 1))
}
