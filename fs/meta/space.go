package meta

import (
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// space keeps badger from a full disk, and the index usable on one. Who writes through the kernel to files on the
// same disk asks nobody, so that all of it may be gone at any time.
//
//   - Below a floor of free space what takes room is refused with ErrNoSpace: new names, listings, what the
//     cache notes of what it fetched. How much is free is looked at before a write, at most every 10 ms,
//     and by a watcher, the more often the less there is.
//   - What makes room, or is how it is made, goes on: a removal, a rename, that something is complete or published or
//     evicted. Room for that is kept in spares, files that have blocks and become badger's logs and
//     tables without giving those back between (spares.go). It is enough for tens of thousands of changes; only
//     when nothing of it is left they are refused, too. Opening takes its logs and tables from there as well.
//   - Where making a file takes free blocks small spares are given up for that (makeRoom).
//   - Every file gets its blocks before badger maps it (mapped.go), or badger waits.
//   - Compactions wait below the floor. Badger takes a table that could not be made for an empty one.
//
// When there is room again the spares come back first, then writes.
type space struct {
	dir    string // of the index
	logs   string // badger's directory, without symbolic links
	floor  int64
	spares *spares
	tables int // memory tables that may wait for being written; set before use
	log    *slog.Logger
	free   func() (int64, error) // replaced in tests

	settled func() // called once when the index has been open for a while

	full    atomic.Bool
	crowded atomic.Bool  // as many memory tables wait as may; known while it is full
	waiting atomic.Int64 // files of badger's that wait for blocks
	halted  atomic.Int64 // compactions that wait for room

	looked atomic.Int64 // when check last began, nanoseconds since start

	mu       sync.Mutex // held by check
	watching bool       // by mu: the index is open, and a full disk is told of
	refused  int64      // by mu: free bytes when the spares were last filled as far as that went
	tried    time.Time  // and when that was

	begun time.Time
	done  chan struct{}
	wg    sync.WaitGroup
}

// underWay is what badger may write without being asked again: the memory tables that wait (3 of
// 8 MiB) and one compaction of the first level (5 of 8 MiB and the 10 MiB below).
const underWay = 80 << 20

// maxFloor is what the fastest writers take of a disk while badger does that: 2 GB/s for half
// a second. A disk under 100 GiB is not so fast, or cannot spare so much.
const maxFloor = 1 << 30

// maxSpares is what the spares have at most, if the disk is large.
const maxSpares = 96 << 20

// needToOpen is for replayed logs turned into tables, and a first log.
const needToOpen = 48 << 20

// leaveFree is what the spares leave of a disk that is full but for it, in bytes: for what else is written
// here, a few blocks at a time.
const leaveFree = 1 << 20

// refillStep is how much more must be free than at the last time that the spares are filled again at once.
const refillStep = 128 << 10

const maxWriteSpeed = 4 << 30 // bytes a second, of the fastest NVMe device or so

// newSpace takes over what is kept for the index in opt.Dir; logs is badger's directory.
func newSpace(opt *Options, logs string) (*space, error) {
	s := &space{dir: opt.Dir, floor: opt.Floor, log: opt.Log, begun: time.Now(), done: make(chan struct{})}
	s.free = s.statfs
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return nil, err
	}
	total := int64(st.Blocks) * st.Bsize
	if s.floor == 0 {
		s.floor = max(min(underWay, total/8), min(total/100, maxFloor))
	}
	kept := opt.Ballast
	if kept == 0 {
		kept = min(maxSpares, total/8)
	}
	var err error
	if s.spares, err = openSpares(filepath.Join(s.dir, "spare"), kept); err != nil {
		return nil, err
	}
	_ = os.Remove(filepath.Join(s.dir, "ballast")) // of versions before
	s.follow(logs)
	s.check()
	return s, nil
}

// follow makes badger's files in dir get their blocks from here.
func (s *space) follow(dir string) {
	s.forget()
	if real, err := filepath.Abs(dir); err == nil {
		dir = real
	}
	if real, err := filepath.EvalSymlinks(filepath.Dir(dir)); err == nil {
		dir = filepath.Join(real, filepath.Base(dir))
	}
	s.logs = dir
	mapped.Store(dir, s)
}

// forget ends follow.
func (s *space) forget() { mapped.CompareAndDelete(s.logs, s) }

// statfs tells what this process may still take.
func (s *space) statfs() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return 0, err
	}
	blocks := st.Bavail
	if os.Geteuid() == 0 {
		blocks = st.Bfree
	}
	return int64(blocks) * st.Bsize, nil
}

// refill brings the spares back, as far as free bytes allow it. Caller holds mu.
func (s *space) refill(free int64) {
	// A file system does not give out all that it says is free.
	if free < s.refused+refillStep && time.Since(s.tried) < time.Second {
		return
	}
	s.tried, s.refused = time.Now(), free
	if err := s.spares.refill(free); err != nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		s.log.Debug("index: no space can be held in reserve here", "dir", s.dir, "err", err)
	}
}

// hasRoom tells whether n bytes are free; true where that cannot be known.
func (s *space) hasRoom(n int64) bool {
	free, err := s.free()
	return err != nil || free >= n
}

// roomToOpen tells whether badger has the room to open its directory, be it that of spares.
func (s *space) roomToOpen() bool {
	if s.hasRoom(min(needToOpen, s.floor)) {
		return true
	}
	if err := s.spares.trim(s.logs); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.log.Warn("index: its logs stay larger than they need be", "dir", s.dir, "err", err)
	}
	return s.spares.count(logBytes) > 0 && s.spares.count(headBytes) >= 4
}

// yields is how many spares are given up at most so that one file can be made.
const yields = 4

// makeRoom sees to it that badger can make a file on a full disk. ext4 has inodes that take no blocks of it; xfs wants some
// 200 KiB free before it makes one, be it that it takes none of them. So spares are given up until one can be made.
func (s *space) makeRoom() {
	for i := 0; s.full.Load() && i < yields && !s.canMake(); i++ {
		if !s.spares.yield() {
			return
		}
	}
}

// canMake tries whether a file can be made.
func (s *space) canMake() bool {
	path := filepath.Join(s.dir, "probe")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = errors.Join(f.Close(), os.Remove(path))
	}
	return !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT)
}

func (s *space) roomToClose() bool { return s.hasRoom(min(needToOpen, s.floor)) }

// start begins to watch.
func (s *space) start() {
	wait := s.check()
	s.mu.Lock()
	s.watching = true
	if free, err := s.free(); err == nil && s.full.Load() {
		s.tell(free)
	}
	s.mu.Unlock()
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		t := time.NewTimer(wait)
		defer t.Stop()
		good := time.NewTimer(settled)
		defer good.Stop()
		for {
			select {
			case <-s.done:
				return
			case <-good.C:
				s.settled()
			case <-t.C:
				if err := s.spares.reclaim(); err != nil {
					s.log.Debug("index: the space of a log is lost", "dir", s.dir, "err", err)
				}
				t.Reset(s.check())
			}
		}
	}()
}

func (s *space) stop() {
	close(s.done)
	s.wg.Wait()
}

// minLook is how often at most the free space is looked at.
const minLook = 10 * time.Millisecond

// allow tells whether a write that takes room may go to badger.
func (s *space) allow() bool {
	if now := time.Since(s.begun); int64(now)-s.looked.Load() > int64(minLook) {
		s.check()
	}
	return !s.full.Load()
}

// smallWait is how long a change waits while badger writes out the tables that it has.
const smallWait = 5 * time.Second

// allowSmall tells whether a small change that makes room, or is needed for that, may go to badger.
func (s *space) allowSmall() bool {
	for end := time.Now().Add(smallWait); ; time.Sleep(minLook) {
		if s.allow() {
			return true
		}
		if s.waiting.Load() > 0 || s.spares.count(logBytes) == 0 {
			return false
		}
		if !s.crowded.Load() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// compaction holds a compaction up until there is room for all of its tables.
func (s *space) compaction() {
	if s.allow() {
		return
	}
	s.halted.Add(1)
	defer s.halted.Add(-1)
	for !s.allow() {
		time.Sleep(5 * minLook)
	}
}

// stuck tells whether badger waits for room.
func (s *space) stuck() bool { return s.waiting.Load()+s.halted.Load() > 0 }

// check looks at the free space, acts on it, and tells when to look again.
func (s *space) check() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked.Store(int64(time.Since(s.begun)))
	free, err := s.free()
	if err != nil {
		return time.Second
	}
	full := s.full.Load()
	switch {
	case !full && free >= s.floor:
		s.refill(free - s.floor)
	case !full:
		full = true
		s.full.Store(true)
		if s.watching {
			s.tell(free)
		}
	case free >= s.floor+s.floor/4:
		s.refused = math.MinInt64 / 2
		s.refill(free - s.floor)
		if free, err = s.free(); err == nil && free >= s.floor {
			full = false
			s.full.Store(false)
			s.log.Info("index: there is space again", "dir", s.dir, "free", free)
		}
	default:
		s.refill(free - leaveFree)
	}
	s.extendManifest()
	if full {
		s.crowded.Store(s.memoryTables() > s.tables)
		return minLook
	}
	wait := time.Duration(float64(free-s.floor) / 2 / maxWriteSpeed * float64(time.Second))
	return max(minLook, min(wait, time.Second))
}

// tell says that the disk is full.
func (s *space) tell(free int64) {
	s.log.Error("index: too little space left; nothing new is remembered until there is more",
		"dir", s.dir, "free", free, "needed", s.floor)
}

// memoryTables tells how many logs there are, each of which is that of a memory table.
func (s *space) memoryTables() (n int) {
	names, _ := os.ReadDir(s.logs)
	for _, e := range names {
		if filepath.Ext(e.Name()) == ".mem" {
			n++
		}
	}
	return n
}

// allocated is how much of a file is on disk, in bytes.
func allocated(fi os.FileInfo) int64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return fi.Size()
}
