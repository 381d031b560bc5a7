// Package s3 is the origin on S3 and what speaks S3.
//
// It adds nothing to the wire: no retries, no hidden requests except where a method's
// comment names them. Answers are checked before they are believed: the ETag asked for,
// the range asked for, the length promised.
package s3

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/leatfs/leatfs/objstore"
)

// Store is one bucket. All fields are constant after Open.
type Store struct {
	cfg       Config
	name      string // String()
	bucket    *string
	endpoint  string // "" on AWS
	called    string // what the server calls itself
	server    server
	caps      objstore.Caps
	sse       customerKey
	payer     types.RequestPayer
	client    *s3.Client
	transport *http.Transport
}

var _ objstore.Store = (*Store)(nil)

// String implements objstore.Store.
func (s *Store) String() string { return s.name }

// Caps implements objstore.Store.
func (s *Store) Caps() objstore.Caps { return s.caps }

// Region is the region that requests are signed for.
func (s *Store) Region() string { return s.client.Options().Region }

// Close implements objstore.Store.
func (s *Store) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// storeName is the identity of a bucket: that of the endpoint too where it is not AWS,
// where bucket names are global.
func storeName(bucket, endpoint string) string {
	if endpoint == "" {
		return "s3://" + bucket
	}
	return "s3://" + bucket + "?endpoint=" + endpoint
}

// isAWS tells whether an endpoint is one of AWS's own.
func isAWS(endpoint string) bool {
	if endpoint == "" {
		return true
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return false
	}
	h := strings.ToLower(u.Hostname())
	for _, d := range []string{".amazonaws.com", ".amazonaws.com.cn", ".api.aws"} {
		if strings.HasSuffix(h, d) {
			return true
		}
	}
	return false
}

// checkKey refuses the empty key, which would name the bucket itself.
func (s *Store) checkKey(op, key string) error {
	if key == "" {
		return &objstore.Error{Op: op, Key: key, Kind: objstore.BadRequest, Hint: "a key is not empty"}
	}
	return nil
}

func unsupported(op, key, what string) error {
	return &objstore.Error{Op: op, Key: key, Kind: objstore.Unsupported, Hint: "this store cannot " + what}
}

// quoted is an ETag as a header holds it; nil for "".
func quoted(etag string) *string {
	if etag == "" {
		return nil
	}
	q := `"` + etag + `"`
	return &q
}

// unquoted is an ETag as objstore holds it. Weak ETags keep their mark: they are opaque.
func unquoted(etag *string) string {
	if etag == nil {
		return ""
	}
	e := *etag
	if len(e) >= 2 && e[0] == '"' && e[len(e)-1] == '"' {
		return e[1 : len(e)-1]
	}
	return e
}

// optional is s, nil for "".
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
