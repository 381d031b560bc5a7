package fault

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

var content = bytes.Repeat([]byte("0123456789abcdef"), 64<<10/16) // 64 KiB

// origin is a plain server that keeps what was PUT, and knows content under /bucket/data.
type origin struct {
	mu    sync.Mutex
	puts  map[string][]byte
	gets  atomic.Int64
	hosts []string
}

func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	o.hosts = append(o.hosts, r.Host+" "+r.RequestURI)
	o.mu.Unlock()
	switch r.Method {
	case http.MethodPut:
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		o.mu.Lock()
		o.puts[r.URL.Path] = b
		o.mu.Unlock()
		w.Header().Set("ETag", `"put"`)
	default:
		o.gets.Add(1)
		w.Header().Set("ETag", `"right"`)
		http.ServeContent(w, r, "", time.Unix(0, 0), bytes.NewReader(content))
	}
}

func (o *origin) put(path string) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.puts[path]
}

// seen is the n-th request's Host and request line, as the server got it.
func (o *origin) seen(n int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.hosts[n]
}

func start(t *testing.T) (*Proxy, *origin) {
	t.Helper()
	o := &origin{puts: map[string][]byte{}}
	srv := httptest.NewServer(o)
	t.Cleanup(srv.Close)
	p, err := Start(srv.URL, Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		for _, r := range p.Requests() {
			if !r.Done {
				t.Errorf("not over after Close: %v", r)
			}
		}
	})
	return p, o
}

// client makes a client with a connection of its own.
func client(t *testing.T) *http.Client {
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// get reads a path; resp is nil when there was no answer.
func get(t *testing.T, p *Proxy, path string) (resp *http.Response, body []byte, err error) {
	t.Helper()
	resp, err = client(t).Get(p.URL() + path)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	return resp, body, err
}

func TestPass(t *testing.T) {
	p, o := start(t)
	resp, body, err := get(t, p, "/bucket/data")
	if err != nil || !bytes.Equal(body, content) || resp.Header.Get("ETag") != `"right"` || resp.ContentLength != int64(len(content)) {
		t.Fatalf("%v, %d bytes, %v", resp, len(body), err)
	}
	// Ranges, HEAD, bodies, odd paths and the Host header pass as they are.
	c := client(t)
	req, _ := http.NewRequest(http.MethodGet, p.URL()+"/bucket/data", nil)
	req.Header.Set("Range", "bytes=10-19")
	req.Host = "bucket.example"
	resp, err = c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err = io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 206 || string(body) != "abcdef0123" {
		t.Errorf("range: %d %q %v", resp.StatusCode, body, err)
	}
	resp, err = c.Head(p.URL() + "/bucket//odd%2Fname/%C3%A4+b?x=%2F&y")
	if err != nil || resp.ContentLength != int64(len(content)) {
		t.Errorf("HEAD: %v %v", resp, err)
	}
	for _, n := range []int{0, 3, 1 << 20} {
		data := bytes.Repeat([]byte("x"), n)
		req, _ := http.NewRequest(http.MethodPut, p.URL()+"/bucket/put", bytes.NewReader(data))
		req.Header.Set("Expect", "100-continue")
		resp, err = c.Do(req)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("PUT: %v %v", resp, err)
		}
		resp.Body.Close()
		if got := o.put("/bucket/put"); !bytes.Equal(got, data) {
			t.Errorf("PUT of %d bytes: the server got %d", n, len(got))
		}
	}
	if got, want := o.seen(1), "bucket.example /bucket/data"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := o.seen(2), p.Addr()+" /bucket//odd%2Fname/%C3%A4+b?x=%2F&y"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	log := p.Requests()
	if len(log) != 6 || log[1].Range != "bytes=10-19" || log[1].Status != 206 || log[1].Bytes != 10 || !log[1].Done ||
		log[2].Class != objstore.ClassHead || log[2].Key != "/odd/name/ä+b" || log[3].Class != objstore.ClassPut {
		t.Errorf("log: %v", log)
	}
}

func TestErrors(t *testing.T) {
	p, o := start(t)
	for _, tc := range []struct {
		do     Action
		status int
		code   string
		after  string
	}{
		{SlowDown(1500 * time.Millisecond), 503, "SlowDown", "2"},
		{SlowDown(0), 503, "SlowDown", ""},
		{TooManyRequests(time.Second), 429, "TooManyRequests", "1"},
		{InternalError(), 500, "InternalError", ""},
		{ServiceUnavailable(), 503, "ServiceUnavailable", ""},
		{ExpiredToken(), 400, "ExpiredToken", ""},
		{ClockSkew(), 403, "RequestTimeTooSkewed", ""},
		{AccessDenied(), 403, "AccessDenied", ""},
		{Archived(), 403, "InvalidObjectState", ""},
	} {
		rule := p.Add(Rule{Do: tc.do})
		resp, body, err := get(t, p, "/bucket/data")
		if err != nil {
			t.Fatal(err)
		}
		var e struct{ Code, Message, Key, RequestId string }
		if err := xml.Unmarshal(body, &e); err != nil || e.Code != tc.code || e.Message == "" || e.Key != "data" {
			t.Errorf("%s: %q %v", tc.code, body, err)
		}
		if resp.StatusCode != tc.status || resp.Header.Get("Retry-After") != tc.after {
			t.Errorf("%s: %v", tc.code, resp)
		}
		if resp, err := client(t).Head(p.URL() + "/bucket/data"); err != nil || resp.StatusCode != tc.status {
			t.Errorf("HEAD %s: %v %v", tc.code, resp, err)
		}
		if rule.Seen() != 2 || rule.Fired() != 2 || rule.Name != tc.code {
			t.Errorf("%s: seen %d, fired %d", rule.Name, rule.Seen(), rule.Fired())
		}
		rule.Remove()
	}
	if o.gets.Load() != 0 {
		t.Error("the server was asked")
	}
}

func TestConnection(t *testing.T) {
	p, o := start(t)
	for _, tc := range []struct {
		do     Action
		n      int   // bytes that come; -1: no answer at all
		err    error // how it ends
		asked  int64
		status int
	}{
		{Reset(), -1, syscall.ECONNRESET, 0, 0},
		{Lose(), -1, syscall.ECONNRESET, 1, 0},
		{ResetAfter(0), 0, syscall.ECONNRESET, 1, 200},
		{ResetAfter(1000), 1000, syscall.ECONNRESET, 1, 200},
		{Truncate(0), 0, io.ErrUnexpectedEOF, 1, 200},
		{Truncate(5000), 5000, io.ErrUnexpectedEOF, 1, 200},
		{Truncate(1 << 30), len(content), nil, 1, 200},
	} {
		p.Forget()
		o.gets.Store(0)
		rule := p.Add(Rule{Do: tc.do})
		resp, body, err := get(t, p, "/bucket/data")
		rule.Remove()
		if !errors.Is(err, tc.err) && !(tc.n < 0 && errors.Is(err, io.EOF)) {
			t.Errorf("%v: ended with %v, want %v", tc.do, err, tc.err)
		}
		if tc.n < 0 {
			if resp != nil {
				t.Errorf("%v: %v", tc.do, resp)
			}
		} else if !bytes.Equal(body, content[:tc.n]) || resp.ContentLength != int64(len(content)) {
			t.Errorf("%v: %d bytes came, want %d", tc.do, len(body), tc.n)
		}
		if o.gets.Load() != tc.asked {
			t.Errorf("%v: the server was asked %d times, want %d", tc.do, o.gets.Load(), tc.asked)
		}
		log := p.Requests()
		if len(log) != 1 || log[0].Status != tc.status || log[0].Rule != tc.do.String() || log[0].Bytes != int64(max(tc.n, 0)) {
			t.Errorf("%v: log %v", tc.do, log)
		}
	}
}

// TestLosePut: the server has what was PUT, though the client was not told.
func TestLosePut(t *testing.T) {
	p, o := start(t)
	p.Add(Rule{Class: "PUT", Count: 1, Do: Lose()})
	req, _ := http.NewRequest(http.MethodPut, p.URL()+"/bucket/put", io.MultiReader(strings.NewReader("data")))
	if resp, err := client(t).Do(req); err == nil {
		t.Errorf("answered: %v", resp)
	}
	if got := string(o.put("/bucket/put")); got != "data" {
		t.Errorf("the server has %q", got)
	}
}

func TestCorrupt(t *testing.T) {
	p, _ := start(t)
	for _, tc := range []struct{ offset, at int64 }{{0, 0}, {1000, 1000}, {-1, int64(len(content)) - 1}, {1 << 30, -1}} {
		rule := p.Add(Rule{Do: Corrupt(tc.offset)})
		_, body, err := get(t, p, "/bucket/data")
		rule.Remove()
		if err != nil || len(body) != len(content) {
			t.Fatal(len(body), err)
		}
		for i := range body {
			if (body[i] != content[i]) != (int64(i) == tc.at) {
				t.Errorf("corrupt at %d: byte %d", tc.offset, i)
			}
		}
	}
}

func TestHeader(t *testing.T) {
	p, _ := start(t)
	p.Add(Rule{Do: ETag("wrong"), Count: 1})
	p.Add(Rule{Do: Header("ETag", "")})
	for _, want := range []string{`"wrong"`, ""} {
		resp, body, err := get(t, p, "/bucket/data")
		if err != nil || resp.Header.Get("ETag") != want || !bytes.Equal(body, content) {
			t.Errorf("ETag %q, want %q; %v", resp.Header.Get("ETag"), want, err)
		}
	}
}

func TestStall(t *testing.T) {
	p, _ := start(t)
	const d = 50 * time.Millisecond
	for _, do := range []Action{Stall(-1, d), Stall(0, d), Stall(1000, d), Delay(d), Drip(20<<10, d/3)} {
		rule := p.Add(Rule{Do: do})
		began := time.Now()
		_, body, err := get(t, p, "/bucket/data")
		if err != nil || !bytes.Equal(body, content) || time.Since(began) < d {
			t.Errorf("%v: %d bytes after %v, %v", do, len(body), time.Since(began), err)
		}
		rule.Remove()
	}
	// For ever, until the client has enough.
	for _, n := range []int64{-1, 1000} {
		rule := p.Add(Rule{Do: Stall(n, 0)})
		ctx, cancel := context.WithTimeout(t.Context(), d)
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, p.URL()+"/bucket/data", nil)
		resp, err := client(t).Do(req)
		if n >= 0 {
			if err != nil {
				t.Fatal(err)
			}
			var body []byte
			body, err = io.ReadAll(resp.Body)
			if int64(len(body)) != n {
				t.Errorf("%d bytes before the stall, want %d", len(body), n)
			}
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended with %v", err)
		}
		cancel()
		rule.Remove()
	}
	// Or the proxy closes: see start.
	p.Add(Rule{Do: Stall(1000, 0)})
	resp, err := client(t).Get(p.URL() + "/bucket/data")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	p.Close()
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("a stalled body ended well when the proxy closed")
	}
}

func TestConditions(t *testing.T) {
	p, _ := start(t)
	status := func(method, path string) int {
		t.Helper()
		req, _ := http.NewRequest(method, p.URL()+path, nil)
		resp, err := client(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	sequence := func(n int) (s string) {
		for range n {
			s += fmt.Sprint(map[int]int{200: 0, 500: 1}[status("GET", "/bucket/data")])
		}
		return s
	}
	for _, tc := range []struct {
		rule Rule
		want string
	}{
		{Rule{Count: 2}, "11000000"},
		{Rule{After: 2, Count: 3}, "00111000"},
		{Rule{Every: 3}, "10010010"},
		{Rule{After: 1, Every: 2, Count: 2}, "01010000"},
		{Rule{Class: "LIST"}, "00000000"},
		{Rule{Class: "GET", Method: "GET", Key: "at"}, "11111111"},
		{Rule{Key: "other"}, "00000000"},
		{Rule{Match: func(r Request) bool { return r.Bucket == "bucket" && r.Key == "data" }}, "11111111"},
		{Rule{Match: All(Class(objstore.ClassGet), Key("dat"))}, "00000000"},
	} {
		tc.rule.Do = InternalError()
		p.Add(tc.rule)
		if got := sequence(8); got != tc.want {
			t.Errorf("%+v: %s, want %s", tc.rule, got, tc.want)
		}
		p.Clear()
	}
	// The first rule that fires wins; Pass makes an exception.
	p.Add(Rule{Key: "data", Do: Pass()})
	p.Add(Rule{Do: InternalError()})
	if a, b := status("GET", "/bucket/data"), status("GET", "/bucket/other"); a != 200 || b != 500 {
		t.Errorf("%d for the exception, %d for others", a, b)
	}
}

func TestProbability(t *testing.T) {
	run := func(seed uint64) (fired string) {
		_, o := start(t)
		srv := httptest.NewServer(o)
		defer srv.Close()
		p, err := Start(srv.URL, Options{Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		p.Add(Rule{Probability: 0.3, Do: InternalError()})
		c := client(t)
		for range 100 {
			resp, err := c.Head(p.URL() + "/bucket/data")
			if err != nil {
				t.Fatal(err)
			}
			fired += fmt.Sprint(resp.StatusCode / 500)
		}
		return fired
	}
	a, b, other := run(7), run(7), run(8)
	if a != b || a == other {
		t.Errorf("seeds 7, 7, 8:\n%s\n%s\n%s", a, b, other)
	}
	if n := strings.Count(a, "1"); n < 15 || n > 45 {
		t.Errorf("fired %d times of 100 with probability 0.3", n)
	}
}

func TestClasses(t *testing.T) {
	p, _ := start(t)
	c := client(t)
	for _, r := range []struct {
		method, path, source string
		want                 objstore.Class
		key                  string
	}{
		{"GET", "/bucket/key", "", objstore.ClassGet, "key"},
		{"GET", "/bucket?list-type=2&prefix=dir%2F", "", objstore.ClassList, "dir/"},
		{"GET", "/bucket/?list-type=2&prefix=dir%2F&continuation-token=x", "", objstore.ClassList, "dir/"},
		{"GET", "/", "", objstore.ClassList, ""},
		{"GET", "/bucket/key?uploadId=1", "", objstore.ClassList, "key"},
		{"HEAD", "/bucket/key", "", objstore.ClassHead, "key"},
		{"HEAD", "/bucket", "", objstore.ClassHead, ""},
		{"PUT", "/bucket/key", "", objstore.ClassPut, "key"},
		{"PUT", "/bucket/key?partNumber=1", "/bucket/a", objstore.ClassCopy, "key"},
		{"POST", "/bucket/key?uploads", "", objstore.ClassPut, "key"},
		{"POST", "/bucket?delete", "", objstore.ClassDelete, ""},
		{"DELETE", "/bucket/key", "", objstore.ClassDelete, "key"},
	} {
		p.Forget()
		req, _ := http.NewRequest(r.method, p.URL()+r.path, nil)
		if r.source != "" {
			req.Header.Set("X-Amz-Copy-Source", r.source)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		log := p.Requests()
		if len(log) != 1 || log[0].Class != r.want || log[0].Key != r.key {
			t.Errorf("%s %s: %v, want %v of %q", r.method, r.path, log, r.want, r.key)
		}
	}
}

func TestLog(t *testing.T) {
	p, _ := start(t)
	for _, path := range []string{"/bucket?prefix=a%2F", "/bucket?prefix=a%2F&continuation-token=1", "/bucket?prefix=b%2F", "/bucket/a/1", "/bucket/a/1"} {
		if _, _, err := get(t, p, path); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.Count(nil); n != 5 {
		t.Errorf("%d requests, want 5", n)
	}
	if n := p.Count(All(Class(objstore.ClassGet), Key("a/1"))); n != 2 {
		t.Errorf("%d GETs of a/1, want 2", n)
	}
	if lists := p.Tally(Class(objstore.ClassList)); len(lists) != 2 || lists["a/"] != 1 || lists["b/"] != 1 {
		t.Errorf("lists: %v", lists)
	}
	if p.Peak("GET") != 1 || p.Peak("") != 1 || p.Peak("PUT") != 0 {
		t.Errorf("peaks %d %d %d", p.Peak("GET"), p.Peak(""), p.Peak("PUT"))
	}
	p.Forget()
	if p.Count(nil) != 0 || p.Peak("GET") != 0 {
		t.Error("after Forget")
	}

	// Eight at once.
	var wg sync.WaitGroup
	gate := make(chan struct{})
	var in atomic.Int64
	p.Add(Rule{Do: Func("gate", func(w http.ResponseWriter, r *http.Request) {
		if in.Add(1) == 8 {
			close(gate)
		}
		<-gate
		io.WriteString(w, "through")
	})})
	for range 8 {
		wg.Go(func() {
			if _, body, err := get(t, p, "/bucket/x"); err != nil || string(body) != "through" {
				t.Errorf("%q %v", body, err)
			}
		})
	}
	wg.Wait()
	log := p.Requests()
	if p.Peak("GET") != 8 || len(log) != 8 || log[0].Status != 200 || log[0].Bytes != 7 || log[0].Rule != "gate" {
		t.Errorf("peak %d, log %v", p.Peak("GET"), log)
	}
}

func TestLogIsBounded(t *testing.T) {
	o := &origin{}
	srv := httptest.NewServer(o)
	defer srv.Close()
	p, err := Start(srv.URL, Options{MaxLog: 20})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c := client(t)
	for range 100 {
		resp, err := c.Head(p.URL() + "/bucket/data")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	if n := p.Count(nil); n > 20 || n < 15 || n+p.Dropped() != 100 {
		t.Errorf("%d in the log, %d dropped", n, p.Dropped())
	}
}

func TestDown(t *testing.T) {
	p, _ := start(t)
	p.Add(Rule{Do: Stall(100, 0)})
	resp, err := client(t).Get(p.URL() + "/bucket/data")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for range 2 {
		if err := p.SetDown(true); err != nil {
			t.Fatal(err)
		}
		if _, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("while down: %v", err)
		}
		if err := p.SetDown(false); err != nil {
			t.Fatal(err)
		}
		p.Clear()
		if _, body, err := get(t, p, "/bucket/data"); err != nil || !bytes.Equal(body, content) {
			t.Errorf("up again: %v", err)
		}
	}
	if _, err := io.ReadAll(resp.Body); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("an answer under way ended with %v", err)
	}
}

func TestServerGone(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	p, err := Start(ln.Addr().String(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if resp, _, err := get(t, p, "/bucket/data"); err == nil {
		t.Errorf("%v", resp)
	}
	if _, err := Start("nonsense", Options{}); err == nil {
		t.Error("no error for a bad target")
	}
}
