package meta

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// space keeps badger from a full disk. Badger writes through memory maps of sparse files, so
// where the file system has no block left to give, the process dies of SIGBUS instead of
// getting an error. Three things prevent that:
//
//   - Below a floor of free space all writes are refused with ErrNoSpace, before badger
//     sees them. How much is free is looked at before a write, at most every 10 ms, and by a
//     watcher, the more often the less there is: so often that a device filled at 4 GB/s is
//     noticed before half of what was above the floor is gone.
//   - What badger is still doing then (tables on their way to disk, a compaction) needs
//     space for a moment. The floor is that, and should others eat the floor too, a ballast
//     file beside the index is given up for it.
//   - The logs that badger writes all the time are filled with real blocks as soon as they
//     are seen, so they never fault.
//
// When there is room again the ballast comes back first, then writes. What is left is a disk
// filled from far above the floor, and the ballast with it, within the half second or less that
// badger takes to write out its tables: then the process dies, and the next one begins from
// the logs.
type space struct {
	dir     string // holds the ballast
	logs    string // badger's directory
	floor   int64
	ballast int64
	log     *slog.Logger
	free    func() (int64, error) // replaced in tests
	settled func()                // called once when the index has been open for a while

	full atomic.Bool

	looked atomic.Int64 // when check last began, nanoseconds since start

	mu     sync.Mutex        // held by check
	filled map[string]uint64 // by mu: logs already filled, by name: inode number

	begun time.Time
	done  chan struct{}
	wg    sync.WaitGroup
}

// What badger may have to write without being asked again: the memory tables that wait (3 of
// 8 MiB) and one compaction of the first level (5 of 8 MiB and the 10 MiB below).
const underWay = 80 << 20

// maxFloor is what the fastest writers take of a disk while badger does that: 2 GB/s for half
// a second. A disk under 100 GiB is not so fast, or cannot spare so much.
const maxFloor = 1 << 30

// needToOpen is for replayed logs turned into tables, and a first log.
const needToOpen = 48 << 20

const maxWriteSpeed = 4 << 30 // bytes a second, of the fastest NVMe device or so

func newSpace(dir string, opt *Options) (*space, error) {
	s := &space{dir: dir, floor: opt.Floor, ballast: opt.Ballast, log: opt.Log,
		filled: make(map[string]uint64), begun: time.Now(), done: make(chan struct{})}
	s.free = s.statfs
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, err
	}
	total := int64(st.Blocks) * st.Bsize
	if s.floor == 0 {
		s.floor = max(min(underWay, total/8), min(total/100, maxFloor))
	}
	if s.ballast == 0 {
		s.ballast = min(64<<20, total/8)
	}
	return s, nil
}

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

func (s *space) ballastPath() string { return filepath.Join(s.dir, "ballast") }

// reserve makes the ballast whole, as far as that leaves the floor free.
func (s *space) reserve() {
	free, err := s.free()
	if err != nil {
		return
	}
	f, err := os.OpenFile(s.ballastPath(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || allocated(fi) >= s.ballast || free-(s.ballast-allocated(fi)) < s.floor {
		return
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, s.ballast); err != nil {
		_ = f.Truncate(0)
		if !errors.Is(err, unix.ENOSPC) {
			s.log.Warn("index: no space can be held in reserve here", "dir", s.dir, "err", err)
		}
	}
}

// release gives the ballast up, and tells whether there was any.
func (s *space) release() bool {
	fi, err := os.Stat(s.ballastPath())
	if err != nil || allocated(fi) == 0 {
		return false
	}
	return os.Truncate(s.ballastPath(), 0) == nil
}

// roomFor tells whether n bytes are free, having given up the ballast for it if need be.
func (s *space) roomFor(n int64) bool {
	for {
		free, err := s.free()
		if err != nil || free >= n {
			return true
		}
		if !s.release() {
			return false
		}
	}
}

func (s *space) roomToOpen() bool { return s.roomFor(min(needToOpen, s.floor)) }

func (s *space) roomToClose() bool { return s.roomFor(min(needToOpen, s.floor)) }

// start begins to watch; logs is badger's directory.
func (s *space) start(logs string) {
	s.logs = logs
	s.reserve()
	wait := s.check()
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

// allow tells whether a write may go to badger.
func (s *space) allow() bool {
	if now := time.Since(s.begun); int64(now)-s.looked.Load() > int64(minLook) {
		s.check()
	}
	return !s.full.Load()
}

// check looks at the free space, acts on it, and tells when to look again.
func (s *space) check() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked.Store(int64(time.Since(s.begun)))
	free, err := s.free()
	if err != nil {
		return time.Second
	}
	switch full := s.full.Load(); {
	case !full && free < s.floor:
		s.full.Store(true)
		if free < s.floor/2 {
			s.release()
		}
		s.log.Error("index: too little space left; nothing new is remembered until there is more",
			"dir", s.dir, "free", free, "needed", s.floor)
	case full && free < s.floor/2:
		s.release()
	case full && free >= s.floor+s.floor/4:
		s.reserve()
		if free, err = s.free(); err == nil && free >= s.floor {
			s.full.Store(false)
			s.log.Info("index: there is space again", "dir", s.dir, "free", free)
		}
	}
	s.fillLogs()
	if s.full.Load() {
		return minLook
	}
	wait := time.Duration(float64(free-s.floor) / 2 / maxWriteSpeed * float64(time.Second))
	return max(minLook, min(wait, time.Second))
}

// fillLogs gives blocks to the parts of badger's logs that are holes. Caller holds mu.
func (s *space) fillLogs() {
	names, err := os.ReadDir(s.logs)
	if err != nil {
		return
	}
	seen := make(map[string]uint64)
	for _, n := range names {
		if !strings.HasSuffix(n.Name(), ".mem") && !strings.HasSuffix(n.Name(), ".vlog") {
			continue
		}
		fi, err := n.Info()
		if err != nil || fi.Size() == 0 {
			continue
		}
		ino := fi.Sys().(*syscall.Stat_t).Ino
		if s.filled[n.Name()] != ino && !fill(filepath.Join(s.logs, n.Name()), fi.Size()) {
			continue
		}
		seen[n.Name()] = ino
	}
	s.filled = seen
}

// fill allocates the first n bytes of a file without changing its size or content.
func fill(path string, n int64) bool {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, n) == nil
}

// allocated is how much of a file is on disk, in bytes.
func allocated(fi os.FileInfo) int64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return fi.Size()
}
