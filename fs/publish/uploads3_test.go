package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/minio/crc64nvme"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/retry"
	"github.com/leatfs/leatfs/objstore/s3"
	"github.com/leatfs/leatfs/test/fault"
	"github.com/leatfs/leatfs/test/s3test"
)

const mib = 1 << 20

// bucket is a bucket of a real server behind a proxy that can do harm.
type bucket struct {
	*testing.T
	srv   *s3test.Server
	name  string
	proxy *fault.Proxy
	store objstore.Store
	p     *Publisher
}

// TestS3 runs what needs real servers, each test in a bucket of its own.
func TestS3(t *testing.T) {
	for _, k := range s3test.Kinds() {
		t.Run(string(k), func(t *testing.T) {
			srv := s3test.StartTB(t, k)
			for _, e := range srv.Env() {
				name, v, _ := strings.Cut(e, "=")
				t.Setenv(name, v)
			}
			none := t.TempDir() + "/none"
			for name, v := range map[string]string{"AWS_PROFILE": "", "AWS_SESSION_TOKEN": "", "AWS_CONFIG_FILE": none, "AWS_SHARED_CREDENTIALS_FILE": none} {
				t.Setenv(name, v)
			}
			for name, test := range map[string]func(*bucket){"Plain": testS3Plain, "Lost": testS3Lost, "Resume": testS3Resume, "Overlay": testS3Overlay,
				"Copy": testS3Copy, "Delete": testS3Delete, "Marker": testS3Marker, "Stream": testS3Stream, "Torn": testS3Torn, "Unsummed": testS3Unsummed,
				"Reuse": testS3Reuse, "ReuseLies": testS3ReuseLies} {
				t.Run(name, func(t *testing.T) { test(openBucket(t, srv)) })
			}
		})
	}
}

func openBucket(t *testing.T, srv *s3test.Server) *bucket {
	b := &bucket{T: t, srv: srv, name: srv.BucketTB(t)}
	var err error
	if b.proxy, err = fault.Start(srv.Endpoint, fault.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.proxy.Close() })
	st, err := s3.Open(t.Context(), s3.Config{Bucket: b.name, Endpoint: b.proxy.URL()})
	if err != nil {
		t.Fatal(err)
	}
	b.store = retry.New(st, retry.Options{Tries: 2, Base: time.Millisecond})
	t.Cleanup(func() { _ = st.Close() })
	b.p = New(b.store, Options{PartSize: 5 * mib, Multipart: 5 * mib, Parallel: 4, CopyPart: 5 * mib, Scratch: t.TempDir()})
	t.Cleanup(b.p.Close)
	b.proxy.Forget()
	return b
}

func (b *bucket) publish(j Job) Outcome {
	b.Helper()
	if j.Token == "" {
		j.Token = NewToken()
	}
	out, err := b.p.Publish(b.Context(), j)
	if err != nil {
		b.Fatalf("Publish: %v", err)
	}
	return out
}

func (b *bucket) has(key string, data []byte) {
	b.Helper()
	if got := readBack(b, b.store, key); !bytes.Equal(got, data) {
		b.Fatalf("%q: %d bytes that are not the %d that were published", key, len(got), len(data))
	}
}

// wire returns the requests since the last call as the server saw them, by method and kind.
func (b *bucket) wire() string {
	n := map[string]int{}
	for _, r := range b.proxy.Requests() {
		name := r.Method
		switch q := r.Query; {
		case q.Has("uploads"):
			name = "create"
		case q.Has("uploadId") && r.Class == objstore.ClassCopy:
			name = "part copy"
		case q.Has("uploadId"):
			name = map[string]string{http.MethodPut: "part", http.MethodPost: "complete", http.MethodDelete: "abort", http.MethodGet: "parts"}[r.Method]
		case r.Class == objstore.ClassCopy:
			name = "COPY"
		}
		n[name]++
	}
	b.proxy.Forget()
	var out []string
	for _, name := range []string{"HEAD", "GET", "create", "parts", "part", "part copy", "complete", "abort", "PUT", "COPY", "DELETE"} {
		if n[name] > 0 {
			out = append(out, fmt.Sprintf("%s %d", name, n[name]))
		}
	}
	return strings.Join(out, ", ")
}

func (b *bucket) wantWire(want string) {
	b.Helper()
	if got := b.wire(); got != want {
		b.Errorf("requests: %s, want %s", got, want)
	}
}

// noUploads fails when the bucket has an upload under way.
func (b *bucket) noUploads() {
	b.Helper()
	out, err := b.srv.Client().ListMultipartUploads(b.Context(), &awss3.ListMultipartUploadsInput{Bucket: &b.name})
	if err != nil {
		b.Fatal(err)
	}
	for _, u := range out.Uploads {
		b.Errorf("an upload is left: %s %s", *u.Key, *u.UploadId)
	}
}

// testS3Plain: the plain cases, with exactly the requests that they need.
func testS3Plain(b *bucket) {
	small := random(80, 100_000)
	meta := Metadata(0o100640, 5, 6, 1700000000_000000001, 1700000000_5, "")
	j := Job{Key: "d/small", File: file(b, small), IfNoneMatch: true, Token: NewToken(), Metadata: meta, ContentType: "text/x-t"}
	out := b.publish(j)
	b.wantWire("PUT 1")
	b.has("d/small", small)
	sums(b, out, small)
	o, err := b.store.Head(b.Context(), "d/small", objstore.HeadOptions{})
	if a := ParseMetadata(o.Metadata); err != nil || TokenOf(o) != j.Token || o.ContentType != "text/x-t" || a.Mode != 0o100640 ||
		a.UID != 5 || a.GID != 6 || a.MTime != 1700000000_000000001 || o.ETag != out.Object.ETag || o.Checksum != crc64(out.Sum) {
		b.Errorf("%+v, %v", o, err)
	}
	// Over itself, when the condition holds; and not when it does not.
	j.IfNoneMatch, j.IfMatch, j.Token = false, out.Object.ETag, NewToken()
	writeAt(b, j.File, []byte("new"), 0)
	copy(small, "new")
	b.publish(j)
	b.has("d/small", small)
	j.Token = NewToken()
	if _, err := b.p.Publish(b.Context(), j); err == nil {
		b.Error("over another ETag: no error")
	} else if c, ok := err.(*Conflict); !ok || c.Have.Key == "" {
		b.Errorf("over another ETag: %v", err)
	}

	large := random(81, 12*mib+5)
	b.proxy.Forget()
	out = b.publish(Job{Key: "d/large", File: file(b, large), IfNoneMatch: true, Metadata: meta})
	b.wantWire("create 1, part 3, complete 1")
	b.has("d/large", large)
	sums(b, out, large)
	o, err = b.store.Head(b.Context(), "d/large", objstore.HeadOptions{})
	if err != nil || o.ETag != out.Object.ETag || o.Checksum != crc64(out.Sum) || ParseMetadata(o.Metadata).Mode != 0o100640 {
		b.Errorf("%+v, %v", o, err)
	}
	var c *Conflict
	if _, err := b.p.Publish(b.Context(), Job{Key: "d/large", File: file(b, large), IfNoneMatch: true, Token: "x"}); !errors.As(err, &c) || c.Have.ETag != o.ETag {
		b.Errorf("over somebody else's: %v", err)
	}
	out = b.publish(Job{Key: "d/empty", File: file(b, nil), IfNoneMatch: true})
	sums(b, out, nil)
	b.has("d/empty", nil)
	b.noUploads()
}

// testS3Lost: the answer of every request in turn is lost, or the connection before it.
func testS3Lost(b *bucket) {
	data := random(82, 11*mib)
	f, small := file(b, data), file(b, data[:1000])
	for i, tc := range []struct {
		method string
		query  string
		do     fault.Action
	}{
		{"PUT", "", fault.Lose()}, {"PUT", "", fault.Reset()}, {"PUT", "", fault.InternalError()},
		{"POST", "uploads", fault.Lose()},
		{"PUT", "partNumber", fault.Lose()}, {"PUT", "partNumber", fault.Reset()},
		{"POST", "uploadId", fault.Lose()}, {"POST", "uploadId", fault.Reset()}, {"POST", "uploadId", fault.InternalError()},
	} {
		j := Job{Key: fmt.Sprint("k", i), File: f, IfNoneMatch: true, Token: NewToken()}
		j.Began = func(u Upload) error { j.Upload = u; return nil }
		if tc.query == "" {
			j.File = small
		}
		rule := b.proxy.Add(fault.Rule{Method: tc.method, Count: 1, Do: tc.do,
			Match: func(r fault.Request) bool { return r.Key == j.Key && (tc.query == "" || r.Query.Has(tc.query)) }})
		for try := range 3 {
			_, err := b.p.Publish(b.Context(), j)
			if err == nil {
				break
			}
			if !objstore.KindOf(err).Temporary() || try == 2 {
				b.Errorf("%+v, try %d: %v", tc, try, err)
			}
		}
		if rule.Fired() != 1 {
			b.Errorf("%+v: fired %d times", tc, rule.Fired())
		}
		rule.Remove()
		want := data
		if tc.query == "" {
			want = data[:1000]
		}
		b.has(j.Key, want)
	}
}

// testS3Resume: the parts that an earlier process has sent are not sent again, if they are as the
// file is.
func testS3Resume(b *bucket) {
	data := random(83, 21*mib)
	j := Job{Key: "k", File: file(b, data), IfNoneMatch: true, Token: NewToken()}
	j.Began = func(u Upload) error { j.Upload = u; return nil }
	b.proxy.Add(fault.Rule{Method: "PUT", After: 2, Do: fault.AccessDenied()})
	b.p.slots.free = 1
	// The answer may come while the part is still being sent, and be lost with the connection.
	if _, err := b.p.Publish(b.Context(), j); err == nil {
		b.Fatal("no error")
	}
	b.proxy.Clear()
	b.proxy.Forget()
	copy(data, "changed")
	writeAt(b, j.File, data[:7], 0)
	out := b.publish(j)
	b.wantWire("parts 1, part 4, complete 1") // one of two was kept
	b.has("k", data)
	sums(b, out, data)
	b.noUploads()
	// The upload is no more, and it was us.
	b.publish(j)
	b.wantWire("HEAD 1, GET 1, parts 1")
}

// testS3Overlay: as TestOverlay.
func testS3Overlay(b *bucket) {
	base := random(84, 20*mib)
	o := b.publish(Job{Key: "base", File: file(b, base)}).Object
	data := bytes.Clone(base)
	local := []Range{{5*mib + 10, 100}}
	copy(data[local[0].Off:], random(85, 100))
	b.proxy.Forget()
	out := b.publish(Job{Key: "k", File: sparse(b, data, local), Overlay: over(o, local...), IfNoneMatch: true})
	if b.p.caps.PartCopy {
		b.wantWire("GET 2, create 1, part 1, part copy 3, complete 1")
	} else {
		b.wantWire("GET 5, create 1, part 4, complete 1")
	}
	b.has("k", data)
	h, err := b.store.Head(b.Context(), "k", objstore.HeadOptions{})
	if err != nil || h.Checksum != crc64(crc64nvme.Checksum(data)) || out.Summed && crc64(out.Sum) != h.Checksum {
		b.Errorf("%+v, %+v, %v", h, out, err)
	}
	b.noUploads()
}

// testS3Copy: an object gets another name, by all the ways there are.
func testS3Copy(b *bucket) {
	for i, size := range []int{0, 1000, 11 * mib} {
		data := random(86, size)
		src := b.publish(Job{Key: fmt.Sprint("a", i), File: file(b, data), ContentType: "image/gif", Metadata: map[string]string{"foreign": "kept"}}).Object
		j := Job{Key: fmt.Sprint("b", i), Copy: &Source{Key: src.Key, ETag: src.ETag, Size: src.Size}, IfNoneMatch: true, Metadata: map[string]string{"mode": "33188"}}
		for _, step := range []string{"none", "match", "by parts"} {
			j.Token = NewToken()
			b.p.opt.MaxCopy = 5 << 30
			if step == "by parts" {
				b.p.opt.MaxCopy = 1
			}
			out := b.publish(j)
			b.has(j.Key, data)
			o, err := b.store.Head(b.Context(), j.Key, objstore.HeadOptions{})
			if err != nil || o.Metadata["foreign"] != "kept" || o.Metadata["mode"] != "33188" || TokenOf(o) != j.Token ||
				o.ContentType != "image/gif" || o.ETag != out.Object.ETag || out.Summed && out.Sum != crc64nvme.Checksum(data) {
				b.Errorf("%d, %s: %+v, %+v, %v", size, step, o, out, err)
			}
			j.IfNoneMatch, j.IfMatch = false, o.ETag
		}
		j.IfNoneMatch, j.IfMatch, j.Token = true, "", NewToken()
		if _, err := b.p.Publish(b.Context(), j); err == nil {
			b.Errorf("%d: over what is there: no error", size)
		} else if _, ok := err.(*Conflict); !ok {
			b.Errorf("%d: over what is there: %v", size, err)
		}
	}
	b.noUploads()
}

// testS3Delete: only the version meant.
func testS3Delete(b *bucket) {
	old := b.publish(Job{Key: "k", Data: []byte("old")}).Object
	b.publish(Job{Key: "k", Data: []byte("new"), Token: "mine"})
	if gone, err := b.p.Delete(b.Context(), "k", Version{ETag: old.ETag}); gone {
		b.Error("another version is gone")
	} else if c, ok := err.(*Conflict); !ok || TokenOf(c.Have) != "mine" {
		b.Errorf("got %v", err)
	}
	b.proxy.Add(fault.Rule{Method: "DELETE", Count: 1, Do: fault.Lose()})
	for _, v := range []Version{{ETag: old.ETag, Token: "mine"}, {ETag: old.ETag}, {}} {
		if gone, err := b.p.Delete(b.Context(), "k", v); !gone || err != nil {
			b.Errorf("%+v: %v, %v", v, gone, err)
		}
	}
}

// testS3Marker: "dir/" where there is nothing, where there is one, and where keys are below it.
func testS3Marker(b *bucket) {
	b.publish(Job{Key: "full/x", Data: []byte("x")})
	for _, key := range []string{"d/", "d/", "full/"} {
		if _, err := b.p.Marker(b.Context(), key, Metadata(0o40755, 1, 2, 3, 4, ""), NewToken()); err != nil {
			b.Errorf("%s: %v", key, err)
		}
		o, err := b.store.Head(b.Context(), key, objstore.HeadOptions{})
		if err != nil || ParseMetadata(o.Metadata).Mode != 0o40755 {
			b.Errorf("%s: %+v, %v", key, o, err)
		}
	}
	b.has("full/x", []byte("x"))
}

// testS3Stream: a file that grows, over a network that breaks.
func testS3Stream(b *bucket) {
	data := random(87, 31*mib+17)
	f := file(b, nil)
	j := Job{Key: "k", File: f, IfNoneMatch: true, Token: NewToken()}
	b.proxy.Add(fault.Rule{Method: "PUT", Every: 3, Count: 2, Do: fault.Lose()})
	st := b.p.Stream(b.Context(), j)
	for off := 0; off < len(data); off += 3 * mib {
		end := min(off+3*mib, len(data))
		writeAt(b, f, data[off:end], int64(off))
		st.Grown(int64(end))
	}
	copy(data[6*mib:], "changed")
	writeAt(b, f, data[6*mib:6*mib+7], 6*mib)
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	out, err := st.Finish(ctx, j)
	if err != nil {
		b.Fatal(err)
	}
	b.has("k", data)
	sums(b, out, data)
	st = b.p.Stream(b.Context(), Job{Key: "l", File: f, Token: NewToken()})
	st.Grown(int64(len(data)))
	time.Sleep(20 * time.Millisecond)
	if err := st.Abort(); err != nil {
		b.Error(err)
	}
	b.noUploads()
}

// testS3Torn: data that changes between the reading and the sending, as a mapping lets it, is
// refused by the server, and sent as it is then.
func testS3Torn(b *bucket) {
	for _, size := range []int{1000, 11 * mib} {
		data := random(88, size)
		once := false
		store := objstore.Around(b.store, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
			if !once && (op.Name == "PUT" || op.Name == "PUT PART") {
				once = true
				copy(data, "changed")
			}
			return call(ctx)
		})
		p := New(store, Options{PartSize: 5 * mib, Multipart: 5 * mib, Parallel: 1, Scratch: b.TempDir()})
		key := fmt.Sprint("k", size)
		out, err := p.Publish(b.Context(), Job{Key: key, Data: data, Token: NewToken()})
		p.Close()
		if err != nil {
			b.Fatal(err)
		}
		b.has(key, data)
		sums(b, out, data)
	}
}

// testS3Unsummed: where the store tells no checksum, the ETag tells that what is there is what was
// sent, and nothing is sent twice.
func testS3Unsummed(b *bucket) {
	caps := b.store.Caps()
	caps.Checksums = false
	p := New(withCaps{b.store, caps}, Options{PartSize: 5 * mib, Multipart: 5 * mib, Scratch: b.TempDir()})
	defer p.Close()
	for i, size := range []int{1000, 11 * mib} {
		data := random(89, size)
		rule := b.proxy.Add(fault.Rule{Class: "PUT", Count: 1, Do: fault.Lose(),
			Match: func(r fault.Request) bool { return i == 0 || r.Method == http.MethodPost && r.Query.Has("uploadId") }})
		b.proxy.Forget()
		out, err := p.Publish(b.Context(), Job{Key: fmt.Sprint("k", i), File: file(b, data), IfNoneMatch: true, Token: NewToken()})
		if err != nil || rule.Fired() != 1 {
			b.Fatalf("%v, fired %d times", err, rule.Fired())
		}
		b.wantWire([]string{"HEAD 1, PUT 1", "HEAD 1, create 1, part 3, complete 1"}[i])
		sums(b, out, data)
	}
}
