package fs

import (
	"context"

	"github.com/leatfs/leatfs/fs/meta"
)

// A change is one transaction of the index, in which what came of it is recorded under the number
// of the kernel's request. A process that is sent a request again, because the one before was killed
// before it had answered, finds there that it was carried out, and only answers.

// The changes, as their results name them.
const (
	opCreate = iota + 1
	opMknod
	opMkdir
	opSymlink
	opLink
	opUnlink
	opRmdir
	opRename
	opSetattr
	opXattr
)

// request is the index's name of the request behind ctx.
func (f *FS) request(ctx context.Context) (req meta.Request, resent bool) {
	unique, resent := requestOf(ctx)
	if unique == 0 {
		return req, false
	}
	return meta.Request{Session: f.open.session.ID(), Unique: unique}, resent
}

// change carries out a change in one transaction. fn may run more than once.
func (f *FS) change(ctx context.Context, op uint32, fn func(tx *meta.Tx) error) error {
	req, _ := f.request(ctx)
	return f.db.Do(fn, meta.For(req, op, nil))
}

// carriedOut tells whether the request behind ctx was carried out by a process before this one,
// and what came of it.
func (f *FS) carriedOut(ctx context.Context, op uint32) (res meta.Result, ok bool, err error) {
	req, resent := f.request(ctx)
	if !resent {
		return res, false, nil
	}
	res, ok, err = f.db.Result(req)
	return res, ok && res.Op == op, err
}

// Answered says that the answers to these requests have been given: what is recorded of them for
// being sent again may be forgotten. It costs next to nothing.
func (f *FS) Answered(uniques ...uint64) {
	id := f.open.session.ID()
	for _, u := range uniques {
		f.db.Answered(meta.Request{Session: id, Unique: u})
	}
}
