// Package fault is a bad network and a bad S3 in one: an HTTP proxy before a real S3
// server that does harm by rule, and keeps a log of all requests for tests to assert on.
//
// A request passes with its Host header, path and headers as the client sent them, so that
// its signature stays valid. Each request is held against the rules in the order in
// which they were added; the first that fires decides what happens to it. Without one the
// answer passes unaltered.
package fault

import (
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/leatfs/leatfs/test/link/port"
)

// Options of a Proxy; the zero value is usable.
type Options struct {
	Listen string // host:port; "" is a free port of 127.0.0.1
	Seed   uint64 // of the rules' probabilities; the same seed and order of requests do the same
	MaxLog int    // requests kept in the log, the oldest go first; default 200,000
}

// Proxy is running until Close. All methods may be called in parallel.
type Proxy struct {
	target string
	port   *port.Port
	srv    *http.Server
	tr     *http.Transport
	wg     sync.WaitGroup
	done   chan struct{} // closed by Close

	mu     sync.Mutex
	rng    *rand.Rand            // guarded by mu
	rules  []*Rule               // guarded by mu
	log    []*Request            // guarded by mu, the entries too
	maxLog int                   // constant
	first  int                   // requests that have left the log; guarded by mu
	conns  map[net.Conn]struct{} // guarded by mu
	closed bool                  // guarded by mu
	now    map[string]int        // requests under way by class; guarded by mu
	peak   map[string]int        // guarded by mu
}

// Start runs a proxy before target, "host:port" or "http://host:port".
func Start(target string, opt Options) (*Proxy, error) {
	target = strings.TrimSuffix(strings.TrimPrefix(target, "http://"), "/")
	if _, _, err := net.SplitHostPort(target); err != nil {
		return nil, fmt.Errorf("fault: target %q is not host:port: %w", target, err)
	}
	if opt.Listen == "" {
		opt.Listen = "127.0.0.1:0"
	}
	if opt.MaxLog <= 0 {
		opt.MaxLog = 200_000
	}
	pt, err := port.Open(opt.Listen)
	if err != nil {
		return nil, fmt.Errorf("fault: %w", err)
	}
	p := &Proxy{
		target: target, port: pt, done: make(chan struct{}),
		rng:    rand.New(rand.NewPCG(opt.Seed, 0x1ea7)),
		maxLog: opt.MaxLog,
		conns:  make(map[net.Conn]struct{}),
		now:    make(map[string]int),
		peak:   make(map[string]int),
		tr: &http.Transport{
			MaxIdleConnsPerHost: 256, DisableCompression: true,
			WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10,
		},
	}
	p.srv = &http.Server{
		Handler:   http.HandlerFunc(p.serve),
		ConnState: p.connState,
		ErrorLog:  log.New(discard{}, "", 0), // broken connections are what it is for
	}
	p.serveOn(pt.Listener())
	return p, nil
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

func (p *Proxy) serveOn(ln net.Listener) {
	p.wg.Go(func() { _ = p.srv.Serve(ln) }) // always ends with an error, when ln is closed
}

// Addr is the host:port that clients connect to; URL is it as an endpoint.
func (p *Proxy) Addr() string { return p.port.Addr() }

// URL is "http://host:port".
func (p *Proxy) URL() string { return "http://" + p.Addr() }

// connState keeps the set of connections. A hijacked one is closed by who hijacked it.
func (p *Proxy) connState(c net.Conn, s http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch s {
	case http.StateNew:
		p.conns[c] = struct{}{}
		p.wg.Add(1) // called before Serve returns, so that Close waits for it
	case http.StateClosed, http.StateHijacked:
		delete(p.conns, c)
		p.wg.Done()
	}
}

// CutAll resets all open connections and returns how many there were.
func (p *Proxy) CutAll() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.conns)
	for c := range p.conns {
		reset(c)
	}
	return n
}

// SetDown true refuses connections (ECONNREFUSED) and resets the open ones, as a dead
// server does; false serves again on the same port.
func (p *Proxy) SetDown(down bool) error {
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return errors.New("fault: SetDown after Close")
	}
	if down {
		err := p.port.Down()
		p.CutAll()
		return err
	}
	ln, err := p.port.Up()
	if err == nil && ln != nil {
		p.serveOn(ln)
	}
	return err
}

// Close ends all connections and waits for all requests. Not to be called together with
// SetDown.
func (p *Proxy) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.mu.Unlock()
	close(p.done)
	p.port.Close()
	err := p.srv.Close()
	p.wg.Wait()
	p.tr.CloseIdleConnections()
	if errors.Is(err, net.ErrClosed) { // the listener is closed already
		return nil
	}
	return err
}

// serve handles one request.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	p.wg.Add(1) // beside its connection's, which a hijack ends
	defer p.wg.Done()
	e, rule := p.enter(r)
	x := &exchange{p: p, w: w, r: r, e: e}
	defer p.leave(e)
	if rule != nil {
		rule.Do.do(x)
		return
	}
	x.pass()
}

// enter logs a request and finds the rule that fires.
func (p *Proxy) enter(r *http.Request) (*Request, *Rule) {
	e := newRequest(r)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.log) >= p.maxLog {
		n := p.maxLog/10 + 1
		p.log = append([]*Request(nil), p.log[n:]...)
		p.first += n
	}
	p.log = append(p.log, e)
	for _, c := range []string{e.Class.String(), ""} {
		p.now[c]++
		p.peak[c] = max(p.peak[c], p.now[c])
	}
	for _, rule := range p.rules {
		if rule.fires(*e, p.rng) {
			e.Rule = rule.Name
			return e, rule
		}
	}
	return e, nil
}

// leave logs the end of a request. It is called just before the last that a client sees of
// the answer, so that a client's next request never meets its last one here; and again
// at the end of each exchange.
func (p *Proxy) leave(e *Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.Done {
		return
	}
	e.Done, e.Took = true, time.Since(e.Time)
	p.now[e.Class.String()]--
	p.now[""]--
}

// url is where a request goes.
func (p *Proxy) url(u *url.URL) *url.URL {
	out := *u
	out.Scheme, out.Host = "http", p.target
	return &out
}
