package fs

import (
	"context"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs/meta"
)

// The bounds of Linux for extended attributes, in bytes, and those of here: what all attributes of
// an inode have together.
const (
	maxXattrName  = 255
	maxXattrValue = 64 << 10
	maxXattrs     = 64 << 10
)

// xattrName tells why an attribute cannot be kept, nil if it can.
func xattrName(name string) error {
	if len(name) > maxXattrName || name == "" {
		return ErrInvalid
	}
	if strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "trusted.") {
		return nil
	}
	return ErrUnsupported
}

// Getxattr returns an extended attribute of a node. Names of the namespaces "user." and "trusted."
// are kept, in the index: they do not go to the origin. ErrNoAttr where there is none.
func (f *FS) Getxattr(_ context.Context, node NodeID, name string) (v []byte, err error) {
	if err := xattrName(name); err != nil {
		return nil, err
	}
	v, err = f.db.Xattr(f.ino(node), name)
	if errors.Is(err, meta.ErrNotFound) {
		err = ErrNoAttr
	}
	return v, err
}

// Setxattr sets one; flags are those of setxattr(2).
func (f *FS) Setxattr(ctx context.Context, node NodeID, name string, value []byte, flags int) error {
	if noWait(ctx) {
		return ErrWouldWait
	}
	if f.opt.ReadOnly {
		return ErrReadOnly
	}
	if err := xattrName(name); err != nil {
		return err
	}
	if len(value) > maxXattrValue {
		return ErrTooBig
	}
	return f.changeXattr(ctx, node, func(tx *meta.Tx, ino meta.Ino) error {
		_, err := tx.Xattr(ino, name)
		switch {
		case err == nil && flags&unix.XATTR_CREATE != 0:
			return ErrExist
		case errors.Is(err, meta.ErrNotFound) && flags&unix.XATTR_REPLACE != 0:
			return ErrNoAttr
		case err != nil && !errors.Is(err, meta.ErrNotFound):
			return err
		}
		names, err := tx.Xattrs(ino)
		if err != nil {
			return err
		}
		total := len(name) + len(value)
		for _, n := range names {
			if n == name {
				continue
			}
			v, err := tx.Xattr(ino, n)
			if err != nil {
				return err
			}
			total += len(n) + len(v)
		}
		if total > maxXattrs {
			return ErrNoRoom
		}
		return tx.SetXattr(ino, name, value)
	})
}

// Listxattr returns the names of all.
func (f *FS) Listxattr(_ context.Context, node NodeID) ([]string, error) {
	names, err := f.db.Xattrs(f.ino(node))
	return slices.DeleteFunc(names, func(n string) bool { return xattrName(n) != nil }), err
}

// Removexattr takes one away.
func (f *FS) Removexattr(ctx context.Context, node NodeID, name string) error {
	if noWait(ctx) {
		return ErrWouldWait
	}
	if f.opt.ReadOnly {
		return ErrReadOnly
	}
	if err := xattrName(name); err != nil {
		return err
	}
	return f.changeXattr(ctx, node, func(tx *meta.Tx, ino meta.Ino) error {
		err := tx.RemoveXattr(ino, name)
		if errors.Is(err, meta.ErrNotFound) {
			return ErrNoAttr
		}
		return err
	})
}

func (f *FS) changeXattr(ctx context.Context, node NodeID, fn func(tx *meta.Tx, ino meta.Ino) error) error {
	if _, ok, err := f.carriedOut(ctx, opXattr); ok || err != nil {
		return err
	}
	now := f.now()
	err := f.change(ctx, opXattr, func(tx *meta.Tx) error {
		in, err := tx.Inode(f.ino(node))
		if err != nil {
			return err
		}
		tx.Result(&in)
		if err := fn(tx, in.Ino); err != nil {
			return err
		}
		in.CTime = now
		return tx.Update(&in)
	})
	if errors.Is(err, meta.ErrNotFound) {
		err = ErrStale
	}
	return err
}
