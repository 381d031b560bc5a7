package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
)

// opened is a file that is open for reading.
type opened struct {
	*os.File
	st     unix.Stat_t
	object objstore.Object   // without checksum
	sum    objstore.Checksum // of the whole
}

// Head implements objstore.Store. It waits out a change of the last 20 ms.
func (s *Store) Head(ctx context.Context, key string, opt objstore.HeadOptions) (objstore.Object, error) {
	f, err := s.openObject(ctx, opHead, key, "", opt.VersionID)
	if err != nil {
		return objstore.Object{}, err
	}
	f.Close()
	f.object.Checksum = f.sum
	return f.object, nil
}

// openObject opens a key for reading under a condition and describes it.
func (s *Store) openObject(ctx context.Context, op, key, ifMatch, version string) (*opened, error) {
	if err := missingKey(op, key); err != nil {
		return nil, err
	}
	if version != "" {
		return nil, unsupported(op, key, "keep versions")
	}
	if err := canceled(ctx, op, key); err != nil {
		return nil, err
	}
	f, st, err := s.open(ctx, key)
	if err != nil {
		if cerr := canceled(ctx, op, key); cerr != nil {
			return nil, cerr
		}
		return nil, wrap(op, key, err)
	}
	o := &opened{File: f, st: st, object: s.object(key, &st)}
	if ifMatch != "" && o.object.ETag != ifMatch {
		f.Close()
		return nil, changed(op, key, ifMatch, o.object.ETag)
	}
	o.sum = s.readAttr(f, &st, &o.object)
	return o, nil
}

func changed(op, key, want, got string) error {
	return &objstore.Error{Op: op, Key: key, Kind: objstore.PreconditionFailed,
		Err: fmt.Errorf("the ETag is %q, not %q", got, want)}
}

// Get implements objstore.Store. It waits out a change of the last 20 ms. A file that is changed
// in place while it is read ends the body with an error of kind PreconditionFailed before a
// byte of the new content is given out.
func (s *Store) Get(ctx context.Context, key string, opt objstore.GetOptions) (*objstore.Reader, error) {
	if opt.Offset < 0 {
		return nil, &objstore.Error{Op: opGet, Key: key, Kind: objstore.BadRequest, Hint: "the offset is negative"}
	}
	f, err := s.openObject(ctx, opGet, key, opt.IfMatch, opt.VersionID)
	if err != nil {
		return nil, err
	}
	whole := opt.Offset == 0 && opt.Length < 0
	if opt.Offset >= f.st.Size && !whole {
		f.Close()
		return nil, &objstore.Error{Op: opGet, Key: key, Kind: objstore.InvalidRange,
			Err: fmt.Errorf("offset %d, size %d", opt.Offset, f.st.Size)}
	}
	n := f.st.Size - opt.Offset
	if opt.Length >= 0 {
		n = min(n, opt.Length)
	}
	if whole {
		f.object.Checksum = f.sum
	}
	r := &objstore.Reader{Object: f.object, Offset: opt.Offset, Length: n, Body: http.NoBody}
	if n == 0 {
		f.Close()
		return r, nil
	}
	r.Body = &body{ctx: ctx, s: s, f: f.File, st: f.st, key: key, off: opt.Offset, left: n}
	return r, nil
}

// body reads one version of a file.
type body struct {
	ctx       context.Context
	s         *Store
	f         *os.File
	st        unix.Stat_t // the version
	key       string
	off, left int64
	err       error // sticky
}

// Read looks at the file's state after the bytes were read and before they are given out:
// if it is what it was at the open, so are they.
func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.left == 0 {
		b.err = io.EOF
		return 0, b.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if b.err = canceled(b.ctx, opGet, b.key); b.err != nil {
		return 0, b.err
	}
	p = p[:min(int64(len(p)), b.left)]
	n, rerr := b.f.ReadAt(p, b.off)
	var st unix.Stat_t
	if err := unix.Fstat(int(b.f.Fd()), &st); err != nil {
		b.err = wrap(opGet, b.key, err)
		return 0, b.err
	}
	if !sameContent(&b.st, &st) {
		b.err = changed(opGet, b.key, b.s.etag(&b.st), b.s.etag(&st))
		return 0, b.err
	}
	b.off += int64(n)
	b.left -= int64(n)
	switch {
	case n == len(p):
		return n, nil
	case rerr == nil || rerr == io.EOF:
		b.err = &objstore.Error{Op: opGet, Key: b.key, Kind: objstore.Unavailable, Err: io.ErrUnexpectedEOF,
			Hint: fmt.Sprintf("%d bytes are missing", b.left)}
	default:
		b.err = wrap(opGet, b.key, rerr)
	}
	return n, b.err
}

// sameContent tells whether a file that was in state a is so in state b. Its removal, which a
// replacement is too, moves its ctime but not its bytes.
func sameContent(a, b *unix.Stat_t) bool {
	return a.Ino == b.Ino && a.Dev == b.Dev && a.Size == b.Size && a.Mtim == b.Mtim &&
		(a.Ctim == b.Ctim || b.Nlink == 0)
}

func (b *body) Close() error {
	if b.err == nil {
		b.err = &objstore.Error{Op: opGet, Key: b.key, Kind: objstore.Canceled, Err: errors.New("read after Close")}
	}
	_ = b.f.Close() // it was only read
	return nil
}
