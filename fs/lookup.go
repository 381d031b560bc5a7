package fs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
)

// MaxName is the longest name in bytes, as on any Linux file system.
const MaxName = 255

// Entry is the answer to a lookup: a node, its attributes, and how long both may be kept.
type Entry struct {
	Node NodeID
	Attr Attr
	// Valid is how long the kernel may believe name and attributes without asking.
	Valid time.Duration
	// AttrValid likewise for the attributes: 0 while the kernel may change them by itself.
	AttrValid time.Duration
}

// Lookup finds name in a directory: in the index while that is fresh, else at the origin.
// Errors: ErrNotExist, ErrNotDir, ErrNameTooLong, ErrStale for an unknown node, or the origin's.
func (f *FS) Lookup(ctx context.Context, parent NodeID, name string) (Entry, error) {
	dir, err := f.dir(parent)
	if err != nil {
		return Entry{}, err
	}
	if len(name) > MaxName {
		return Entry{}, ErrNameTooLong
	}
	if !ValidName(name) {
		return Entry{}, ErrNotExist
	}
	in, err := f.lookup(ctx, &dir, name)
	if !errors.Is(err, ErrWouldWait) {
		f.stats.lookups.Add(1)
	}
	if err != nil {
		return Entry{}, err
	}
	return f.entry(&in)
}

// ValidName tells whether a component of a key can be shown as a name: not empty, not "."
// or "..", at most MaxName bytes, no NUL (a slash cannot occur).
func ValidName(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= MaxName &&
		strings.IndexByte(name, 0) < 0
}

// dir returns the directory inode behind a node id.
func (f *FS) dir(n NodeID) (meta.Inode, error) {
	in, err := f.inode(n)
	if err == nil && in.Kind != meta.KindDir {
		err = ErrNotDir
	}
	return in, err
}

// inode returns the inode behind a node id, whatever its generation. A node the index
// does not know, or whose name is gone, is ErrStale, never another file.
func (f *FS) inode(n NodeID) (meta.Inode, error) {
	in, err := f.db.Inode(f.ino(n))
	if errors.Is(err, meta.ErrNotFound) {
		return in, ErrStale
	}
	return in, err
}

// lookup returns the inode of a name, fresh.
func (f *FS) lookup(ctx context.Context, dir *meta.Inode, name string) (meta.Inode, error) {
	in, err := f.find(ctx, dir, name)
	if err == nil && f.untold(&in) {
		return f.head(ctx, dir, &in)
	}
	return in, err
}

// find is lookup; what it finds may be known from a listing only.
func (f *FS) find(ctx context.Context, dir *meta.Inode, name string) (meta.Inode, error) {
	// The listing comes first: a name that is added between the two reads, by a listing that ends between them, would
	// be missing by the one and denied by the other.
	lst, err := f.db.Listing(dir.Ino)
	if err != nil {
		return meta.Inode{}, err
	}
	in, err := f.db.Lookup(dir.Ino, name)
	switch {
	case err == nil && f.freshFor(&in, &lst) > 0:
		return in, nil
	case err == nil:
		return f.confirm(ctx, dir, &in, &lst)
	case !errors.Is(err, meta.ErrNotFound):
		return in, err
	case f.missingIsFresh(dir, &lst, name):
		return in, ErrNotExist
	}
	return f.missing(ctx, dir, &lst, name)
}

const (
	// missesFor is how long misses are remembered: who makes many files looks each name up first.
	missesFor = 10 * time.Second
	// ownPatience is how long a store is given to say whether there is a name in a directory that
	// was made here.
	ownPatience = 2 * time.Second
)

// missing asks the origin for a name that the index does not have. Many misses in a directory are
// answered by one listing of it, which holds for all.
func (f *FS) missing(ctx context.Context, dir *meta.Inode, lst *meta.Listing, name string) (meta.Inode, error) {
	own := dir.Flags&(meta.Local|meta.Ours) != 0
	if own {
		if list, ok := f.missingMeanwhile(lst); ok {
			if list {
				f.list(dir)
			}
			return meta.Inode{}, ErrNotExist
		}
	}
	if noWait(ctx) {
		return meta.Inode{}, ErrWouldWait
	}
	if own && f.negatives.since(negKey(dir.Ino, ""), f.now()-int64(missesFor)) {
		return meta.Inode{}, ErrNotExist // as the origin was not to be reached just now
	}
	ask := ctx
	if own {
		var cancel context.CancelFunc
		ask, cancel = context.WithTimeout(ctx, ownPatience)
		defer cancel()
	}
	in, err := f.ask(ask, dir, lst, name)
	if own && ctx.Err() == nil && (objstore.KindOf(err).Temporary() || errors.Is(err, context.DeadlineExceeded)) {
		// The directory was made here. Work in it goes on while the store is away: should somebody else
		// have put something there, that is a conflict, and both are kept.
		f.negatives.set(negKey(dir.Ino, ""), f.now())
		return in, ErrNotExist
	}
	return in, err
}

// missingMeanwhile tells whether the last listing of a directory that was made here is believed of what is
// missing while the next is under way: who makes one file after the other does not wait for it. The
// more names there are, the longer is between two: a listing costs the daemon and the store some 20 ms for
// each thousand.
func (f *FS) missingMeanwhile(lst *meta.Listing) (list, ok bool) {
	if lst.Complete == 0 || f.opt.NegativeTTL <= 0 || f.publisher.busy(time.Now()) <= 0 {
		return false, false
	}
	every := min(max(f.opt.NegativeTTL, time.Duration(lst.Entries)*ownRelist), ownRelistMost)
	age := time.Duration(f.now() - lst.Complete)
	return age > every, age <= every+ownPatience
}

const (
	// ownRelist is how long, for each name in it, the listing of a directory made here is believed of what is missing
	// while files are made.
	ownRelist = time.Millisecond
	// ownRelistMost is how long at most.
	ownRelistMost = 10 * time.Second
)

func (f *FS) ask(ctx context.Context, dir *meta.Inode, lst *meta.Listing, name string) (meta.Inode, error) {
	n := int64(f.staleHits.add(negKey(dir.Ino, "?"), f.now(), f.now()-int64(missesFor)))
	switch {
	case lst.Complete == 0 && n > inlineMisses:
		f.list(dir) // then there is one to go by
	case lst.Complete != 0 && n > lst.Entries/inlineRelist:
		since := f.now() - int64(f.opt.NegativeTTL)
		if err := f.relist(ctx, dir); err != nil {
			return meta.Inode{}, err
		}
		now, err := f.db.Listing(dir.Ino)
		if err != nil {
			return meta.Inode{}, err
		}
		in, err := f.db.Lookup(dir.Ino, name)
		if !errors.Is(err, meta.ErrNotFound) {
			return in, err
		}
		if now.Complete >= since || f.opt.Immutable {
			return in, ErrNotExist
		}
		// The listing began too long ago to tell.
	}
	return f.resolve(ctx, dir, name)
}

// inlineMisses is how many names that are missing in a directory are asked for one by one before it
// is listed.
const inlineMisses = 4

// freshFor tells how much longer what the index says of in may be believed; lst is its
// parent's listing. Inodes with local changes are the truth themselves.
func (f *FS) freshFor(in *meta.Inode, lst *meta.Listing) time.Duration {
	if in.Ino == f.root.Ino || in.Flags&meta.Local != 0 {
		return f.opt.TTL + time.Second
	}
	confirmed := max(in.Checked, lst.Complete)
	if f.opt.Immutable && confirmed > 0 {
		return 24 * time.Hour
	}
	return time.Duration(confirmed - f.now() + int64(f.opt.TTL))
}

func (f *FS) missingIsFresh(dir *meta.Inode, lst *meta.Listing, name string) bool {
	if f.opt.Immutable && lst.Complete > 0 {
		return true
	}
	oldest := f.now() - int64(f.opt.NegativeTTL)
	return lst.Complete > oldest || f.negatives.since(negKey(dir.Ino, name), oldest)
}

func negKey(dir meta.Ino, name string) string {
	return strconv.FormatUint(uint64(dir), 36) + "/" + name
}

// inlineRelist is the number of names up to which a stale name is confirmed by listing its
// whole directory: one LIST request, which then confirms all the others too.
const inlineRelist = 1000

// revalidate asks the origin whether in is still what the index says.
func (f *FS) revalidate(ctx context.Context, dir, in *meta.Inode, lst *meta.Listing) (meta.Inode, error) {
	if noWait(ctx) {
		return *in, ErrWouldWait
	}
	if lst.Complete != 0 {
		if lst.Entries <= inlineRelist {
			if err := f.relist(ctx, dir); err != nil {
				return *in, err
			}
			return f.afterList(ctx, dir, in)
		}
		// A large directory: ask for this name alone, and once as many names were asked for as
		// a listing has pages, list it in the background.
		n := f.staleHits.add(negKey(dir.Ino, ""), f.now(), f.now()-int64(f.opt.TTL))
		if int64(n) > lst.Entries/inlineRelist && f.opt.TTL > 0 {
			f.list(dir)
		}
	}
	if in.Kind == meta.KindDir {
		return f.resolve(ctx, dir, in.Name)
	}
	return f.head(ctx, dir, in)
}

// afterList reads a name again that a listing has just confirmed, changed or removed.
func (f *FS) afterList(ctx context.Context, dir, old *meta.Inode) (meta.Inode, error) {
	in, err := f.db.Lookup(dir.Ino, old.Name)
	if errors.Is(err, meta.ErrNotFound) {
		return in, ErrNotExist
	}
	return in, err
}

// head confirms a file by HEAD. One request however many ask.
func (f *FS) head(ctx context.Context, dir, in *meta.Inode) (meta.Inode, error) {
	d, i := *dir, *in
	return f.shared(ctx, func() (any, error) {
		return joined(&f.heads, strconv.FormatUint(uint64(i.Ino), 36), func() (any, error) {
			now, err := f.headNow(f.ctx, &d, &i)
			f.heard(err)
			return now, err
		})
	})
}

func (f *FS) headNow(ctx context.Context, dir, in *meta.Inode) (meta.Inode, error) {
	began := f.now()
	obj, err := f.store.Head(ctx, f.key(dir, in), objstore.HeadOptions{})
	if objstore.Is(err, objstore.NotFound) {
		// The name may have become a directory, or be gone.
		return f.resolveNow(ctx, dir, in.Name)
	}
	if err != nil {
		return *in, err
	}
	want := meta.Inode{Parent: dir.Ino, Name: in.Name, Checked: began, Kind: meta.KindFile}
	if err := f.seen(ctx, &want, f.key(dir, in), &obj); err != nil {
		return *in, err
	}
	if in.Kind != want.Kind || want.Kind != meta.KindFile && obj.ETag != in.Object.ETag {
		if in.Links == 0 && !(in.Kind == meta.KindSymlink && obj.ETag == in.Object.ETag) {
			return f.put(dir, &want, &obj, began)
		}
	}
	return f.update(in.Ino, &obj, began)
}

// update records what a HEAD said of a file inode. When the object is another version now,
// the inode gets a new generation, so that the kernel drops what it has.
func (f *FS) update(ino meta.Ino, obj *objstore.Object, began int64) (meta.Inode, error) {
	changed := false
	var old meta.Inode
	in, err := f.db.Update(ino, func(in *meta.Inode) error {
		changed, old = false, *in
		if in.Flags&meta.Local != 0 || in.Checked > began {
			return nil // it knows better
		}
		if obj.ETag != in.Object.ETag || obj.Size != in.Object.Size {
			changed = true
			in.Gen = (in.Gen + 1) & genMask
			in.Object.File = 0
			in.Object.ETag, in.Object.Size = obj.ETag, obj.Size
			in.Flags &^= meta.Ours | meta.Told
			in.MTime, in.CTime = 0, 0 // they were of what was there before
		}
		if f.opt.Metadata && in.Flags&meta.Told == 0 && in.Kind == meta.KindFile && (changed || in.Flags&meta.Ours == 0) {
			f.tell(in, obj)
		}
		in.Object.VersionID = obj.VersionID
		in.Object.MTime = obj.ModTime.UnixNano()
		in.Flags &^= meta.Archived
		if obj.Archived {
			in.Flags |= meta.Archived
		}
		in.Checked = began
		return nil
	})
	if errors.Is(err, meta.ErrNotFound) {
		return in, ErrNotExist
	}
	if errors.Is(err, meta.ErrNoSpace) && old.Ino != 0 && !changed {
		return old, nil // as it was; only when that was confirmed is not remembered
	}
	if err == nil && changed {
		f.notice(&old, obj.ETag, false)
		f.changed(in.Parent, in.Name)
		f.doom(&old)
	}
	return in, err
}

// resolve asks the origin what a name is. One question however many ask.
func (f *FS) resolve(ctx context.Context, dir *meta.Inode, name string) (meta.Inode, error) {
	d := *dir
	return f.shared(ctx, func() (any, error) {
		return joined(&f.resolves, negKey(d.Ino, name), func() (any, error) {
			in, err := f.resolveNow(f.ctx, &d, name)
			f.heard(err)
			return in, err
		})
	})
}

// joined runs work, or waits for the one under the same key that is under way. When that one
// fails, and began before this call did, it says nothing of the origin as it is by now: then work
// is run once more, or another joined that has just begun.
func joined(g *singleflight.Group, key string, work func() (any, error)) (any, error) {
	own := false
	run := func() (any, error) {
		own = true
		return work()
	}
	v, err, _ := g.Do(key, run)
	if !own && objstore.KindOf(err).Temporary() {
		v, err, _ = g.Do(key, run)
	}
	return v, err
}

// shared runs work that others may be waiting for too: it goes on when this caller gives up.
func (f *FS) shared(ctx context.Context, work func() (any, error)) (meta.Inode, error) {
	if noWait(ctx) {
		return meta.Inode{}, ErrWouldWait
	}
	type result struct {
		v   any
		err error
	}
	done := make(chan result, 1)
	f.wg.Add(1)
	go func() {
		defer f.wg.Done()
		v, err := work()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		in, _ := r.v.(meta.Inode)
		return in, r.err
	case <-ctx.Done():
		return meta.Inode{}, ctx.Err()
	}
}

// resolveNow asks for the object and for anything below "name/" at once. A directory hides
// an object of the same name.
func (f *FS) resolveNow(ctx context.Context, dir *meta.Inode, name string) (meta.Inode, error) {
	began := f.now()
	key := dir.Prefix + name
	file, err := f.db.Tomb(key)
	if err := absent(err); err != nil {
		return meta.Inode{}, err
	}
	below, err := f.db.Tomb(key + "/")
	if err := absent(err); err != nil {
		return meta.Inode{}, err
	}
	var (
		obj    objstore.Object
		isFile bool
		isDir  bool
		marker bool
	)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		var err error
		obj, err = f.store.Head(gctx, key, objstore.HeadOptions{})
		if objstore.Is(err, objstore.NotFound) {
			return nil
		}
		isFile = err == nil && !hides(&file, obj.ETag, began)
		return err
	})
	g.Go(func() error {
		page, err := f.store.List(gctx, objstore.ListOptions{Prefix: key + "/", MaxKeys: 1})
		isDir = (len(page.Objects) > 0 || len(page.Prefixes) > 0) && !hidesDir(&below, began)
		marker = len(page.Objects) > 0 && page.Objects[0].Key == key+"/"
		return err
	})
	if err := g.Wait(); err != nil {
		return meta.Inode{}, err
	}
	if !isFile && !isDir {
		if in, known, err := f.gone(dir.Ino, name, began); known || err != nil {
			return in, err
		}
		f.negatives.set(negKey(dir.Ino, name), began)
		return meta.Inode{}, ErrNotExist
	}
	want := meta.Inode{Parent: dir.Ino, Name: name, Checked: began, Kind: meta.KindFile}
	if isDir {
		want.Kind, want.Prefix = meta.KindDir, key+"/"
		if marker {
			want.Flags |= meta.Marker
		}
		if isFile {
			want.Flags |= meta.Shadows
		}
	} else {
		if err := f.seen(ctx, &want, key, &obj); err != nil {
			return meta.Inode{}, err
		}
	}
	return f.put(dir, &want, &obj, began)
}

// setObject gives a new inode what a HEAD said of its object.
func setObject(in *meta.Inode, obj *objstore.Object) {
	in.Object = meta.Object{Size: obj.Size, ETag: obj.ETag, VersionID: obj.VersionID, MTime: obj.ModTime.UnixNano()}
	if obj.Archived {
		in.Flags |= meta.Archived
	}
}

// put makes the index hold want under its name, keeping the inode that is there when it is
// of the same kind.
func (f *FS) put(dir, want *meta.Inode, obj *objstore.Object, began int64) (meta.Inode, error) {
	for range 8 {
		have, err := f.db.Lookup(dir.Ino, want.Name)
		switch {
		case errors.Is(err, meta.ErrNotFound):
			in, err := f.insertSeen(dir, want, began)
			if errors.Is(err, meta.ErrExist) {
				continue
			}
			return in, err
		case err != nil:
			return have, err
		case have.Kind == meta.KindSymlink && want.Kind != meta.KindDir && have.Object.ETag == want.Object.ETag:
			return f.update(have.Ino, obj, began) // whatever its object holds
		case (have.Kind != want.Kind || want.Kind == meta.KindSymlink) && have.Flags&meta.Local == 0:
			if have.Checked > began {
				return have, nil // confirmed since
			}
			if in, known, err := f.gone(dir.Ino, want.Name, began); known || err != nil {
				return in, err
			}
		case have.Kind == meta.KindFile:
			return f.update(have.Ino, obj, began)
		default:
			return f.db.Update(have.Ino, func(in *meta.Inode) error {
				in.Checked = max(in.Checked, began)
				in.Flags |= want.Flags & (meta.Marker | meta.Shadows)
				return nil
			})
		}
	}
	return meta.Inode{}, fmt.Errorf("index: %s keeps changing", f.path(dir.Ino, want.Name))
}

// insertSeen adds what the origin was found to have since began, unless it was removed here meanwhile, or its
// directory renamed.
func (f *FS) insertSeen(dir, want *meta.Inode, began int64) (in meta.Inode, err error) {
	key := dir.Prefix + want.Name
	if want.Kind == meta.KindDir {
		key = want.Prefix
	}
	err = f.db.Do(func(tx *meta.Tx) error {
		t, err := tx.Tomb(key)
		if err == nil && hides(&t, want.Object.ETag, began) {
			return ErrNotExist
		}
		if err != nil && !errors.Is(err, meta.ErrNotFound) {
			return err
		}
		now, err := tx.Inode(dir.Ino)
		if err != nil {
			return err
		}
		if now.Prefix != dir.Prefix {
			return ErrNotExist // it is below another prefix than what was asked for
		}
		in, err = tx.Insert(dir.Ino, *want)
		return err
	})
	return in, err
}

// gone removes a name that the origin does not have, unless it was confirmed or made since
// began, or has below it what is only here: then it is known, and what the index has counts.
func (f *FS) gone(dir meta.Ino, name string, began int64) (have meta.Inode, known bool, err error) {
	in, removed, err := f.db.RemoveIf(dir, name, func(in *meta.Inode, lst *meta.Listing) bool {
		// A listing that began since may have brought it; it removes what it does not find.
		return in.Flags&meta.Local == 0 && max(in.Checked, lst.Complete) <= began && !f.listedSince(dir, began)
	})
	if errors.Is(err, meta.ErrNotFound) {
		return in, false, nil
	}
	if err != nil || !removed {
		return in, true, err
	}
	f.notice(&in, "", true)
	f.changed(dir, name)
	f.doom(&in)
	return in, false, nil
}
