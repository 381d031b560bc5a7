package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/leatfs/leatfs/objstore"
)

const opOpen = "OPEN"

// Open opens a bucket and makes sure that it can be listed. Its requests are: one LIST of
// one key, one GetBucketVersioning (denied means: no versions) and, on AWS where the region
// is unknown or wrong, one HEAD of the bucket and a second LIST. With Config.Known there are none.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	fail := func(k objstore.Kind, hint string, err error) error {
		return &objstore.Error{Op: opOpen, Key: cfg.Bucket, Kind: k, Hint: hint, Err: err}
	}
	if err := cfg.check(); err != nil {
		return nil, fail(objstore.BadRequest, "", err)
	}
	sse, err := parseCustomerKey(cfg.SSECKey)
	if err != nil {
		return nil, fail(objstore.BadRequest, "", err)
	}
	ac, err := loadConfig(ctx, cfg)
	if err != nil {
		return nil, fail(objstore.BadRequest, "check the AWS configuration files and the profile", err)
	}
	if ac.Region == "" {
		ac.Region = "us-east-1"
	}
	s := &Store{cfg: cfg, bucket: &cfg.Bucket, sse: sse}
	if cfg.RequesterPays {
		s.payer = types.RequestPayerRequester
	}
	s.client, s.transport = newClient(ac, cfg)
	if e := s.client.Options().BaseEndpoint; e != nil && !isAWS(*e) {
		s.endpoint = strings.TrimRight(*e, "/")
	}
	s.name = storeName(cfg.Bucket, s.endpoint)
	if k := cfg.Known; k != nil && k.Name == s.name {
		if k.Region != ac.Region {
			s.transport.CloseIdleConnections()
			ac.Region = k.Region
			s.client, s.transport = newClient(ac, cfg)
		}
		s.learn(k.Server, k.Versions)
		return s, nil
	}

	if !cfg.Anonymous {
		if err := checkCredentials(ctx, s.client); err != nil {
			if ctx.Err() != nil {
				return nil, wrap(ctx, opOpen, cfg.Bucket, err)
			}
			return nil, fail(objstore.BadCredentials, noCredentials, err)
		}
	}
	header, err := s.probe(ctx)
	if objstore.Is(err, objstore.WrongRegion) && cfg.Region == "" && s.endpoint == "" {
		// The region was AWS's default or the environment's, not the caller's word.
		if region := s.bucketRegion(ctx); region != "" && region != ac.Region {
			s.transport.CloseIdleConnections()
			ac.Region = region
			s.client, s.transport = newClient(ac, cfg)
			header, err = s.probe(ctx)
		}
	}
	if err != nil {
		s.transport.CloseIdleConnections()
		return nil, s.explain(err)
	}
	s.learn(header.Get("Server"), false)
	s.caps.Versions = s.keepsVersions(ctx)
	return s, nil
}

// learn takes in what the server calls itself, and what follows from that.
func (s *Store) learn(serverHeader string, versions bool) {
	s.called = serverHeader
	s.server = detectServer(s.cfg.Bucket, s.endpoint, serverHeader)
	s.caps = capsOf(s.server)
	s.caps.Versions = versions
}

// Known is what Open has asked, for Config.Known.
func (s *Store) Known() Known {
	return Known{Name: s.name, Region: s.Region(), Server: s.called, Versions: s.caps.Versions}
}

const noCredentials = "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile, or give --no-sign-request for a public bucket"

func checkCredentials(ctx context.Context, c *s3.Client) error {
	p := c.Options().Credentials
	if p == nil {
		return errors.New("the chain of credential providers is empty")
	}
	cr, err := p.Retrieve(ctx)
	if err == nil && !cr.HasKeys() {
		err = errors.New("the credentials hold no keys")
	}
	var marked *credentialsError
	if errors.As(err, &marked) {
		err = marked.err
	}
	return err
}

// probe lists one key under the prefix. A LIST and not a HEAD of the bucket: the answer to
// a HEAD has no body and so does not say what is wrong, and a policy may allow the prefix
// only.
func (s *Store) probe(ctx context.Context) (http.Header, error) {
	out, err := s.client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{
		Bucket: s.bucket, Prefix: optional(s.cfg.Prefix), MaxKeys: aws.Int32(1), RequestPayer: s.payer,
	})
	if err != nil {
		return nil, wrap(ctx, opOpen, s.cfg.Bucket, err)
	}
	if out.IsTruncated == nil && out.KeyCount == nil && out.Name == nil {
		return nil, &objstore.Error{Op: opOpen, Key: s.cfg.Bucket, Kind: objstore.Unsupported,
			Hint: notS3, Err: errors.New("the answer to LIST is empty")}
	}
	return answerHeader(out.ResultMetadata), nil
}

// explain adds to a failed probe what to do about it.
func (s *Store) explain(err error) error {
	var e *objstore.Error
	if !errors.As(err, &e) {
		return err
	}
	where := s.endpoint
	if where == "" {
		where = "AWS, region " + s.Region()
	}
	switch e.Kind {
	case objstore.NoBucket, objstore.NotFound:
		e.Kind = objstore.NoBucket
		e.Hint = fmt.Sprintf("there is no bucket %q at %s: check its name, the endpoint and the region", s.cfg.Bucket, where)
	case objstore.AccessDenied:
		e.Hint = fmt.Sprintf("the credentials need s3:ListBucket on %q (prefix %q) and s3:GetObject", s.cfg.Bucket, s.cfg.Prefix)
		if s.cfg.Anonymous {
			e.Hint = "the bucket is not public: mount it with credentials, without --no-sign-request"
		}
	case objstore.Network, objstore.Timeout:
		e.Hint = fmt.Sprintf("%s cannot be reached%s", where, prefixed(": ", e.Hint))
	}
	return err
}

func prefixed(p, s string) string {
	if s == "" {
		return ""
	}
	return p + s
}

// bucketRegion asks AWS where the bucket is: any answer to a HEAD of it says so, also a
// refusal.
func (s *Store) bucketRegion(ctx context.Context) string {
	out, err := s.client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: s.bucket}, func(o *s3.Options) {
		o.Credentials = aws.AnonymousCredentials{}
	})
	if err == nil {
		return aws.ToString(out.BucketRegion)
	}
	var resp *smithyhttp.ResponseError
	if errors.As(err, &resp) && resp.Response != nil {
		return resp.Response.Header.Get(regionHeader)
	}
	return ""
}

// keepsVersions tells whether every PUT makes a version with an id. Suspended buckets
// do not: their "null" version is overwritten.
func (s *Store) keepsVersions(ctx context.Context) bool {
	if s.cfg.Anonymous || s.server == serverAWSDirectory {
		return false
	}
	out, err := s.client.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: s.bucket})
	return err == nil && out.Status == types.BucketVersioningStatusEnabled
}
