package s3

import (
	"context"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/leatfs/leatfs/objstore"
)

// checkPut refuses what the store cannot keep.
func (s *Store) checkPut(op, key string, opt objstore.PutOptions) error {
	if err := s.checkKey(op, key); err != nil {
		return err
	}
	switch {
	case opt.IfNoneMatch && opt.IfMatch != "":
		return &objstore.Error{Op: op, Key: key, Kind: objstore.BadRequest, Hint: "IfNoneMatch and IfMatch exclude each other"}
	case opt.IfNoneMatch && !s.caps.PutIfNoneMatch:
		return unsupported(op, key, "write only where there is nothing")
	case opt.IfMatch != "" && !s.caps.PutIfMatch:
		return unsupported(op, key, "write only over a given ETag")
	}
	return nil
}

// encryption is the kind of encryption that writes ask for.
func (s *Store) encryption() (types.ServerSideEncryption, *string) {
	if s.cfg.SSEKMSKeyID == "" {
		return "", nil
	}
	return types.ServerSideEncryptionAwsKms, &s.cfg.SSEKMSKeyID
}

func starIf(b bool) *string {
	if b {
		return aws.String("*")
	}
	return nil
}

// lostRace is PreconditionFailed for a key that is gone: it has not the ETag asked for.
func lostRace(err error, ifMatch string) error {
	if e, ok := err.(*objstore.Error); ok && ifMatch != "" && e.Kind == objstore.NotFound && e.Code != "NoSuchUpload" {
		e.Kind = objstore.PreconditionFailed
	}
	return err
}

// checkSum returns sum, or what src has where the caller gave none: without a checksum of its
// own an upload over plain HTTP would be held together by TCP's only.
func (s *Store) checkSum(op, key string, src objstore.Source, sum objstore.Checksum) (objstore.Checksum, error) {
	if sum.Algorithm != objstore.ChecksumNone || !s.caps.Checksums {
		return sum, nil
	}
	sum, err := sumSource(src)
	if err != nil {
		return sum, sourceError(op, key, err)
	}
	return sum, nil
}

func sourceError(op, key string, err error) error {
	return &objstore.Error{Op: op, Key: key, Kind: objstore.Unknown, Err: err, Hint: "the data to upload cannot be read"}
}

// Put implements objstore.Store with PutObject. Where opt has no checksum the source is
// read once more to compute it. The answer does not tell ModTime.
func (s *Store) Put(ctx context.Context, key string, src objstore.Source, opt objstore.PutOptions) (objstore.Object, error) {
	const op = "PUT"
	if err := s.checkPut(op, key, opt); err != nil {
		return objstore.Object{}, err
	}
	sum, err := s.checkSum(op, key, src, opt.Checksum)
	if err != nil {
		return objstore.Object{}, err
	}
	v := encode(sum)
	enc, kms := s.encryption()
	reader := newSourceReader(src)
	out, err := s.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: s.bucket, Key: &key,
		Body:              reader,
		ContentLength:     aws.Int64(src.Size()),
		IfNoneMatch:       starIf(opt.IfNoneMatch),
		IfMatch:           quoted(opt.IfMatch),
		ChecksumCRC64NVME: v.crc64, ChecksumCRC32C: v.crc32c, ChecksumCRC32: v.crc32,
		Metadata:             opt.Metadata,
		ContentType:          optional(opt.ContentType),
		RequestPayer:         s.payer,
		SSECustomerAlgorithm: s.sse.algorithm, SSECustomerKey: s.sse.key, SSECustomerKeyMD5: s.sse.md5,
		ServerSideEncryption: enc, SSEKMSKeyId: kms,
	})
	if err != nil {
		if reader.err != nil && ctx.Err() == nil {
			return objstore.Object{}, sourceError(op, key, reader.err)
		}
		return objstore.Object{}, lostRace(wrap(ctx, op, key, err), opt.IfMatch)
	}
	o := objstore.Object{
		Key: key, Size: src.Size(), ETag: unquoted(out.ETag),
		Checksum:    sum,
		ETagIsMD5:   s.etagIsMD5(unquoted(out.ETag), out.ServerSideEncryption, out.SSECustomerAlgorithm),
		Metadata:    lowerKeys(opt.Metadata),
		ContentType: opt.ContentType,
	}
	if s.caps.Versions {
		o.VersionID = aws.ToString(out.VersionId)
	}
	return o, nil
}

// sourceReader reads a source from its start and remembers why it failed.
type sourceReader struct {
	*io.SectionReader
	err error
}

func newSourceReader(src objstore.Source) *sourceReader {
	return &sourceReader{SectionReader: io.NewSectionReader(src, 0, src.Size())}
}

func (r *sourceReader) Read(p []byte) (int, error) {
	n, err := r.SectionReader.Read(p)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

// Delete implements objstore.Store with DeleteObject.
func (s *Store) Delete(ctx context.Context, key string, opt objstore.DeleteOptions) error {
	const op = "DELETE"
	if err := s.checkKey(op, key); err != nil {
		return err
	}
	if opt.IfMatch != "" && !s.caps.DeleteIfMatch {
		return unsupported(op, key, "delete only a given ETag")
	}
	if opt.VersionID != "" && !s.caps.Versions {
		return unsupported(op, key, "keep versions")
	}
	_, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{
		Bucket: s.bucket, Key: &key,
		IfMatch: quoted(opt.IfMatch), VersionId: optional(opt.VersionID), RequestPayer: s.payer,
	})
	err = lostRace(wrap(ctx, op, key, err), opt.IfMatch)
	if objstore.Is(err, objstore.NotFound) {
		return nil
	}
	return err
}
