package fault

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/test/s3test"
)

// TestS3 signs real requests through the proxy, for each server.
func TestS3(t *testing.T) {
	for _, kind := range s3test.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			srv := s3test.StartTB(t, kind)
			bucket := srv.BucketTB(t)
			p, err := Start(srv.Endpoint, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			c := s3.New(s3.Options{
				BaseEndpoint: aws.String(p.URL()), Region: srv.Region, UsePathStyle: true,
				Credentials: credentials.NewStaticCredentialsProvider(srv.AccessKey, srv.SecretKey, ""),
				Retryer:     aws.NopRetryer{},
			})
			ctx := t.Context()
			data := bytes.Repeat([]byte("leat"), 1<<20)
			for _, key := range []string{"plain", "dir/with space+ä%2F", "a=b&c?d#e"} {
				testObject(ctx, t, c, p, bucket, key, data)
			}

			_, err = c.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &bucket, Prefix: aws.String("dir/"), Delimiter: aws.String("/")})
			if err != nil {
				t.Error(err)
			}
			if got := p.Tally(Class(objstore.ClassList)); got["dir/"] != 1 {
				t.Errorf("lists: %v", got)
			}

			// What the SDK makes of our errors.
			for _, tc := range []struct {
				do   Action
				code string
			}{{SlowDown(0), "SlowDown"}, {ExpiredToken(), "ExpiredToken"}, {ClockSkew(), "RequestTimeTooSkewed"},
				{AccessDenied(), "AccessDenied"}, {Archived(), "InvalidObjectState"}} {
				rule := p.Add(Rule{Class: "GET", Do: tc.do})
				_, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: aws.String("plain")})
				if api, ok := errors.AsType[smithy.APIError](err); !ok || api.ErrorCode() != tc.code {
					t.Errorf("%s: %v", tc.code, err)
				}
				rule.Remove()
			}

			// A PUT whose answer is lost has been carried out.
			p.Add(Rule{Class: "PUT", Do: Lose()})
			_, err = c.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: aws.String("lost"), Body: strings.NewReader("x")})
			if err == nil {
				t.Error("a lost answer arrived")
			}
			p.Clear()
			if _, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &bucket, Key: aws.String("lost")}); err != nil {
				t.Errorf("the server did not carry it out: %v", err)
			}
		})
	}
}

func testObject(ctx context.Context, t *testing.T, c *s3.Client, p *Proxy, bucket, key string, data []byte) {
	t.Helper()
	_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: bytes.NewReader(data)})
	if err != nil {
		t.Fatalf("PUT %q: %v", key, err)
	}
	out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key, Range: aws.String("bytes=4096-")})
	if err != nil {
		t.Fatalf("GET %q: %v", key, err)
	}
	got, err := io.ReadAll(out.Body)
	out.Body.Close()
	if err != nil || !bytes.Equal(got, data[4096:]) {
		t.Errorf("GET %q: %d bytes, %v", key, len(got), err)
	}
	if n := p.Count(All(Class(objstore.ClassGet), Key(key))); n != 1 {
		t.Errorf("%d GETs of %q in the log: %v", n, key, p.Requests())
	}
}
