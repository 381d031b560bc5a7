package file

import (
	"context"
	"errors"
	"sync"

	"github.com/leatfs/leatfs/objstore"
)

// later is a Store whose directory is opened by the first request that finds it there.
type later struct {
	objstore.Store // asks open before each request
	dir            string

	mu     sync.Mutex
	store  *Store // its fields are set by open, with mu; requests read them after that
	opened bool   // by mu
	closed bool   // by mu
}

// OpenLater is Open for who knows that dir is a directory of this kind, and serves it again after a
// restart: nothing is asked of it now, so that it may be away for a moment. Until it is there
// requests fail with kind Unavailable. What Caps says of checksums counts once a request has
// succeeded.
func OpenLater(dir string) (objstore.Store, error) {
	abs, err := absolute(dir)
	if err != nil {
		return nil, wrap(opOpen, dir, err)
	}
	l := &later{dir: abs, store: &Store{name: "file://" + abs, window: windowNames}}
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
