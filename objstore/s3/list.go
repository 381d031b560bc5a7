package s3

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/leatfs/leatfs/objstore"
)

// List implements objstore.Store with ListObjectsV2.
func (s *Store) List(ctx context.Context, opt objstore.ListOptions) (objstore.ListPage, error) {
	const op = "LIST"
	if opt.StartAfter != "" && !s.caps.ListOrdered {
		return objstore.ListPage{}, unsupported(op, opt.Prefix, "list from a key on")
	}
	if opt.Delimiter != "" && opt.Delimiter != "/" {
		return objstore.ListPage{}, &objstore.Error{Op: op, Key: opt.Prefix, Kind: objstore.BadRequest,
			Hint: `the delimiter is "/" or ""`}
	}
	in := &s3.ListObjectsV2Input{
		Bucket:       s.bucket,
		Prefix:       optional(opt.Prefix),
		Delimiter:    optional(opt.Delimiter),
		EncodingType: types.EncodingTypeUrl, // XML cannot hold every key
		RequestPayer: s.payer,
	}
	if opt.Token != "" {
		in.ContinuationToken = &opt.Token
	} else {
		in.StartAfter = optional(opt.StartAfter)
	}
	if opt.MaxKeys > 0 {
		in.MaxKeys = aws.Int32(int32(min(opt.MaxKeys, s.caps.MaxListKeys)))
	}
	if s.server == serverAWS {
		in.OptionalObjectAttributes = []types.OptionalObjectAttributes{types.OptionalObjectAttributesRestoreStatus}
	}
	out, err := s.client.ListObjectsV2(ctx, in)
	if err != nil {
		err = wrap(ctx, op, opt.Prefix, err)
		if e, ok := err.(*objstore.Error); ok {
			switch {
			case e.Code == "XMinioInvalidObjectName":
				return objstore.ListPage{}, nil // such keys are not kept there: so there is none
			case e.Kind == objstore.NotFound: // nothing that S3 says of a listing
				e.Kind, e.Hint = objstore.Unavailable, notS3
			}
		}
		return objstore.ListPage{}, err
	}
	page, err := listPage(out, opt)
	if err != nil {
		return objstore.ListPage{}, &objstore.Error{Op: op, Key: opt.Prefix, Kind: objstore.Unavailable, Err: err,
			Hint: notS3}
	}
	return page, nil
}

// listPage turns an answer into a page.
func listPage(out *s3.ListObjectsV2Output, opt objstore.ListOptions) (objstore.ListPage, error) {
	decode := func(p *string) (string, error) {
		if out.EncodingType != types.EncodingTypeUrl {
			return aws.ToString(p), nil
		}
		return url.QueryUnescape(aws.ToString(p))
	}
	var page objstore.ListPage
	if len(out.Contents) > 0 {
		page.Objects = make([]objstore.Object, 0, len(out.Contents))
	}
	for i := range out.Contents {
		c := &out.Contents[i]
		key, err := decode(c.Key)
		if err != nil {
			return page, err
		}
		if !strings.HasPrefix(key, opt.Prefix) || key == "" {
			return page, errors.New("a key that was not asked for: " + key)
		}
		o := objstore.Object{
			Key:          key,
			Size:         aws.ToInt64(c.Size),
			ETag:         unquoted(c.ETag),
			ModTime:      aws.ToTime(c.LastModified),
			StorageClass: className(string(c.StorageClass)),
		}
		o.Archived = needsRestore(o.StorageClass) && !(c.RestoreStatus != nil && c.RestoreStatus.RestoreExpiryDate != nil &&
			!aws.ToBool(c.RestoreStatus.IsRestoreInProgress))
		page.Objects = append(page.Objects, o)
	}
	for i := range out.CommonPrefixes {
		p, err := decode(out.CommonPrefixes[i].Prefix)
		if err != nil {
			return page, err
		}
		if opt.Token == "" && opt.StartAfter != "" && (p <= opt.StartAfter || strings.HasPrefix(opt.StartAfter, p)) {
			continue // stores show the prefix that StartAfter lies in
		}
		page.Prefixes = append(page.Prefixes, p)
	}
	if aws.ToBool(out.IsTruncated) {
		if aws.ToString(out.NextContinuationToken) == "" {
			return page, errors.New("there is more, but no token to ask for it")
		}
		page.Next = *out.NextContinuationToken
	}
	return page, nil
}

// className is a storage class, "" for the standard one.
func className(c string) string {
	if c == string(types.StorageClassStandard) {
		return ""
	}
	return c
}

// needsRestore tells whether objects of a class must be restored before they can be read.
// GLACIER_IR can be read at once; INTELLIGENT_TIERING says by a header of its own.
func needsRestore(class string) bool {
	return class == string(types.StorageClassGlacier) || class == string(types.StorageClassDeepArchive)
}
