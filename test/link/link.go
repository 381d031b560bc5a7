// Package link is a long, narrow wire for tests and benchmarks: a TCP proxy in front of a
// server on loopback that makes it answer like one across a real network.
//
// It knows nothing of HTTP. What it does to a connection is all of this:
//
//   - Any bytes from the client hold back what the server sends after them until
//     FirstByte later. On HTTP/1.1 without pipelining that is the time to first byte.
//   - Bytes towards the client leave at no more than PerConn per connection, and at no
//     more than Total over all connections. A byte is released when the last byte of its
//     piece would have arrived; pieces grow from 16 KiB to 256 KiB within an answer.
//   - Bytes towards the server are not slowed, and connecting is not either.
//
// The data moves by splice(2) through a pipe and never enters this process, so that a
// benchmark on a small machine measures the program under test and not the proxy.
package link

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leatfs/leatfs/test/link/port"
)

// Options describe a link. The zero value of a limit means no limit.
type Options struct {
	Target string // host:port of the server
	Listen string // host:port to listen on; "" is a free port of 127.0.0.1
	// FirstByte is the time between bytes from the client and the first byte of the answer.
	FirstByte time.Duration
	PerConn   int64 // bytes/s towards the client, each connection
	Total     int64 // bytes/s towards the clients, all connections together
	// Log is told of connections that end badly, at level debug; nil is silent.
	Log *slog.Logger
}

// Counters are the sums since Start. Requests and MaxInFlight come from watching the
// direction of the bytes: a request begins where the client speaks after the server did,
// and is in flight until the server pauses after having answered something.
type Counters struct {
	Conns       int64 // accepted
	Open        int64 // open now
	MaxOpen     int64
	Requests    int64 // about
	InFlight    int64 // now, about
	MaxInFlight int64 // about
	BytesDown   int64 // towards the clients
	BytesUp     int64 // towards the server
}

// Link is a running proxy. All methods may be called in parallel.
//
// Lock order: Link.mu, then conn.mu or the port's; bucket.mu alone.
type Link struct {
	opt   Options
	port  *port.Port
	total *bucket // nil: no limit
	wg    sync.WaitGroup

	mu     sync.Mutex
	conns  map[*conn]struct{} // guarded by mu
	closed bool               // guarded by mu
	gate   chan struct{}      // closed while bytes may flow; replaced by SetBlackhole; guarded by mu

	nConns, nReqs, nUp, nDown atomic.Int64
	open, inflight            gauge
}

// Start listens and serves until Close. It does not try to reach the target.
func Start(opt Options) (*Link, error) {
	if opt.Listen == "" {
		opt.Listen = "127.0.0.1:0"
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if _, _, err := net.SplitHostPort(opt.Target); err != nil {
		return nil, fmt.Errorf("link: target %q is not host:port: %w", opt.Target, err)
	}
	p, err := port.Open(opt.Listen)
	if err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	l := &Link{
		opt: opt, port: p,
		conns: make(map[*conn]struct{}), gate: make(chan struct{}),
	}
	close(l.gate)
	if opt.Total > 0 {
		l.total = newBucket(opt.Total)
	}
	l.wg.Add(1)
	go l.accept(p.Listener())
	return l, nil
}

// Addr is the host:port that clients connect to. It stays the same over SetDown.
func (l *Link) Addr() string { return l.port.Addr() }

// Counters returns the sums so far.
func (l *Link) Counters() Counters {
	return Counters{
		Conns: l.nConns.Load(), Open: l.open.now.Load(), MaxOpen: l.open.max.Load(),
		Requests: l.nReqs.Load(), InFlight: l.inflight.now.Load(), MaxInFlight: l.inflight.max.Load(),
		BytesDown: l.nDown.Load(), BytesUp: l.nUp.Load(),
	}
}

// CutAll resets all open connections (RST) and returns how many there were.
func (l *Link) CutAll() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.cut()
	}
	return len(l.conns)
}

// SetBlackhole stops all bytes in both directions without closing anything, as a dead
// switch does; new connections are accepted and silent. False lets them flow again.
func (l *Link) SetBlackhole(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.gate:
		if on {
			l.gate = make(chan struct{})
		}
	default:
		if !on {
			close(l.gate)
		}
	}
}

// SetDown true refuses new connections (ECONNREFUSED) and resets the open ones; false
// serves again on the same port.
func (l *Link) SetDown(down bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errors.New("link: SetDown after Close")
	}
	if down {
		err := l.port.Down()
		for c := range l.conns {
			c.cut()
		}
		return err
	}
	ln, err := l.port.Up()
	if err != nil || ln == nil {
		return err
	}
	l.wg.Add(1)
	go l.accept(ln)
	return nil
}

// Close resets all connections, stops listening and waits for all goroutines.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closed = true
	l.port.Close()
	for c := range l.conns {
		c.cut()
	}
	l.mu.Unlock()
	l.wg.Wait()
	return nil
}

// accept serves ln until it is closed.
func (l *Link) accept(ln net.Listener) {
	defer l.wg.Done()
	for {
		nc, err := ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			l.opt.Log.Debug("link: accept", "err", err)
			time.Sleep(10 * time.Millisecond) // out of descriptors: try again, do not spin
			continue
		}
		c := newConn(l, nc.(*net.TCPConn))
		l.mu.Lock()
		ok := !l.closed && l.port.Listener() == ln
		if ok {
			l.conns[c] = struct{}{}
			l.wg.Add(1)
		}
		l.mu.Unlock()
		if !ok {
			c.cut()
			continue
		}
		l.nConns.Add(1)
		l.open.add(1)
		go func() {
			defer l.wg.Done()
			c.serve()
			l.mu.Lock()
			delete(l.conns, c)
			l.mu.Unlock()
			l.open.add(-1)
		}()
	}
}

// flow returns a channel that is closed while bytes may flow.
func (l *Link) flow() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gate
}

// gauge is a number and the largest it has been.
type gauge struct{ now, max atomic.Int64 }

func (g *gauge) add(d int64) {
	v := g.now.Add(d)
	for {
		m := g.max.Load()
		if v <= m || g.max.CompareAndSwap(m, v) {
			return
		}
	}
}
