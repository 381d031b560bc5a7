package fs

import (
	"context"
	"errors"
	"sort"
	"strings"
	"sync"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/list"
)

// listJob is the listing of one directory under way. It may run ahead of its readers or
// behind them: they follow its frontier.
type listJob struct {
	began int64
	done  chan struct{} // closed at the end by the goroutine that lists

	mu      sync.Mutex
	ranges  []keyRange    // listed so far, sorted, disjoint, joined where they touch; by mu
	moved   chan struct{} // closed and replaced when ranges grew; by mu
	entries int64         // by mu
	hidden  int64         // by mu
	err     error         // set before done is closed
}

// keyRange is (from, to] in keys relative to the directory; from "" is the beginning, end
// means that there is nothing after.
type keyRange struct {
	from, to string
	end      bool
}

// list returns the listing of dir that is under way, and starts one if there is none, or if
// what it began with is older than the TTL by now.
func (f *FS) list(dir *meta.Inode) *listJob {
	f.listMu.Lock()
	defer f.listMu.Unlock()
	if j, ok := f.lists[dir.Ino]; ok && (f.opt.Immutable || j.began > f.now()-int64(f.opt.TTL)) {
		return j
	}
	j := &listJob{began: f.now(), done: make(chan struct{}), moved: make(chan struct{})}
	f.lists[dir.Ino] = j
	d := *dir
	f.wg.Add(1)
	go func() {
		defer f.wg.Done()
		j.err = f.listNow(f.ctx, &d, j)
		for errors.Is(j.err, meta.ErrMoved) && f.ctx.Err() == nil {
			// It was renamed meanwhile: what is below its prefix now counts.
			if d, j.err = f.db.Inode(d.Ino); j.err == nil {
				j.again()
				j.err = f.listNow(f.ctx, &d, j)
			}
		}
		f.heard(j.err)
		f.listMu.Lock()
		if f.lists[d.Ino] == j {
			delete(f.lists, d.Ino)
		}
		f.listMu.Unlock()
		close(j.done)
	}()
	return j
}

// listedSince tells whether a listing of dir is under way that began after a moment.
func (f *FS) listedSince(dir meta.Ino, began int64) bool {
	f.listMu.Lock()
	defer f.listMu.Unlock()
	j := f.lists[dir]
	return j != nil && j.began > began
}

// relist waits for the listing of dir that is under way, or for a new one. One that fails and
// began before this call says nothing of the origin as it is by now: then there is another.
func (f *FS) relist(ctx context.Context, dir *meta.Inode) error {
	since := f.now()
	j := f.list(dir)
	err := j.wait(ctx)
	if j.began < since && objstore.KindOf(err).Temporary() {
		err = f.list(dir).wait(ctx)
	}
	return err
}

// again has the listing begin anew.
func (j *listJob) again() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ranges, j.entries, j.hidden = nil, 0, 0
}

// wait returns when the listing has ended.
func (j *listJob) wait(ctx context.Context) error {
	select {
	case <-j.done:
		return j.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// listNow lists dir into the index, page by page.
func (f *FS) listNow(ctx context.Context, dir *meta.Inode, j *listJob) error {
	f.stats.lists.Add(1)
	resolved := true
	ordered := f.store.Caps().ListOrdered
	var seen nameSet
	err := list.Dir(ctx, f.store, dir.Prefix, list.Options{
		Parallel: f.opt.ListParallel,
		OnPage: func(p list.Page) error {
			page, hidden := f.page(dir, &p, j.began)
			if !ordered {
				page.Partial = true
				seen.add(&page)
			}
			page.OnChange = func(c meta.Change) {
				if c.Old.Ino == 0 {
					return
				}
				f.notice(&c.Old, c.New.Object.ETag, c.New.Ino == 0 || c.New.Kind == meta.KindDir)
				f.changed(dir.Ino, c.Old.Name)
				if c.New.Ino != c.Old.Ino || c.New.Gen != c.Old.Gen {
					f.doom(&c.Old)
				}
			}
			res, err := f.db.Merge(dir.Ino, page)
			if err != nil {
				return err
			}
			if res.Unshadowed {
				resolved = false
			}
			j.advance(page, hidden)
			return nil
		},
	})
	if err == nil && !ordered {
		err = f.sweep(dir, &seen, j.began)
		j.advance(meta.Page{}, 0)
	}
	if err != nil {
		return err
	}
	j.mu.Lock()
	l := meta.Listing{Complete: j.began, Entries: j.entries, Hidden: j.hidden}
	j.mu.Unlock()
	if l.Hidden > 0 {
		f.log.Warn("some keys have no name that a file can have and are not shown",
			"directory", f.path(dir.Parent, dir.Name), "keys", l.Hidden)
	}
	if !resolved {
		// A directory went away under which an object of the same name was hidden: the next
		// use lists again and shows it.
		l.Complete = 0
	}
	f.staleHits.forget(negKey(dir.Ino, ""))
	err = f.db.Do(func(tx *meta.Tx) error {
		now, err := tx.Inode(dir.Ino)
		if err != nil {
			return err
		}
		if now.Prefix != dir.Prefix {
			return meta.ErrMoved
		}
		return tx.SetListing(dir.Ino, l)
	})
	if errors.Is(err, meta.ErrNoSpace) {
		return nil // the names are right; only when they were confirmed is not remembered
	}
	return err
}

// page translates a page of keys to names. Keys that cannot be names are counted, not shown.
// What is to be deleted is in it: Merge hides it, unless the name stands for something else by now.
func (f *FS) page(dir *meta.Inode, p *list.Page, began int64) (meta.Page, int64) {
	var hidden int64
	out := meta.Page{From: strings.TrimPrefix(p.From, dir.Prefix), To: strings.TrimPrefix(p.To, dir.Prefix),
		Prefix: dir.Prefix, Began: began, Objects: make([]meta.ListedObject, 0, len(p.Objects)), Dirs: make([]string, 0, len(p.Prefixes))}
	for i := range p.Objects {
		o := &p.Objects[i]
		name := strings.TrimPrefix(o.Key, dir.Prefix)
		if name == "" {
			continue // the directory's own marker object
		}
		if !ValidName(name) {
			hidden++
			continue
		}
		out.Objects = append(out.Objects, meta.ListedObject{Name: name, Size: o.Size, ETag: o.ETag,
			MTime: o.ModTime.UnixNano(), Archived: o.Archived})
	}
	for _, pre := range p.Prefixes {
		name := strings.TrimSuffix(strings.TrimPrefix(pre, dir.Prefix), "/")
		if !ValidName(name) {
			hidden++
			continue
		}
		out.Dirs = append(out.Dirs, name)
	}
	return out, hidden
}

// advance adds the range of a page to what is listed and wakes the readers.
func (j *listJob) advance(p meta.Page, hidden int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries += int64(len(p.Objects) + len(p.Dirs))
	j.hidden += hidden
	if !p.Partial {
		j.ranges = join(j.ranges, keyRange{from: p.From, to: p.To, end: p.To == ""})
	}
	close(j.moved)
	j.moved = make(chan struct{})
}

// join adds r to sorted disjoint ranges.
func join(ranges []keyRange, r keyRange) []keyRange {
	i := sort.Search(len(ranges), func(i int) bool { return ranges[i].from >= r.from })
	ranges = append(ranges, keyRange{})
	copy(ranges[i+1:], ranges[i:])
	ranges[i] = r
	out := ranges[:1]
	for _, x := range ranges[1:] {
		last := &out[len(out)-1]
		if last.end || x.from <= last.to {
			if !last.end && (x.end || x.to > last.to) {
				last.to, last.end = x.to, x.end
			}
			continue
		}
		out = append(out, x)
	}
	return out
}

// frontier is the key up to which everything is listed; all is true at the end. more is
// closed when there may be news.
func (j *listJob) frontier() (key string, all bool, more <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.ranges) > 0 && j.ranges[0].from == "" {
		key, all = j.ranges[0].to, j.ranges[0].end
	}
	return key, all, j.moved
}

// listedBefore is the smallest key that must have been listed for all names up to and
// including name to be known. Keys sort a directory as "name/", and a directory whose name
// is a prefix of name may sort after it ("a.txt" comes before "a/").
func listedBefore(name string) string {
	need := name + "/"
	for i := 1; i < len(name); i++ {
		if name[i] < '/' {
			need = max(need, name[:i]+"/")
		}
	}
	return need
}
