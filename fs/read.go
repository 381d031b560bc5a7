package fs

import (
	"context"
	"errors"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
)

// Read reads up to n bytes of an open node at off; fewer only at the end of the file. pid is
// the process that reads, for the prefetcher to tell streams apart; 0 when unknown.
//
// Errors: ErrBadHandle for a node that is not open; ErrStale when the object has been
// replaced at the origin and these bytes of the old version are not in the cache; otherwise
// the origin's.
func (f *FS) Read(ctx context.Context, node NodeID, fh uint64, off, n int64, pid uint32) (*cache.Data, error) {
	o := f.open.get(node)
	if o == nil {
		return nil, ErrBadHandle
	}
	if o.restored {
		var err error
		if o, err = f.revive(ctx, node); err != nil {
			return nil, err
		}
		if o == nil {
			return nil, ErrBadHandle
		}
	}
	if o.stage != 0 {
		d, err := f.readStaged(ctx, o, off, n)
		if !errors.Is(err, cache.ErrNoStage) {
			return d, err
		}
		// It has just been published: as what, is known when that has ended.
		end, berr := f.open.begin(ctx, node)
		if berr != nil {
			return nil, berr
		}
		end(nil)
		if f.open.get(node) == o {
			return nil, err
		}
		return f.Read(ctx, node, fh, off, n, pid)
	}
	o.use.RLock()
	if o.moved {
		o.use.RUnlock()
		return f.Read(ctx, node, fh, off, n, pid)
	}
	defer o.use.RUnlock()
	if o.obj == nil || off >= o.inode.Object.Size || n <= 0 {
		return &cache.Data{}, nil
	}
	if err := o.failed.get(fh, off, f.now()); err != nil && o.obj.Missing(off, n) {
		return nil, err
	}
	f.stats.reads.Add(1)
	f.engine.OnRead(o.obj, fh, pid, off, n, o.inode.Object.Size)
	d, err := o.obj.Read(ctx, off, n)
	if err != nil {
		return nil, f.readFailed(ctx, o, fh, off, n, err)
	}
	f.stats.readBytes.Add(n)
	return d, nil
}

func (f *FS) readFailed(ctx context.Context, o *openNode, fh uint64, off, n int64, err error) error {
	path := f.path(o.inode.Parent, o.inode.Name)
	if !errors.Is(err, cache.ErrStale) {
		failed := &PathError{Op: "read", Path: path, Err: err}
		if objstore.KindOf(err).Temporary() {
			o.failed.set(fh, off, n, f.now(), failed)
		}
		return failed
	}
	// The next open shall not wait for the TTL to see the new version.
	in, ierr := f.inode(o.node) // it may have been renamed since it was opened
	if dir, derr := f.db.Inode(in.Parent); ierr == nil && derr == nil && in.Object.ETag == o.inode.Object.ETag {
		if _, herr := f.head(ctx, &dir, &in); herr != nil {
			f.log.Debug("object changed while open, and asking for its new version failed", "path", path, "err", herr)
		}
	}
	return &PathError{Op: "read", Path: path, Err: ErrStale}
}
