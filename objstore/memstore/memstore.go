// Package memstore is a Store in memory, for tests of what wraps or uses a Store. It keeps
// to the contract exactly, has no limits and never fails by itself.
package memstore

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/leatfs/leatfs/objstore"
	"github.com/minio/crc64nvme"
)

// Store holds objects in memory. The zero value is not usable; see New.
type Store struct {
	mu      sync.Mutex
	keys    []string // sorted
	objects map[string]object
	uploads map[string]*upload
	serial  int // of uploads
}

type object struct {
	meta objstore.Object
	data []byte
}

type upload struct {
	key   string
	opt   objstore.PutOptions
	parts map[int]part
}

type part struct {
	objstore.Part
	data []byte
}

// New returns an empty store.
func New() *Store {
	return &Store{objects: map[string]object{}, uploads: map[string]*upload{}}
}

// PageSize is the largest page that List returns, S3's.
const PageSize = 1000

// Set puts an object in place without any request; for filling a store before a test.
func (s *Store) Set(key string, data []byte) objstore.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.put(key, data, objstore.PutOptions{})
}

// SetKeys makes empty objects of all keys, faster than Set one by one.
func (s *Store) SetKeys(keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		if _, ok := s.objects[k]; !ok {
			s.keys = append(s.keys, k)
		}
		s.objects[k] = object{meta: objstore.Object{Key: k, ETag: "d41d8cd98f00b204e9800998ecf8427e", ETagIsMD5: true}}
	}
	sort.Strings(s.keys)
}

// Uploads returns the keys of the multipart uploads that are not over, sorted.
func (s *Store) Uploads() (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.uploads {
		keys = append(keys, u.key)
	}
	sort.Strings(keys)
	return keys
}

// String names the store.
func (s *Store) String() string { return "mem://" }

// Caps is everything but versions.
func (s *Store) Caps() objstore.Caps {
	return objstore.Caps{ListOrdered: true, PutIfNoneMatch: true, PutIfMatch: true, CopyIfMatch: true,
		DeleteIfMatch: true, Multipart: true, PartCopy: true, Checksums: true,
		MinPartSize: 1, MaxPartSize: 5 << 30, MaxParts: 10000, MaxListKeys: PageSize}
}

// Close does nothing.
func (s *Store) Close() error { return nil }

func fail(op, key string, k objstore.Kind) error {
	return &objstore.Error{Op: op, Key: key, Kind: k}
}

func done(ctx context.Context, op, key string) error {
	if err := ctx.Err(); err != nil {
		return &objstore.Error{Op: op, Key: key, Kind: objstore.Canceled, Err: err}
	}
	if key == "" && op != "LIST" {
		return fail(op, key, objstore.BadRequest)
	}
	return nil
}

// List returns one page.
func (s *Store) List(ctx context.Context, opt objstore.ListOptions) (objstore.ListPage, error) {
	if err := done(ctx, "LIST", opt.Prefix); err != nil {
		return objstore.ListPage{}, err
	}
	if opt.Delimiter != "" && opt.Delimiter != "/" {
		return objstore.ListPage{}, fail("LIST", opt.Prefix, objstore.BadRequest)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	after := opt.StartAfter
	if opt.Token != "" {
		after = opt.Token
	}
	limit := opt.MaxKeys
	if limit <= 0 || limit > PageSize {
		limit = PageSize
	}
	var page objstore.ListPage
	// The first key greater than after, or with the prefix.
	i := sort.Search(len(s.keys), func(i int) bool { return s.keys[i] > after && s.keys[i] >= opt.Prefix })
	last := ""
	for n := 0; i < len(s.keys) && strings.HasPrefix(s.keys[i], opt.Prefix); n++ {
		k := s.keys[i]
		common := ""
		if opt.Delimiter != "" {
			if j := strings.Index(k[len(opt.Prefix):], opt.Delimiter); j >= 0 {
				common = k[:len(opt.Prefix)+j+len(opt.Delimiter)]
			}
		}
		if common != "" && (common <= after || strings.HasPrefix(after, common)) {
			i = s.skip(i, common)
			n--
			continue
		}
		if n == limit {
			page.Next = last
			break
		}
		if common == "" {
			page.Objects = append(page.Objects, listed(s.objects[k].meta))
			last = k
			i++
			continue
		}
		page.Prefixes = append(page.Prefixes, common)
		last = common
		i = s.skip(i, common)
	}
	return page, nil
}

// skip returns the index behind the keys that begin with p; keys[i] does.
func (s *Store) skip(i int, p string) int {
	return i + sort.Search(len(s.keys)-i, func(j int) bool { return !strings.HasPrefix(s.keys[i+j], p) })
}

func listed(o objstore.Object) objstore.Object {
	o.Checksum, o.Metadata, o.ContentType, o.ETagIsMD5 = objstore.Checksum{}, nil, "", false
	return o
}

// Head describes an object.
func (s *Store) Head(ctx context.Context, key string, opt objstore.HeadOptions) (objstore.Object, error) {
	if err := done(ctx, "HEAD", key); err != nil {
		return objstore.Object{}, err
	}
	if opt.VersionID != "" {
		return objstore.Object{}, fail("HEAD", key, objstore.Unsupported)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[key]
	if !ok {
		return objstore.Object{}, fail("HEAD", key, objstore.NotFound)
	}
	return o.meta, nil
}

// Get opens an object.
func (s *Store) Get(ctx context.Context, key string, opt objstore.GetOptions) (*objstore.Reader, error) {
	if err := done(ctx, "GET", key); err != nil {
		return nil, err
	}
	if opt.VersionID != "" {
		return nil, fail("GET", key, objstore.Unsupported)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[key]
	size := int64(len(o.data))
	whole := opt.Offset == 0 && opt.Length < 0
	switch {
	case !ok:
		return nil, fail("GET", key, objstore.NotFound)
	case opt.IfMatch != "" && opt.IfMatch != o.meta.ETag:
		return nil, fail("GET", key, objstore.PreconditionFailed)
	case opt.Offset < 0:
		return nil, fail("GET", key, objstore.BadRequest)
	case opt.Offset >= size && !whole:
		return nil, fail("GET", key, objstore.InvalidRange)
	}
	n := size - opt.Offset
	if opt.Length >= 0 {
		n = min(n, opt.Length)
	}
	meta := o.meta
	if !whole {
		meta.Checksum = objstore.Checksum{}
	}
	b := &body{ctx: ctx, key: key, data: bytes.NewReader(o.data[opt.Offset : opt.Offset+n])}
	return &objstore.Reader{Object: meta, Offset: opt.Offset, Length: n, Body: b}, nil
}

type body struct {
	data   *bytes.Reader // not embedded: its WriteTo would pass by Read
	ctx    context.Context
	key    string
	closed bool
}

func (b *body) Read(p []byte) (int, error) {
	if err := done(b.ctx, "GET", b.key); err != nil {
		return 0, err
	}
	if b.closed {
		return 0, &objstore.Error{Op: "GET", Key: b.key, Kind: objstore.Canceled, Err: io.ErrClosedPipe}
	}
	return b.data.Read(p)
}

func (b *body) Close() error {
	b.closed = true
	return nil
}

// put stores data under the lock.
func (s *Store) put(key string, data []byte, opt objstore.PutOptions) objstore.Object {
	sum := md5.Sum(data)
	m := objstore.Object{Key: key, Size: int64(len(data)), ETag: hex.EncodeToString(sum[:]), ETagIsMD5: true,
		ModTime: time.Now().Truncate(time.Second), Metadata: maps.Clone(opt.Metadata), ContentType: opt.ContentType,
		Checksum: objstore.Checksum{Algorithm: objstore.CRC64NVME, Value: crc64nvme.Checksum(data)}}
	if opt.Checksum.Algorithm != objstore.ChecksumNone {
		m.Checksum = opt.Checksum
	}
	if _, ok := s.objects[key]; !ok {
		i, _ := slices.BinarySearch(s.keys, key)
		s.keys = slices.Insert(s.keys, i, key)
	}
	s.objects[key] = object{meta: m, data: data}
	return m
}

func (s *Store) conditions(op, key string, opt objstore.PutOptions) error {
	o, ok := s.objects[key]
	if opt.IfNoneMatch && opt.IfMatch != "" {
		return fail(op, key, objstore.BadRequest)
	}
	if ok && opt.IfNoneMatch || opt.IfMatch != "" && (!ok || o.meta.ETag != opt.IfMatch) {
		return fail(op, key, objstore.PreconditionFailed)
	}
	return nil
}

func matches(c objstore.Checksum, data []byte) bool {
	switch c.Algorithm {
	case objstore.CRC64NVME:
		return crc64nvme.Checksum(data) == c.Value
	case objstore.CRC32:
		return uint64(crc32.ChecksumIEEE(data)) == c.Value
	case objstore.CRC32C:
		return uint64(crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))) == c.Value
	}
	return true
}

func load(src objstore.Source) ([]byte, error) {
	data := make([]byte, src.Size())
	_, err := io.ReadFull(io.NewSectionReader(src, 0, src.Size()), data)
	return data, err
}

// Put stores an object.
func (s *Store) Put(ctx context.Context, key string, src objstore.Source, opt objstore.PutOptions) (objstore.Object, error) {
	if err := done(ctx, "PUT", key); err != nil {
		return objstore.Object{}, err
	}
	data, err := load(src)
	if err != nil {
		return objstore.Object{}, &objstore.Error{Op: "PUT", Key: key, Kind: objstore.Unknown, Err: err}
	}
	if !matches(opt.Checksum, data) {
		return objstore.Object{}, fail("PUT", key, objstore.Corrupt)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.conditions("PUT", key, opt); err != nil {
		return objstore.Object{}, err
	}
	return s.put(key, data, opt), nil
}

// CreateMultipart begins an upload.
func (s *Store) CreateMultipart(ctx context.Context, key string, opt objstore.PutOptions) (string, error) {
	if err := done(ctx, "CREATE MULTIPART", key); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serial++
	id := fmt.Sprintf("upload-%d", s.serial)
	s.uploads[id] = &upload{key: key, opt: opt, parts: map[int]part{}}
	return id, nil
}

func (s *Store) upload(op, key, id string) (*upload, error) {
	u := s.uploads[id]
	if u == nil || u.key != key {
		return nil, fail(op, key, objstore.NotFound)
	}
	return u, nil
}

func (s *Store) addPart(op, key, id string, number int, data []byte, sum objstore.Checksum) (objstore.Part, error) {
	if number < 1 || number > 10000 {
		return objstore.Part{}, fail(op, key, objstore.BadRequest)
	}
	if !matches(sum, data) {
		return objstore.Part{}, fail(op, key, objstore.Corrupt)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := s.upload(op, key, id)
	if err != nil {
		return objstore.Part{}, err
	}
	h := md5.Sum(data)
	p := objstore.Part{Number: number, ETag: hex.EncodeToString(h[:]), Size: int64(len(data)), Checksum: sum}
	u.parts[number] = part{Part: p, data: data}
	return p, nil
}

// PutPart adds a part.
func (s *Store) PutPart(ctx context.Context, key, uploadID string, number int, src objstore.Source, sum objstore.Checksum) (objstore.Part, error) {
	if err := done(ctx, "PUT PART", key); err != nil {
		return objstore.Part{}, err
	}
	data, err := load(src)
	if err != nil {
		return objstore.Part{}, &objstore.Error{Op: "PUT PART", Key: key, Kind: objstore.Unknown, Err: err}
	}
	return s.addPart("PUT PART", key, uploadID, number, data, sum)
}

// CopyPart adds a part that is a range of an object.
func (s *Store) CopyPart(ctx context.Context, key, uploadID string, number int, srcKey string, off, n int64, opt objstore.CopyOptions) (objstore.Part, error) {
	r, err := s.Get(ctx, srcKey, objstore.GetOptions{Offset: off, Length: n, IfMatch: opt.SourceIfMatch, VersionID: opt.SourceVersionID})
	if err != nil {
		return objstore.Part{}, err
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return objstore.Part{}, err
	}
	return s.addPart("COPY PART", key, uploadID, number, data, objstore.Checksum{})
}

// ListParts tells the parts by number.
func (s *Store) ListParts(ctx context.Context, key, uploadID string) ([]objstore.Part, error) {
	if err := done(ctx, "LIST PARTS", key); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := s.upload("LIST PARTS", key, uploadID)
	if err != nil {
		return nil, err
	}
	var out []objstore.Part
	for _, n := range slices.Sorted(maps.Keys(u.parts)) {
		out = append(out, u.parts[n].Part)
	}
	return out, nil
}

// CompleteMultipart makes the object of the parts.
func (s *Store) CompleteMultipart(ctx context.Context, key, uploadID string, parts []objstore.Part, opt objstore.PutOptions) (objstore.Object, error) {
	const op = "COMPLETE MULTIPART"
	if err := done(ctx, op, key); err != nil {
		return objstore.Object{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := s.upload(op, key, uploadID)
	if err != nil {
		return objstore.Object{}, err
	}
	if err := s.conditions(op, key, opt); err != nil {
		return objstore.Object{}, err
	}
	var data []byte
	for i, p := range parts {
		have, ok := u.parts[p.Number]
		if !ok || have.ETag != p.ETag || i > 0 && parts[i-1].Number >= p.Number {
			return objstore.Object{}, fail(op, key, objstore.BadRequest)
		}
		data = append(data, have.data...)
	}
	if len(parts) == 0 {
		return objstore.Object{}, fail(op, key, objstore.BadRequest)
	}
	if !matches(opt.Checksum, data) {
		return objstore.Object{}, fail(op, key, objstore.Corrupt)
	}
	full := u.opt
	full.Checksum = opt.Checksum
	delete(s.uploads, uploadID)
	return s.assemble(key, data, full, len(parts)), nil
}

// assemble stores what came in parts, with an ETag that shows it. Under the lock.
func (s *Store) assemble(key string, data []byte, opt objstore.PutOptions, parts int) objstore.Object {
	o := s.objects[key]
	o.meta, o.data = s.put(key, data, opt), data
	o.meta.ETag, o.meta.ETagIsMD5 = fmt.Sprintf("%s-%d", o.meta.ETag, parts), false
	s.objects[key] = o
	return o.meta
}

// AbortMultipart drops an upload.
func (s *Store) AbortMultipart(ctx context.Context, key, uploadID string) error {
	if err := done(ctx, "ABORT MULTIPART", key); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.uploads, uploadID)
	return nil
}

// Copy copies an object.
func (s *Store) Copy(ctx context.Context, srcKey, dstKey string, opt objstore.CopyOptions) (objstore.Object, error) {
	if err := done(ctx, "COPY", dstKey); err != nil {
		return objstore.Object{}, err
	}
	if opt.SourceVersionID != "" {
		return objstore.Object{}, fail("COPY", srcKey, objstore.Unsupported)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	src, ok := s.objects[srcKey]
	if !ok {
		return objstore.Object{}, fail("COPY", srcKey, objstore.NotFound)
	}
	if opt.SourceIfMatch != "" && opt.SourceIfMatch != src.meta.ETag {
		return objstore.Object{}, fail("COPY", srcKey, objstore.PreconditionFailed)
	}
	if err := s.conditions("COPY", dstKey, objstore.PutOptions{IfNoneMatch: opt.IfNoneMatch}); err != nil {
		return objstore.Object{}, err
	}
	po := objstore.PutOptions{Metadata: opt.Metadata, ContentType: src.meta.ContentType, Checksum: src.meta.Checksum}
	if opt.Metadata == nil {
		po.Metadata = src.meta.Metadata
	}
	return s.put(dstKey, src.data, po), nil
}

// Delete removes an object.
func (s *Store) Delete(ctx context.Context, key string, opt objstore.DeleteOptions) error {
	if err := done(ctx, "DELETE", key); err != nil {
		return err
	}
	if opt.VersionID != "" {
		return fail("DELETE", key, objstore.Unsupported)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[key]
	if opt.IfMatch != "" && (!ok || o.meta.ETag != opt.IfMatch) {
		return fail("DELETE", key, objstore.PreconditionFailed)
	}
	if !ok {
		return nil
	}
	delete(s.objects, key)
	i, _ := slices.BinarySearch(s.keys, key)
	s.keys = slices.Delete(s.keys, i, i+1)
	return nil
}
