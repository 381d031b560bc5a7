package file

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
)

// later is a Store whose directory is opened by the first request that finds it there.
type later struct {
	objstore.Store // asks open before each request
	dir            string
	known          Known

	mu     sync.Mutex
	store  *Store // its fields are set by open, with mu; requests read them after that
	opened bool   // by mu
	closed bool   // by mu
}

// Known is what OpenLater wants to know of the directory that was opened before.
type Known struct {
	Ino uint64 // its inode number; 0: not known
}

// Known returns what a later OpenLater of the same directory wants to know.
func (s *Store) Known() (Known, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(s.root.Fd()), &st); err != nil {
		return Known{}, wrap(opOpen, s.name, err)
	}
	return Known{Ino: st.Ino}, nil
}

// OpenLater is Open for who knows that dir is a directory of this kind, and serves it again after a
// restart: nothing is asked of it now, so that it may be away for a moment. Until it is there
// requests fail with kind Unavailable, also where another directory is in its place, such as the
// empty one that a file system was mounted on. What Caps says of checksums counts once a request has
// succeeded.
func OpenLater(dir string, known Known) (objstore.Store, error) {
	abs, err := absolute(dir)
	if err != nil {
		return nil, wrap(opOpen, dir, err)
	}
	l := &later{dir: abs, known: known, store: &Store{name: "file://" + abs, window: windowNames}}
	l.Store = objstore.Around(l.store, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
		if err := canceled(ctx, op.Name, op.Key); err != nil {
			return err
		}
		if err := l.open(); err != nil {
			return err
		}
		return call(ctx)
	})
	return l, nil
}

// open opens the directory if that has not been done.
func (l *later) open() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.opened {
		return nil
	}
	if l.closed {
		return &objstore.Error{Op: opOpen, Key: l.dir, Kind: objstore.Canceled, Hint: "the store is closed"}
	}
	s, err := Open(l.dir)
	var e *objstore.Error
	if errors.As(err, &e) && e.Kind == objstore.NoBucket {
		e.Kind, e.Hint = objstore.Unavailable, "it was there when it was mounted, and is not now"
	}
	if err != nil {
		return err
	}
	now, err := s.Known()
	if err == nil && l.known.Ino != 0 && now != l.known {
		err = &objstore.Error{Op: opOpen, Key: l.dir, Kind: objstore.Unavailable,
			Hint: "another directory is there than the one that was mounted; unmount and mount again to use it"}
	}
	if err != nil {
		return errors.Join(err, s.Close())
	}
	l.store.root, l.store.dev, l.store.xattrs = s.root, s.dev, s.xattrs
	l.opened = true
	return nil
}

// Caps implements objstore.Store.
func (l *later) Caps() objstore.Caps {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.store.Caps()
}

// Close implements objstore.Store.
func (l *later) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if !l.opened {
		return nil
	}
	return l.store.Close()
}
