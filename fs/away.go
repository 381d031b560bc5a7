package fs

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
)

// While the origin is away, names that the index knows are answered by what was last heard of them: it was
// true then, and it is no guess. That holds for directories, and for files that this mount has published, however long ago; for
// others as long as Options.StaleIfError says. What the origin does answer is believed at once: that a name is
// gone, or that access to it is denied, is no reason to show it.

// away knows when the origin last failed to answer. Safe for parallel use.
type away struct {
	mu     sync.Mutex
	since  int64 // when it first failed, nanoseconds since 1970; 0: it answered the last question. By mu
	failed int64 // when it last failed; by mu
	warned int64 // when that was last told; by mu
	served int64 // answers that were given without it; by mu
}

const (
	// awayFor is how long after a failure nobody is made to wait for the origin where there is another answer.
	awayFor = 5 * time.Second
	// firstPatience is how long the origin is given to answer where there is another answer; awayPatience, when
	// it did not answer the last question.
	firstPatience = 10 * time.Second
	awayPatience  = 2 * time.Second
	// awayWarn is how often the log tells of it.
	awayWarn = time.Minute
)

func (a *away) answered() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.since, a.failed, a.warned = 0, 0, 0
}

func (a *away) fails(now int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.since == 0 {
		a.since = now
	}
	a.failed = now
}

// state tells whether the last question failed, and whether that was just now.
func (a *away) state(now int64) (failing, recently bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.since != 0, a.since != 0 && a.failed > now-int64(awayFor)
}

// serve counts an answer that is given without the origin, and tells whether to say so in the log.
func (a *away) serve(now int64) (warn bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.served++
	if warn = a.warned == 0 || a.warned < now-int64(awayWarn); warn {
		a.warned = now
	}
	return warn
}

func (a *away) count() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.served
}

// unanswered tells whether err says that the origin did not answer, of a question that was not given up by who
// asked it.
func unanswered(ctx context.Context, err error) bool {
	return ctx.Err() == nil && (objstore.KindOf(err).Temporary() || errors.Is(err, context.DeadlineExceeded))
}

// confirm is revalidate that answers with what the index has where the origin does not answer.
func (f *FS) confirm(ctx context.Context, dir, in *meta.Inode, lst *meta.Listing) (meta.Inode, error) {
	if noWait(ctx) {
		return *in, ErrWouldWait
	}
	if !f.staleAllowed(in, max(in.Checked, lst.Complete)) {
		return f.revalidate(ctx, dir, in, lst)
	}
	patience := firstPatience
	if failing, recently := f.away.state(f.now()); recently {
		return f.stale(in), nil
	} else if failing {
		patience = awayPatience
	}
	ask, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	now, err := f.revalidate(ask, dir, in, lst)
	if unanswered(ctx, err) {
		f.away.fails(f.now())
		return f.stale(in), nil
	}
	return now, err
}

// heard notes whether the origin answered a question about names.
func (f *FS) heard(err error) {
	switch {
	case unanswered(f.ctx, err):
		f.away.fails(f.now())
	case err == nil || errors.Is(err, ErrNotExist):
		f.away.answered()
	}
}

// stale is the inode as the index has it, of which the origin was not heard.
func (f *FS) stale(in *meta.Inode) meta.Inode {
	if f.away.serve(f.now()) {
		f.log.Warn("the origin does not answer; names are shown as they were when it last did", "path", f.path(in.Parent, in.Name),
			"confirmed", time.Unix(0, in.Checked))
	}
	return *in
}

// staleAllowed tells whether what was last heard of an inode, at confirmed, may be shown while the origin does
// not answer.
func (f *FS) staleAllowed(in *meta.Inode, confirmed int64) bool {
	if f.opt.StaleIfError < 0 || confirmed == 0 {
		return false
	}
	return in.Kind == meta.KindDir || in.Flags&meta.Ours != 0 || confirmed > f.now()-int64(f.opt.TTL)-int64(f.opt.StaleIfError)
}

// staleListing tells whether the names that the index has of a directory may be shown as all that are in it while
// the origin does not answer: they were listed wholly once, or the directory was made here, by the same rule.
func (f *FS) staleListing(dir *meta.Inode, lst *meta.Listing) bool {
	if f.opt.StaleIfError < 0 {
		return false
	}
	return lst.Complete != 0 && (dir.Flags&(meta.Ours|meta.Local) != 0 || lst.Complete > f.now()-int64(f.opt.TTL)-int64(f.opt.StaleIfError))
}
