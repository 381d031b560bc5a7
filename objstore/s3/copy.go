package s3

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/leatfs/leatfs/objstore"
)

// checkCopy refuses what the store cannot keep.
func (s *Store) checkCopy(op, srcKey, dstKey string, opt objstore.CopyOptions) error {
	if err := s.checkKey(op, srcKey); err != nil {
		return err
	}
	if err := s.checkKey(op, dstKey); err != nil {
		return err
	}
	switch {
	case opt.SourceIfMatch != "" && !s.caps.CopyIfMatch:
		return unsupported(op, srcKey, "copy only a given ETag")
	case opt.SourceVersionID != "" && !s.caps.Versions:
		return unsupported(op, srcKey, "keep versions")
	case opt.IfNoneMatch && !copiesIfNoneMatch(s.server):
		return unsupported(op, dstKey, "copy only where there is nothing")
	}
	return nil
}

// Copy implements objstore.Store with CopyObject, after a HEAD of the source: it tells the
// size, the ETag that the copy is then bound to, and the content type, which S3 forgets
// where new metadata is given.
func (s *Store) Copy(ctx context.Context, srcKey, dstKey string, opt objstore.CopyOptions) (objstore.Object, error) {
	const op = "COPY"
	if err := s.checkCopy(op, srcKey, dstKey, opt); err != nil {
		return objstore.Object{}, err
	}
	src, err := s.head(ctx, op, srcKey, opt.SourceIfMatch, opt.SourceVersionID)
	if err != nil {
		return objstore.Object{}, err
	}
	enc, kms := s.encryption()
	in := &s3.CopyObjectInput{
		Bucket: s.bucket, Key: &dstKey,
		CopySource:           s.copySource(srcKey, opt.SourceVersionID),
		IfNoneMatch:          starIf(opt.IfNoneMatch),
		RequestPayer:         s.payer,
		SSECustomerAlgorithm: s.sse.algorithm, SSECustomerKey: s.sse.key, SSECustomerKeyMD5: s.sse.md5,
		CopySourceSSECustomerAlgorithm: s.sse.algorithm, CopySourceSSECustomerKey: s.sse.key, CopySourceSSECustomerKeyMD5: s.sse.md5,
		ServerSideEncryption: enc, SSEKMSKeyId: kms,
	}
	if s.caps.CopyIfMatch {
		in.CopySourceIfMatch = quoted(src.ETag)
	}
	if opt.Metadata != nil {
		in.MetadataDirective = types.MetadataDirectiveReplace
		in.Metadata = opt.Metadata
		in.ContentType = optional(src.ContentType)
	}
	out, err := s.client.CopyObject(ctx, in)
	if err != nil {
		return objstore.Object{}, wrap(ctx, op, dstKey, err)
	}
	if out.CopyObjectResult == nil || out.CopyObjectResult.ETag == nil {
		return objstore.Object{}, &objstore.Error{Op: op, Key: dstKey, Kind: objstore.Unavailable,
			Err: errors.New("the answer does not tell the ETag")}
	}
	r := out.CopyObjectResult
	o := objstore.Object{
		Key: dstKey, Size: src.Size,
		ETag:        unquoted(r.ETag),
		ModTime:     aws.ToTime(r.LastModified),
		Checksum:    sums{r.ChecksumCRC64NVME, r.ChecksumCRC32C, r.ChecksumCRC32}.decode(r.ChecksumType),
		ETagIsMD5:   s.etagIsMD5(unquoted(r.ETag), out.ServerSideEncryption, out.SSECustomerAlgorithm),
		Metadata:    src.Metadata,
		ContentType: src.ContentType,
	}
	if opt.Metadata != nil {
		o.Metadata = lowerKeys(opt.Metadata)
	}
	if s.caps.Versions {
		o.VersionID = aws.ToString(out.VersionId)
	}
	return o, nil
}

// CopyPart implements objstore.Store with UploadPartCopy. opt.IfNoneMatch and opt.Metadata
// are not a part's.
func (s *Store) CopyPart(ctx context.Context, key, uploadID string, number int, srcKey string, off, n int64, opt objstore.CopyOptions) (objstore.Part, error) {
	const op = "COPY PART"
	if err := s.checkPart(op, key, number); err != nil {
		return objstore.Part{}, err
	}
	opt.IfNoneMatch = false
	if err := s.checkCopy(op, srcKey, key, opt); err != nil {
		return objstore.Part{}, err
	}
	if off < 0 || n <= 0 {
		return objstore.Part{}, &objstore.Error{Op: op, Key: srcKey, Kind: objstore.BadRequest,
			Err: fmt.Errorf("offset %d, length %d", off, n)}
	}
	out, err := s.client.UploadPartCopy(ctx, &s3.UploadPartCopyInput{
		Bucket: s.bucket, Key: &key, UploadId: &uploadID, PartNumber: aws.Int32(int32(number)),
		CopySource:           s.copySource(srcKey, opt.SourceVersionID),
		CopySourceRange:      aws.String(fmt.Sprintf("bytes=%d-%d", off, off+n-1)),
		CopySourceIfMatch:    quoted(opt.SourceIfMatch),
		RequestPayer:         s.payer,
		SSECustomerAlgorithm: s.sse.algorithm, SSECustomerKey: s.sse.key, SSECustomerKeyMD5: s.sse.md5,
		CopySourceSSECustomerAlgorithm: s.sse.algorithm, CopySourceSSECustomerKey: s.sse.key, CopySourceSSECustomerKeyMD5: s.sse.md5,
	})
	if err != nil {
		return objstore.Part{}, wrap(ctx, op, key, err)
	}
	if out.CopyPartResult == nil || out.CopyPartResult.ETag == nil {
		return objstore.Part{}, &objstore.Error{Op: op, Key: key, Kind: objstore.Unavailable,
			Err: errors.New("the answer does not tell the ETag")}
	}
	r := out.CopyPartResult
	return objstore.Part{Number: number, ETag: unquoted(r.ETag), Size: n,
		Checksum: sums{r.ChecksumCRC64NVME, r.ChecksumCRC32C, r.ChecksumCRC32}.decode("")}, nil
}

// copySource is the source of a copy as its header wants it: escaped, slashes kept.
func (s *Store) copySource(key, version string) *string {
	var b strings.Builder
	b.WriteString(s.cfg.Bucket)
	b.WriteByte('/')
	for i := 0; i < len(key); i++ {
		c := key[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			c == '-', c == '_', c == '.', c == '~', c == '/':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	if version != "" {
		b.WriteString("?versionId=")
		b.WriteString(version)
	}
	out := b.String()
	return &out
}
