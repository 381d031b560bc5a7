package file

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
)

// openat2 opens a path below the root, which no link and no ".." leaves.
func (s *Store) openat2(name string, flags int) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	}
	for range 100 {
		fd, err := unix.Openat2(int(s.root.Fd()), name, &how)
		// EAGAIN: a rename ran beside the walk and the kernel could not prove where it is.
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
	return -1, unix.EAGAIN
}

// openDir opens a directory by its key prefix, "" or "a/b/", without following links to it.
func (s *Store) openDir(prefix string, flags int) (int, error) {
	if prefix == "" {
		return s.openat2(".", flags|unix.O_DIRECTORY)
	}
	return s.openat2(prefix[:len(prefix)-1], flags|unix.O_DIRECTORY|unix.O_NOFOLLOW)
}

// stat describes the regular file at key.
func (s *Store) stat(key string) (unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := s.openat2(key, unix.O_PATH)
	if err != nil {
		return st, err
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &st); err != nil {
		return st, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return st, unix.ENOENT
	}
	return st, nil
}

// open opens the regular file at key for reading and waits until it has settled.
func (s *Store) open(ctx context.Context, key string) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := s.openat2(key, unix.O_RDONLY|unix.O_NONBLOCK) // does not hang on a FIFO
	if err != nil {
		return nil, st, err
	}
	f := os.NewFile(uintptr(fd), key)
	st, err = settle(ctx, f)
	if err != nil {
		f.Close()
		return nil, st, err
	}
	return f, st, nil
}

// tick is longer than a kernel's clock tick (CONFIG_HZ is 100 or more), in which two
// changes of a file may get the same timestamps.
const tick = 20 * time.Millisecond

// settle returns the state of f once its last change lies a tick back: any later change
// then has other timestamps. A ctime in the future, of another machine's clock, is not
// waited for.
func settle(ctx context.Context, f *os.File) (unix.Stat_t, error) {
	for {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return st, err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return st, unix.ENOENT
		}
		age := time.Since(time.Unix(st.Ctim.Unix()))
		if age < 0 || age >= tick {
			return st, nil
		}
		t := time.NewTimer(tick - age)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return st, ctx.Err()
		}
	}
}

// etag names a version. The device is left out where it is the root's own: network
// filesystems get another number at every mount, and a restart would lose the cache.
func (s *Store) etag(st *unix.Stat_t) string {
	e := fmt.Sprintf("%x-%x-%x-%x", st.Ino, st.Size, unix.TimespecToNsec(st.Mtim), unix.TimespecToNsec(st.Ctim))
	if uint64(st.Dev) != s.dev {
		e += fmt.Sprintf("-%x", st.Dev)
	}
	return e
}

// object describes a file without its attributes.
func (s *Store) object(key string, st *unix.Stat_t) objstore.Object {
	return objstore.Object{Key: key, Size: st.Size, ETag: s.etag(st), ModTime: time.Unix(st.Mtim.Unix())}
}
