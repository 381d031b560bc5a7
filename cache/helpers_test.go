package cache_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/minio/crc64nvme"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/cache/buf"
	"github.com/leatfs/leatfs/cache/cachetest"
	"github.com/leatfs/leatfs/objstore"
)

const block = cache.BlockSize

// origin is a scripted store: objects in memory, faults by hooks.
type origin struct {
	objstore.Store
	mu      sync.Mutex
	objects map[string]*stored
	gets    int
	whole   int
	heads   int
	bytes   int64
	opened  []objstore.GetOptions
	// onGet may fail a GET; onRead is called with the offset before each piece of a body
	// and may fail or wait; mangle may change the bytes sent.
	onGet  func(ctx context.Context, key string, opt objstore.GetOptions) error
	onRead func(key string, off int64) error
	mangle func(key string, off int64, p []byte)
}

type stored struct {
	data     []byte
	etag     string
	version  string
	checksum objstore.Checksum
	md5      bool
}

func newOrigin() *origin { return &origin{objects: map[string]*stored{}} }

func (s *origin) String() string { return "test://bucket" }

// put stores random data of n bytes under key and returns it with its identity.
func (s *origin) put(key string, n int, opts ...func(*stored)) ([]byte, cache.Identity) {
	data := make([]byte, n)
	seed := crc32.ChecksumIEEE([]byte(key))
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(n), byte(n >> 8), byte(n >> 16)})
	r.Read(data)
	sum := md5.Sum(data)
	x := &stored{data: data, etag: hex.EncodeToString(sum[:]), md5: true,
		checksum: objstore.Checksum{Algorithm: objstore.CRC64NVME, Value: crc64nvme.Checksum(data)}}
	for _, o := range opts {
		o(x)
	}
	s.mu.Lock()
	s.objects[key] = x
	s.mu.Unlock()
	return data, cache.Identity{Origin: s.String(), Key: key, ETag: x.etag, Size: int64(n)}
}

func noChecksum(x *stored) { x.checksum = objstore.Checksum{}; x.md5 = false; x.etag += "-2" }
func onlyMD5(x *stored)    { x.checksum = objstore.Checksum{} }
func withCRC32C(x *stored) {
	x.checksum = objstore.Checksum{Algorithm: objstore.CRC32C, Value: uint64(crc32.Checksum(x.data, crc32.MakeTable(crc32.Castagnoli)))}
}
func withCRC32(x *stored) {
	x.checksum = objstore.Checksum{Algorithm: objstore.CRC32, Value: uint64(crc32.ChecksumIEEE(x.data))}
}

func (s *origin) describe(key string, x *stored, full bool) objstore.Object {
	o := objstore.Object{Key: key, Size: int64(len(x.data)), ETag: x.etag, VersionID: x.version, ETagIsMD5: x.md5}
	if full {
		o.Checksum = x.checksum
	}
	return o
}

func (s *origin) Head(ctx context.Context, key string, opt objstore.HeadOptions) (objstore.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heads++
	x := s.objects[key]
	if x == nil || opt.VersionID != "" && opt.VersionID != x.version {
		return objstore.Object{}, &objstore.Error{Op: "HEAD", Key: key, Kind: objstore.NotFound}
	}
	return s.describe(key, x, true), nil
}

func (s *origin) Get(ctx context.Context, key string, opt objstore.GetOptions) (*objstore.Reader, error) {
	s.mu.Lock()
	s.gets++
	s.opened = append(s.opened, opt)
	if opt.Length < 0 {
		s.whole++
	}
	x, onGet, onRead, mangle := s.objects[key], s.onGet, s.onRead, s.mangle
	s.mu.Unlock()
	if onGet != nil {
		if err := onGet(ctx, key, opt); err != nil {
			return nil, err
		}
	}
	switch {
	case x == nil:
		return nil, &objstore.Error{Op: "GET", Key: key, Kind: objstore.NotFound}
	case opt.IfMatch != "" && opt.IfMatch != x.etag:
		return nil, &objstore.Error{Op: "GET", Key: key, Kind: objstore.PreconditionFailed}
	case opt.Offset > 0 && opt.Offset >= int64(len(x.data)):
		return nil, &objstore.Error{Op: "GET", Key: key, Kind: objstore.InvalidRange}
	}
	end := int64(len(x.data))
	if opt.Length >= 0 {
		end = min(end, opt.Offset+opt.Length)
	}
	return &objstore.Reader{Object: s.describe(key, x, opt.Length < 0), Offset: opt.Offset, Length: end - opt.Offset,
		Body: &body{ctx: ctx, s: s, key: key, r: bytes.NewReader(x.data[opt.Offset:end]), off: opt.Offset, onRead: onRead, mangle: mangle}}, nil
}

type body struct {
	ctx    context.Context
	s      *origin
	key    string
	r      *bytes.Reader
	off    int64
	onRead func(string, int64) error
	mangle func(string, int64, []byte)
}

func (b *body) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	if b.onRead != nil && b.r.Len() > 0 {
		if err := b.onRead(b.key, b.off); err != nil {
			return 0, err
		}
	}
	n, err := b.r.Read(p)
	if b.mangle != nil {
		b.mangle(b.key, b.off, p[:n])
	}
	b.off += int64(n)
	b.s.mu.Lock()
	b.s.bytes += int64(n)
	b.s.mu.Unlock()
	return n, err
}

func (b *body) Close() error { return nil }

func (s *origin) counts() (gets, whole, heads int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gets, s.whole, s.heads
}

// env is a cache with what it stands on.
type env struct {
	testing.TB
	dir   string
	index *cachetest.Index
	store *origin
	pool  *buf.Pool
	cfg   cache.Config
	*cache.Cache
}

// newEnv opens a cache of size bytes in a directory of its own, with a pool of poolBufs buffers.
func newEnv(t testing.TB, size int64, poolBufs int, opts ...func(*cache.Config)) *env {
	t.Helper()
	e := &env{TB: t, dir: t.TempDir(), index: cachetest.NewIndex(), store: newOrigin()}
	pool, err := buf.New(buf.Options{Cap: int64(poolBufs) * buf.Size, Poison: true})
	if err != nil {
		t.Fatal(err)
	}
	pool.Check(t)
	e.pool = pool
	e.cfg = cache.Config{Dirs: []cache.DirConfig{{Path: e.dir, Size: size}}, Index: e.index, Pool: pool, ReserveFree: -1,
		FlushEvery: 5 * time.Millisecond, Log: slog.New(slog.NewTextHandler(testWriter{t}, nil))}
	for _, o := range opts {
		o(&e.cfg)
	}
	e.open()
	t.Cleanup(func() { e.close() })
	return e
}

func (e *env) open() {
	e.Helper()
	c, err := cache.Open(e.cfg)
	if err != nil {
		e.Fatal(err)
	}
	e.Cache = c
}

func (e *env) close() {
	e.Helper()
	if e.Cache == nil {
		return
	}
	if err := e.Cache.Close(); err != nil {
		e.Errorf("Close: %v", err)
	}
	e.Cache = nil
}

// restart closes and opens the cache; with crash what the index was not given yet is lost.
func (e *env) restart(crash bool) {
	e.Helper()
	if crash {
		e.index.Freeze()
	}
	e.close()
	e.index.Thaw()
	e.open()
}

func (e *env) object(ident cache.Identity) *cache.Object {
	e.Helper()
	o, err := e.Object(context.Background(), ident, e.store)
	if err != nil {
		e.Fatal(err)
	}
	return o
}

// read reads [off, off+n) in as many Reads as it takes.
func read(o *cache.Object, off, n int64) ([]byte, error) {
	var out []byte
	for n > 0 {
		d, err := o.Read(context.Background(), off, n)
		if err != nil {
			return out, err
		}
		k := int64(d.Len())
		out = d.AppendTo(out)
		d.Release()
		if k == 0 {
			break
		}
		off, n = off+k, n-k
	}
	return out, nil
}

func (e *env) wantRead(o *cache.Object, want []byte, off, n int64) {
	e.Helper()
	got, err := read(o, off, n)
	if err != nil {
		e.Fatalf("read %d at %d: %v", n, off, err)
	}
	want = want[min(off, int64(len(want))):min(off+n, int64(len(want)))]
	if !bytes.Equal(got, want) {
		e.Fatalf("read %d at %d: wrong bytes (%d, want %d)", n, off, len(got), len(want))
	}
}

// eventually waits for something that a goroutine is about to do.
func eventually(t testing.TB, what string, fn func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if fn() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

func (e *env) wantLent(o *cache.Object, want []byte) {
	e.Helper()
	f, err := o.Lend()
	if err != nil {
		e.Fatalf("Lend: %v", err)
	}
	defer o.Return()
	defer f.Close()
	got, err := io.ReadAll(f)
	if err != nil || !bytes.Equal(got, want) {
		e.Fatalf("the lent file: %d bytes, err %v, equal %v", len(got), err, bytes.Equal(got, want))
	}
}

type testWriter struct{ testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.Logf("%s", strings.TrimSpace(string(p)))
	return len(p), nil
}

var errTest = errors.New("made to fail")

func unavailable(key string) error {
	return &objstore.Error{Op: "GET", Key: key, Kind: objstore.Unavailable, Err: errTest}
}

func keyOf(i int) string { return fmt.Sprintf("k/%04d", i) }

// formatID is the file name of an ID.
func formatID(id cache.ID) string { return fmt.Sprintf("%016x", uint64(id)) }

// allocated is what a file takes on disk.
func allocated(fi os.FileInfo) int64 { return fi.Sys().(*syscall.Stat_t).Blocks * 512 }

// refresh makes the ETag and the checksum of x those of its data.
func refresh(x *stored) {
	sum := md5.Sum(x.data)
	suffix := ""
	if _, after, ok := strings.Cut(x.etag, "-"); ok {
		suffix = "-" + after
	}
	x.etag = hex.EncodeToString(sum[:]) + suffix
	switch x.checksum.Algorithm {
	case objstore.CRC64NVME:
		x.checksum.Value = crc64nvme.Checksum(x.data)
	case objstore.CRC32C:
		withCRC32C(x)
	}
}
