package load

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// InUse returns those object files of a cache directory that somebody uses: by a descriptor, a
// mapping, or a backing id of the kernel that was not given back; and how many files there are.
// A file that nobody uses gets a write lease.
func InUse(cache string) (inUse []string, files int, err error) {
	err = filepath.WalkDir(filepath.Join(cache, "objects"), func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		used, err := leased(path)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		files++
		if used {
			inUse = append(inUse, path)
		}
		return nil
	})
	return inUse, files, err
}

// leased tries for a write lease on a file, and gives it back.
func leased(path string) (used bool, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	if errors.Is(err, unix.EAGAIN) {
		return true, nil
	}
	if err != nil {
		return false, os.NewSyscallError("F_SETLEASE", err)
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return false, err
}
