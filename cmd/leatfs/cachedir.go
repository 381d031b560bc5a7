package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A cache directory is looked at before anything is made in it, so that a mount which cannot
// be leaves nothing behind. The packages that use it check again, and hold locks; this is
// for the order of events and for whole sentences.

// What package cache and package meta keep in a cache directory, and the log.
const (
	cacheFormatFile = "leatfs-cache.json"
	cacheLock       = "lock"
	cacheObjects    = "objects"
	cacheStaging    = "staging"
	cacheBallast    = "ballast"
	cacheIndex      = "index"
	cacheLog        = "leatfs.log"
)

// cacheFormat is the newest format of a cache directory that this version reads.
const cacheFormat = 1

// minCacheSize is the least that a cache directory may be told to hold: some blocks.
const minCacheSize = 16 << 20

// cacheDir is one cache directory as it was before this mount.
type cacheDir struct {
	path   string
	exists bool
	empty  bool // it does not exist, or holds nothing of ours
	// parents: missing directories above it are made too, as it is the default one.
	parents bool
}

// checkCacheDir looks at a cache directory and touches nothing. Its errors are one line that
// names the directory and the remedy.
func checkCacheDir(path string, parents bool) (cacheDir, error) {
	d := cacheDir{path: path, parents: parents}
	fail := func(format string, a ...any) (cacheDir, error) {
		return d, fmt.Errorf("cache directory %s "+format, append([]any{path}, a...)...)
	}
	st, err := os.Stat(path)
	there := path // what is there of it
	switch {
	case err == nil:
		d.exists = true
	case os.IsNotExist(err):
		there = filepath.Dir(path)
		for parents && missing(there) {
			there = filepath.Dir(there)
		}
		if st, err = os.Stat(there); os.IsNotExist(err) {
			return fail("cannot be made: there is no %s; create that, or choose another cache directory", there)
		}
	}
	if err != nil {
		return fail("cannot be used: %w; choose another with --cache-dir", err)
	}
	if !st.IsDir() {
		if d.exists {
			return fail("is not a directory; choose another with --cache-dir")
		}
		return fail("cannot be made: %s is not a directory; choose another with --cache-dir", there)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(there, &fs); err != nil {
		return fail("cannot be used: %w; choose another with --cache-dir", err)
	}
	if fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		return fail("is on tmpfs, which is memory and not a disk; choose one on NVMe with --cache-dir")
	}
	switch err := unix.Faccessat(unix.AT_FDCWD, there, unix.W_OK|unix.X_OK, unix.AT_EACCESS); {
	case errors.Is(err, unix.EROFS):
		return fail("is on a read-only file system; remount that writable, or choose another with --cache-dir")
	case err != nil:
		return fail("is not writable by this user; make it so, or choose another with --cache-dir")
	}
	if d.empty = !d.exists || d.holdsNothing(); d.empty {
		return d, nil
	}
	return d, checkUsedCache(path)
}

func missing(path string) bool {
	_, err := os.Lstat(path)
	return os.IsNotExist(err)
}

// holdsNothing tells that nothing of a cache is there.
func (d *cacheDir) holdsNothing() bool {
	for _, n := range []string{cacheFormatFile, cacheLock, cacheObjects, cacheIndex, cacheLog} {
		if !missing(filepath.Join(d.path, n)) {
			return false
		}
	}
	return true
}

// cacheInUseError: another process has the lock of a cache directory.
type cacheInUseError struct {
	error
	pid int // of that process, 0 when it is not known
}

// checkUsedCache looks at a directory that has been a cache before.
func checkUsedCache(path string) error {
	f, err := os.Open(filepath.Join(path, cacheLock))
	if err == nil {
		defer func() { _ = f.Close() }() // and the lock with it
		if errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK) {
			pid := make([]byte, 16)
			n, _ := f.Read(pid)
			who := strings.TrimSpace(string(pid[:n]))
			number, _ := strconv.Atoi(who)
			return cacheInUseError{fmt.Errorf("cache directory %s is used by another mount (process %s); choose another with --cache-dir, or unmount that", path, who), number}
		}
	}
	b, err := os.ReadFile(filepath.Join(path, cacheFormatFile))
	if err != nil {
		return nil // none yet, or package cache will say it
	}
	var v struct{ Format int }
	if json.Unmarshal(b, &v) == nil && v.Format > cacheFormat {
		return fmt.Errorf("cache directory %s has format %d, newer than this version's %d; use the newer leatfs, or choose another with --cache-dir", path, v.Format, cacheFormat)
	}
	return nil
}

// make makes the directory where it is missing.
func (d *cacheDir) make() error {
	if d.exists {
		return nil
	}
	mkdir := os.Mkdir
	if d.parents {
		mkdir = os.MkdirAll
	}
	if err := mkdir(d.path, 0o700); err != nil && !os.IsExist(err) {
		return fmt.Errorf("cache directory %s cannot be made: %w; choose another with --cache-dir", d.path, err)
	}
	return nil
}

// undo removes what a mount that failed has made. Nothing goes that was there before, nor
// anything of another mount that came in between.
func (d *cacheDir) undo() {
	if !d.empty {
		return
	}
	for _, lock := range []string{cacheLock, filepath.Join(cacheIndex, "lock")} {
		f, err := os.Open(filepath.Join(d.path, lock))
		if err != nil {
			continue
		}
		defer func() { _ = f.Close() }()
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return
		}
	}
	// What cannot be removed stays: it does no harm, and the error that is told is another.
	for _, n := range []string{cacheIndex, cacheObjects, cacheFormatFile, cacheFormatFile + ".new", cacheLog, cacheLock} {
		_ = os.RemoveAll(filepath.Join(d.path, n))
	}
	// Never a file that somebody has written: the directory goes if it is empty.
	_ = os.Remove(filepath.Join(d.path, cacheStaging, cacheBallast))
	_ = os.Remove(filepath.Join(d.path, cacheStaging))
	if !d.exists {
		_ = os.Remove(d.path)
	}
}

// resolve is path without symbolic links, as far as it exists.
func resolve(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if dir := filepath.Dir(path); dir != path {
		return filepath.Join(resolve(dir), filepath.Base(path))
	}
	return path
}

// within tells whether path is dir or lies below it; both are absolute and without links.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
