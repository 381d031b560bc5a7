package s3_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/s3"
	"github.com/leatfs/leatfs/objstore/storetest"
)

const emptyList = `<?xml version="1.0"?><ListBucketResult><Name>b</Name><KeyCount>0</KeyCount><MaxKeys>1</MaxKeys><IsTruncated>false</IsTruncated></ListBucketResult>`

// scripted is an S3 server that answers as a test says, once it was opened: it gives what
// real servers cannot be made to give.
type scripted struct {
	*httptest.Server
	handler atomic.Pointer[http.HandlerFunc]
}

func newScripted(t *testing.T) (*scripted, *s3.Store) {
	t.Helper()
	clearEnv(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	s := &scripted{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := s.handler.Load(); h != nil {
			(*h)(w, r)
			return
		}
		_, _ = io.WriteString(w, emptyList)
	}))
	t.Cleanup(s.Close)
	st := mustOpen(t, s3.Config{Bucket: "b", Endpoint: s.URL, Transport: s3.Transport{HeaderTimeout: 2 * time.Second}})
	t.Cleanup(func() { st.Close() })
	return s, st
}

func (s *scripted) answer(h http.HandlerFunc) { s.handler.Store(&h) }

func errorBody(code, message string) string {
	return fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>%s</Message><RequestId>R1</RequestId></Error>`, code, message)
}

func kindOf(t *testing.T, err error) objstore.Kind {
	t.Helper()
	var e *objstore.Error
	if !errors.As(err, &e) {
		t.Errorf("%v is a %T, want an *objstore.Error", err, err)
		return objstore.Unknown
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("an error of more than one line: %q", err)
	}
	return e.Kind
}

func TestErrorCodes(t *testing.T) {
	s, st := newScripted(t)
	for _, c := range []struct {
		status int
		code   string
		want   objstore.Kind
	}{
		{404, "NoSuchKey", objstore.NotFound},
		{404, "NoSuchVersion", objstore.NotFound},
		{404, "NoSuchBucket", objstore.NoBucket},
		{404, "XAdminUserNotFound", objstore.BadCredentials},
		{404, "SomethingElse", objstore.BadRequest},
		{403, "AccessDenied", objstore.AccessDenied},
		{403, "AllAccessDisabled", objstore.AccessDenied},
		{403, "InvalidAccessKeyId", objstore.BadCredentials},
		{403, "SignatureDoesNotMatch", objstore.BadCredentials},
		{400, "InvalidToken", objstore.BadCredentials},
		{400, "ExpiredToken", objstore.Expired},
		{400, "TokenRefreshRequired", objstore.Expired},
		{403, "RequestTimeTooSkewed", objstore.ClockSkew},
		{412, "PreconditionFailed", objstore.PreconditionFailed},
		{409, "ConditionalRequestConflict", objstore.PreconditionFailed},
		{409, "OperationAborted", objstore.Unavailable},
		{409, "InvalidBucketState", objstore.BadRequest},
		{416, "InvalidRange", objstore.InvalidRange},
		{403, "InvalidObjectState", objstore.Archived},
		{503, "SlowDown", objstore.Throttled},
		{503, "ServiceUnavailable", objstore.Throttled},
		{503, "", objstore.Throttled},
		{429, "TooManyRequests", objstore.Throttled},
		{400, "RequestLimitExceeded", objstore.Throttled},
		{400, "KMS.ThrottlingException", objstore.Throttled},
		{500, "InternalError", objstore.Unavailable},
		{502, "", objstore.Unavailable},
		{504, "", objstore.Timeout},
		{400, "RequestTimeout", objstore.Timeout},
		{400, "BadDigest", objstore.Corrupt},
		{400, "XAmzContentSHA256Mismatch", objstore.Corrupt},
		{400, "InvalidArgument", objstore.BadRequest},
		{400, "EntityTooLarge", objstore.BadRequest},
		{405, "MethodNotAllowed", objstore.BadRequest},
		{501, "NotImplemented", objstore.Unsupported},
		{301, "PermanentRedirect", objstore.WrongRegion},
		{307, "TemporaryRedirect", objstore.Unavailable},
	} {
		t.Run(fmt.Sprintf("%d %s", c.status, c.code), func(t *testing.T) {
			var requests atomic.Int32
			s.answer(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("x-amz-request-id", "R1")
				w.Header().Set("Retry-After", "7")
				if c.code == "" {
					http.Error(w, "<html>bad gateway</html>", c.status)
					return
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, errorBody(c.code, "The message."))
			})
			ctx := t.Context()
			for op, f := range map[string]func() error{
				"Get":  func() error { _, err := st.Get(ctx, "k", objstore.GetOptions{Length: -1}); return err },
				"List": func() error { _, err := st.List(ctx, objstore.ListOptions{}); return err },
				"Put": func() error {
					_, err := st.Put(ctx, "k", storetest.NewSource([]byte("x")), objstore.PutOptions{})
					return err
				},
				"Complete": func() error {
					_, err := st.CompleteMultipart(ctx, "k", "u", []objstore.Part{{Number: 1, ETag: "e"}}, objstore.PutOptions{})
					return err
				},
			} {
				requests.Store(0)
				err := f()
				want := c.want
				if op == "List" && want == objstore.NotFound {
					want = objstore.Unavailable
				}
				if got := kindOf(t, err); got != want {
					t.Errorf("%s: got %q, want %q: %v", op, got, want, err)
				}
				if n := requests.Load(); n != 1 {
					t.Errorf("%s made %d requests", op, n)
				}
				var e *objstore.Error
				if errors.As(err, &e) && (e.Status != c.status || e.RetryAfter != 7*time.Second || e.RequestID != "R1" || c.code != "" && e.Code != c.code) {
					t.Errorf("%s: got %+v", op, e)
				}
			}
		})
	}
}

// TestListNotFound: a listing is never "not found"; something that is not S3 says so.
func TestListNotFound(t *testing.T) {
	s, st := newScripted(t)
	s.answer(http.NotFound)
	_, err := st.List(t.Context(), objstore.ListOptions{})
	if got := kindOf(t, err); got != objstore.Unavailable {
		t.Errorf("got %v, want %q", err, objstore.Unavailable)
	}
}

// TestHeadErrors: the answer to a HEAD has no body; what is wrong is asked for by a GET.
func TestHeadErrors(t *testing.T) {
	s, st := newScripted(t)
	for _, c := range []struct {
		status int
		code   string // of the GET
		want   objstore.Kind
		gets   int32
	}{
		{404, "", objstore.NotFound, 0},
		{400, "ExpiredToken", objstore.Expired, 1},
		{403, "InvalidAccessKeyId", objstore.BadCredentials, 1},
		{403, "AccessDenied", objstore.AccessDenied, 1},
		{403, "InvalidRange", objstore.AccessDenied, 1},
		{503, "", objstore.Throttled, 0},
		{500, "", objstore.Unavailable, 0},
		{412, "", objstore.PreconditionFailed, 0},
	} {
		var gets atomic.Int32
		s.answer(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(c.status)
			if r.Method == http.MethodGet {
				gets.Add(1)
				_, _ = io.WriteString(w, errorBody(c.code, "The message."))
			}
		})
		_, err := st.Head(t.Context(), "k", objstore.HeadOptions{})
		if got := kindOf(t, err); got != c.want || gets.Load() != c.gets {
			t.Errorf("%d %s: got %q after %d GETs, want %q after %d: %v", c.status, c.code, got, gets.Load(), c.want, c.gets, err)
		}
	}
}

// TestErrorIn200: S3 may find an error when the status is already sent.
func TestErrorIn200(t *testing.T) {
	s, st := newScripted(t)
	for code, want := range map[string]objstore.Kind{"InternalError": objstore.Unavailable, "SlowDown": objstore.Throttled} {
		s.answer(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"e"`)
			w.Header().Set("Content-Length", "5")
			if r.Method != http.MethodHead {
				w.Header().Del("Content-Length")
				_, _ = io.WriteString(w, errorBody(code, "m"))
			}
		})
		_, err := st.CompleteMultipart(t.Context(), "k", "u", []objstore.Part{{Number: 1, ETag: "e"}}, objstore.PutOptions{})
		if got := kindOf(t, err); got != want {
			t.Errorf("Complete: got %v, want %q", err, want)
		}
		_, err = st.Copy(t.Context(), "k", "l", objstore.CopyOptions{})
		if got := kindOf(t, err); got != want {
			t.Errorf("Copy: got %v, want %q", err, want)
		}
	}
}

// TestBadAnswers: an answer that is not what was asked for is refused.
func TestBadAnswers(t *testing.T) {
	s, st := newScripted(t)
	data := storetest.Bytes(1, 1000)
	part := func(cr, etag string, status int, b []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if cr != "" {
				w.Header().Set("Content-Range", cr)
			}
			w.Header().Set("ETag", `"`+etag+`"`)
			w.Header().Set("Content-Length", strconv.Itoa(len(b)))
			w.WriteHeader(status)
			_, _ = w.Write(b)
		}
	}
	opt := objstore.GetOptions{Offset: 100, Length: 50, IfMatch: "e"}
	start := objstore.GetOptions{Length: 50}
	for _, c := range []struct {
		name string
		opt  objstore.GetOptions
		h    http.HandlerFunc
		want objstore.Kind // Unknown: no error
	}{
		{"right", opt, part("bytes 100-149/1000", "e", 206, data[100:150]), objstore.Unknown},
		{"another ETag", opt, part("bytes 100-149/1000", "f", 206, data[100:150]), objstore.PreconditionFailed},
		{"no ETag", opt, part("bytes 100-149/1000", "", 206, data[100:150]), objstore.PreconditionFailed},
		{"another offset", opt, part("bytes 101-150/1000", "e", 206, data[101:151]), objstore.Unavailable},
		{"too short", opt, part("bytes 100-148/1000", "e", 206, data[100:149]), objstore.Unavailable},
		{"too long", opt, part("bytes 100-150/1000", "e", 206, data[100:151]), objstore.Unavailable},
		{"length against range", opt, part("bytes 100-149/1000", "e", 206, data[100:149]), objstore.Unavailable},
		{"no total", opt, part("bytes 100-149/*", "e", 206, data[100:150]), objstore.Unavailable},
		{"nonsense", opt, part("bytes x", "e", 206, data[100:150]), objstore.Unavailable},
		{"range ignored", opt, part("", "e", 200, data), objstore.Unsupported},
		{"range ignored at the start", start, part("", "e", 200, data), objstore.Unknown},
		{"range ignored, small object", start, part("", "e", 200, data[:20]), objstore.Unknown},
		{"range ignored beyond the end", opt, part("", "e", 200, data[:20]), objstore.InvalidRange},
	} {
		s.answer(c.h)
		r, err := st.Get(t.Context(), "k", c.opt)
		if c.want != objstore.Unknown {
			if got := kindOf(t, err); got != c.want {
				t.Errorf("%s: got %v, want %q", c.name, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		want := data[c.opt.Offset : c.opt.Offset+50]
		if r.Object.Size < 50 {
			want = data[:20]
		}
		if b, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(b, want) || r.Length != int64(len(want)) {
			t.Errorf("%s: got %d bytes, %v", c.name, len(b), err)
		}
		r.Body.Close()
	}
}

// TestBrokenBody: a body that ends early, or never.
func TestBrokenBody(t *testing.T) {
	s, st := newScripted(t)
	data := storetest.Bytes(2, 1<<20)
	hijack := func(w http.ResponseWriter, reset bool) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		if reset {
			_ = c.(*net.TCPConn).SetLinger(0)
		}
		c.Close()
	}
	for _, reset := range []bool{false, true} {
		s.answer(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("ETag", `"e"`)
			w.Header().Set("Content-Length", strconv.Itoa(len(data)))
			_, _ = w.Write(data[:len(data)/2])
			_ = w.(http.Flusher).Flush
			if reset {
				time.Sleep(20 * time.Millisecond) // let the first half out before the reset
			}
			hijack(w, reset)
		})
		r, err := st.Get(t.Context(), "k", objstore.GetOptions{Length: -1})
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		got := kindOf(t, err)
		if !bytes.HasPrefix(data, b) || len(b) == len(data) {
			t.Errorf("got %d bytes that were not sent", len(b))
		}
		if want := objstore.Unavailable; !reset && (got != want || !errors.Is(err, io.ErrUnexpectedEOF)) {
			t.Errorf("cut: got %v, want %q", err, want)
		}
		if reset && got != objstore.Network && got != objstore.Unavailable {
			t.Errorf("reset: got %v", err)
		}
	}
	// Nothing at all: the connection is closed, or no header comes.
	s.answer(func(w http.ResponseWriter, _ *http.Request) { hijack(w, true) })
	_, err := st.Get(t.Context(), "k", objstore.GetOptions{Length: -1})
	if got := kindOf(t, err); got != objstore.Network {
		t.Errorf("closed: got %v, want %q", err, objstore.Network)
	}
	release := make(chan struct{})
	defer close(release)
	s.answer(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	_, err = st.Get(t.Context(), "k", objstore.GetOptions{Length: -1})
	if got := kindOf(t, err); got != objstore.Timeout {
		t.Errorf("no header: got %v, want %q", err, objstore.Timeout)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = st.Get(ctx, "k", objstore.GetOptions{Length: -1})
	if got := kindOf(t, err); got != objstore.Canceled || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deadline: got %v, want %q", err, objstore.Canceled)
	}
	// A listing that breaks off is no short listing.
	s.answer(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `<ListBucketResult><Name>b</Name><Contents><Key>a</Key></Contents>`)
	})
	_, err = st.List(t.Context(), objstore.ListOptions{})
	if got := kindOf(t, err); got != objstore.Unavailable {
		t.Errorf("broken listing: got %v, want %q", err, objstore.Unavailable)
	}
}

// TestArchived: what must be restored says so, in every answer.
func TestArchived(t *testing.T) {
	s, st := newScripted(t)
	for _, c := range []struct {
		class, restore, archive string
		want                    bool
	}{
		{"GLACIER", "", "", true},
		{"DEEP_ARCHIVE", "", "", true},
		{"GLACIER", `ongoing-request="true"`, "", true},
		{"GLACIER", `ongoing-request="false", expiry-date="Fri, 21 Dec 2035 00:00:00 GMT"`, "", false},
		{"GLACIER_IR", "", "", false},
		{"INTELLIGENT_TIERING", "", "", false},
		{"INTELLIGENT_TIERING", "", "DEEP_ARCHIVE_ACCESS", true},
		{"", "", "", false},
	} {
		s.answer(func(w http.ResponseWriter, _ *http.Request) {
			for k, v := range map[string]string{"x-amz-storage-class": c.class, "x-amz-restore": c.restore, "x-amz-archive-status": c.archive} {
				if v != "" {
					w.Header().Set(k, v)
				}
			}
			w.Header().Set("Content-Length", "5")
		})
		o, err := st.Head(t.Context(), "k", objstore.HeadOptions{})
		if err != nil || o.Archived != c.want || o.StorageClass != c.class {
			t.Errorf("%+v: got %+v, %v", c, o, err)
		}
	}
	s.answer(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `<ListBucketResult><Name>b</Name><KeyCount>3</KeyCount><IsTruncated>false</IsTruncated>
<Contents><Key>a</Key><Size>1</Size><StorageClass>DEEP_ARCHIVE</StorageClass></Contents>
<Contents><Key>b</Key><Size>1</Size><StorageClass>GLACIER</StorageClass><RestoreStatus><IsRestoreInProgress>false</IsRestoreInProgress><RestoreExpiryDate>2035-12-21T00:00:00Z</RestoreExpiryDate></RestoreStatus></Contents>
<Contents><Key>c</Key><Size>1</Size><StorageClass>STANDARD</StorageClass></Contents></ListBucketResult>`)
	})
	p, err := st.List(t.Context(), objstore.ListOptions{})
	if err != nil || len(p.Objects) != 3 {
		t.Fatalf("got %+v, %v", p, err)
	}
	for i, want := range []bool{true, false, false} {
		if p.Objects[i].Archived != want {
			t.Errorf("%+v: want Archived %v", p.Objects[i], want)
		}
	}
	s.answer(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(403)
		_, _ = io.WriteString(w, errorBody("InvalidObjectState", "The operation is not valid for the object's storage class"))
	})
	_, err = st.Get(t.Context(), "k", objstore.GetOptions{Length: -1})
	if got := kindOf(t, err); got != objstore.Archived || !strings.Contains(err.Error(), "restore") {
		t.Errorf("Get: got %v", err)
	}
}

// TestChecksumsOfAnswers: only those that are of the whole count.
func TestChecksumsOfAnswers(t *testing.T) {
	s, st := newScripted(t)
	const crc32 = "DUoRhQ==" // of "hello world"
	crc64 := base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, storetest.Sum(objstore.CRC64NVME, []byte("hello world")).Value))
	for _, c := range []struct {
		h    map[string]string
		want objstore.ChecksumAlgorithm
	}{
		{map[string]string{"x-amz-checksum-crc64nvme": crc64}, objstore.CRC64NVME},
		{map[string]string{"x-amz-checksum-crc64nvme": crc64, "x-amz-checksum-type": "FULL_OBJECT"}, objstore.CRC64NVME},
		{map[string]string{"x-amz-checksum-crc32": crc32}, objstore.CRC32},
		{map[string]string{"x-amz-checksum-crc32": crc32, "x-amz-checksum-type": "COMPOSITE"}, objstore.ChecksumNone},
		{map[string]string{"x-amz-checksum-crc32c": crc32 + "-3"}, objstore.ChecksumNone},
		{map[string]string{"x-amz-checksum-crc32": "AAAA"}, objstore.ChecksumNone},
		{map[string]string{"x-amz-checksum-sha256": "AAAA"}, objstore.ChecksumNone},
	} {
		var asked string
		s.answer(func(w http.ResponseWriter, r *http.Request) {
			asked = r.Header.Get("X-Amz-Checksum-Mode")
			for k, v := range c.h {
				w.Header().Set(k, v)
			}
			w.Header().Set("Content-Length", "11")
			_, _ = io.WriteString(w, "hello world")
		})
		r, err := st.Get(t.Context(), "k", objstore.GetOptions{Length: -1})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		r.Body.Close()
		if r.Object.Checksum.Algorithm != c.want || asked != "ENABLED" {
			t.Errorf("%v: got %+v, asked with %q", c.h, r.Object.Checksum, asked)
		}
		if c.want != objstore.ChecksumNone && r.Object.Checksum != storetest.Sum(c.want, []byte("hello world")) {
			t.Errorf("%v: got %+v, want %+v", c.h, r.Object.Checksum, storetest.Sum(c.want, []byte("hello world")))
		}
	}
}

// TestETagIsMD5 by the headers that say it is not.
func TestETagIsMD5(t *testing.T) {
	s, st := newScripted(t)
	const md5 = "5eb63bbbe01eeed093cb22bb8f5acdc3"
	for _, c := range []struct {
		etag, header, value string
		want                bool
	}{
		{md5, "", "", true},
		{md5 + "-2", "", "", false},
		{strings.Repeat("z", 32), "", "", false},
		{md5, "x-amz-server-side-encryption", "AES256", true},
		{md5, "x-amz-server-side-encryption", "aws:kms", false},
		{md5, "x-amz-server-side-encryption", "aws:kms:dsse", false},
		{md5, "x-amz-server-side-encryption-customer-algorithm", "AES256", false},
	} {
		s.answer(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("ETag", `"`+c.etag+`"`)
			w.Header().Set("Content-Length", "11")
			if c.header != "" {
				w.Header().Set(c.header, c.value)
			}
		})
		o, err := st.Head(t.Context(), "k", objstore.HeadOptions{})
		if err != nil || o.ETagIsMD5 != c.want || o.ETag != c.etag {
			t.Errorf("%+v: got %+v, %v", c, o, err)
		}
	}
}
