package s3

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/leatfs/leatfs/objstore"
)

// CreateMultipart implements objstore.Store with CreateMultipartUpload. The upload gets a
// full-object checksum of opt.Checksum.Algorithm, CRC64NVME where that is none; the value
// is not used, nor are the conditions: they are CompleteMultipart's.
func (s *Store) CreateMultipart(ctx context.Context, key string, opt objstore.PutOptions) (string, error) {
	const op = "CREATE UPLOAD"
	if err := s.checkPut(op, key, opt); err != nil {
		return "", err
	}
	enc, kms := s.encryption()
	in := &s3.CreateMultipartUploadInput{
		Bucket: s.bucket, Key: &key,
		Metadata:             opt.Metadata,
		ContentType:          optional(opt.ContentType),
		RequestPayer:         s.payer,
		SSECustomerAlgorithm: s.sse.algorithm, SSECustomerKey: s.sse.key, SSECustomerKeyMD5: s.sse.md5,
		ServerSideEncryption: enc, SSEKMSKeyId: kms,
	}
	if s.caps.Checksums {
		a := opt.Checksum.Algorithm
		if a == objstore.ChecksumNone {
			a = objstore.CRC64NVME
		}
		in.ChecksumAlgorithm, in.ChecksumType = algorithmName(a), types.ChecksumTypeFullObject
	}
	out, err := s.client.CreateMultipartUpload(ctx, in)
	if err != nil {
		return "", wrap(ctx, op, key, err)
	}
	if aws.ToString(out.UploadId) == "" {
		return "", &objstore.Error{Op: op, Key: key, Kind: objstore.Unavailable, Err: errors.New("the answer holds no upload id")}
	}
	return *out.UploadId, nil
}

// PutPart implements objstore.Store with UploadPart. A sum must be of the algorithm that
// the upload was created with; where it is none, it is computed as CRC64NVME.
func (s *Store) PutPart(ctx context.Context, key, uploadID string, number int, src objstore.Source, sum objstore.Checksum) (objstore.Part, error) {
	const op = "PUT PART"
	if err := s.checkPart(op, key, number); err != nil {
		return objstore.Part{}, err
	}
	sum, err := s.checkSum(op, key, src, sum)
	if err != nil {
		return objstore.Part{}, err
	}
	v := encode(sum)
	reader := newSourceReader(src)
	out, err := s.client.UploadPart(ctx, &s3.UploadPartInput{
		Bucket: s.bucket, Key: &key, UploadId: &uploadID, PartNumber: aws.Int32(int32(number)),
		Body: reader, ContentLength: aws.Int64(src.Size()),
		ChecksumCRC64NVME: v.crc64, ChecksumCRC32C: v.crc32c, ChecksumCRC32: v.crc32,
		RequestPayer:         s.payer,
		SSECustomerAlgorithm: s.sse.algorithm, SSECustomerKey: s.sse.key, SSECustomerKeyMD5: s.sse.md5,
	})
	if err != nil {
		if reader.err != nil && ctx.Err() == nil {
			return objstore.Part{}, sourceError(op, key, reader.err)
		}
		return objstore.Part{}, wrap(ctx, op, key, err)
	}
	return objstore.Part{Number: number, ETag: unquoted(out.ETag), Size: src.Size(), Checksum: sum}, nil
}

func (s *Store) checkPart(op, key string, number int) error {
	if err := s.checkKey(op, key); err != nil {
		return err
	}
	if number < 1 || number > s.caps.MaxParts {
		return &objstore.Error{Op: op, Key: key, Kind: objstore.BadRequest,
			Err: fmt.Errorf("part number %d is not in 1 to %d", number, s.caps.MaxParts)}
	}
	return nil
}

// ListParts implements objstore.Store with ListParts, all pages: at most Caps.MaxParts
// parts.
func (s *Store) ListParts(ctx context.Context, key, uploadID string) ([]objstore.Part, error) {
	const op = "LIST PARTS"
	if err := s.checkKey(op, key); err != nil {
		return nil, err
	}
	var parts []objstore.Part
	var marker *string
	for {
		out, err := s.client.ListParts(ctx, &s3.ListPartsInput{
			Bucket: s.bucket, Key: &key, UploadId: &uploadID, PartNumberMarker: marker,
			RequestPayer:         s.payer,
			SSECustomerAlgorithm: s.sse.algorithm, SSECustomerKey: s.sse.key, SSECustomerKeyMD5: s.sse.md5,
		})
		if err != nil {
			return nil, wrap(ctx, op, key, err)
		}
		for _, p := range out.Parts {
			parts = append(parts, objstore.Part{
				Number: int(aws.ToInt32(p.PartNumber)), ETag: unquoted(p.ETag), Size: aws.ToInt64(p.Size),
				// A part's own checksum is of the whole part, whatever the upload's type.
				Checksum: sums{p.ChecksumCRC64NVME, p.ChecksumCRC32C, p.ChecksumCRC32}.decode(""),
			})
		}
		next := aws.ToString(out.NextPartNumberMarker)
		if !aws.ToBool(out.IsTruncated) || len(out.Parts) == 0 || next == aws.ToString(marker) || len(parts) > s.caps.MaxParts {
			return parts, nil
		}
		marker = &next
	}
}

// CompleteMultipart implements objstore.Store with CompleteMultipartUpload. The answer does
// not tell ModTime.
func (s *Store) CompleteMultipart(ctx context.Context, key, uploadID string, parts []objstore.Part, opt objstore.PutOptions) (objstore.Object, error) {
	const op = "COMPLETE UPLOAD"
	if err := s.checkPut(op, key, opt); err != nil {
		return objstore.Object{}, err
	}
	v := encode(opt.Checksum)
	in := &s3.CompleteMultipartUploadInput{
		Bucket: s.bucket, Key: &key, UploadId: &uploadID,
		IfNoneMatch:       starIf(opt.IfNoneMatch),
		IfMatch:           quoted(opt.IfMatch),
		ChecksumCRC64NVME: v.crc64, ChecksumCRC32C: v.crc32c, ChecksumCRC32: v.crc32,
		RequestPayer:         s.payer,
		SSECustomerAlgorithm: s.sse.algorithm, SSECustomerKey: s.sse.key, SSECustomerKeyMD5: s.sse.md5,
		MultipartUpload: &types.CompletedMultipartUpload{},
	}
	if opt.Checksum.Algorithm != objstore.ChecksumNone {
		in.ChecksumType = types.ChecksumTypeFullObject
	}
	var size int64
	for i, p := range parts {
		if i > 0 && p.Number <= parts[i-1].Number {
			return objstore.Object{}, &objstore.Error{Op: op, Key: key, Kind: objstore.BadRequest,
				Err: fmt.Errorf("part %d stands after part %d", p.Number, parts[i-1].Number)}
		}
		size += p.Size
		v := encode(p.Checksum)
		in.MultipartUpload.Parts = append(in.MultipartUpload.Parts, types.CompletedPart{
			PartNumber: aws.Int32(int32(p.Number)), ETag: quoted(p.ETag),
			ChecksumCRC64NVME: v.crc64, ChecksumCRC32C: v.crc32c, ChecksumCRC32: v.crc32,
		})
	}
	in.MpuObjectSize = aws.Int64(size)
	out, err := s.client.CompleteMultipartUpload(ctx, in)
	if err != nil {
		return objstore.Object{}, lostRace(wrap(ctx, op, key, err), opt.IfMatch)
	}
	o := objstore.Object{Key: key, Size: size, ETag: unquoted(out.ETag), Checksum: opt.Checksum}
	if o.Checksum.Algorithm == objstore.ChecksumNone {
		o.Checksum = sums{out.ChecksumCRC64NVME, out.ChecksumCRC32C, out.ChecksumCRC32}.decode(out.ChecksumType)
	}
	if s.caps.Versions {
		o.VersionID = aws.ToString(out.VersionId)
	}
	return o, nil
}

// AbortMultipart implements objstore.Store with AbortMultipartUpload.
func (s *Store) AbortMultipart(ctx context.Context, key, uploadID string) error {
	const op = "ABORT UPLOAD"
	if err := s.checkKey(op, key); err != nil {
		return err
	}
	_, err := s.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{
		Bucket: s.bucket, Key: &key, UploadId: &uploadID, RequestPayer: s.payer,
	})
	err = wrap(ctx, op, key, err)
	if objstore.Is(err, objstore.NotFound) {
		return nil
	}
	return err
}
