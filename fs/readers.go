package fs

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
)

// Who has a file open keeps it when it is removed here, or something else takes its name, as on a disk.
// What is not here of an object can be read only as long as the origin has it; so before an object is deleted or
// replaced, what is missing of it is fetched, if anybody has it open. (Where a bucket keeps versions they all stay
// there.) One that is renamed has the same bytes at another key: see Cache.Moved.

// readersPoll is how often it is looked whether anybody still has an object open that is being fetched for that.
const readersPoll = time.Second

// reading returns the objects that were opened here, are not known to be whole here (see cache.Object.Passthroughable), and are the version of a key with
// this ETag ("": any), each with a reference. One that lies below the overlay of inode own is not among them.
func (t *openTable) reading(key, etag string, own meta.Ino) (out []*cache.Object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.nodes {
		if o.handles == 0 || o.obj == nil || o.pass || o.over && (o.node.Ino() == own || o.whole.Load()) || slices.Contains(out, o.obj) {
			continue
		}
		i := o.obj.Identity()
		if i.Key == key && i.VersionID == "" && (etag == "" || i.ETag == etag) && !o.obj.Passthroughable() {
			o.obj.Retain()
			out = append(out, o.obj)
		}
	}
	return out
}

// uses tells whether anybody has an object open.
func (t *openTable) uses(obj *cache.Object) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.nodes {
		if o.handles > 0 && o.obj == obj {
			return true
		}
	}
	return false
}

// takenOver returns the nodes that the process before opened and of which nothing is known yet, if the
// daemon serves them.
func (t *openTable) takenOver() (out []NodeID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n, o := range t.nodes {
		if o.restored && !o.pass && o.handles > 0 {
			out = append(out, n)
		}
	}
	return out
}

// keepReaders returns when all who have the version of a key with this ETag open can do without the
// origin. ErrNotKept when the cache has no room for what they read; an error that passes when the
// origin does not give it. own is an inode that is published there, if any: where it is an overlay of the version,
// it lies over what has landed afterwards.
func (f *FS) keepReaders(ctx context.Context, key, etag string, own meta.Ino) error {
	for _, n := range f.open.takenOver() {
		if _, err := f.revive(ctx, n); err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	var errs []error
	for _, obj := range f.open.reading(key, etag, own) {
		errs = append(errs, f.keepObject(ctx, obj))
		obj.Release()
	}
	return errors.Join(errs...)
}

func (f *FS) keepObject(ctx context.Context, obj *cache.Object) error {
	ctx, stop := context.WithCancel(objstore.WithPriority(ctx, objstore.Prefetch))
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for f.open.uses(obj) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(readersPoll):
			}
		}
		stop()
	}()
	err := obj.Fetch(ctx)
	stop()
	<-watched
	switch {
	case err == nil || !f.open.uses(obj) || errors.Is(err, cache.ErrStale):
		return nil
	case errors.Is(err, cache.ErrNotKept), errors.Is(err, cache.ErrClosed), errors.Is(err, context.Canceled), objstore.KindOf(err).Temporary():
		return err
	}
	f.log.Warn("an object that is open goes from the bucket and cannot be read to the end before", "key", obj.Identity().Key, "err", err)
	return nil // nor could its readers
}

// keepReplaced is keepReaders for what a publication replaces: that does not wait for the sake of readers for
// whom there is no room.
func (f *FS) keepReplaced(ctx context.Context, w *work) error {
	if w.base == "" {
		return nil
	}
	err := f.keepReaders(ctx, w.key, w.base, w.in.Ino)
	if errors.Is(err, cache.ErrNotKept) {
		f.log.Warn("what is open of a replaced object does not fit into the cache: reads of the rest will fail", "path", f.path(w.dir.Ino, w.in.Name), "err", err)
		return nil
	}
	return err
}

// moved prepares that the object of an inode, which the origin has copied to where its name says, is read
// and kept under that key from now on. The caller is the only one to open the inode's present node.
func (f *FS) moved(w *work, version *meta.Object) func(ok bool) {
	from, err := f.identity(&w.in)
	if err == nil {
		to := cache.Identity{Origin: from.Origin, Key: w.key, ETag: version.ETag, VersionID: version.VersionID, Size: version.Size, Inode: from.Inode}
		var commit func(bool)
		if commit, err = f.cache.Moved(from, to); err == nil {
			return commit
		}
	}
	f.log.Warn("what is in the cache of a renamed file is fetched again", "path", f.path(w.dir.Ino, w.in.Name), "err", err)
	return func(bool) {}
}

// movedPast has the earlier generations of an inode that are open know where their object is now. now is the inode.
func (f *FS) movedPast(tx *meta.Tx, w *work, now *meta.Inode) error {
	for _, n := range f.open.nodesOf(now.Ino) {
		if n.Gen() == now.Gen {
			continue
		}
		err := tx.Past(now.Ino, n.Gen(), func(in *meta.Inode) {
			if in.Stage == 0 && in.Object.ETag == w.in.Object.ETag && in.Object.Size == w.in.Object.Size {
				in.Object = now.Object
				in.Object.Key = w.key
			}
		})
		if err := absent(err); err != nil {
			return err
		}
	}
	return nil
}

// setRead notes whether the deletion of a key waits for somebody to close what was removed.
func (p *publisher) setRead(key string, waits bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if waits {
		p.read[key] = true
	} else {
		delete(p.read, key)
	}
}

// isRead tells whether a deletion waits for somebody to close what was removed: its own object, or one below.
func (p *publisher) isRead(t *meta.Tomb) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !t.Prefix {
		return p.read[t.Key]
	}
	for key := range p.read {
		if strings.HasPrefix(key, t.Key) {
			return true
		}
	}
	return false
}

// unread has the deletion go on that waited for somebody to close a removed file.
func (f *FS) unread(in *meta.Inode) {
	if in.Flags&meta.Removed == 0 || in.Object.Size == 0 || f.db.TombCount() == 0 {
		return
	}
	if ident, err := f.identity(in); err == nil {
		f.publisher.setRead(ident.Key, false)
		f.publisher.queue.Retry(f.tombID(ident.Key))
	}
}
