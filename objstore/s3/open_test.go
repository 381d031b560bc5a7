package s3_test

import (
	"context"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/s3"
	"github.com/leatfs/leatfs/objstore/storetest"
	"github.com/leatfs/leatfs/test/s3test"
)

// TestOpenErrors: each way in which a bucket cannot be opened is one line that says what
// to do.
func TestOpenErrors(t *testing.T) {
	for _, k := range s3test.Kinds() {
		t.Run(string(k), func(t *testing.T) {
			srv := s3test.StartTB(t, k)
			bucket := srv.BucketTB(t)
			for _, c := range []struct {
				name string
				env  map[string]string
				cfg  s3.Config
				want objstore.Kind
				hint string
			}{
				{"no bucket", nil, s3.Config{Bucket: "nosuchbucket"}, objstore.NoBucket, "nosuchbucket"},
				{"wrong secret", map[string]string{"AWS_SECRET_ACCESS_KEY": "wrong"}, s3.Config{}, objstore.BadCredentials, "check the access key"},
				{"wrong key", map[string]string{"AWS_ACCESS_KEY_ID": "wrong"}, s3.Config{}, objstore.BadCredentials, "check the access key"},
				{"no credentials", map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, s3.Config{}, objstore.BadCredentials, "no credentials were found"},
				{"no such profile", nil, s3.Config{Profile: "nobody"}, objstore.BadRequest, "profile"},
				{"anonymous", nil, s3.Config{Anonymous: true}, objstore.AccessDenied, "not public"},
				{"no such host", nil, s3.Config{Endpoint: "http://nosuchhost.invalid"}, objstore.Network, "does not resolve"},
				{"nobody there", nil, s3.Config{Endpoint: "http://" + closedPort(t)}, objstore.Network, "cannot be reached"},
				{"TLS to none", nil, s3.Config{Endpoint: strings.Replace(srv.Endpoint, "http:", "https:", 1)}, objstore.Network, "http://"},
				{"bad URL", nil, s3.Config{Endpoint: "localhost:9000"}, objstore.BadRequest, ""},
				{"secret in URL", nil, s3.Config{Endpoint: "http://key:secret@localhost"}, objstore.BadRequest, ""},
				{"no name", nil, s3.Config{Bucket: "-"}, objstore.BadRequest, ""},
				{"bad SSE-C key", nil, s3.Config{SSECKey: "short"}, objstore.BadRequest, ""},
			} {
				t.Run(c.name, func(t *testing.T) {
					useServer(t, srv)
					for k, v := range c.env {
						t.Setenv(k, v)
					}
					switch c.cfg.Bucket {
					case "":
						c.cfg.Bucket = bucket
					case "-":
						c.cfg.Bucket = ""
					}
					st, err := s3.Open(t.Context(), c.cfg)
					if err == nil {
						st.Close()
						t.Fatal("no error")
					}
					if got := kindOf(t, err); got != c.want {
						t.Errorf("got %q, want %q: %v", got, c.want, err)
					}
					if !strings.Contains(err.Error(), c.hint) {
						t.Errorf("%v: no word of %q", err, c.hint)
					}
					if s := err.Error(); strings.Contains(s, srv.SecretKey) || strings.Contains(s, "key:secret") {
						t.Errorf("a secret in the message: %v", err)
					}
					t.Log(err)
				})
			}
			t.Run("wrong region", func(t *testing.T) {
				useServer(t, srv)
				st, err := s3.Open(t.Context(), s3.Config{Bucket: bucket, Region: "eu-west-7"})
				if err == nil { // some servers do not mind
					st.Close()
					return
				}
				if got := kindOf(t, err); got != objstore.WrongRegion && got != objstore.BadCredentials {
					t.Errorf("got %v", err)
				}
				if !strings.Contains(err.Error(), "us-east-1") {
					t.Errorf("%v: no word of the right region", err)
				}
			})
			t.Run("canceled", func(t *testing.T) {
				useServer(t, srv)
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				_, err := s3.Open(ctx, s3.Config{Bucket: bucket})
				if got := kindOf(t, err); got != objstore.Canceled {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

func closedPort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestOpenScripted: what real servers do not say on loopback.
func TestOpenScripted(t *testing.T) {
	clearEnv(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	for _, c := range []struct {
		name   string
		status int
		header map[string]string
		body   string
		want   objstore.Kind
		hint   string
	}{
		{"expired", 400, nil, errorBody("ExpiredToken", "The provided token has expired."), objstore.Expired, "renew"},
		{"skew", 403, map[string]string{"Date": "Thu, 01 Jan 2015 00:00:00 GMT"}, errorBody("RequestTimeTooSkewed", "m"), objstore.ClockSkew, "clock differs"},
		{"skew, no code", 403, map[string]string{"Date": "Thu, 01 Jan 2015 00:00:00 GMT"}, "", objstore.ClockSkew, "clock differs"},
		{"region", 301, map[string]string{"X-Amz-Bucket-Region": "eu-north-1"}, errorBody("PermanentRedirect", "m"), objstore.WrongRegion, "eu-north-1"},
		{"region in 400", 400, map[string]string{"X-Amz-Bucket-Region": "eu-north-1"}, errorBody("AuthorizationHeaderMalformed", "m"), objstore.WrongRegion, "eu-north-1"},
		{"denied", 403, nil, errorBody("AccessDenied", "User is not authorized"), objstore.AccessDenied, "s3:ListBucket"},
		{"throttled", 503, nil, errorBody("SlowDown", "m"), objstore.Throttled, ""},
		{"a web page", 200, nil, "<html><body>It works!</body></html>", objstore.Unsupported, "check the endpoint"},
		{"no XML", 200, nil, "It works! &", objstore.Unavailable, "not S3's"},
		{"empty", 200, nil, "", objstore.Unsupported, "the answer is not S3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for k, v := range c.header {
					w.Header().Set(k, v)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			}))
			defer srv.Close()
			_, err := s3.Open(t.Context(), s3.Config{Bucket: "b", Endpoint: srv.URL})
			if err == nil {
				t.Fatal("no error")
			}
			if got := kindOf(t, err); got != c.want || !strings.Contains(err.Error(), c.hint) {
				t.Errorf("got %v, want %q and a word of %q", err, c.want, c.hint)
			}
			t.Log(err)
		})
	}
}

// TestRequests: what goes over the wire is what the configuration says.
func TestRequests(t *testing.T) {
	clearEnv(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	raw := storetest.Bytes(9, 32)
	keyFile := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(keyFile, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	b64 := base64.StdEncoding.EncodeToString(raw)
	var last *http.Request
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		last = r
		w.Header().Set("ETag", `"e"`)
		if strings.HasSuffix(r.URL.Path, "/b") {
			_, _ = io.WriteString(w, emptyList)
			return
		}
		w.Header().Set("Content-Length", "1")
		_, _ = io.WriteString(w, "x")
	}))
	defer srv.Close()
	t.Setenv("AWS_ENDPOINT_URL_S3", srv.URL)
	open := func(cfg s3.Config) *s3.Store {
		t.Helper()
		cfg.Bucket = "b"
		st := mustOpen(t, cfg)
		t.Cleanup(func() { st.Close() })
		return st
	}
	want := func(name, value string) {
		t.Helper()
		if got := last.Header.Get(name); got != value {
			t.Errorf("%s: got %q, want %q", name, got, value)
		}
	}
	get := func(st *s3.Store) {
		t.Helper()
		r, err := st.Get(t.Context(), "k", objstore.GetOptions{Length: -1})
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
	}
	for _, key := range []string{b64, keyFile} {
		st := open(s3.Config{SSECKey: key, RequesterPays: true, UserAgent: "test/2"})
		get(st)
		want("X-Amz-Server-Side-Encryption-Customer-Key", b64)
		want("X-Amz-Server-Side-Encryption-Customer-Algorithm", "AES256")
		want("X-Amz-Request-Payer", "requester")
		want("Accept-Encoding", "identity")
		if ua := last.Header.Get("User-Agent"); !strings.Contains(ua, "leatfs/1.0") || !strings.Contains(ua, "test/2") {
			t.Errorf("User-Agent: got %q", ua)
		}
		if _, err := st.Put(t.Context(), "k", storetest.NewSource([]byte("x")), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		want("X-Amz-Server-Side-Encryption-Customer-Key", b64)
		want("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
		if last.Header.Get("X-Amz-Checksum-Crc64nvme") == "" {
			t.Error("an upload without a checksum")
		}
		if st.String() != "s3://b?endpoint="+srv.URL {
			t.Errorf("String: got %q", st)
		}
	}
	st := open(s3.Config{SSEKMSKeyID: "key-1"})
	if _, err := st.Put(t.Context(), "k", storetest.NewSource([]byte("x")), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	want("X-Amz-Server-Side-Encryption", "aws:kms")
	want("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id", "key-1")
	st = open(s3.Config{Anonymous: true})
	get(st)
	want("Authorization", "")
	st = open(s3.Config{Region: "mars-1"})
	get(st)
	if a := last.Header.Get("Authorization"); !strings.Contains(a, "/mars-1/s3/") {
		t.Errorf("Authorization: got %q", a)
	}
}

// TestConnections: reads that are read to their end keep their connections, however many
// run at once.
func TestConnections(t *testing.T) {
	srv := s3test.StartTB(t, s3test.Versitygw)
	useServer(t, srv)
	const workers = 8
	st := mustOpen(t, s3.Config{Bucket: srv.BucketTB(t), Transport: s3.Transport{MaxConns: workers}})
	defer st.Close()
	data := storetest.Bytes(3, 1<<20)
	if _, err := st.Put(t.Context(), "k", storetest.NewSource(data), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	errs := make(chan error, workers)
	for range workers {
		go func() {
			for range 20 {
				r, err := st.Get(t.Context(), "k", objstore.GetOptions{Offset: 1000, Length: 500_000})
				if err == nil {
					_, err = io.Copy(io.Discard, r.Body)
					r.Body.Close()
				}
				if err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range workers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d GETs of 500 kB in %v", workers*20, time.Since(start))
}
