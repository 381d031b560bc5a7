package publish

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
)

// content is what a job has to publish, as it stands at the beginning of a round.
type content struct {
	file  io.ReaderAt
	f     *os.File // nil for Data and Copy
	stamp Stamp
	size  int64
	over  *Overlay // nil: all of it is in file
	local []Range  // with over: what is in file; sorted, disjoint
}

// look takes the file's stamp and ranges.
func (s *session) look() (*content, error) {
	j := &s.job
	if j.Copy != nil {
		return &content{size: j.Copy.Size, over: &Overlay{Key: j.Copy.Key, ETag: j.Copy.ETag, VersionID: j.Copy.VersionID, Size: j.Copy.Size}}, nil
	}
	if j.File == nil {
		return &content{file: bytes.NewReader(j.Data), size: int64(len(j.Data))}, nil
	}
	st, err := StampOf(j.File)
	if err != nil {
		return nil, fmt.Errorf("publish %q: %w", j.Key, err)
	}
	c := &content{file: j.File, f: j.File, stamp: st, size: st.Size, over: j.Overlay}
	if c.over != nil {
		local, err := c.over.Local()
		if err != nil {
			return nil, fmt.Errorf("publish %q: which ranges are in the file: %w", j.Key, err)
		}
		c.local = normal(local)
	}
	return c, nil
}

// changed tells whether the file has been written to since look.
func (c *content) changed() bool {
	if c.f == nil {
		return false
	}
	st, err := StampOf(c.f)
	return err != nil || st != c.stamp
}

// normal sorts ranges and joins those that touch.
func normal(in []Range) []Range {
	in = slices.DeleteFunc(slices.Clone(in), func(r Range) bool { return r.Len <= 0 })
	slices.SortFunc(in, func(a, b Range) int {
		if a.Off < b.Off {
			return -1
		}
		return 1
	})
	var out []Range
	for _, r := range in {
		if n := len(out); n > 0 && r.Off <= out[n-1].Off+out[n-1].Len {
			out[n-1].Len = max(out[n-1].Len, r.Off+r.Len-out[n-1].Off)
			continue
		}
		out = append(out, r)
	}
	return out
}

// place is where a piece of content is.
type place uint8

const (
	inFile place = iota
	inObject
	nowhere // zeros
)

type piece struct {
	Range
	place place
}

// pieces tells where bytes [off, off+n) are.
func (c *content) pieces(off, n int64) []piece {
	if c.over == nil {
		return []piece{{Range{off, n}, inFile}}
	}
	var out []piece
	rest := func(end int64) { // what is not in the file, up to end
		if m := min(end, c.over.Size) - off; m > 0 {
			out = append(out, piece{Range{off, m}, inObject})
			off += m
		}
		if m := end - off; m > 0 {
			out = append(out, piece{Range{off, m}, nowhere})
			off += m
		}
	}
	end := off + n
	for _, r := range c.local {
		lo, hi := max(r.Off, off), min(r.Off+r.Len, end)
		if lo >= hi {
			continue
		}
		rest(lo)
		out = append(out, piece{Range{lo, hi - lo}, inFile})
		off = hi
	}
	rest(end)
	return out
}

// only tells whether all pieces are in one place.
func only(pieces []piece, where place) bool {
	return !slices.ContainsFunc(pieces, func(p piece) bool { return p.place != where })
}

// view is bytes [off, off+n) of a content as an objstore.Source.
type view struct {
	c       *content
	off, n  int64
	pieces  []piece
	scratch *os.File // what is inObject, at its offset less off; nil where nothing is
}

func (v *view) Size() int64 { return v.n }

// ReadAt reads what the file has shrunk by as an error.
func (v *view) ReadAt(p []byte, at int64) (int, error) {
	done := 0
	for _, pc := range v.pieces {
		o := pc.Off - v.off // of the piece, in the view
		if done == len(p) {
			break
		}
		if at+int64(done) >= o+pc.Len {
			continue
		}
		skip := at + int64(done) - o
		b := p[done:min(int64(len(p)), int64(done)+pc.Len-skip)]
		var err error
		n := len(b)
		switch pc.place {
		case inFile:
			n, err = v.c.file.ReadAt(b, pc.Off+skip)
		case inObject:
			n, err = v.scratch.ReadAt(b, o+skip)
		case nowhere:
			clear(b)
		}
		done += n
		if n < len(b) {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return done, err
		}
	}
	if done < len(p) {
		return done, io.EOF
	}
	return done, nil
}

func (v *view) close() {
	if v.scratch != nil {
		_ = v.scratch.Close()
	}
}

// view makes bytes [off, off+n) readable; what is in the object is fetched. close must be called.
func (s *session) view(ctx context.Context, c *content, off, n int64) (*view, error) {
	v := &view{c: c, off: off, n: n, pieces: c.pieces(off, n)}
	for _, pc := range v.pieces {
		if pc.place != inObject {
			continue
		}
		if v.scratch == nil {
			f, err := scratch(s.p.opt.Scratch)
			if err != nil {
				return nil, fmt.Errorf("publish %q: a temporary file: %w", s.job.Key, err)
			}
			v.scratch = f
		}
		if err := s.fetch(ctx, c.over, pc.Range, io.NewOffsetWriter(v.scratch, pc.Off-off)); err != nil {
			v.close()
			return nil, err
		}
	}
	return v, nil
}

// fetch writes a range of the object that an overlay lies over to w.
func (s *session) fetch(ctx context.Context, o *Overlay, r Range, w io.Writer) error {
	s.count(func(q *Requests) { q.Gets++; q.Fetched += r.Len })
	body, err := s.p.store.Get(ctx, o.Key, objstore.GetOptions{Offset: r.Off, Length: r.Len, IfMatch: o.ETag, VersionID: s.version(o.VersionID)})
	if err != nil {
		return s.sourceError(ctx, o.Key, o.ETag, o.VersionID, err)
	}
	defer body.Body.Close()
	bp := s.p.bufs.Get().(*[]byte)
	defer s.p.bufs.Put(bp)
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{body.Body}, *bp)
	if err == nil && n != r.Len {
		err = &SourceChanged{Key: o.Key, ETag: o.ETag, Have: body.Object}
	}
	return err
}

// version is a version id where the store has versions.
func (s *session) version(id string) string {
	if s.p.caps.Versions {
		return id
	}
	return ""
}

// sourceError makes a SourceChanged of the error of a request that reads an object, when that is why.
func (s *session) sourceError(ctx context.Context, key, etag, version string, err error) error {
	switch objstore.KindOf(err) {
	case objstore.PreconditionFailed, objstore.NotFound, objstore.InvalidRange:
	default:
		return err
	}
	have, herr := s.head(ctx, key, version)
	switch {
	case objstore.Is(herr, objstore.NotFound):
		return &SourceChanged{Key: key, ETag: etag}
	case herr != nil:
		return herr
	case have.ETag != etag:
		return &SourceChanged{Key: key, ETag: etag, Have: have}
	}
	return err
}

// scratch makes a file without a name in dir.
func scratch(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), dir+"/(nameless)"), nil
	}
	f, err := os.CreateTemp(dir, "leatfs-") // a file system without O_TMPFILE
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
