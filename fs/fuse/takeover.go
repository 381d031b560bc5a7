package fuse

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs"
	"github.com/leatfs/leatfs/fs/session"
)

// A process that takes a connection over finds requests that the one before had read and not
// answered. The kernel is asked to send them again, with resentBit in their numbers; it does so
// before it sends any other. Kernels that cannot (before 6.9) are answered from
// the session, where the requests stand whole.
//
// A request that the process died of would be sent again at every restart, for ever. So the
// session counts for each request how many processes died while they carried it out. All that
// were under way at the time are counted: innocent ones too. Those that saw all deaths but one of
// deathsMax are therefore carried out one at a time; the innocent ones are answered so, and
// the one that kills again has its last death. Processes that were killed from outside do not count.

const (
	// deathsMax is how many processes may die of a request before it is answered EIO.
	deathsMax = 3
	// suspectsMax bounds the requests that wait to be carried out one at a time; beyond it the
	// reader waits. The kernel has far fewer under way.
	suspectsMax = 4096
	// drainMax is how long requests may take after leave; then they are the next process's.
	drainMax = 3 * time.Second
)

// suspect is a request of which processes may have died.
type suspect struct {
	in []byte
	r  session.Request
}

// poison is what is known of requests that were given up.
type poison struct {
	mu    sync.Mutex
	count int    // by mu
	last  string // by mu
}

// inherit finds what the process before left undone.
func (c *conn) inherit(blame bool) {
	c.prior = make(map[uint64]session.Unfinished)
	for _, u := range c.session.Unfinished(blame) {
		c.prior[u.Unique] = u
	}
}

// takeOver carries out what the process before was sent and did not answer. ended tells that
// the connection is no more.
func (c *conn) takeOver(out []byte) (ended bool) {
	if c.prior == nil {
		return false
	}
	if c.replay {
		c.replayAll(out)
		return false
	}
	if err := c.askResend(); err != nil && !errors.Is(err, unix.ENODEV) {
		c.log.Error("requests of the process before are not sent again; who waits for them waits for ever", "err", err)
	}
	resent := true
	for resent {
		n, err := unix.Read(c.fd, c.in)
		switch {
		case err == nil && n >= int(unsafe.Sizeof(fuse.InHeader{})):
			h := (*fuse.InHeader)(unsafe.Pointer(&c.in[0]))
			// An interrupt or a forget may come between.
			resent = h.Unique&resentBit != 0 || h.Opcode == opInterrupt || h.Opcode == opForget || h.Opcode == opBatchForget
			if !resent {
				c.settle()
			}
			c.request(c.in[:n], out)
		case err == unix.EINTR, err == unix.ENOENT:
		case err == unix.EAGAIN:
			c.settle()
			resent = false
		case err == unix.ENODEV:
			return true
		default:
			c.log.Error("the FUSE connection ended", "err", err, "bytes", n)
			return true
		}
	}
	return false
}

// settle forgets what was not sent again: it was answered.
func (c *conn) settle() {
	for _, u := range c.prior {
		c.session.End(u.Request)
	}
	c.prior = nil
}

// replayAll carries out what the session holds, oldest first, and what was in the inbox.
func (c *conn) replayAll(out []byte) {
	var all []session.Unfinished
	for _, u := range c.prior {
		all = append(all, u)
	}
	slices.SortFunc(all, func(a, b session.Unfinished) int { return cmp.Compare(a.Unique, b.Unique) })
	if in := lastRead(c.session); in != nil {
		h := (*fuse.InHeader)(unsafe.Pointer(&in[0]))
		if _, known := c.prior[h.Unique&^resentBit]; !known {
			all = append(all, session.Unfinished{Unique: h.Unique, Content: in})
		}
	}
	for _, u := range all {
		if len(u.Content) < int(unsafe.Sizeof(fuse.InHeader{})) {
			h := fuse.InHeader{Unique: u.Unique, NodeId: u.Node, Opcode: u.Opcode}
			c.log.Error("a request of the process before was too long to be kept and is answered EIO", "opcode", u.Opcode, "node", u.Node)
			c.sendError(&h, syscall.EIO)
			delete(c.prior, u.Unique)
			c.session.End(u.Request)
			continue
		}
		(*fuse.InHeader)(unsafe.Pointer(&u.Content[0])).Unique |= resentBit // here only: see send
		if !c.request(u.Content, out) {
			return // left to the next process
		}
	}
	c.prior = nil
	c.taken()
}

// lastRead returns the request that was read last, if the process before was killed in taking it.
func lastRead(s *session.Session) []byte {
	in := s.Inbox()
	n := (*fuse.InHeader)(unsafe.Pointer(&in[0])).Length
	if n < uint32(unsafe.Sizeof(fuse.InHeader{})) || int(n) > len(in) {
		return nil
	}
	switch (*fuse.InHeader)(unsafe.Pointer(&in[0])).Opcode {
	case opForget, opBatchForget, opInterrupt:
		return nil
	}
	return append([]byte(nil), in[:n]...)
}

// taken says that the request in the inbox is recorded, or was answered.
func (c *conn) taken() {
	if c.replay {
		(*fuse.InHeader)(unsafe.Pointer(&c.in[0])).Length = 0
	}
}

// record records a request, or finds the record that the process before made of it. Beyond 4096
// under way they are carried out without; in replay mode they wait, and so do those beyond the
// large ones that can be recorded. false when the reader was told to leave meanwhile.
func (c *conn) record(h *fuse.InHeader, in []byte) (r session.Request, ok bool) {
	unique := h.Unique &^ resentBit
	if u, ok := c.prior[unique]; ok {
		delete(c.prior, unique)
		return u.Request, true
	}
	var content []byte
	if c.replay {
		content = in
	}
	r, err := c.session.Begin(unique, h.NodeId, h.Opcode, content)
	for err != nil && c.replay {
		if c.leaving.Load() {
			return r, false // it is found in the inbox
		}
		// Without a record nobody would ever answer it, should this process be killed.
		c.busy.Store(0)
		time.Sleep(time.Millisecond)
		r, err = c.session.Begin(unique, h.NodeId, h.Opcode, content)
	}
	if err != nil {
		c.log.Debug("a request is carried out without a record", "unique", unique, "err", err)
	}
	return r, true
}

// oneByOne carries out the requests of which a process may have died.
func (c *conn) oneByOne() {
	for s := range c.suspect {
		if c.mute.Load() || c.leaving.Load() {
			// Left to the next process.
			c.raw.interrupts.remove((*fuse.InHeader)(unsafe.Pointer(&s.in[0])).Unique)
			continue
		}
		s.r.Run()
		testFault(s.in)
		c.carryOutWaiting(s.in, s.r)
	}
}

// refuse answers EIO to a request of which too many processes died.
func (c *conn) refuse(in []byte, r session.Request) {
	h := (*fuse.InHeader)(unsafe.Pointer(&in[0]))
	path := c.raw.fs.PathOf(fs.NodeID(h.NodeId))
	what := fmt.Sprintf("%s of %s", opName(h.Opcode), path)
	switch h.Opcode {
	case opLookup, opUnlink, opRmdir:
		name, _, _ := bytes.Cut(in[unsafe.Sizeof(fuse.InHeader{}):], []byte{0})
		what = fmt.Sprintf("%s of %q in %s", opName(h.Opcode), name, path)
	}
	c.log.Error("a request is given up: each process that carried it out died; it is answered EIO",
		"request", what, "deaths", r.Deaths(), "process", h.Pid)
	c.poison.mu.Lock()
	c.poison.count++
	c.poison.last = what
	c.poison.mu.Unlock()
	if fh, _, ok := c.session.HandleOf(h.Unique &^ resentBit); ok {
		c.raw.fs.Release(fh) // it had been carried out, and not answered
	}
	c.sendError(h, syscall.EIO)
	c.finish(r, h.Unique, opOf(in).changes)
}

// sendError answers an error; gone when nobody waits for it.
func (c *conn) sendError(h *fuse.InHeader, e syscall.Errno) (gone bool) {
	out := fuse.OutHeader{Length: uint32(unsafe.Sizeof(fuse.OutHeader{})), Status: -int32(e), Unique: h.Unique}
	return c.send(h.Unique, unsafe.Slice((*byte)(unsafe.Pointer(&out)), out.Length))
}

// leave stops the reader.
func (c *conn) leave() {
	c.leaving.Store(true)
	c.endLeft()
	_ = c.file.SetReadDeadline(time.Unix(1, 0)) // fails only when it is closed, and the reader gone
}

// drain waits for the requests under way, for a while, and leaves the others to the next process.
func (c *conn) drain() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.wg.Wait()
	}()
	t := time.NewTimer(drainMax)
	defer t.Stop()
	select {
	case <-done:
		return
	case <-t.C:
	}
	c.mute.Store(true)
	close(c.raw.dead)
	<-done
}

// health tells why this process should be replaced, nil when it should not. limit is how long a
// request may take that only waits for the origin.
func (c *conn) health(limit time.Duration) error {
	now := c.now()
	if t := c.busy.Load(); t != 0 && time.Duration(now-t) > readerMax {
		return fmt.Errorf("the reader of requests has been busy with one for %v", time.Duration(now-t).Round(time.Second))
	}
	ns, node, op := c.session.Oldest()
	age := time.Duration(ns)
	if age > 10*limit || age > limit && time.Duration(now-c.sent.Load()) > limit {
		return fmt.Errorf("a request (%s of node %#x) has been carried out for %v", opName(op), node, age.Round(time.Second))
	}
	return nil
}

// readerMax is how long the reader may take over one request. It waits for nothing but the index.
const readerMax = 8 * time.Second

// askResend asks the kernel to send again what was read and not answered. Before Linux 6.9 the
// answer is EINVAL.
func (c *conn) askResend() error {
	const code = 7 // FUSE_NOTIFY_RESEND
	h := fuse.OutHeader{Length: uint32(unsafe.Sizeof(fuse.OutHeader{})), Status: code}
	return c.write(unsafe.Slice((*byte)(unsafe.Pointer(&h)), h.Length))
}
