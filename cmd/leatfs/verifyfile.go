package main

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs"
	"github.com/leatfs/leatfs/objstore"
)

// verifyState is what came of comparing one file.
type verifyState string

const (
	verifyEqual        verifyState = "equal"        // what is here is what the bucket has
	verifyRemote       verifyState = "remote"       // the bucket has the version that is shown; nothing to compare is here
	verifyUnpublished  verifyState = "unpublished"  // the bucket has not yet what is here
	verifyDiffers      verifyState = "differs"      // the bucket, or the manifest, has something else
	verifyUnverifiable verifyState = "unverifiable" // it could not be found out
	verifyLocal        verifyState = "local"        // what the bucket never gets: a FIFO, a socket, a device
	verifyExtra        verifyState = "extra"        // equal, and not in the manifest
)

// byteRange is [Offset, Offset+Length) of a file, in bytes.
type byteRange struct {
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
}

// verifyResult is one file.
type verifyResult struct {
	Path   string      `json:"path"`
	State  verifyState `json:"state"`
	Detail string      `json:"detail,omitempty"`
	Size   int64       `json:"size"`
	Key    string      `json:"key,omitempty"`
	ETag   string      `json:"etag,omitempty"`
	// By is what was compared: CRC64NVME, CRC32C, CRC32, MD5, bytes.
	By string `json:"by,omitempty"`
	// At is where it differs: the first ranges, as far as known.
	At []byteRange `json:"at,omitempty"`
	// Holes are ranges that were never written, the first of them.
	Holes  []byteRange `json:"holes,omitempty"`
	SHA256 string      `json:"sha256,omitempty"` // when a manifest is made or compared

	relative string // to PATH
	again    bool   // what was looked at has changed meanwhile: look again
}

// maxRanges is how many ranges are told of one file.
const maxRanges = 64

// verifier compares the files of one mount. Its methods may be called in parallel.
type verifier struct {
	mountpoint, socket string
	deep               bool // read all objects
	sums               bool // compute SHA-256
}

// verifyTries is how often a file is looked at that changes meanwhile.
const verifyTries = 4

// file compares one.
func (v *verifier) file(ctx context.Context, c fs.Copy) verifyResult {
	for try := 1; ; try++ {
		r := v.once(ctx, &c)
		if r.State != verifyDiffers && r.State != verifyUnverifiable || ctx.Err() != nil {
			return r
		}
		// It may have been published, or evicted, while it was compared.
		now, err := v.ask(ctx, c.Path)
		if err != nil || now == nil || *now == c && !r.again {
			return r
		}
		if try == verifyTries {
			r.State, r.Detail = verifyUnverifiable, "it keeps changing"
			return r
		}
		c = *now
	}
}

// ask describes one file again; nil when it is gone.
func (v *verifier) ask(ctx context.Context, path string) (found *fs.Copy, err error) {
	err = v.copies(ctx, path, func(c fs.Copy) error {
		if c.Path == path {
			found = &c
		}
		return nil
	})
	return found, err
}

func (v *verifier) once(ctx context.Context, c *fs.Copy) verifyResult {
	r := verifyResult{Path: v.mountpoint + c.Path, Size: c.Size, Key: c.Key, ETag: c.ETag}
	fail := func(err error) verifyResult {
		r.State, r.Detail = verifyUnverifiable, err.Error()
		r.again = errors.Is(err, os.ErrNotExist)
		return r
	}
	if c.Only {
		r.State = verifyLocal
		return r
	}
	var file *os.File
	if c.File != "" {
		var err error
		if file, err = os.Open(c.File); err != nil {
			return fail(err)
		}
		defer func() { _ = file.Close() }() // only read
		if r.Holes, err = holes(file); err != nil {
			return fail(err)
		}
	}
	var sum hash.Hash
	if v.sums && c.Kind == "file" {
		sum = sha256.New()
	}
	if c.Pending != "" {
		r.State, r.Detail = verifyUnpublished, pendingText(c)
		return v.summed(ctx, r, c, file, sum)
	}
	obj, err := v.object(ctx, c.Key)
	switch {
	case err != nil:
		return fail(err)
	case obj.Error != "":
		return fail(errors.New(obj.Error))
	case !obj.Found:
		r.State, r.Detail = verifyDiffers, "the bucket has no such object"+publishedText(c)
		return v.summed(ctx, r, c, file, sum)
	case obj.ETag != c.ETag:
		r.State, r.Detail = verifyDiffers, fmt.Sprintf("the bucket has another version, %s of %d bytes%s", obj.ETag, obj.Size, publishedText(c))
		return v.summed(ctx, r, c, file, sum)
	case c.Kind == "file" && obj.Size != c.Size:
		r.State, r.Detail = verifyDiffers, fmt.Sprintf("the bucket has %d bytes", obj.Size)
		return v.summed(ctx, r, c, file, sum)
	}
	var local io.ReaderAt
	switch {
	case c.Kind != "file":
		local = strings.NewReader(c.Target)
		if obj.Size != c.Size {
			local = nil // a symlink that another program made of an object of its own kind
		}
	case c.Size == 0:
		local = bytes.NewReader(nil)
	case file != nil:
		local = file
	}
	v.compare(ctx, &r, c, &obj, local, sum)
	if local == nil {
		return v.summed(ctx, r, c, nil, sum)
	}
	if sum != nil && r.SHA256 == "" {
		return v.summed(ctx, r, c, file, sum)
	}
	return r
}

func publishedText(c *fs.Copy) string {
	if c.Ours {
		return "; this node had published " + c.ETag
	}
	return ""
}

func pendingText(c *fs.Copy) string {
	text := map[fs.LedgerState]string{
		fs.LedgerOpen:      "it is open for writing",
		fs.LedgerWaiting:   "it waits for its turn",
		fs.LedgerUploading: "it is being uploaded",
		fs.LedgerFailing:   "it could not be uploaded yet",
		fs.LedgerHeld:      "it may not be whole, and waits for \"leatfs retry\" or \"leatfs discard\"",
	}[c.Pending]
	if c.Error != "" {
		text += ": " + c.Error
	}
	return text
}

// compare compares what is here with an object of the same version; local is nil when nothing of it is.
func (v *verifier) compare(ctx context.Context, r *verifyResult, c *fs.Copy, obj *verifyObject, local io.ReaderAt, sum hash.Hash) {
	want, by := wantSum(obj)
	if local != nil && want != nil {
		got := want.new()
		var all io.Writer = got
		if sum != nil {
			all = io.MultiWriter(got, sum)
		}
		if err := copyAll(ctx, all, io.NewSectionReader(local, 0, c.Size), c.Size); err != nil {
			r.State, r.Detail = verifyUnverifiable, err.Error()
			return
		}
		if sum != nil {
			r.SHA256 = hex.EncodeToString(sum.Sum(nil))
		}
		r.By = by
		r.State = verifyEqual
		if !want.equal(got) {
			r.State, r.Detail = verifyDiffers, fmt.Sprintf("what is on the cache's disk has another %s than the object", by)
		}
	}
	if local != nil && (v.deep || r.State == verifyDiffers) {
		v.compareBytes(ctx, r, c, local)
		return
	}
	switch {
	case local != nil && want == nil:
		r.State, r.Detail = verifyUnverifiable, "the bucket has no checksum of the whole object; --deep reads it"
	case local == nil && v.deep:
		v.readObject(ctx, r, c, want, by)
	case local == nil:
		r.State = verifyRemote
		if c.Partly {
			r.Detail = "a part of it is here"
		}
	}
}

// objectSum is a checksum of a whole object.
type objectSum struct {
	new  func() hash.Hash
	want []byte
}

func (s *objectSum) equal(h hash.Hash) bool { return bytes.Equal(h.Sum(nil), s.want) }

// wantSum is what the bucket says of the whole object; nil when it says nothing.
func wantSum(obj *verifyObject) (s *objectSum, name string) {
	value, err := strconv.ParseUint(obj.Checksum, 16, 64)
	if err != nil {
		value, obj.Algorithm = 0, objstore.ChecksumNone
	}
	name = obj.Algorithm.String()
	switch obj.Algorithm {
	case objstore.CRC64NVME:
		return &objectSum{func() hash.Hash { return crc64nvme.New() }, be(value, 8)}, name
	case objstore.CRC32C:
		return &objectSum{func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) }, be(value, 4)}, name
	case objstore.CRC32:
		return &objectSum{func() hash.Hash { return crc32.NewIEEE() }, be(value, 4)}, name
	}
	if b, err := hex.DecodeString(obj.ETag); obj.ETagIsMD5 && err == nil && len(b) == md5.Size {
		return &objectSum{md5.New, b}, "MD5"
	}
	return nil, ""
}

// be is the last n bytes of v, the highest first.
func be(v uint64, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(v >> (8 * (n - 1 - i)))
	}
	return b
}

// compareBytes compares what is here with what a GET brings.
func (v *verifier) compareBytes(ctx context.Context, r *verifyResult, c *fs.Copy, local io.ReaderAt) {
	body, err := v.content(ctx, c)
	if err != nil {
		if r.State != verifyDiffers {
			r.State, r.Detail = verifyUnverifiable, err.Error()
		}
		return
	}
	defer func() { _ = body.Close() }() // only read
	at, err := differences(ctx, local, body, c.Size)
	r.At = at
	switch {
	case err != nil && r.State == verifyDiffers:
		r.Detail += fmt.Sprintf("; where cannot be told: %v", err)
	case err != nil:
		r.State, r.Detail = verifyUnverifiable, err.Error()
	case len(at) > 0:
		r.By = "bytes"
		r.State, r.Detail = verifyDiffers, "what is on the cache's disk is not what the object holds"
	case r.State == verifyDiffers:
		r.Detail = "the object's checksum at the bucket is not that of its bytes, which are those on the cache's disk"
	default:
		r.State, r.By = verifyEqual, "bytes"
	}
}

// readObject reads an object of which nothing is here, and compares it with its checksum.
func (v *verifier) readObject(ctx context.Context, r *verifyResult, c *fs.Copy, want *objectSum, by string) {
	r.State = verifyRemote
	body, err := v.content(ctx, c)
	if err != nil {
		r.State, r.Detail = verifyUnverifiable, err.Error()
		return
	}
	defer func() { _ = body.Close() }() // only read
	got := sha256.New()
	if want != nil {
		got = want.new()
	}
	switch err := copyAll(ctx, got, body, c.Size); {
	case err != nil:
		r.State, r.Detail = verifyUnverifiable, err.Error()
	case want == nil:
		r.Detail = "it can be read; the bucket has no checksum to compare it with"
	case !want.equal(got):
		r.State, r.Detail = verifyDiffers, fmt.Sprintf("the bytes that the bucket sends have another %s than it says", by)
	default:
		r.By = by
	}
}

// summed adds the SHA-256 of the content, read through the mount where no file here has all of it.
func (v *verifier) summed(ctx context.Context, r verifyResult, c *fs.Copy, file *os.File, sum hash.Hash) verifyResult {
	if sum == nil {
		return r
	}
	if file == nil {
		f, err := os.Open(v.mountpoint + c.Path)
		if err != nil {
			if r.State != verifyDiffers {
				r.State, r.Detail = verifyUnverifiable, err.Error()
			}
			return r
		}
		defer func() { _ = f.Close() }() // only read
		file = f
	}
	sum.Reset()
	if err := copyAll(ctx, sum, io.NewSectionReader(file, 0, c.Size), c.Size); err != nil {
		if r.State != verifyDiffers {
			r.State, r.Detail = verifyUnverifiable, err.Error()
		}
		return r
	}
	r.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return r
}

// verifyBuffer is how much is read at once, in bytes.
const verifyBuffer = 1 << 20

// copyAll copies size bytes; fewer are an error.
func copyAll(ctx context.Context, to io.Writer, from io.Reader, size int64) error {
	buf := make([]byte, min(size, verifyBuffer)+1)
	for size > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(from, buf[:min(size, verifyBuffer)])
		if _, werr := to.Write(buf[:n]); werr != nil {
			return werr
		}
		size -= int64(n)
		if err != nil {
			return fmt.Errorf("%d bytes before its end: %w", size, err)
		}
	}
	return nil
}

// differences compares size bytes and returns the first ranges in which they differ.
func differences(ctx context.Context, local io.ReaderAt, remote io.Reader, size int64) (at []byteRange, err error) {
	const page = 4096
	a, b := make([]byte, verifyBuffer), make([]byte, verifyBuffer)
	for off := int64(0); off < size; {
		if err := ctx.Err(); err != nil {
			return at, err
		}
		n := min(size-off, verifyBuffer)
		if _, err := io.ReadFull(remote, b[:n]); err != nil {
			return at, fmt.Errorf("the object, at byte %d: %w", off, err)
		}
		if _, err := local.ReadAt(a[:n], off); err != nil {
			return at, fmt.Errorf("the copy, at byte %d: %w", off, err)
		}
		for p := int64(0); p < n; p += page {
			x, y := a[p:min(p+page, n)], b[p:min(p+page, n)]
			if bytes.Equal(x, y) {
				continue
			}
			first, last := 0, len(x)
			for x[first] == y[first] {
				first++
			}
			for x[last-1] == y[last-1] {
				last--
			}
			at = addRange(at, byteRange{off + p + int64(first), int64(last - first)}, page)
		}
		off += n
	}
	return at, nil
}

// addRange adds a range behind others, to the last of them if it is nearer than gap; beyond maxRanges it is
// left out.
func addRange(rs []byteRange, r byteRange, gap int64) []byteRange {
	if n := len(rs); n > 0 && r.Offset-(rs[n-1].Offset+rs[n-1].Length) < gap {
		rs[n-1].Length = r.Offset + r.Length - rs[n-1].Offset
		return rs
	}
	if len(rs) == maxRanges {
		return rs
	}
	return append(rs, r)
}

// holes are the ranges of a file that were never written. What is allocated and not written counts, as does
// what was punched out.
func holes(f *os.File) (hs []byteRange, err error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	for off := int64(0); off < st.Size() && len(hs) < maxRanges; {
		hole, err := unix.Seek(int(f.Fd()), off, unix.SEEK_HOLE)
		if errors.Is(err, syscall.EINVAL) {
			return nil, nil // a file system that knows of none
		}
		if err != nil {
			return nil, err
		}
		if hole >= st.Size() {
			break
		}
		data, err := unix.Seek(int(f.Fd()), hole, unix.SEEK_DATA)
		if errors.Is(err, syscall.ENXIO) {
			data = st.Size()
		} else if err != nil {
			return nil, err
		}
		data = min(data, st.Size())
		hs = append(hs, byteRange{hole, data - hole})
		off = data
	}
	return hs, nil
}

// object asks what the bucket has under a key.
func (v *verifier) object(ctx context.Context, key string) (obj verifyObject, err error) {
	err = askJSON(ctx, v.socket, http.MethodGet, "/verify/object", url.Values{"key": {key}}, &obj)
	return obj, err
}

// content is the object's bytes, past the cache. The caller closes it.
func (v *verifier) content(ctx context.Context, c *fs.Copy) (io.ReadCloser, error) {
	resp, err := ask(ctx, v.socket, http.MethodGet, "/verify/content", url.Values{"key": {c.Key}, "etag": {c.ETag}})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}
