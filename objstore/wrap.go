package objstore

import "context"

// Op describes one request to whoever wraps a Store.
type Op struct {
	Class Class
	// Name is the method, "GET", "LIST", "PUT PART" …; for people and for Error.Op.
	Name string
	// Key is the key, or the prefix of a List.
	Key string
	// Once: repeating the request after its answer was lost may report a failure that the
	// first try caused itself (a conditional PUT that finds its own object, a COMPLETE that
	// finds its upload gone). Such a request is repeated only where the store said that it
	// did not carry it out.
	Once bool
	// Upload is how many bytes of data the request carries to the store.
	Upload int64
}

// Around returns a Store that hands every request on inner to fn, which may call call no
// times, once or more often, each time with a context of its choice, and whose error is
// the request's. The values of the last call that succeeded are the answer. call is not
// for parallel use, and must not be used after fn has returned.
//
// fn's part of a Get ends when the body opens. A wrapper that cares for bodies embeds the
// Store that Around returns and writes its own Get; the context of a Get must then stay
// alive until the body is closed. Close, Caps and String go to inner untouched.
func Around(inner Store, fn func(ctx context.Context, op Op, call func(context.Context) error) error) Store {
	return &around{inner: inner, fn: fn}
}

type around struct {
	inner Store
	fn    func(ctx context.Context, op Op, call func(context.Context) error) error
}

func (a *around) String() string { return a.inner.String() }
func (a *around) Caps() Caps     { return a.inner.Caps() }
func (a *around) Close() error   { return a.inner.Close() }

// do runs one request through fn and returns the answer of the last call that succeeded.
func do[T any](ctx context.Context, a *around, op Op, call func(context.Context) (T, error)) (T, error) {
	var out T
	err := a.fn(ctx, op, func(ctx context.Context) error {
		v, err := call(ctx)
		if err == nil {
			out = v
		}
		return err
	})
	if err != nil {
		var zero T
		return zero, err
	}
	return out, nil
}

// doErr is do for requests without an answer.
func doErr(ctx context.Context, a *around, op Op, call func(context.Context) error) error {
	return a.fn(ctx, op, call)
}

func (a *around) List(ctx context.Context, opt ListOptions) (ListPage, error) {
	return do(ctx, a, Op{Class: ClassList, Name: "LIST", Key: opt.Prefix},
		func(ctx context.Context) (ListPage, error) { return a.inner.List(ctx, opt) })
}

func (a *around) Head(ctx context.Context, key string, opt HeadOptions) (Object, error) {
	return do(ctx, a, Op{Class: ClassHead, Name: "HEAD", Key: key},
		func(ctx context.Context) (Object, error) { return a.inner.Head(ctx, key, opt) })
}

func (a *around) Get(ctx context.Context, key string, opt GetOptions) (*Reader, error) {
	return do(ctx, a, Op{Class: ClassGet, Name: "GET", Key: key},
		func(ctx context.Context) (*Reader, error) { return a.inner.Get(ctx, key, opt) })
}

func (a *around) Put(ctx context.Context, key string, src Source, opt PutOptions) (Object, error) {
	op := Op{Class: ClassPut, Name: "PUT", Key: key, Once: opt.IfNoneMatch || opt.IfMatch != "", Upload: src.Size()}
	return do(ctx, a, op, func(ctx context.Context) (Object, error) { return a.inner.Put(ctx, key, src, opt) })
}

// CreateMultipart is repeated freely: an upload whose id was lost holds no data.
func (a *around) CreateMultipart(ctx context.Context, key string, opt PutOptions) (string, error) {
	return do(ctx, a, Op{Class: ClassPut, Name: "CREATE MULTIPART", Key: key},
		func(ctx context.Context) (string, error) { return a.inner.CreateMultipart(ctx, key, opt) })
}

func (a *around) PutPart(ctx context.Context, key, uploadID string, number int, src Source, sum Checksum) (Part, error) {
	return do(ctx, a, Op{Class: ClassPut, Name: "PUT PART", Key: key, Upload: src.Size()},
		func(ctx context.Context) (Part, error) {
			return a.inner.PutPart(ctx, key, uploadID, number, src, sum)
		})
}

func (a *around) CopyPart(ctx context.Context, key, uploadID string, number int, srcKey string, off, n int64, opt CopyOptions) (Part, error) {
	return do(ctx, a, Op{Class: ClassCopy, Name: "COPY PART", Key: key},
		func(ctx context.Context) (Part, error) {
			return a.inner.CopyPart(ctx, key, uploadID, number, srcKey, off, n, opt)
		})
}

func (a *around) ListParts(ctx context.Context, key, uploadID string) ([]Part, error) {
	return do(ctx, a, Op{Class: ClassList, Name: "LIST PARTS", Key: key},
		func(ctx context.Context) ([]Part, error) { return a.inner.ListParts(ctx, key, uploadID) })
}

// CompleteMultipart is Once also without conditions: a second try finds no upload.
func (a *around) CompleteMultipart(ctx context.Context, key, uploadID string, parts []Part, opt PutOptions) (Object, error) {
	return do(ctx, a, Op{Class: ClassPut, Name: "COMPLETE MULTIPART", Key: key, Once: true},
		func(ctx context.Context) (Object, error) {
			return a.inner.CompleteMultipart(ctx, key, uploadID, parts, opt)
		})
}

func (a *around) AbortMultipart(ctx context.Context, key, uploadID string) error {
	return doErr(ctx, a, Op{Class: ClassDelete, Name: "ABORT MULTIPART", Key: key},
		func(ctx context.Context) error { return a.inner.AbortMultipart(ctx, key, uploadID) })
}

// Copy onto itself with a condition on the source changes what the condition tests.
func (a *around) Copy(ctx context.Context, srcKey, dstKey string, opt CopyOptions) (Object, error) {
	op := Op{Class: ClassCopy, Name: "COPY", Key: dstKey, Once: opt.IfNoneMatch || srcKey == dstKey && opt.SourceIfMatch != ""}
	return do(ctx, a, op, func(ctx context.Context) (Object, error) { return a.inner.Copy(ctx, srcKey, dstKey, opt) })
}

func (a *around) Delete(ctx context.Context, key string, opt DeleteOptions) error {
	return doErr(ctx, a, Op{Class: ClassDelete, Name: "DELETE", Key: key, Once: opt.IfMatch != ""},
		func(ctx context.Context) error { return a.inner.Delete(ctx, key, opt) })
}
