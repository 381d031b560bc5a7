package storetest

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing/iotest"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

func readTests() []test {
	return []test{
		{"Name", nil, testName},
		{"Head", nil, testHead},
		{"GetRanges", nil, testGetRanges},
		{"GetEmpty", nil, testGetEmpty},
		{"GetIfMatch", nil, testGetIfMatch},
		{"NotFound", nil, testNotFound},
		{"CloseEarly", nil, testCloseEarly},
		{"Parallel", nil, testParallel},
		{"Cancel", nil, testCancel},
		{"Changed", nil, testChanged},
	}
}

func testName(e *env) {
	name := e.s.String()
	if !strings.Contains(name, "://") || name != e.s.String() {
		e.Errorf("String: got %q", name)
	}
	c := e.s.Caps()
	if c != e.s.Caps() {
		e.Error("Caps changes")
	}
	if c.MaxListKeys <= 0 {
		e.Errorf("Caps.MaxListKeys: got %d", c.MaxListKeys)
	}
	if c.Multipart && (c.MinPartSize <= 0 || c.MaxPartSize < c.MinPartSize || c.MaxParts <= 0) {
		e.Errorf("Caps of multipart: got %+v", c)
	}
}

func testHead(e *env) {
	data := Bytes(1, 100_000)
	before := time.Now()
	put := e.put("dir/file", data)
	o := e.head("dir/file")
	if o.Key != "dir/file" || o.Size != int64(len(data)) || o.ETag == "" || o.ETag != put.ETag {
		e.Errorf("Head: got %+v after Put %+v", o, put)
	}
	if strings.Contains(o.ETag, `"`) {
		e.Errorf("ETag %q holds quotes", o.ETag)
	}
	if o.ModTime.Before(before.Add(-5*time.Second)) || o.ModTime.After(time.Now().Add(5*time.Second)) {
		e.Errorf("ModTime: got %v, now is %v", o.ModTime, time.Now())
	}
	if o.Archived {
		e.Error("Archived")
	}
	if e.s.Caps().Checksums && o.Checksum.Algorithm == objstore.ChecksumNone {
		e.Error("no checksum, though Caps has them")
	}
	if a := o.Checksum.Algorithm; a != objstore.ChecksumNone && o.Checksum != Sum(a, data) {
		e.Errorf("Checksum: got %+v, want %+v", o.Checksum, Sum(a, data))
	}
	if o.ETagIsMD5 {
		sum := md5.Sum(data)
		if want := hex.EncodeToString(sum[:]); o.ETag != want {
			e.Errorf("ETagIsMD5: got %q, MD5 is %q", o.ETag, want)
		}
	}
	r := e.whole("dir/file", data)
	if r.Object.ETag != o.ETag || r.Object.Size != o.Size || !r.Object.ModTime.Equal(o.ModTime) ||
		r.Object.Checksum != o.Checksum || r.Object.ETagIsMD5 != o.ETagIsMD5 || r.Object.VersionID != o.VersionID {
		e.Errorf("Get describes %+v, Head %+v", r.Object, o)
	}
	p, err := e.s.List(e.ctx, objstore.ListOptions{Prefix: "dir/"})
	if err != nil || len(p.Objects) != 1 {
		e.Fatalf("List: got %+v, %v", p, err)
	}
	l := p.Objects[0]
	if l.ETag != o.ETag || l.Size != o.Size || l.ModTime.Unix() != o.ModTime.Unix() || l.Key != o.Key || l.StorageClass != o.StorageClass {
		e.Errorf("List describes %+v, Head %+v", l, o)
	}
}

func testGetRanges(e *env) {
	const size = 300_001
	data := Bytes(2, size)
	e.put("f", data)
	etag := e.head("f").ETag
	for _, c := range []struct{ off, n int64 }{
		{0, -1}, {0, 1}, {0, size}, {0, size + 1}, {0, 1 << 40}, {0, size - 1}, {0, 0},
		{1, -1}, {1, 1}, {1, size - 1}, {1, size}, {1, 0},
		{131072, 131072}, {131071, 2}, {size - 1, 1}, {size - 1, -1}, {size - 1, 100}, {size - 1, 0},
		{100, 1<<63 - 1}, {100, 1<<63 - 101},
	} {
		want := data[c.off:]
		if c.n >= 0 && c.n < int64(len(want)) {
			want = want[:c.n]
		}
		what := fmt.Sprintf("Get(offset %d, length %d)", c.off, c.n)
		got, r, err := e.read("f", objstore.GetOptions{Offset: c.off, Length: c.n})
		switch {
		case err != nil:
			e.Errorf("%s: %v", what, err)
		case !bytes.Equal(got, want):
			e.Errorf("%s: got %s, want %s", what, brief(got), brief(want))
		case r.Offset != c.off || r.Length != int64(len(want)):
			e.Errorf("%s: got Offset %d, Length %d", what, r.Offset, r.Length)
		case r.Object.Size != size || r.Object.ETag != etag || r.Object.Key != "f":
			e.Errorf("%s: describes %+v", what, r.Object)
		case (c.off != 0 || c.n >= 0) && r.Object.Checksum.Algorithm != objstore.ChecksumNone:
			e.Errorf("%s: a part has checksum %+v of the whole", what, r.Object.Checksum)
		}
	}
	for _, c := range []struct{ off, n int64 }{{size, -1}, {size, 1}, {size, 0}, {size + 1, 1}, {1 << 50, -1}} {
		_, _, err := e.read("f", objstore.GetOptions{Offset: c.off, Length: c.n})
		e.wantKind(fmt.Sprintf("Get(offset %d, length %d)", c.off, c.n), err, objstore.InvalidRange)
	}
	_, _, err := e.read("f", objstore.GetOptions{Offset: -1, Length: 2})
	e.wantKind("Get(offset -1)", err, objstore.BadRequest)

	// The body behaves as a reader must, whatever the size of the reads.
	r, err := e.s.Get(e.ctx, "f", objstore.GetOptions{Offset: 7, Length: 1000})
	if err != nil {
		e.Fatal(err)
	}
	defer r.Body.Close()
	if err := iotest.TestReader(struct{ io.Reader }{r.Body}, data[7:1007]); err != nil {
		e.Error(err)
	}
}

func testGetEmpty(e *env) {
	e.put("empty", nil)
	r := e.whole("empty", nil)
	if r.Length != 0 || r.Object.Size != 0 {
		e.Errorf("got %+v", r)
	}
	for _, n := range []int64{0, 1, 100} {
		_, _, err := e.read("empty", objstore.GetOptions{Length: n})
		e.wantKind(fmt.Sprintf("Get(length %d)", n), err, objstore.InvalidRange)
	}
	_, _, err := e.read("empty", objstore.GetOptions{Offset: 1, Length: -1})
	e.wantKind("Get(offset 1)", err, objstore.InvalidRange)
}

func testGetIfMatch(e *env) {
	data := Bytes(3, 10_000)
	e.put("f", data)
	etag := e.head("f").ETag
	for _, opt := range []objstore.GetOptions{
		{Length: -1, IfMatch: etag}, {Offset: 5, Length: 10, IfMatch: etag}, {Offset: 5, Length: 0, IfMatch: etag},
	} {
		if _, _, err := e.read("f", opt); err != nil {
			e.Errorf("Get(%+v): %v", opt, err)
		}
		opt.IfMatch = "0123456789abcdef0123456789abcdef"
		_, _, err := e.read("f", opt)
		e.wantKind(fmt.Sprintf("Get(%+v)", opt), err, objstore.PreconditionFailed)
	}
}

func testNotFound(e *env) {
	e.put("dir/file", []byte("x"))
	for _, key := range []string{"none", "dir/none", "none/none", "dir", "dir/file2", "dir/fil"} {
		_, err := e.s.Head(e.ctx, key, objstore.HeadOptions{})
		e.wantKind("Head "+key, err, objstore.NotFound)
		_, _, err = e.read(key, objstore.GetOptions{Length: -1})
		e.wantKind("Get "+key, err, objstore.NotFound)
		_, _, err = e.read(key, objstore.GetOptions{Offset: 1, Length: 1, IfMatch: "x"})
		e.wantKind("Get of a range of "+key, err, objstore.NotFound)
	}
	for _, op := range []string{"Head", "Get", "Put", "Delete"} {
		var err error
		switch op {
		case "Head":
			_, err = e.s.Head(e.ctx, "", objstore.HeadOptions{})
		case "Get":
			_, err = e.s.Get(e.ctx, "", objstore.GetOptions{Length: -1})
		case "Put":
			_, err = e.s.Put(e.ctx, "", NewSource(nil), objstore.PutOptions{})
		case "Delete":
			err = e.s.Delete(e.ctx, "", objstore.DeleteOptions{})
		}
		e.wantKind(op+" of the empty key", err, objstore.BadRequest)
	}
}

func testCloseEarly(e *env) {
	data := Bytes(4, 4<<20)
	e.put("f", data)
	for _, n := range []int{0, 1, 100_000} {
		r, err := e.s.Get(e.ctx, "f", objstore.GetOptions{Length: -1})
		if err != nil {
			e.Fatal(err)
		}
		got := make([]byte, n)
		if _, err := io.ReadFull(r.Body, got); err != nil || !bytes.Equal(got, data[:n]) {
			e.Errorf("read of %d: %v", n, err)
		}
		for range 2 {
			if err := r.Body.Close(); err != nil {
				e.Errorf("Close: %v", err)
			}
		}
		if n, err := r.Body.Read(make([]byte, 1)); n != 0 || err == nil || err == io.EOF {
			e.Errorf("Read after Close: got %d, %v", n, err)
		}
	}
	e.whole("f", data)
}

func testParallel(e *env) {
	const size, step = 1 << 20, 64 << 10
	data := Bytes(5, size)
	e.put("f", data)
	etag := e.head("f").ETag
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range size / step {
				off := int64((i + w) % (size / step) * step)
				got, _, err := e.read("f", objstore.GetOptions{Offset: off, Length: step, IfMatch: etag})
				if err != nil || !bytes.Equal(got, data[off:off+step]) {
					e.Errorf("offset %d: got %s, %v", off, brief(got), err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func testCancel(e *env) {
	e.put("f", Bytes(6, 8<<20))
	done, cancel := context.WithCancel(e.ctx)
	cancel()
	_, err := e.s.Head(done, "f", objstore.HeadOptions{})
	e.wantKind("Head", err, objstore.Canceled)
	_, err = e.s.Get(done, "f", objstore.GetOptions{Length: -1})
	e.wantKind("Get", err, objstore.Canceled)
	_, err = e.s.List(done, objstore.ListOptions{})
	e.wantKind("List", err, objstore.Canceled)
	_, err = e.s.Put(done, "g", NewSource([]byte("x")), objstore.PutOptions{})
	e.wantKind("Put", err, objstore.Canceled)
	err = e.s.Delete(done, "f", objstore.DeleteOptions{})
	e.wantKind("Delete", err, objstore.Canceled)
	if !errors.Is(err, context.Canceled) {
		e.Errorf("Delete: %v does not wrap context.Canceled", err)
	}

	// Half way through a body.
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	r, err := e.s.Get(ctx, "f", objstore.GetOptions{Length: -1})
	if err != nil {
		e.Fatal(err)
	}
	defer r.Body.Close()
	if _, err := io.ReadFull(r.Body, make([]byte, 1000)); err != nil {
		e.Fatal(err)
	}
	cancel()
	_, err = io.Copy(io.Discard, r.Body)
	e.wantKind("Read after cancel", err, objstore.Canceled)
}

// testChanged overwrites an object between ranged reads: an ETag never gives bytes of
// another version.
func testChanged(e *env) {
	const size = 1 << 20
	a, b := Bytes(7, size), Bytes(8, size)
	e.put("f", a)
	etag := e.head("f").ETag
	first, _, err := e.read("f", objstore.GetOptions{Length: size / 2, IfMatch: etag})
	if err != nil || !bytes.Equal(first, a[:size/2]) {
		e.Fatalf("first half: %v", err)
	}
	e.put("f", b)
	_, _, err = e.read("f", objstore.GetOptions{Offset: size / 2, Length: -1, IfMatch: etag})
	e.wantKind("second half", err, objstore.PreconditionFailed)
	if now := e.head("f").ETag; now == etag {
		e.Error("another content has the same ETag")
	}
	e.whole("f", b)

	// A reader that was open at the time delivers one version or fails.
	r, err := e.s.Get(e.ctx, "f", objstore.GetOptions{Length: -1})
	if err != nil {
		e.Fatal(err)
	}
	defer r.Body.Close()
	head := make([]byte, 1000)
	if _, err := io.ReadFull(r.Body, head); err != nil {
		e.Fatal(err)
	}
	e.put("f", a)
	tail, err := io.ReadAll(r.Body)
	if got := append(head, tail...); err == nil && !bytes.Equal(got, b) || !bytes.HasPrefix(b, got) {
		e.Errorf("an open reader mixed versions: %s, %v", brief(got), err)
	}
}
