package cache

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// formatVersion is the layout of a cache directory that this code writes and reads.
const formatVersion = 1

// The names in a cache directory.
const (
	formatFile = "leatfs-cache.json"
	lockFile   = "lock"
	objectsDir = "objects"
	lostPrefix = "lost-" // objects of an index that is gone, see Reconcile
)

// fileOverhead is what an object file costs beside its blocks: an inode, a directory entry
// and the block of its extended attribute; counted in dir.used.
const fileOverhead = 4096

// downTime is how long nothing is written to a directory after a write failed there.
const downTime = 5 * time.Second

// format is the content of formatFile.
type format struct {
	Format int    `json:"format"`
	UUID   string `json:"uuid"`
	Number uint32 `json:"number"` // Record.Dir of the files in it
}

// dir is one cache directory, locked by this process.
type dir struct {
	path    string
	objects string // path of the objects
	staging string // path of the staging files
	format  format
	direct  bool  // O_DIRECT works
	stacked bool  // on overlayfs or the like
	reserve int64 // bytes of the disk to leave free
	high    int64 // start evicting above, bytes
	low     int64 // stop evicting below
	margin  int64 // between the end of the capacity, or of the disk, and where evicting begins
	size    int64 // capacity in bytes; set before use, constant after
	lock    *os.File
	queue   writeQueue
	now     func() time.Time

	used   atomic.Int64 // bytes of the files the index knows, with what is being written
	doomed atomic.Int64 // bytes of files the index has forgotten and that are not yet unlinked
	free   atomic.Int64 // free bytes of the disk: last statfs less what was taken since
	lost   atomic.Bool  // there are files that were set aside
	down   atomic.Int64 // no writes before this time, Unix nanoseconds

	stage   stageSpace
	ballast ballast

	space struct {
		sync.Mutex
		stuck   time.Time     // nothing could be evicted at this time
		freed   chan struct{} // closed when space was freed, then replaced
		waiting atomic.Int32  // writers that wait for it
	}
}

// openDir prepares the directory of cfg, creating it if only its last component is missing,
// and locks it. Errors are one line that names the path and the remedy.
func openDir(cfg DirConfig, allowTmpfs bool, now func() time.Time) (_ *dir, err error) {
	path, err := filepath.Abs(cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("cache directory %s: %w", cfg.Path, err)
	}
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if err := os.Mkdir(path, 0o700); errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("cache directory %s: its parent directory does not exist; create it, or choose another cache directory: %w", path, unix.ENOENT)
		} else if err != nil {
			return nil, fmt.Errorf("cache directory %s: %w", path, explain(err))
		}
	case err != nil:
		return nil, fmt.Errorf("cache directory %s: %w", path, explain(err))
	case !fi.IsDir():
		return nil, fmt.Errorf("cache directory %s is not a directory; choose another: %w", path, unix.ENOTDIR)
	}
	d := &dir{path: path, objects: filepath.Join(path, objectsDir), staging: filepath.Join(path, stagingDir), size: cfg.Size, now: now}
	d.space.freed = make(chan struct{})
	d.queue.init()
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil, fmt.Errorf("cache directory %s: %w", path, err)
	}
	tmpfs := st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC
	if tmpfs && !allowTmpfs {
		return nil, fmt.Errorf("cache directory %s is on tmpfs, which is memory, not a disk; choose a directory on an NVMe device", path)
	}
	switch st.Type {
	case unix.OVERLAYFS_SUPER_MAGIC, unix.ECRYPTFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC:
		d.stacked = true
	}
	if d.lock, err = lockDir(path); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.lock.Close()
		}
	}()
	if d.format, err = readFormat(path); err != nil {
		return nil, err
	}
	for _, sub := range []string{d.objects, d.staging} {
		if err := os.Mkdir(sub, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("cache directory %s: %w", path, explain(err))
		}
	}
	if d.direct, err = probe(path); err != nil {
		return nil, fmt.Errorf("cache directory %s: %w", path, explain(err))
	}
	if tmpfs {
		d.direct = false
	}
	d.ballast.inMemory = tmpfs
	lost, err := filepath.Glob(filepath.Join(path, lostPrefix+"*"))
	if err != nil {
		return nil, err
	}
	d.lost.Store(len(lost) > 0)
	return d, nil
}

// explain adds the remedy to the errors of a directory that cannot be written.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("the file system is read-only; remount it read-write, or choose another cache directory: %w", err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("no permission; make it owned and writable by the user that mounts, or choose another cache directory: %w", err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("the disk is full; free some space, or choose another cache directory: %w", err)
	}
	return err
}

// lockDir takes the lock of the directory, which says who holds it.
func lockDir(path string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cache directory %s: %w", path, explain(err))
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		pid, _ := io.ReadAll(io.LimitReader(f, 32))
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("cache directory %s is used by another mount (process %s); unmount that, or choose another cache directory: %w",
				path, strings.TrimSpace(string(pid)), ErrInUse)
		}
		return nil, fmt.Errorf("cache directory %s: cannot lock: %w", path, err)
	}
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("cache directory %s: %w", path, explain(err))
		}
	}
	return f, nil
}

// readFormat reads the format file, or makes one with a new UUID and number 0.
func readFormat(path string) (f format, err error) {
	name := filepath.Join(path, formatFile)
	data, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		var id [16]byte
		rand.Read(id[:])
		f = format{Format: formatVersion, UUID: hex.EncodeToString(id[:])}
		return f, writeFormat(path, f)
	}
	if err != nil {
		return f, fmt.Errorf("cache directory %s: %w", path, explain(err))
	}
	if err := json.Unmarshal(data, &f); err != nil || f.UUID == "" || f.Format < 1 {
		return f, fmt.Errorf("cache directory %s: %s is damaged; move the directory away, or delete it: the origin has all of its data", path, formatFile)
	}
	if f.Format > formatVersion {
		return f, fmt.Errorf("cache directory %s has format %d, this version of leatfs knows up to %d; use the newer leatfs, or another cache directory", path, f.Format, formatVersion)
	}
	return f, nil
}

// writeFormat replaces the format file durably.
func writeFormat(path string, f format) error {
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	tmp := filepath.Join(path, formatFile+".new")
	w, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = w.Write(append(data, '\n'))
		if serr := w.Sync(); err == nil {
			err = serr
		}
		if cerr := w.Close(); err == nil {
			err = cerr
		}
	}
	if err == nil {
		err = os.Rename(tmp, filepath.Join(path, formatFile))
	}
	if err != nil {
		return fmt.Errorf("cache directory %s: %w", path, explain(err))
	}
	return nil
}

// probe tells whether files in path can be written and read with O_DIRECT at 4 KiB
// alignment; false on a full disk. An error means that they cannot be written at all.
func probe(path string) (direct bool, err error) {
	name := filepath.Join(path, "probe")
	defer os.Remove(name)
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return false, err
	}
	defer unix.Munmap(page)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		defer f.Close()
		_, err = f.Write(page)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return false, nil // what is in it must be had all the same, and some of it may be removed
	}
	if err != nil {
		return false, err
	}
	df, err := os.OpenFile(name, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return false, nil
	}
	defer df.Close()
	if _, err := df.WriteAt(page, 4096); err != nil {
		return false, nil
	}
	_, err = df.ReadAt(page, 0)
	return err == nil, nil
}

// filePath is where the file of an ID is. The low byte, which changes fastest, names the folder:
// a million files make 256 folders of 4,000.
func (d *dir) filePath(id ID) string {
	return fmt.Sprintf("%s/%02x/%016x", d.objects, byte(id), uint64(id))
}

// statfs brings free up to date.
func (d *dir) statfs() error {
	var st unix.Statfs_t
	if err := unix.Statfs(d.path, &st); err != nil {
		return err
	}
	d.free.Store(int64(st.Bavail) * st.Bsize)
	return nil
}

// take reserves n bytes for a write; false when the capacity or the disk does not allow it.
func (d *dir) take(n int64) bool {
	if d.free.Load()-n < d.keepFree() {
		return false
	}
	for {
		u := d.used.Load()
		if u+d.doomed.Load()+n > d.size {
			return false
		}
		if d.used.CompareAndSwap(u, u+n) {
			d.free.Add(-n)
			return true
		}
	}
}

// settle ends a reservation. What was written of it is counted by its owner from now on.
func (d *dir) settle(n int64, written bool) {
	d.used.Add(-n)
	if !written {
		d.free.Add(n)
	}
}

// announce wakes those who wait for space.
func (d *dir) announce() {
	d.space.Lock()
	close(d.space.freed)
	d.space.freed = make(chan struct{})
	d.space.stuck = time.Time{}
	d.space.Unlock()
}

// over tells by how many bytes the directory is above its high watermark, or above what the
// disk has room for; 0 if it is not.
func (d *dir) over() int64 {
	return max(d.used.Load()-d.high, d.keepFree()+d.margin/2-d.free.Load(), 0)
}

// usable tells whether anything may be written now.
func (d *dir) usable() bool { return d.down.Load() <= d.now().UnixNano() }

// fail stops writes for a while.
func (d *dir) fail() { d.down.Store(d.now().Add(downTime).UnixNano()) }

// setSize fixes the capacity and the watermarks. Above high evicting begins, below low it
// ends; between high and size fills go on meanwhile.
func (d *dir) setSize(size, reserve int64) {
	d.size, d.reserve = size, reserve
	margin := min(max(size/50, 4*runBytes), size/8)
	d.margin = margin
	d.high = size - margin
	d.low = d.high - min(margin, size/16)
}
