// Package origin reads the names that people give to origins: "s3://bucket/prefix",
// "file:///path".
package origin

import (
	"fmt"
	"path"
	"strings"
)

// Scheme is the sort of origin.
type Scheme string

// The schemes.
const (
	S3   Scheme = "s3"
	File Scheme = "file"
)

// URL is a parsed name of an origin.
type URL struct {
	Scheme Scheme
	// Bucket is the bucket of an S3 origin, Path the absolute directory of a file origin.
	Bucket, Path string
	// Prefix is what stands before every key: "" or a string that ends in "/". A file
	// origin has none: its Path is the whole of it.
	Prefix string
}

// Parse reads "s3://bucket", "s3://bucket/prefix" (a slash is added to the prefix when it
// has none) and "file:///absolute/path". Bytes stand for themselves: nothing is decoded,
// so every key can be named.
func Parse(s string) (URL, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return URL{}, fmt.Errorf("%q is not an origin: want s3://BUCKET[/PREFIX] or file:///PATH", s)
	}
	switch Scheme(strings.ToLower(scheme)) {
	case S3:
		bucket, prefix, _ := strings.Cut(rest, "/")
		if err := checkBucket(bucket); err != nil {
			return URL{}, fmt.Errorf("%q: %w", s, err)
		}
		if prefix != "" && !strings.HasSuffix(prefix, "/") {
			prefix += "/"
		}
		return URL{Scheme: S3, Bucket: bucket, Prefix: prefix}, nil
	case File:
		if !strings.HasPrefix(rest, "/") {
			return URL{}, fmt.Errorf("%q: want an absolute path: file:///PATH", s)
		}
		if strings.ContainsRune(rest, 0) {
			return URL{}, fmt.Errorf("%q: a path holds no NUL", s)
		}
		return URL{Scheme: File, Path: path.Clean(rest)}, nil
	}
	return URL{}, fmt.Errorf("%q: unknown scheme %q: want s3 or file", s, scheme)
}

func (u URL) String() string {
	if u.Scheme == File {
		return "file://" + u.Path
	}
	if u.Prefix == "" {
		return "s3://" + u.Bucket
	}
	return "s3://" + u.Bucket + "/" + u.Prefix
}

// checkBucket refuses what cannot be the name of a bucket or of an access point's alias.
// It is wider than AWS's rules: other stores allow capitals and underscores.
func checkBucket(b string) error {
	if b == "" {
		return fmt.Errorf("the bucket is missing")
	}
	for _, r := range b {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9',
			r == '-', r == '.', r == '_':
		default:
			return fmt.Errorf("a bucket's name does not hold %q", r)
		}
	}
	if b == "." || b == ".." || len(b) > 255 {
		return fmt.Errorf("%q is not a bucket's name", b)
	}
	return nil
}
