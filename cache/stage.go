package cache

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The names in the staging directory beside those of staging files, which are IDs.
const (
	stagingDir  = "staging"
	stageNew    = "new-" // + name: being made
	stageFolder = "dir-" // + inode number in hex: the label of a directory
	ballastFile = "ballast"
)

// The errors of staging files.
var (
	// ErrNoStage: there is no staging file of this ID.
	ErrNoStage = errors.New("there is no such staging file")
	// ErrChanged: the staging file is not what was published.
	ErrChanged = errors.New("the staging file is not what was published")
)

// stagePath is where the staging file of an ID is.
func (d *dir) stagePath(id ID) string { return filepath.Join(d.staging, stageName(id)) }

func stageName(id ID) string { return fmt.Sprintf("%016x", uint64(id)) }

// stageID is the ID that a name in a staging directory stands for; false for the other names.
func stageID(name string) (ID, bool) {
	if len(name) != 16 {
		return 0, false
	}
	n, err := strconv.ParseUint(name, 16, 64)
	return ID(n), err == nil && n != 0 && stageName(ID(n)) == name
}

// noStage is err with the name of the file, and ErrNoStage if it says that there is none.
func noStage(id ID, err error) error {
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("staging file %s: %w", stageName(id), ErrNoStage)
	}
	return fmt.Errorf("staging file %s: %w", stageName(id), err)
}

// onStage calls fn with the directory and path of a staging file; where it is is not kept, but
// found by trying. fn must return ENOENT when the file is not at that path.
func (c *Cache) onStage(id ID, fn func(d *dir, path string) error) error {
	for _, d := range c.dirs {
		if err := fn(d, d.stagePath(id)); !errors.Is(err, unix.ENOENT) {
			if err != nil {
				return noStage(id, err)
			}
			return nil
		}
	}
	return noStage(id, unix.ENOENT)
}

// newID returns an ID that no file has, also not a staging file that is older than the index.
func (c *Cache) newID() (ID, error) {
	for {
		id, err := c.cfg.Index.NewID()
		if err != nil || id > c.stageFloor {
			return id, err
		}
	}
}

// LargestStage is the largest ID of a staging file that Open found; 0 if there was none, or the
// cache was closed properly before, in the same run of the machine. The cache itself gives out no ID up to it. An index that
// was lost may be told (see IDRaiser), so that others that take IDs of it do not either.
func (c *Cache) LargestStage() ID { return c.stageFloor }

// IDRaiser is an Index that can be told to give out only IDs above one. Open uses it.
type IDRaiser interface {
	RaiseID(above ID) error
}

// NewStage makes an empty staging file in the directory with most free space, opened read-write
// and close-on-exec. It has its label as soon as it has its name. An error wraps ENOSPC when no
// directory has room.
func (c *Cache) NewStage(l StageLabel) (ID, *os.File, error) {
	attr, err := l.encode()
	if err != nil {
		return 0, nil, err
	}
	id, err := c.newID()
	if err != nil {
		return 0, nil, fmt.Errorf("a staging file for %q: %w", l.Name, err)
	}
	err = nil
	for _, d := range c.stageDirs() {
		if d.stage.full.Load() {
			err = fmt.Errorf("the disk is full of data that is not published yet; free some space, or wait until it is in the bucket: %w", unix.ENOSPC)
			continue
		}
		f, cerr := createStage(d, id, attr)
		if cerr == nil {
			d.stage.files.Add(1)
			c.wakeStage()
			return id, f, nil
		}
		err = cerr
		if !errors.Is(cerr, unix.ENOSPC) && !errors.Is(cerr, unix.EDQUOT) && !errors.Is(cerr, unix.EIO) && !errors.Is(cerr, unix.EROFS) {
			break
		}
	}
	return 0, nil, fmt.Errorf("a staging file for %q cannot be made: %w", l.Name, explain(err))
}

// stageDirs are the directories with those first that have most free space.
func (c *Cache) stageDirs() []*dir {
	if len(c.dirs) == 1 {
		return c.dirs
	}
	dirs := slices.Clone(c.dirs)
	slices.SortStableFunc(dirs, func(a, b *dir) int { return cmp.Compare(b.free.Load(), a.free.Load()) })
	return dirs
}

// createStage makes a file with a label under its name, which it gets last.
func createStage(d *dir, id ID, attr []byte) (*os.File, error) {
	path := d.stagePath(id)
	fd, err := labelled(d, stageName(id), attr)
	if err != nil {
		return nil, &os.PathError{Op: "create", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// labelled makes a file with a label in the staging directory and returns its descriptor.
func labelled(d *dir, name string, attr []byte) (fd int, err error) {
	tmp, path := filepath.Join(d.staging, stageNew+name), filepath.Join(d.staging, name)
	fd, err = unix.Open(tmp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, err
	}
	if err = unix.Fsetxattr(fd, stageXattr, attr, 0); err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // the file system cannot
			err = unix.Rename(tmp, path)
		}
	}
	if err != nil {
		unix.Close(fd)
		_ = unix.Unlink(tmp)
		return -1, err
	}
	return fd, nil
}

// OpenStage opens a staging file with flags, to which O_CLOEXEC is added; ErrNoStage when there
// is none, which O_CREATE does not make.
func (c *Cache) OpenStage(id ID, flags int) (f *os.File, err error) {
	flags = flags&^(unix.O_CREAT|unix.O_EXCL) | unix.O_CLOEXEC
	err = c.onStage(id, func(d *dir, path string) error {
		fd, err := unix.Open(path, flags, 0)
		if err == nil {
			f = os.NewFile(uintptr(fd), path)
		}
		return err
	})
	return f, err
}

// StatStage returns the attributes of a staging file, without opening it; ErrNoStage when there
// is none. Its change time is that of its labels too.
func (c *Cache) StatStage(id ID) (st unix.Stat_t, err error) {
	err = c.onStage(id, func(d *dir, path string) error { return unix.Lstat(path, &st) })
	return st, err
}

// RelabelStage replaces the label of a staging file; ErrNoStage when there is none. Calls for one
// file must not overlap. It is durable with the next fsync of the file.
func (c *Cache) RelabelStage(id ID, l StageLabel) error {
	attr, err := l.encode()
	if err != nil {
		return err
	}
	return c.onStage(id, func(d *dir, path string) error { return unix.Lsetxattr(path, stageXattr, attr, 0) })
}

// StageLabel returns the label of a staging file; ErrNoStage when there is none.
func (c *Cache) StageLabel(id ID) (l StageLabel, err error) {
	err = c.onStage(id, func(d *dir, path string) (err error) {
		l, err = readStageLabel(path)
		return err
	})
	return l, err
}

// RemoveStage removes a staging file; that there is none is no error. Who has it open keeps it,
// with its space.
func (c *Cache) RemoveStage(id ID) error {
	err := c.onStage(id, func(d *dir, path string) error {
		err := unix.Unlink(path)
		if err == nil {
			d.stage.files.Add(-1)
		}
		return err
	})
	if errors.Is(err, ErrNoStage) {
		return nil
	}
	return err
}

// WalkStages calls fn for each staging file with its label, until fn returns false. A file whose
// label cannot be read comes with an error: whose it is must be found out by other means, it is
// never removed by the cache. Files that come or go meanwhile may be missed. fn may call the
// cache.
func (c *Cache) WalkStages(fn func(ID, StageLabel, error) bool) error {
	for _, d := range c.dirs {
		ids, err := d.stages()
		if err != nil {
			return fmt.Errorf("cache directory %s: %w", d.path, err)
		}
		for _, id := range ids {
			l, err := readStageLabel(d.stagePath(id))
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			if !fn(id, l, err) {
				return nil
			}
		}
	}
	return nil
}

// StageIDs returns the IDs of all staging files.
func (c *Cache) StageIDs() (ids []ID, err error) {
	for _, d := range c.dirs {
		some, err := d.stages()
		if err != nil {
			return nil, fmt.Errorf("cache directory %s: %w", d.path, err)
		}
		ids = append(ids, some...)
	}
	return ids, nil
}

// stages returns the IDs of the staging files of d, in order.
func (d *dir) stages() (ids []ID, err error) {
	err = d.stagingNames(func(name string) error {
		if id, ok := stageID(name); ok {
			ids = append(ids, id)
		}
		return nil
	})
	slices.Sort(ids)
	return ids, err
}

// stagingNames calls fn for each name in the staging directory.
func (d *dir) stagingNames(fn func(name string) error) error {
	f, err := os.Open(d.staging)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		names, err := f.Readdirnames(1024)
		for _, name := range names {
			if err := fn(name); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// SyncStage forces a staging file to the disk: its data and what is needed to read it, and
// unless dataOnly its times, its name and its label too. It opens the file for that, so of a write
// that failed before, and that another descriptor was told of, it does not tell again.
func (c *Cache) SyncStage(id ID, dataOnly bool) error {
	f, err := c.OpenStage(id, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	if dataOnly {
		err = unix.Fdatasync(int(f.Fd()))
	} else {
		err = unix.Fsync(int(f.Fd()))
	}
	if err != nil {
		return &os.PathError{Op: "fsync", Path: f.Name(), Err: err}
	}
	return nil
}

// SyncStaging forces the names and labels of all staging files to the disk.
func (c *Cache) SyncStaging() error {
	for _, d := range c.dirs {
		// A new label changes its file and not the directory, which xfs would then have nothing to sync of. The
		// journal keeps its order: with a change of the directory goes what was changed before.
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, d.staging, nil, 0); err != nil {
			return &os.PathError{Op: "utimensat", Path: d.staging, Err: err}
		}
		if err := syncDir(d.staging); err != nil {
			return err
		}
	}
	return nil
}

// SyncDisks forces all to the disk that was written to the file systems of the cache directories, by whomever.
func (c *Cache) SyncDisks() error {
	for _, d := range c.dirs {
		f, err := os.Open(d.staging)
		if err != nil {
			return err
		}
		err = unix.Syncfs(int(f.Fd()))
		if err = errors.Join(err, f.Close()); err != nil {
			return &os.PathError{Op: "syncfs", Path: d.staging, Err: err}
		}
	}
	return nil
}

// syncDir forces the names in a directory to the disk.
func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// LabelDir keeps the label of a directory that the origin does not have, so that it is found
// again, by this name, when the index is lost. Calls for one inode must not overlap.
func (c *Cache) LabelDir(ino uint64, l StageLabel) error {
	attr, err := l.encode()
	if err != nil {
		return err
	}
	name := stageFolder + strconv.FormatUint(ino, 16)
	for _, d := range c.dirs {
		err := unix.Lsetxattr(filepath.Join(d.staging, name), stageXattr, attr, 0)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("the label of directory %q: %w", l.Name, explain(err))
		}
	}
	for _, d := range c.stageDirs() {
		var fd int
		if fd, err = labelled(d, name, attr); err == nil {
			return unix.Close(fd)
		}
	}
	return fmt.Errorf("the label of directory %q: %w", l.Name, explain(err))
}

// RemoveDirLabel removes the label of a directory; that there is none is no error.
func (c *Cache) RemoveDirLabel(ino uint64) error {
	name := stageFolder + strconv.FormatUint(ino, 16)
	for _, d := range c.dirs {
		if err := os.Remove(filepath.Join(d.staging, name)); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// WalkDirLabels calls fn for each label of a directory, until it returns false. One that cannot
// be read is logged and left. fn may call the cache.
func (c *Cache) WalkDirLabels(fn func(StageLabel) bool) error {
	for _, d := range c.dirs {
		var names []string
		err := d.stagingNames(func(name string) error {
			if strings.HasPrefix(name, stageFolder) {
				names = append(names, name)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("cache directory %s: %w", d.path, err)
		}
		slices.Sort(names)
		for _, name := range names {
			l, err := readStageLabel(filepath.Join(d.staging, name))
			switch {
			case errors.Is(err, unix.ENOENT):
			case err != nil:
				c.log.Error("the label of a directory cannot be read; what is in it is found by its own labels", "err", err)
			case !fn(l):
				return nil
			}
		}
	}
	return nil
}
