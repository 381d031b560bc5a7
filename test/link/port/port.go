// Package port holds a TCP port of loopback that can refuse connections for a while
// without being lost to another process.
package port

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Port is a host:port of IPv4. Its methods may be called in parallel.
type Port struct {
	addr *net.TCPAddr

	mu     sync.Mutex
	ln     net.Listener // nil while down; guarded by mu
	parked int          // bound fd that is not listening, -1 when none; guarded by mu
	closed bool         // guarded by mu
}

// Open listens on addr; "127.0.0.1:0" takes a free port.
func Open(addr string) (*Port, error) {
	ln, err := net.Listen("tcp4", addr)
	if err != nil {
		return nil, fmt.Errorf("port: %w", err)
	}
	return &Port{addr: ln.Addr().(*net.TCPAddr), ln: ln, parked: -1}, nil
}

// Addr is the host:port. It stays the same.
func (p *Port) Addr() string { return p.addr.String() }

// Listener is where to accept connections; nil while the port is down or closed. Each Up
// makes a new one.
func (p *Port) Listener() net.Listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ln
}

// Down closes the listener: connecting gives ECONNREFUSED from now on. The port stays bound,
// so that the kernel gives it to nobody who asks for a free one.
// Accepted connections are the caller's to end. No error when it is down already.
func (p *Port) Down() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errors.New("port: closed")
	}
	if p.ln == nil {
		return nil
	}
	p.ln.Close()
	p.ln = nil
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("port: socket: %w", err)
	}
	sa := &unix.SockaddrInet4{Port: p.addr.Port, Addr: [4]byte(p.addr.IP.To4())}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, sa)
	}
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("port: keep %s while down: %w", p.addr, err)
	}
	p.parked = fd
	return nil
}

// Up listens again and returns the new listener; nil when it was not down.
func (p *Port) Up() (net.Listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, errors.New("port: closed")
	case p.ln != nil:
		return nil, nil
	case p.parked < 0:
		return nil, fmt.Errorf("port: %s was lost when it went down", p.addr)
	}
	if err := unix.Listen(p.parked, unix.SOMAXCONN); err != nil {
		return nil, fmt.Errorf("port: listen on %s again: %w", p.addr, err)
	}
	f := os.NewFile(uintptr(p.parked), "port")
	p.parked = -1
	defer f.Close() // FileListener has a copy
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("port: listen on %s again: %w", p.addr, err)
	}
	p.ln = ln
	return ln, nil
}

// Close gives the port up, for good.
func (p *Port) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.ln != nil {
		p.ln.Close()
		p.ln = nil
	}
	if p.parked >= 0 {
		unix.Close(p.parked)
		p.parked = -1
	}
}
