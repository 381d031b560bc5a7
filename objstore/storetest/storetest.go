// Package storetest is the behaviour that every objstore.Store and every wrapper must have,
// as a suite of tests.
package storetest

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/minio/crc64nvme"

	"github.com/leatfs/leatfs/objstore"
)

// Features is what a store holds beyond the contract, or cannot.
type Features struct {
	// OddKeys are keys that this store holds beyond the odd ones that all hold.
	OddKeys []string
	// RefusedKeys are keys that this store refuses, with an error of kind BadRequest.
	RefusedKeys []string
	// KeyBesidePrefix: the store holds "a" beside "a/x".
	KeyBesidePrefix bool
	// KeyHidesPrefix: such an "a" hides "a/x" from listings (a fault of MinIO).
	KeyHidesPrefix bool
	// DeletedShows: in a bucket that keeps versions, a prefix under which all is deleted is
	// listed all the same (a fault of both servers that the suite runs on).
	DeletedShows bool
	// DeletedExists: in a bucket that keeps versions, a deleted key is not free for
	// PutIfNoneMatch (a fault of versitygw).
	DeletedExists bool
	// NoMetadata: the store keeps no user metadata and content types.
	NoMetadata bool
}

// Open returns a store over an empty bucket or directory of its own. The suite closes it.
type Open func(t *testing.T) objstore.Store

// test is one test of the suite.
type test struct {
	name string
	need func(objstore.Caps) bool // nil: always
	run  func(*env)
}

// Run runs the suite. It calls open once per test, and skips what Caps says the store
// cannot do, after it has seen that the store then refuses.
func Run(t *testing.T, open Open, f Features) {
	all := [][]test{readTests(), listTests(), writeTests(), conditionTests(), multipartTests(), copyTests(), versionTests()}
	for _, group := range all {
		for _, tc := range group {
			t.Run(tc.name, func(t *testing.T) {
				s := open(t)
				t.Cleanup(func() {
					if err := s.Close(); err != nil {
						t.Errorf("Close: %v", err)
					}
				})
				e := &env{T: t, s: s, f: f, ctx: t.Context()}
				if tc.need != nil && !tc.need(s.Caps()) {
					t.Logf("not among the store's capabilities: %+v", s.Caps())
					return
				}
				tc.run(e)
			})
		}
	}
}

// env is what a test works with.
type env struct {
	*testing.T
	s   objstore.Store
	f   Features
	ctx context.Context
}

// Bytes returns n bytes that depend on seed alone.
func Bytes(seed uint64, n int) []byte {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

// Source is data in memory to upload.
type Source struct{ *bytes.Reader }

// NewSource is a Source of b.
func NewSource(b []byte) Source { return Source{bytes.NewReader(b)} }

// Sum computes a checksum.
func Sum(a objstore.ChecksumAlgorithm, b []byte) objstore.Checksum {
	c := objstore.Checksum{Algorithm: a}
	switch a {
	case objstore.CRC64NVME:
		c.Value = crc64nvme.Checksum(b)
	case objstore.CRC32C:
		c.Value = uint64(crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	case objstore.CRC32:
		c.Value = uint64(crc32.ChecksumIEEE(b))
	}
	return c
}

func (e *env) put(key string, data []byte) objstore.Object {
	e.Helper()
	o, err := e.s.Put(e.ctx, key, NewSource(data), objstore.PutOptions{})
	if err != nil {
		e.Fatalf("Put(%q): %v", key, err)
	}
	if o.Key != key || o.Size != int64(len(data)) || o.ETag == "" {
		e.Fatalf("Put(%q): got %+v", key, o)
	}
	return o
}

func (e *env) head(key string) objstore.Object {
	e.Helper()
	o, err := e.s.Head(e.ctx, key, objstore.HeadOptions{})
	if err != nil {
		e.Fatalf("Head(%q): %v", key, err)
	}
	return o
}

// read gets and reads a range to its end.
func (e *env) read(key string, opt objstore.GetOptions) ([]byte, *objstore.Reader, error) {
	r, err := e.s.Get(e.ctx, key, opt)
	if err != nil {
		return nil, nil, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && int64(len(b)) != r.Length {
		e.Errorf("Get(%q, %+v): %d bytes in the body, Length says %d", key, opt, len(b), r.Length)
	}
	return b, r, err
}

// whole reads an object and holds it against want.
func (e *env) whole(key string, want []byte) *objstore.Reader {
	e.Helper()
	b, r, err := e.read(key, objstore.GetOptions{Length: -1})
	if err != nil {
		e.Fatalf("Get(%q): %v", key, err)
	}
	if !bytes.Equal(b, want) {
		e.Fatalf("Get(%q): got %s, want %s", key, brief(b), brief(want))
	}
	return r
}

// wantKind fails unless err is an *objstore.Error of kind k.
func (e *env) wantKind(what string, err error, k objstore.Kind) {
	e.Helper()
	if err == nil {
		e.Errorf("%s: no error, want %q", what, k)
		return
	}
	var oe *objstore.Error
	if !errors.As(err, &oe) {
		e.Errorf("%s: %v is a %T, want an *objstore.Error", what, err, err)
		return
	}
	if oe.Kind != k {
		e.Errorf("%s: got %q, want %q: %v", what, oe.Kind, k, err)
	}
}

// list collects all pages. max is ListOptions.MaxKeys.
func (e *env) list(opt objstore.ListOptions) (keys, prefixes []string, pages int) {
	e.Helper()
	for {
		p, err := e.s.List(e.ctx, opt)
		if err != nil {
			e.Fatalf("List(%+v): %v", opt, err)
		}
		pages++
		n := len(p.Objects) + len(p.Prefixes)
		if opt.MaxKeys > 0 && n > opt.MaxKeys {
			e.Errorf("List(%+v): %d names on a page", opt, n)
		}
		for _, o := range p.Objects {
			keys = append(keys, o.Key)
		}
		prefixes = append(prefixes, p.Prefixes...)
		if p.Next == "" {
			return keys, prefixes, pages
		}
		if pages > 10000 {
			e.Fatalf("List(%+v): no end", opt)
		}
		opt.Token = p.Next
	}
}

func brief(b []byte) string {
	if len(b) <= 40 {
		return fmt.Sprintf("%q", b)
	}
	sum := md5.Sum(b)
	return fmt.Sprintf("%d bytes, MD5 %s", len(b), hex.EncodeToString(sum[:4]))
}

func quoteAll(s []string) string { return fmt.Sprintf("%q", strings.Join(s, " ")) }
