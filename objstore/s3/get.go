package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/leatfs/leatfs/objstore"
)

// Head implements objstore.Store with HeadObject. When it is refused with 400 or 403 a GET
// of one byte follows, whose answer says why: that to a HEAD has no body.
func (s *Store) Head(ctx context.Context, key string, opt objstore.HeadOptions) (objstore.Object, error) {
	const op = "HEAD"
	if err := s.checkKey(op, key); err != nil {
		return objstore.Object{}, err
	}
	if opt.VersionID != "" && !s.caps.Versions {
		return objstore.Object{}, unsupported(op, key, "keep versions")
	}
	return s.head(ctx, op, key, "", opt.VersionID)
}

// head is Head, under a condition if ifMatch is not "".
func (s *Store) head(ctx context.Context, op, key, ifMatch, versionID string) (objstore.Object, error) {
	out, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{
		Bucket: s.bucket, Key: &key,
		IfMatch:              quoted(ifMatch),
		VersionId:            optional(versionID),
		RequestPayer:         s.payer,
		SSECustomerAlgorithm: s.sse.algorithm, SSECustomerKey: s.sse.key, SSECustomerKeyMD5: s.sse.md5,
	}, askChecksum)
	if err != nil {
		return objstore.Object{}, s.headError(ctx, op, key, versionID, err)
	}
	if out.ContentLength == nil {
		return objstore.Object{}, &objstore.Error{Op: op, Key: key, Kind: objstore.Unavailable,
			Err: errors.New("the answer does not tell the size")}
	}
	o := objstore.Object{
		Key: key, Size: *out.ContentLength,
		ETag:         unquoted(out.ETag),
		ModTime:      aws.ToTime(out.LastModified),
		StorageClass: className(string(out.StorageClass)),
		Checksum:     sums{out.ChecksumCRC64NVME, out.ChecksumCRC32C, out.ChecksumCRC32}.decode(out.ChecksumType),
		ETagIsMD5:    s.etagIsMD5(unquoted(out.ETag), out.ServerSideEncryption, out.SSECustomerAlgorithm),
		Metadata:     lowerKeys(out.Metadata),
		ContentType:  aws.ToString(out.ContentType),
	}
	if s.caps.Versions {
		o.VersionID = aws.ToString(out.VersionId)
	}
	o.Archived = (needsRestore(o.StorageClass) || out.ArchiveStatus != "") && !isRestored(aws.ToString(out.Restore))
	if ifMatch != "" && o.ETag != ifMatch {
		return objstore.Object{}, changed(op, key, ifMatch, o.ETag)
	}
	return o, nil
}

// headError is the error of a HEAD, with the reason where it takes a GET to learn it.
func (s *Store) headError(ctx context.Context, op, key, versionID string, err error) error {
	err = wrap(ctx, op, key, err)
	var e *objstore.Error
	if !errors.As(err, &e) || e.Status != http.StatusBadRequest && e.Status != http.StatusForbidden {
		return err
	}
	r, gerr := s.get(ctx, op, key, "bytes=0-0", objstore.GetOptions{Length: 1, VersionID: versionID})
	if gerr == nil {
		r.Body.Close()
		return err
	}
	switch objstore.KindOf(gerr) {
	case objstore.InvalidRange, objstore.Network, objstore.Timeout, objstore.Throttled, objstore.Unavailable:
		return err // says nothing of the HEAD
	}
	return gerr
}

// Get implements objstore.Store with GetObject. A Get of Length 0 is a HEAD.
func (s *Store) Get(ctx context.Context, key string, opt objstore.GetOptions) (*objstore.Reader, error) {
	const op = "GET"
	if err := s.checkKey(op, key); err != nil {
		return nil, err
	}
	switch {
	case opt.Offset < 0:
		return nil, &objstore.Error{Op: op, Key: key, Kind: objstore.BadRequest, Hint: "the offset is negative"}
	case opt.VersionID != "" && !s.caps.Versions:
		return nil, unsupported(op, key, "keep versions")
	case opt.Length == 0:
		o, err := s.head(ctx, op, key, opt.IfMatch, opt.VersionID)
		if err != nil {
			return nil, err
		}
		if opt.Offset >= o.Size {
			return nil, outOfRange(op, key, opt.Offset, o.Size)
		}
		o.Checksum = objstore.Checksum{}
		return &objstore.Reader{Object: o, Offset: opt.Offset, Body: http.NoBody}, nil
	case opt.Length < 0 && opt.Offset == 0:
		return s.get(ctx, op, key, "", opt)
	case opt.Length < 0 || opt.Offset > maxOffset-opt.Length:
		opt.Length = -1
		return s.get(ctx, op, key, fmt.Sprintf("bytes=%d-", opt.Offset), opt)
	}
	return s.get(ctx, op, key, fmt.Sprintf("bytes=%d-%d", opt.Offset, opt.Offset+opt.Length-1), opt)
}

const maxOffset = 1<<63 - 1

func outOfRange(op, key string, off, size int64) error {
	return &objstore.Error{Op: op, Key: key, Kind: objstore.InvalidRange,
		Err: fmt.Errorf("offset %d, size %d", off, size)}
}

func changed(op, key, want, got string) error {
	return &objstore.Error{Op: op, Key: key, Kind: objstore.PreconditionFailed,
		Err: fmt.Errorf("the ETag is %q, not %q", got, want)}
}

// get asks for a range ("" for all) and holds the answer against what was asked.
func (s *Store) get(ctx context.Context, op, key, rng string, opt objstore.GetOptions) (*objstore.Reader, error) {
	in := &s3.GetObjectInput{
		Bucket: s.bucket, Key: &key,
		Range:                optional(rng),
		IfMatch:              quoted(opt.IfMatch),
		VersionId:            optional(opt.VersionID),
		RequestPayer:         s.payer,
		SSECustomerAlgorithm: s.sse.algorithm, SSECustomerKey: s.sse.key, SSECustomerKeyMD5: s.sse.md5,
	}
	var opts []func(*s3.Options)
	if rng == "" {
		opts = append(opts, askChecksum)
	}
	out, err := s.client.GetObject(ctx, in, opts...)
	if err != nil {
		return nil, wrap(ctx, op, key, err)
	}
	r, err := s.reader(ctx, op, key, out, opt)
	if err != nil {
		out.Body.Close()
		return nil, err
	}
	return r, nil
}

// reader checks the answer to a GET and makes the Reader. On error the body is the
// caller's to close.
func (s *Store) reader(ctx context.Context, op, key string, out *s3.GetObjectOutput, opt objstore.GetOptions) (*objstore.Reader, error) {
	bad := func(format string, a ...any) error {
		return &objstore.Error{Op: op, Key: key, Kind: objstore.Unavailable,
			Err: fmt.Errorf("the answer is not what was asked for: "+format, a...)}
	}
	etag := unquoted(out.ETag)
	if opt.IfMatch != "" && etag != opt.IfMatch {
		return nil, changed(op, key, opt.IfMatch, etag)
	}
	if v := aws.ToString(out.VersionId); opt.VersionID != "" && v != "" && v != opt.VersionID {
		return nil, bad("version %q instead of %q", v, opt.VersionID)
	}
	if out.ContentLength == nil {
		return nil, bad("it does not tell its length")
	}
	whole := opt.Offset == 0 && opt.Length < 0
	have := *out.ContentLength // bytes in the body
	r := &objstore.Reader{Offset: opt.Offset, Length: have}
	var size int64
	if cr := aws.ToString(out.ContentRange); cr != "" {
		first, last, total, err := parseContentRange(cr)
		if err != nil {
			return nil, bad("%v", err)
		}
		end := total // exclusive, of what was asked
		if opt.Length >= 0 {
			end = min(total, opt.Offset+opt.Length)
		}
		if first != opt.Offset || last+1 != end || have != end-first {
			return nil, bad("%d bytes with Content-Range %q for offset %d length %d", have, cr, opt.Offset, opt.Length)
		}
		size = total
	} else {
		// A 200: the whole object, whatever was asked.
		size = have
		switch {
		case whole:
		case opt.Offset >= size:
			return nil, outOfRange(op, key, opt.Offset, size)
		case opt.Offset > 0:
			return nil, &objstore.Error{Op: op, Key: key, Kind: objstore.Unsupported,
				Hint: "the endpoint, or a proxy before it, ignores ranges", Err: fmt.Errorf("status 200 to a GET at offset %d", opt.Offset)}
		default:
			r.Length = min(opt.Length, size)
		}
	}
	r.Object = objstore.Object{
		Key: key, Size: size, ETag: etag,
		ModTime:      aws.ToTime(out.LastModified),
		StorageClass: className(string(out.StorageClass)),
		ETagIsMD5:    s.etagIsMD5(etag, out.ServerSideEncryption, out.SSECustomerAlgorithm),
		Metadata:     lowerKeys(out.Metadata),
		ContentType:  aws.ToString(out.ContentType),
	}
	if whole {
		r.Object.Checksum = sums{out.ChecksumCRC64NVME, out.ChecksumCRC32C, out.ChecksumCRC32}.decode(out.ChecksumType)
	}
	if s.caps.Versions {
		r.Object.VersionID = aws.ToString(out.VersionId)
	}
	r.Body = &body{ctx: ctx, op: op, key: key, rc: out.Body, left: r.Length}
	return r, nil
}

// parseContentRange reads "bytes FIRST-LAST/TOTAL".
func parseContentRange(s string) (first, last, total int64, err error) {
	bad := fmt.Errorf("Content-Range %q", s)
	rest, ok := strings.CutPrefix(s, "bytes ")
	if !ok {
		return 0, 0, 0, bad
	}
	rng, tot, ok := strings.Cut(rest, "/")
	if !ok {
		return 0, 0, 0, bad
	}
	a, b, ok := strings.Cut(rng, "-")
	if !ok {
		return 0, 0, 0, bad
	}
	for _, p := range []struct {
		s string
		v *int64
	}{{a, &first}, {b, &last}, {tot, &total}} {
		if *p.v, err = strconv.ParseInt(p.s, 10, 64); err != nil || *p.v < 0 {
			return 0, 0, 0, bad
		}
	}
	if first > last || last >= total {
		return 0, 0, 0, bad
	}
	return first, last, total, nil
}

// body is what is left of an answer. It ends with io.EOF only when all was delivered.
type body struct {
	ctx     context.Context
	op, key string
	rc      io.ReadCloser
	left    int64
	err     error // sticky
}

func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.left == 0 {
		b.err = io.EOF
		return 0, io.EOF
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.rc.Read(p)
	b.left -= int64(n)
	switch {
	case b.left == 0:
		// All is here; an error after it changes nothing.
		b.err = io.EOF
		return n, nil
	case err == nil:
		return n, nil
	case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
		b.err = &objstore.Error{Op: b.op, Key: b.key, Kind: objstore.Unavailable, Err: io.ErrUnexpectedEOF,
			Hint: fmt.Sprintf("%d bytes are missing", b.left)}
		if b.ctx.Err() != nil {
			b.err = wrap(b.ctx, b.op, b.key, err)
		}
	default:
		b.err = wrap(b.ctx, b.op, b.key, err)
	}
	return n, b.err
}

func (b *body) Close() error {
	if b.err == nil {
		b.err = &objstore.Error{Op: b.op, Key: b.key, Kind: objstore.Canceled, Err: errors.New("read after Close")}
	}
	// Nothing depends on what the connection has to say now.
	_ = b.rc.Close()
	return nil
}

// etagIsMD5 tells whether an ETag is the MD5 of the content.
func (s *Store) etagIsMD5(etag string, enc types.ServerSideEncryption, customer *string) bool {
	if len(etag) != 32 || s.server == serverAWSDirectory || customer != nil && *customer != "" {
		return false
	}
	if enc != "" && enc != types.ServerSideEncryptionAes256 {
		return false
	}
	for _, c := range []byte(etag) {
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F') {
			return false
		}
	}
	return true
}

// isRestored reads an x-amz-restore header: a copy that can be read is there when the
// request is not going on.
func isRestored(h string) bool {
	return strings.Contains(h, `ongoing-request="false"`)
}

func lowerKeys(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[strings.ToLower(k)] = v
	}
	return out
}
