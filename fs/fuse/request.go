package fuse

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// requestContext is the context of one request. An interrupt is only a hint that a signal
// came (Go programs send themselves SIGURG all the time), and answering EINTR to it would show
// applications errors that no disk gives. So the context ends only when the process is being
// killed, or the connection has ended: without that, a process waiting for a slow origin could not be killed.
//
// Done starts a goroutine, so only those who are about to wait call it; finish ends it.
type requestContext struct {
	context.Context
	interrupted <-chan struct{}
	pid         uint32
	unique      uint64          // the request's number
	noWait      bool            // see NoWait
	kill        bool            // see KillSUIDGID
	dead        <-chan struct{} // closed when the connection has ended

	mu       sync.Mutex
	finished bool          // by mu
	done     chan struct{} // by mu; closed by watch when the process is being killed
	stop     chan struct{} // by mu; closed by finish
	wg       sync.WaitGroup
}

// killPoll is how often a waiting request looks whether its process is being killed, once it
// was interrupted. The kernel tells of the first signal only.
const killPoll = 100 * time.Millisecond

func newRequestContext(interrupted <-chan struct{}, h *fuse.InHeader) *requestContext {
	return &requestContext{Context: context.Background(), interrupted: interrupted, pid: h.Pid, unique: h.Unique}
}

// resentBit is set in the number of a request that was sent to another process before.
const resentBit = 1 << 63

// Request tells package fs which request this is, and whether another process was sent it before.
func (c *requestContext) Request() (unique uint64, resent bool) {
	return c.unique &^ resentBit, c.unique&resentBit != 0
}

// NoWait tells package fs that this request must not wait; it then answers fs.ErrWouldWait.
func (c *requestContext) NoWait() bool { return c.noWait }

// KillSUIDGID tells package fs that an open with O_TRUNC is by one who is not privileged: the file
// loses set-uid and set-gid, as with SetAttr.KillSUIDGID.
func (c *requestContext) KillSUIDGID() bool { return c.kill }

// Done implements context.Context.
func (c *requestContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done, c.stop = make(chan struct{}), make(chan struct{})
		if !c.finished {
			c.wg.Add(1)
			go c.watch(c.done, c.stop)
		}
	}
	return c.done
}

func (c *requestContext) watch(done chan<- struct{}, stop <-chan struct{}) {
	defer c.wg.Done()
	select {
	case <-c.interrupted:
	case <-c.dead:
		close(done)
		return
	case <-stop:
		return
	}
	t := time.NewTicker(killPoll)
	defer t.Stop()
	for !dying(c.pid) {
		select {
		case <-t.C:
		case <-c.dead:
			close(done)
			return
		case <-stop:
			return
		}
	}
	close(done)
}

// Err implements context.Context.
func (c *requestContext) Err() error {
	c.mu.Lock()
	done := c.done
	c.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return context.Canceled
	default:
		return nil
	}
}

// finish ends the watcher, if there is one. Nothing of the request may use the context
// afterwards.
func (c *requestContext) finish() {
	c.mu.Lock()
	c.finished = true
	stop := c.stop
	c.mu.Unlock()
	if stop != nil {
		close(stop)
		c.wg.Wait()
	}
}

// crash ends the process as a panic that nobody recovers does: what a panic leaves of locks and
// tables is not to be trusted, and another process goes on at once. (go-fuse would go on.)
func crash(p any) fuse.Status {
	fmt.Fprintf(os.Stderr, "panic: %v\n\n%s", p, debug.Stack())
	os.Exit(2)
	return fuse.EIO
}

// dying tells whether SIGKILL is pending for the thread or process pid, or it is gone.
func dying(pid uint32) bool {
	if pid == 0 {
		return false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return os.IsNotExist(err)
	}
	const sigkill = 1 << (9 - 1)
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		name, value, _ := bytes.Cut(s.Bytes(), []byte(":"))
		if string(name) != "SigPnd" && string(name) != "ShdPnd" {
			continue
		}
		set, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 16, 64)
		if err == nil && set&sigkill != 0 {
			return true
		}
	}
	return false
}
