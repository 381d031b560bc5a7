package link

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Pieces towards the client: small at the start of an answer, so that its first byte is
// not late, then large, so that a piece costs little. 256 KiB is 3 ms at 90 MB/s.
const (
	minPiece = 16 << 10
	maxPiece = 256 << 10
	pipeSize = 1 << 20 // room for 256 fragments, which may be smaller than a page
)

// conn is one client connection and its counterpart to the server.
type conn struct {
	l      *Link
	client *net.TCPConn
	own    *bucket // nil: no limit; used by the down direction only

	// hold is when the answer to what the client sent last may begin, in nanoseconds of
	// the monotonic clock since epoch. Written by up before the bytes go on to the server,
	// so that down sees it before the answer.
	hold  atomic.Int64
	epoch time.Time

	asked    atomic.Bool // client bytes came since the last server bytes
	inflight atomic.Bool

	mu     sync.Mutex
	server *net.TCPConn // nil until dialled; guarded by mu
	dead   bool         // guarded by mu
	done   chan struct{}
}

func newConn(l *Link, client *net.TCPConn) *conn {
	c := &conn{l: l, client: client, epoch: time.Now(), done: make(chan struct{})}
	if l.opt.PerConn > 0 {
		c.own = newBucket(l.opt.PerConn)
	}
	return c
}

// cut resets both sides. It may be called at any time, more than once.
func (c *conn) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return
	}
	c.dead = true
	close(c.done)
	c.client.SetLinger(0)
	c.client.Close()
	if c.server != nil {
		c.server.SetLinger(0)
		c.server.Close()
	}
}

// finish closes both sides in good order.
func (c *conn) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return
	}
	c.dead = true
	close(c.done)
	c.client.Close()
	c.server.Close()
}

// serve carries bytes both ways until both are at their end or one fails.
func (c *conn) serve() {
	defer c.setInflight(false)
	nc, err := net.DialTimeout("tcp", c.l.opt.Target, 5*time.Second)
	if err != nil {
		c.l.opt.Log.Debug("link: no answer from the target", "target", c.l.opt.Target, "err", err)
		c.cut()
		return
	}
	c.mu.Lock()
	c.server = nc.(*net.TCPConn)
	dead := c.dead
	c.mu.Unlock()
	if dead {
		c.server.Close()
		return
	}
	var wg sync.WaitGroup
	for _, dir := range []func() error{c.up, c.down} {
		wg.Go(func() {
			if err := dir(); err != nil {
				c.l.opt.Log.Debug("link: connection ended", "err", err)
				c.cut()
			}
		})
	}
	wg.Wait()
	c.finish()
}

// up carries the client's bytes to the server.
func (c *conn) up() error {
	p, err := newPipe(c.client, c.server)
	if err != nil {
		return err
	}
	defer p.close()
	for {
		n, err := p.fill(maxPiece)
		if err != nil {
			return err
		}
		if n == 0 {
			return c.server.CloseWrite()
		}
		c.hold.Store(int64(time.Since(c.epoch) + c.l.opt.FirstByte))
		if !c.asked.Swap(true) {
			c.l.nReqs.Add(1)
		}
		c.setInflight(true)
		if !c.mayFlow() {
			return nil
		}
		if err := p.drain(n); err != nil {
			return err
		}
		c.l.nUp.Add(int64(n))
	}
}

// down carries the server's bytes to the client, each piece when it is due.
func (c *conn) down() error {
	p, err := newPipe(c.server, c.client)
	if err != nil {
		return err
	}
	defer p.close()
	p.paused = func() {
		if !c.asked.Load() {
			c.setInflight(false)
		}
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()

	var hold int64 // the hold that the answer now passing began with
	var sent int   // bytes of that answer
	for {
		n, err := p.fill(maxPiece)
		if err != nil {
			return err
		}
		if n == 0 {
			return c.client.CloseWrite()
		}
		if h := c.hold.Load(); h != hold {
			hold, sent = h, 0
		}
		c.asked.Store(false)
		c.setInflight(true)
		for n > 0 {
			m := min(n, max(sent, minPiece))
			if !c.wait(timer, m, c.epoch.Add(time.Duration(hold))) || !c.mayFlow() {
				return nil
			}
			if err := p.drain(m); err != nil {
				return err
			}
			n -= m
			sent += m
			c.l.nDown.Add(int64(m))
		}
	}
}

// wait returns when n bytes are due that may not come before start, false when the
// connection was cut meanwhile.
func (c *conn) wait(timer *time.Timer, n int, start time.Time) bool {
	if c.l.opt.FirstByte == 0 {
		start = time.Time{}
	}
	due := start
	if c.own != nil {
		due = c.own.admit(n, time.Now(), start)
	}
	if !c.sleepUntil(timer, due) {
		return false
	}
	if c.l.total == nil {
		return true
	}
	return c.sleepUntil(timer, c.l.total.admit(n, time.Now(), time.Time{}))
}

func (c *conn) sleepUntil(timer *time.Timer, due time.Time) bool {
	d := time.Until(due)
	if d <= 0 {
		return true
	}
	timer.Reset(d)
	select {
	case <-timer.C:
		return true
	case <-c.done:
		return false
	}
}

// mayFlow waits out a blackhole; false when the connection was cut meanwhile.
func (c *conn) mayFlow() bool {
	select {
	case <-c.l.flow():
		return true
	case <-c.done:
		return false
	}
}

func (c *conn) setInflight(on bool) {
	if c.inflight.Swap(on) == on {
		return
	}
	if on {
		c.l.inflight.add(1)
	} else {
		c.l.inflight.add(-1)
	}
}

// pipe moves bytes from one socket to another inside the kernel. Not for parallel use.
type pipe struct {
	r, w     int
	src, dst syscall.RawConn
	paused   func() // called when the source has nothing yet; may be nil
}

func newPipe(src, dst *net.TCPConn) (*pipe, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, fmt.Errorf("link: pipe: %w", err)
	}
	p := &pipe{r: fds[0], w: fds[1]}
	// A smaller pipe only means smaller pieces.
	_, _ = unix.FcntlInt(uintptr(p.w), unix.F_SETPIPE_SZ, pipeSize)
	var err, err2 error
	p.src, err = src.SyscallConn()
	p.dst, err2 = dst.SyscallConn()
	if err = errors.Join(err, err2); err != nil {
		p.close()
		return nil, fmt.Errorf("link: %w", err)
	}
	return p, nil
}

func (p *pipe) close() {
	unix.Close(p.r)
	unix.Close(p.w)
}

// fill takes up to max bytes from the source; the pipe must be empty. n == 0 is the end.
func (p *pipe) fill(max int) (n int, err error) {
	rerr := p.src.Read(func(fd uintptr) bool {
		n, err = splice(int(fd), p.w, max)
		if err == unix.EAGAIN {
			if p.paused != nil {
				p.paused()
			}
			return false
		}
		return true
	})
	if rerr != nil {
		err = rerr
	}
	if err != nil {
		return 0, fmt.Errorf("link: read: %w", err)
	}
	return n, nil
}

// drain gives the n bytes in the pipe to the destination.
func (p *pipe) drain(n int) error {
	for n > 0 {
		var m int
		var err error
		werr := p.dst.Write(func(fd uintptr) bool {
			m, err = splice(p.r, int(fd), n)
			return err != unix.EAGAIN
		})
		if werr != nil {
			err = werr
		}
		if err == nil && m == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return fmt.Errorf("link: write: %w", err)
		}
		n -= m
	}
	return nil
}

// splice is splice(2) without waiting, repeated when interrupted.
func splice(from, to, n int) (int, error) {
	for {
		m, err := unix.Splice(from, nil, to, nil, n, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		if err != unix.EINTR {
			return int(m), err
		}
	}
}
