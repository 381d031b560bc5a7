package fs

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/publish"
	"github.com/leatfs/leatfs/objstore"
)

// Copy is what is known here of a file, for somebody who compares it with the origin. It is of the
// moment of asking.
type Copy struct {
	Path string `json:"path"` // below the mount, with a leading "/"
	Kind string `json:"kind"` // file, symlink; or a kind that is only here
	Ino  uint64 `json:"ino"`
	Size int64  `json:"size"` // bytes
	// Only says that the origin never gets it (a FIFO, a socket, a device).
	Only bool `json:"only,omitempty"`
	// Pending says that the origin has not yet what is here, and why; Error is that of the last try.
	Pending LedgerState `json:"pending,omitempty"`
	Error   string      `json:"error,omitempty"`
	// Key, ETag and VersionID are the version of the object that is to be equal to what is here. Of a
	// pending file it is the version before, and ETag is "" when there was none.
	Key       string `json:"key"`
	ETag      string `json:"etag,omitempty"`
	VersionID string `json:"version_id,omitempty"`
	// Ours: this node published it.
	Ours bool `json:"ours,omitempty"`
	// File is the file on the cache's disk that holds all of the content; "" when there is none. It
	// may be renamed, changed or removed at any moment: what was found in it counts only if a second
	// Copy equals this one.
	File string `json:"file,omitempty"`
	// Partly says that some of the content may be here, and no file holds all of it.
	Partly bool   `json:"partly,omitempty"`
	Target string `json:"target,omitempty"` // of a symlink
}

// Copies calls emit for what is at a path below the mount: a file, or all files below a directory, in
// no particular order. It tells what the index believes, also where that is older than the TTL: to be
// asked what has changed at the origin, the origin must not be asked before. Only a directory that was
// never listed, or not within the TTL, is listed, after what was known of it has been told.
//
// Errors: ErrNotExist, ErrNotDir, emit's, or the origin's for a listing.
func (f *FS) Copies(ctx context.Context, path string, emit func(*Copy) error) error {
	dir, err := f.db.Inode(f.root.Ino)
	if err != nil {
		return err
	}
	in := dir
	for name := range strings.SplitSeq(path, "/") {
		if name == "" {
			continue
		}
		if in.Kind != meta.KindDir {
			return ErrNotDir
		}
		dir = in
		if !ValidName(name) {
			return ErrNotExist
		}
		in, err = f.db.Lookup(dir.Ino, name)
		if errors.Is(err, meta.ErrNotFound) {
			in, err = f.lookup(ctx, &dir, name)
		}
		if err != nil {
			return err
		}
	}
	w := copyWalk{f: f, emit: emit}
	if in.Kind != meta.KindDir {
		return w.file(ctx, &dir, &in)
	}
	todo := []meta.Inode{in}
	for len(todo) > 0 {
		last := todo[len(todo)-1]
		dirs, err := w.dir(ctx, &last)
		if err != nil {
			return err
		}
		todo = append(todo[:len(todo)-1], dirs...)
	}
	return nil
}

// copyWalk is one call of Copies.
type copyWalk struct {
	f     *FS
	emit  func(*Copy) error
	queue map[uint64]publish.ItemState // what is to be published; made when first wanted
}

// dir tells of the files of one directory and returns the directories in it.
func (w *copyWalk) dir(ctx context.Context, dir *meta.Inode) (dirs []meta.Inode, err error) {
	newest, err := w.names(ctx, dir, 0, &dirs)
	if err != nil {
		return nil, err
	}
	if err := w.f.listed(ctx, dir); err != nil {
		return nil, &PathError{Op: "list", Path: w.f.path(dir.Parent, dir.Name), Err: err}
	}
	// What the listing has added has larger numbers than all that was there.
	_, err = w.names(ctx, dir, newest, &dirs)
	return dirs, err
}

// names tells of the names of a directory whose inode numbers are larger than one, and returns the
// largest of all.
func (w *copyWalk) names(ctx context.Context, dir *meta.Inode, above meta.Ino, dirs *[]meta.Inode) (meta.Ino, error) {
	newest := above
	var failed error
	err := w.f.db.Readdir(dir.Ino, "", 0, func(in meta.Inode) bool {
		newest = max(newest, in.Ino)
		switch {
		case in.Ino <= above:
		case in.Kind == meta.KindDir:
			*dirs = append(*dirs, in)
		default:
			if failed = ctx.Err(); failed == nil {
				failed = w.file(ctx, dir, &in)
			}
		}
		return failed == nil
	})
	return newest, errors.Join(err, failed)
}

// file tells of one.
func (w *copyWalk) file(ctx context.Context, dir, in *meta.Inode) error {
	for range 4 {
		c, err := w.copy(ctx, dir, in)
		if err == nil {
			return w.emit(c)
		}
		if !errors.Is(err, cache.ErrNoStage) {
			return &PathError{Op: "verify", Path: w.f.path(dir.Ino, in.Name), Err: err}
		}
		// It was published, or removed, just now.
		now, err := w.f.db.Lookup(dir.Ino, in.Name)
		if errors.Is(err, meta.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		in = &now
	}
	return &PathError{Op: "verify", Path: w.f.path(dir.Ino, in.Name), Err: errors.New("it keeps changing")}
}

// copy describes one.
func (w *copyWalk) copy(ctx context.Context, dir, in *meta.Inode) (*Copy, error) {
	f := w.f
	c := Copy{Path: f.path(dir.Ino, in.Name), Kind: in.Kind.String(), Ino: uint64(in.Ino), Size: in.Object.Size,
		Ours: in.Flags&meta.Ours != 0, Target: in.Target}
	switch in.Kind {
	case meta.KindFile:
	case meta.KindSymlink:
		c.Size = int64(len(in.Target))
	default:
		c.Only = true
		return &c, nil
	}
	c.Key, c.ETag, c.VersionID = f.key(dir, in), in.Object.ETag, in.Object.VersionID
	if err := w.pending(in, &c); err != nil {
		return nil, err
	}
	switch {
	case in.Stage != 0:
		file, err := f.cache.OpenStage(in.Stage, os.O_RDONLY)
		if err != nil {
			return nil, err
		}
		defer closeFile(file)
		st, err := file.Stat()
		if err != nil {
			return nil, err
		}
		c.Size = st.Size()
		if c.Partly = in.Flags&meta.Overlay != 0; !c.Partly { // else its holes are in the object
			c.File = file.Name()
		}
	case in.Kind == meta.KindFile && in.Object.Size > 0:
		w.cached(ctx, in, &c)
	}
	return &c, nil
}

// pending tells why the origin has not what an inode is, if so.
func (w *copyWalk) pending(in *meta.Inode, c *Copy) error {
	d, err := w.f.db.Dirty(in.Ino)
	if errors.Is(err, meta.ErrNotFound) {
		if in.Stage != 0 {
			c.Pending = LedgerOpen
		}
		return nil
	}
	if err != nil {
		return err
	}
	if w.queue == nil {
		w.queue = make(map[uint64]publish.ItemState)
		for _, s := range w.f.publisher.queue.Snapshot() {
			w.queue[s.ID] = s
		}
	}
	q, queued := w.queue[uint64(in.Ino)]
	c.Pending, c.Error = w.f.ledgerState(&d, &q, queued), d.Error
	if queued && q.Error != "" {
		c.Error = q.Error
	}
	return nil
}

// cached finds the file in the cache that holds a version. That it counts as no use of the file is
// meant: who checks a thousand files does not want them.
func (w *copyWalk) cached(ctx context.Context, in *meta.Inode, c *Copy) {
	ident, err := w.f.identity(in)
	if err != nil {
		return
	}
	if _, err := w.f.db.Find(ident); err != nil {
		return // nothing of it is here
	}
	c.Partly = true
	o, err := w.f.cache.Object(objstore.WithPriority(ctx, objstore.Background), ident, w.f.store)
	if err != nil {
		return
	}
	defer o.Release()
	file, err := o.Lend()
	if err != nil {
		return
	}
	c.File, c.Partly = file.Name(), false
	closeFile(file)
	o.Return()
}

// Under tells whether a key is one of this mount's.
func (f *FS) Under(key string) bool { return strings.HasPrefix(key, f.root.Prefix) }
