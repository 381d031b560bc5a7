package link

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// pattern is what the test server serves: a repeated random MiB.
var pattern = func() []byte {
	b := make([]byte, 1<<20)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(b)
	return b
}()

// newServer answers GET /N with N bytes of pattern and PUT with the SHA-256 of the body.
func newServer(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			h := sha256.New()
			io.Copy(h, r.Body)
			w.Write(h.Sum(nil))
			return
		}
		n, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		w.Header().Set("Content-Length", strconv.Itoa(n))
		for n > 0 {
			m, err := w.Write(pattern[:min(n, len(pattern))])
			if err != nil {
				return
			}
			n -= m
		}
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

// start runs a link before a server, and checks that nothing is left of it at the end.
func start(t *testing.T, opt Options) *Link {
	t.Helper()
	opt.Target = newServer(t)
	l, err := Start(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if c := l.Counters(); c.Open != 0 || c.InFlight != 0 {
			t.Errorf("after Close: %+v", c)
		}
	})
	return l
}

func newClient(t *testing.T) *http.Client {
	tr := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true, ReadBufferSize: 64 << 10}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// get reads /n through the link and returns the time to the first byte and to the last.
func get(c *http.Client, addr string, n int) (first, last time.Duration, err error) {
	began := time.Now()
	resp, err := c.Get(fmt.Sprintf("http://%s/%d", addr, n))
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	first = time.Since(began)
	got, err := io.Copy(io.Discard, resp.Body)
	if err == nil && got != int64(n) {
		err = fmt.Errorf("%d bytes, want %d", got, n)
	}
	return first, time.Since(began), err
}

// total reads with conns clients at once, each reads GETs of size bytes, and returns the
// rate in bytes/s.
func total(t *testing.T, l *Link, conns, reads, size int) float64 {
	t.Helper()
	var wg sync.WaitGroup
	began := time.Now()
	for range conns {
		c := newClient(t)
		wg.Go(func() {
			for range reads {
				if _, _, err := get(c, l.Addr(), size); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return float64(conns*reads*size) / time.Since(began).Seconds()
}

// within tries up to three times, since other work on the machine may slow one try down.
// A link that is too fast fails at once. One that is too slow each time fails when it never comes to half
// of what it should, or of what a link without limits gives to as many clients right after: tests of other
// packages run beside this one, and a link can give no more than the processors do.
func within(t *testing.T, want, tolerance float64, conns int, try func() float64) {
	t.Helper()
	free, busy := start(t, Options{}), false
	for range 3 {
		got := try()
		if got > want*(1+tolerance) {
			t.Fatalf("%.1f MB/s, want %.1f at most", got/1e6, want/1e6)
		}
		if got >= want*(1-tolerance) {
			t.Logf("%.1f MB/s of %.1f", got/1e6, want/1e6)
			return
		}
		unlimited := total(t, free, conns, 1, 64<<20/conns)
		t.Logf("%.1f MB/s of %.1f; a link without limits gives %.1f", got/1e6, want/1e6, unlimited/1e6)
		busy = busy || got >= min(want, unlimited)/2
	}
	if !busy {
		t.Errorf("too slow")
	}
}

func TestRatePerConnection(t *testing.T) {
	l := start(t, Options{PerConn: 90e6})
	within(t, 90e6, 0.03, 1, func() float64 { return total(t, l, 1, 1, 90e6) })
}

func TestRatePerConnectionManyReads(t *testing.T) {
	l := start(t, Options{PerConn: 90e6, FirstByte: 20 * time.Millisecond})
	const size = 8 << 20
	// One read takes 20 ms and size/rate.
	want := size / (0.020 + size/90e6)
	within(t, want, 0.03, 1, func() float64 { return total(t, l, 1, 10, size) })
}

func TestRateTotal(t *testing.T) {
	l := start(t, Options{PerConn: 90e6, Total: 200e6})
	within(t, 200e6, 0.03, 8, func() float64 { return total(t, l, 8, 1, 32<<20) })
	if c := l.Counters(); c.MaxOpen < 8 || c.MaxInFlight < 8 {
		t.Errorf("8 readers: %+v", c)
	}
}

func TestRatesTogether(t *testing.T) {
	l := start(t, Options{PerConn: 30e6})
	within(t, 120e6, 0.03, 4, func() float64 { return total(t, l, 4, 1, 30e6) })
}

func TestFirstByte(t *testing.T) {
	const latency = 20 * time.Millisecond
	l := start(t, Options{PerConn: 90e6, FirstByte: latency})
	c := newClient(t)
	best := time.Hour
	for range 20 {
		first, _, err := get(c, l.Addr(), 128<<10)
		if err != nil {
			t.Fatal(err)
		}
		if first < latency {
			t.Fatalf("first byte after %v, want %v at least", first, latency)
		}
		best = min(best, first)
	}
	if best > latency+5*time.Millisecond {
		t.Errorf("first byte after %v at best, want about %v", best, latency)
	}
	t.Logf("first byte after %v at best", best)
	if got := l.Counters(); got.Requests != 20 || got.Conns != 1 {
		t.Errorf("20 requests on one connection: %+v", got)
	}
}

// TestBytes: what passes is what was sent, both ways, at no limit and in small pieces.
func TestBytes(t *testing.T) {
	for _, opt := range []Options{{}, {PerConn: 50e6, Total: 60e6, FirstByte: time.Millisecond}} {
		l := start(t, opt)
		c := newClient(t)
		for _, n := range []int{0, 1, 4095, 1<<20 + 3, 5 << 20} {
			resp, err := c.Get(fmt.Sprintf("http://%s/%d", l.Addr(), n))
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			want := bytes.Repeat(pattern, n/len(pattern)+1)[:n]
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("GET of %d bytes: got %d, equal %v, %v", n, len(got), bytes.Equal(got, want), err)
			}

			req, _ := http.NewRequest(http.MethodPut, "http://"+l.Addr()+"/", bytes.NewReader(want))
			resp, err = c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			sum, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if wantSum := sha256.Sum256(want); err != nil || !bytes.Equal(sum, wantSum[:]) {
				t.Fatalf("PUT of %d bytes arrived altered: %v", n, err)
			}
		}
	}
}

func TestCutAll(t *testing.T) {
	l := start(t, Options{PerConn: 1e6})
	done := make(chan error, 1)
	began := make(chan struct{})
	go func() {
		resp, err := newClient(t).Get("http://" + l.Addr() + "/100000000")
		if err == nil {
			defer resp.Body.Close()
			close(began)
			_, err = io.Copy(io.Discard, resp.Body)
		}
		done <- err
	}()
	<-began
	if n := l.CutAll(); n != 1 {
		t.Errorf("cut %d connections, want 1", n)
	}
	if err := <-done; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the reader saw %v, want a reset", err)
	}
	if _, _, err := get(newClient(t), l.Addr(), 100); err != nil {
		t.Errorf("after CutAll: %v", err)
	}
}

func TestDown(t *testing.T) {
	l := start(t, Options{})
	for range 3 {
		if _, _, err := get(newClient(t), l.Addr(), 100); err != nil {
			t.Fatal(err)
		}
		if err := l.SetDown(true); err != nil {
			t.Fatal(err)
		}
		if _, err := net.Dial("tcp", l.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("while down: %v, want refused", err)
		}
		if err := l.SetDown(false); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.SetDown(true); err != nil { // Close while down
		t.Fatal(err)
	}
}

func TestBlackhole(t *testing.T) {
	l := start(t, Options{})
	c := newClient(t)
	if _, _, err := get(c, l.Addr(), 100); err != nil {
		t.Fatal(err)
	}
	l.SetBlackhole(true)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.Addr()+"/1", nil)
	if _, err := c.Do(req); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("in a blackhole: %v, want the deadline", err)
	}
	done := make(chan error, 1)
	go func() {
		_, _, err := get(c, l.Addr(), 100)
		done <- err
	}()
	l.SetBlackhole(false)
	if err := <-done; err != nil {
		t.Errorf("after the blackhole: %v", err)
	}
}

// TestClientGone: a client that leaves in mid-answer frees the connection to the server,
// and the link holds no goroutine for it.
func TestClientGone(t *testing.T) {
	l := start(t, Options{PerConn: 5e6})
	before := runtime.NumGoroutine()
	for range 20 {
		resp, err := newClient(t).Get("http://" + l.Addr() + "/100000000")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	deadline := time.Now().Add(30 * time.Second)
	for l.Counters().Open > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("connections left: %+v, goroutines %d, were %d", l.Counters(), runtime.NumGoroutine(), before)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestTargetGone(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := ln.Addr().String()
	ln.Close()
	l, err := Start(Options{Target: target})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, _, err := get(newClient(t), l.Addr(), 1); err == nil {
		t.Error("no error with nobody behind the link")
	}
}

func TestBadTarget(t *testing.T) {
	if _, err := Start(Options{Target: "nonsense"}); err == nil {
		t.Error("no error for a target without port")
	}
}

// BenchmarkCPU tells the processor time of the link, server and client together, for each
// GB that passes at 8 x 90 MB/s.
func BenchmarkCPU(b *testing.B) {
	// The server is a child process in effect: it only writes one buffer with write(2).
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	var served atomic.Int64
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				var one [1]byte
				if _, err := c.Read(one[:]); err != nil {
					return
				}
				for range 90 {
					n, err := c.Write(pattern)
					served.Add(int64(n))
					if err != nil {
						return
					}
				}
			}()
		}
	}()
	for _, direct := range []bool{true, false} {
		name, addr := "linked", ""
		if direct {
			name, addr = "direct", ln.Addr().String()
		} else {
			l, err := Start(Options{Target: ln.Addr().String(), PerConn: 90e6, FirstByte: 20 * time.Millisecond})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			addr = l.Addr()
		}
		b.Run(name, func(b *testing.B) {
			cpu0 := cpuSeconds()
			var bytes int64
			for b.Loop() {
				var wg sync.WaitGroup
				for range 8 {
					wg.Go(func() {
						c, err := net.Dial("tcp4", addr)
						if err != nil {
							b.Error(err)
							return
						}
						defer c.Close()
						c.Write([]byte{1})
						null, _ := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
						defer null.Close()
						n, _ := io.CopyBuffer(struct{ io.Writer }{null}, struct{ io.Reader }{c}, make([]byte, 1<<20))
						atomic.AddInt64(&bytes, n)
					})
				}
				wg.Wait()
			}
			b.ReportMetric((cpuSeconds()-cpu0)/(float64(bytes)/1e9), "cpu-s/GB")
			b.ReportMetric(float64(bytes)/1e6/b.Elapsed().Seconds(), "MB/s")
		})
	}
}

func cpuSeconds() float64 {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
