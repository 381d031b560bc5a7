package fs

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
)

// DirEntry is one name of a directory. Cookie is the position after it: the inode number of
// the entry, which the index can place again after a restart; "." and ".." are 1 and 2,
// below every inode number.
type DirEntry struct {
	Name   string
	Cookie uint64
	Entry  Entry
}

// The cookies of the two names that every directory has.
const (
	cookieDot    = 1
	cookieDotDot = 2
)

// DirHandle is an open directory. It holds nothing that cannot be found again: the listing
// it follows, and the name behind the last cookie.
type DirHandle struct {
	fs     *FS
	dir    meta.Inode
	opened int64

	mu         sync.Mutex
	job        *listJob // nil: the index was fresh; by mu
	lastCookie uint64   // by mu
	lastName   string   // by mu
}

// Opendir opens a directory, and begins to list it when the index is not fresh.
func (f *FS) Opendir(ctx context.Context, node NodeID) (*DirHandle, error) {
	dir, err := f.dir(node)
	if err != nil {
		return nil, err
	}
	lst, err := f.db.Listing(dir.Ino)
	if err != nil {
		return nil, err
	}
	h := &DirHandle{fs: f, dir: dir, opened: f.now()}
	fresh := lst.Complete > 0 && (f.opt.Immutable || lst.Complete > f.now()-int64(f.opt.TTL))
	if _, recently := f.away.state(f.now()); !fresh && (!recently || !f.staleListing(&dir, &lst)) {
		h.job = f.list(&dir)
	}
	return h, nil
}

// Readdir calls emit for each entry after cookie (0 is the beginning), in byte order of
// names, until emit returns false or the directory ends. Entries come while the listing goes
// on. It may be called in parallel, though nobody does.
func (h *DirHandle) Readdir(ctx context.Context, cookie uint64, emit func(*DirEntry) bool) error {
	f := h.fs
	if cookie < cookieDot && !emit(h.dot(".", cookieDot, h.dir.Ino)) {
		return nil
	}
	if cookie < cookieDotDot && !emit(h.dot("..", cookieDotDot, h.dir.Parent)) {
		return nil
	}
	after, err := h.nameOf(cookie)
	if err != nil {
		return err
	}
	lst, err := f.db.Listing(h.dir.Ino)
	if err != nil {
		return err
	}
	emitted := false
	var patience <-chan time.Time
	stale := f.staleListing(&h.dir, &lst)
	if failing, _ := f.away.state(f.now()); failing && stale {
		t := time.NewTimer(awayPatience)
		defer t.Stop()
		patience = t.C
	}
	for {
		key, all, more := "", true, (<-chan struct{})(nil)
		job := h.listing()
		if job != nil {
			key, all, more = job.frontier()
		}
		full := false
		var e DirEntry
		err := f.db.Readdir(h.dir.Ino, after, readdirBatch, func(in meta.Inode) bool {
			if !all && listedBefore(in.Name) > key {
				return false
			}
			valid := f.freshFor(&in, &lst)
			if job != nil {
				valid = time.Duration(job.began - f.now() + int64(f.opt.TTL))
			}
			e = DirEntry{Name: in.Name, Cookie: uint64(in.Ino),
				Entry: Entry{Node: f.nodeOf(&in), Attr: f.attr(&in), Valid: max(0, valid)}}
			if f.untold(&in) {
				e.Entry.Valid, e.Entry.Attr.Kind = 0, 0 // it may be a symbolic link
			} else if in.Stage != 0 {
				e.Entry.Valid = 0 // its attributes are asked for when they are wanted
			} else if in.Flags&meta.Local != 0 {
				e.Entry.Valid = f.opt.TTL
			}
			e.Entry.AttrValid = e.Entry.Valid
			if !emit(&e) {
				full = true
				return false
			}
			after, emitted = in.Name, true
			h.setLast(e.Cookie, in.Name)
			return true
		})
		if err != nil || full {
			return err
		}
		if all {
			// Nothing more, or a batch ended: ask once more from where it ended.
			if e.Name == "" {
				return nil
			}
			continue
		}
		if emitted {
			return nil // give what there is; the rest comes with the next call
		}
		if noWait(ctx) {
			return ErrWouldWait
		}
		select {
		case <-more:
		case <-job.done:
			if job.err != nil {
				if h.again(job) || stale && unanswered(ctx, job.err) && h.goWithout(job) {
					continue
				}
				return &PathError{Op: "list", Path: f.path(h.dir.Parent, h.dir.Name), Err: job.err}
			}
			job.mu.Lock()
			job.ranges = []keyRange{{end: true}}
			job.mu.Unlock()
		case <-patience:
			h.goWithout(job)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// listing is the listing that the handle follows.
func (h *DirHandle) listing() *listJob {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.job
}

// again has the handle follow another listing, if the one that failed had begun before the
// directory was opened and so says nothing of the origin as it was then.
func (h *DirHandle) again(failed *listJob) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.job != failed {
		return true
	}
	if failed.began >= h.opened || !objstore.KindOf(failed.err).Temporary() {
		return false
	}
	h.job = h.fs.list(&h.dir)
	return true
}

// goWithout has the handle show what the index has, without the listing that it follows: the origin does not answer.
func (h *DirHandle) goWithout(failed *listJob) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.job == failed {
		h.job = nil
		h.fs.stale(&h.dir)
	}
	return true
}

// readdirBatch bounds the entries that one index transaction reads; a reply to the kernel
// holds fewer.
const readdirBatch = 4096

func (h *DirHandle) dot(name string, cookie uint64, ino meta.Ino) *DirEntry {
	f := h.fs
	a := Attr{Ino: uint64(ino), Kind: meta.KindDir}
	if ino == f.root.Ino || ino == 0 {
		a.Ino = uint64(RootNode)
	}
	return &DirEntry{Name: name, Cookie: cookie, Entry: Entry{Attr: a}}
}

func (h *DirHandle) setLast(cookie uint64, name string) {
	h.mu.Lock()
	h.lastCookie, h.lastName = cookie, name
	h.mu.Unlock()
}

// nameOf is the name after which a cookie stands.
func (h *DirHandle) nameOf(cookie uint64) (string, error) {
	if cookie <= cookieDotDot {
		return "", nil
	}
	h.mu.Lock()
	c, n := h.lastCookie, h.lastName
	h.mu.Unlock()
	if c == cookie {
		return n, nil
	}
	in, err := h.fs.db.Inode(meta.Ino(cookie))
	if errors.Is(err, meta.ErrNotFound) || err == nil && in.Parent != h.dir.Ino {
		return "", ErrInvalid
	}
	return in.Name, err
}
