package s3

import (
	"crypto/md5"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"
)

// Style is how a bucket is named in a request.
type Style uint8

// The styles. StyleAuto is virtual-host style on AWS and path style at any other endpoint.
const (
	StyleAuto Style = iota
	StylePath
	StyleVirtualHost
)

// Config says which bucket to open and how. Only Bucket is needed; what is not set comes
// from the AWS_* variables and the shared configuration files, as in other AWS clients.
type Config struct {
	Bucket string
	// Prefix is what the caller will use; Open lists under it, so that a policy limited to
	// it suffices. Keys given to the Store are whole keys all the same.
	Prefix string

	Region    string // default: AWS's variables and files, then the bucket's own
	Profile   string // in the shared configuration files
	Endpoint  string // URL; default AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS
	Style     Style
	Anonymous bool // requests are not signed

	RequesterPays bool
	// SSECKey is a customer's key for reading and writing: 32 bytes in base64, or the path
	// of a file that holds the 32 bytes, as they are or in base64.
	SSECKey string
	// SSEKMSKeyID makes writes use SSE-KMS with this key.
	SSEKMSKeyID string

	// UserAgent, "NAME" or "NAME/VERSION", is added to the client's name, "leatfs/1.0".
	UserAgent string

	Transport Transport

	// Known is what an earlier Open of the same bucket found out. Open then sends no request,
	// and asks nobody for credentials before they are needed.
	Known *Known
}

// Known is what Open asks of a bucket, to be kept for a later Open.
type Known struct {
	Name     string // String of the store; what is known of another is not used
	Region   string
	Server   string // what it calls itself
	Versions bool   // every PUT makes a version
}

// Transport bounds the connections. The zero value of each field is its default.
type Transport struct {
	MaxConns       int           // connections to the endpoint; default 256
	DialTimeout    time.Duration // TCP connect; default 5 s
	TLSTimeout     time.Duration // TLS handshake; default 5 s
	HeaderTimeout  time.Duration // from the request's end to the answer's headers; default 30 s
	IdleTimeout    time.Duration // an unused connection is closed after it; default 60 s
	ReadBufferSize int           // bytes per connection; default DefaultReadBuffer
}

// DefaultReadBuffer is the size of a connection's read buffer. A read into a buffer at
// least this large goes from the socket into that buffer without a copy; the cache
// fills blocks of 128 KiB.
const DefaultReadBuffer = 64 << 10

func (t Transport) withDefaults() Transport {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if t.MaxConns <= 0 {
		t.MaxConns = 256
	}
	if t.ReadBufferSize <= 0 {
		t.ReadBufferSize = DefaultReadBuffer
	}
	def(&t.DialTimeout, 5*time.Second)
	def(&t.TLSTimeout, 5*time.Second)
	def(&t.HeaderTimeout, 30*time.Second)
	def(&t.IdleTimeout, 60*time.Second)
	return t
}

func (c *Config) check() error {
	if c.Bucket == "" {
		return errors.New("no bucket given")
	}
	if c.Endpoint != "" {
		u, err := url.Parse(c.Endpoint)
		if err != nil {
			return fmt.Errorf("endpoint %q: %w", c.Endpoint, err)
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("endpoint %q is not a URL: want http://HOST[:PORT] or https://HOST[:PORT]", c.Endpoint)
		}
		if u.User != nil {
			return errors.New("the endpoint holds a user name or password: give credentials by AWS_ACCESS_KEY_ID or a profile")
		}
	}
	if c.SSECKey != "" && c.SSEKMSKeyID != "" {
		return errors.New("an SSE-C key and an SSE-KMS key are given: choose one")
	}
	return nil
}

// customerKey is an SSE-C key as the headers want it. Its fields are nil when there is none.
type customerKey struct {
	algorithm, key, md5 *string
}

func parseCustomerKey(s string) (customerKey, error) {
	if s == "" {
		return customerKey{}, nil
	}
	raw, err := base64.StdEncoding.DecodeString(s)
	if err != nil || len(raw) != 32 {
		raw, err = os.ReadFile(s)
		if err != nil {
			// The value may be a key with a typing error: it does not go into a message.
			return customerKey{}, errors.New("the SSE-C key is neither 32 bytes in base64 nor a file that can be read")
		}
		if len(raw) != 32 {
			raw, err = base64.StdEncoding.DecodeString(strings.TrimSpace(string(raw)))
			if err != nil || len(raw) != 32 {
				return customerKey{}, errors.New("the SSE-C key file holds neither 32 bytes nor 32 bytes in base64")
			}
		}
	}
	sum := md5.Sum(raw)
	str := func(s string) *string { return &s }
	return customerKey{
		algorithm: str("AES256"),
		key:       str(base64.StdEncoding.EncodeToString(raw)),
		md5:       str(base64.StdEncoding.EncodeToString(sum[:])),
	}, nil
}
