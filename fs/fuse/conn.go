package fuse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs"
	"github.com/leatfs/leatfs/fs/session"
)

// conn reads requests from /dev/fuse and writes the answers.
//
// One goroutine reads, and carries out at once what needs no waiting: a lookup or an open that
// the index answers takes less time than waking another thread would. What turns out to have to
// wait for the origin is begun anew in a goroutine of its own. Every READ, and all that goes to a
// disk, is begun in one (see op, and keep.go for where the request is meanwhile).
// The device is read through Go's poller: a thread that sits in read(2) keeps the runtime's
// monitor awake, which on small machines cost more than the requests themselves.
//
// The requests are taken apart by go-fuse's ProtocolServer; READ is not, since its answer goes
// out as a vector over the cache's memory, without a copy.
//
// Each request is recorded in the session while it is carried out; takeover.go tells what for.
type conn struct {
	fd   int      // the device
	file *os.File // the same, for reading through the poller
	log  *slog.Logger
	raw  *raw                 // may wait
	fast *fuse.ProtocolServer // answers EAGAIN to what would have to wait
	slow *fuse.ProtocolServer

	session *session.Session
	replay  bool                          // the kernel sends nothing again: content is recorded too
	prior   map[uint64]session.Unfinished // by number: the last process's; only the reader's
	suspect chan suspect                  // requests carried out one at a time; closed by the reader
	poison  poison
	counts  requestCounts
	// readOnly: what changes something is refused, though the kernel should not send it.
	readOnly bool
	// tellKernel is Options.Tell.
	tellKernel func([]byte) error

	leaving atomic.Bool // the reader stops, the connection goes on
	mute    atomic.Bool // nothing is answered any more
	began   time.Time
	busy    atomic.Int64 // since when the reader carries out a request, nanoseconds after began; 0: it waits for one
	sent    atomic.Int64 // when the last answer was written, likewise

	in      []byte // what the reader reads into; only the reader's
	kept    keeper
	left    context.Context // done when the reader is told to leave
	endLeft context.CancelFunc

	wg   sync.WaitGroup // requests in goroutines of their own
	work chan beside    // takes what a goroutine that waits for it carries out; closed by the reader
	idle atomic.Int64   // goroutines that wait for work
}

// beside is a request that is carried out beside the reader.
type beside struct {
	in   []byte
	r    session.Request
	done func()
}

// idleMax is how many goroutines wait for the next request that is carried out beside the reader. One that did this
// before has a stack that is large enough, which a new one would come to by copying it several times.
const idleMax = 32

const (
	// The kernel wants room for its largest write in every read of the device.
	inSize = MaxRead + 64<<10
	// outSize holds every answer but READ's and that of a large directory read.
	outSize = 64 << 10
)

// again is what the fast server answers in place of waiting.
const again = fuse.Status(syscall.EAGAIN)

func newConn(s *raw, opt *fuse.MountOptions, log *slog.Logger) *conn {
	left, endLeft := context.WithCancel(context.Background())
	return &conn{log: log, raw: s, began: time.Now(), suspect: make(chan suspect, suspectsMax),
		kept: newKeeper(), left: left, endLeft: endLeft, work: make(chan beside),
		fast: fuse.NewProtocolServer(&raw{RawFileSystem: s.RawFileSystem, shared: s.shared, noWait: true}, opt),
		slow: fuse.NewProtocolServer(s, opt)}
}

// open takes the device, which is closed by close.
func (c *conn) open(fd int, sess *session.Session) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("/dev/fuse: %w", err)
	}
	c.fd, c.file, c.session = fd, os.NewFile(uintptr(fd), "/dev/fuse"), sess
	return nil
}

// handshake answers INIT and returns what was asked and answered. Old kernels send a shorter
// message than new ones; go-fuse knows both.
func (c *conn) handshake() (in, out []byte, err error) {
	in = make([]byte, inSize)
	n, err := c.file.Read(in)
	if err != nil {
		return nil, nil, fmt.Errorf("FUSE handshake: %w", err)
	}
	in = in[:n]
	if out, err = c.agree(in); err != nil {
		return nil, nil, err
	}
	return in, out, c.write(out)
}

// agree has both servers answer INIT, and returns the answer.
func (c *conn) agree(in []byte) (out []byte, err error) {
	for _, s := range []*fuse.ProtocolServer{c.fast, c.slow} {
		out = make([]byte, 4096)
		m, st := s.HandleRequest([][]byte{in}, [][]byte{out})
		if !st.Ok() || m < int(unsafe.Sizeof(fuse.OutHeader{})+unsafe.Sizeof(fuse.InitOut{})) {
			return nil, fmt.Errorf("FUSE handshake: %v, %d bytes", st, m)
		}
		out = out[:m]
	}
	if st := (*fuse.OutHeader)(unsafe.Pointer(&out[0])).Status; st != 0 {
		return nil, fmt.Errorf("FUSE handshake: %w", syscall.Errno(-st))
	}
	return out, nil
}

// serve answers requests until the connection ends, or leave was called, and waits for those
// under way. When the connection has ended they end early: nobody waits for their answers any
// more. The device stays open until close, since others still write notifications to it.
func (c *conn) serve() (ended bool) {
	out := make([]byte, outSize)
	if c.replay {
		c.in = c.session.Inbox()[:inSize]
		populate(c.in)
	} else {
		c.in = c.kept.buffer()
	}
	defer c.endLeft()
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		c.oneByOne()
	}()
	ended = c.takeOver(out)
	for !ended {
		n, err := c.readDevice()
		switch {
		case err == nil && n >= int(unsafe.Sizeof(fuse.InHeader{})):
			if c.request(c.in[:n], out) {
				c.taken()
			}
			continue
		case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.EINTR):
			continue // interrupted before it was read
		case errors.Is(err, syscall.ENODEV), errors.Is(err, os.ErrClosed):
			ended = true
		case errors.Is(err, os.ErrDeadlineExceeded) && c.leaving.Load():
		default:
			c.log.Error("the FUSE connection ended", "err", err, "bytes", n)
			ended = true
		}
		break
	}
	close(c.suspect)
	close(c.work)
	if ended {
		close(c.raw.dead)
	} else {
		c.drain()
	}
	c.wg.Wait()
	return ended
}

// readDevice waits for a request and reads it. Of a connection that is aborted the poller hears before it is read from, and
// says only that it cannot be waited for: what there is, the device tells.
func (c *conn) readDevice() (int, error) {
	n, err := c.file.Read(c.in)
	var errno syscall.Errno
	if err == nil || errors.As(err, &errno) || errors.Is(err, os.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	if n, rerr := unix.Read(c.fd, c.in); !errors.Is(rerr, unix.EAGAIN) {
		return n, rerr
	}
	return n, err
}

// now is the conn's clock, in nanoseconds; it does not jump, and is never 0.
func (c *conn) now() int64 { return int64(time.Since(c.began)) + 1 }

// populate makes sure that memory is there. Where it is not, and this process is killed in just that
// read, the kernel cannot copy the request, and answers EIO to who waits for it.
func populate(b []byte) {
	const populateWrite = 23 // MADV_POPULATE_WRITE, Linux 5.14
	page := uintptr(os.Getpagesize())
	p := uintptr(unsafe.Pointer(&b[0]))
	from, to := (p+page-1)&^(page-1), (p+uintptr(len(b)))&^(page-1)
	if unix.Madvise(b[from-p:to-p], populateWrite) == nil {
		return
	}
	for i := 0; i < len(b); i += int(page) {
		atomic.AddUint32((*uint32)(unsafe.Pointer(&b[i])), 0)
	}
}

// close closes the device. Nobody may notify or register any more.
func (c *conn) close() error { return c.file.Close() }

// request carries out one request. in and out are the reader's: what goes on without it gets a
// copy. false when it is left to the next process.
func (c *conn) request(in, out []byte) bool {
	c.busy.Store(c.now())
	defer c.busy.Store(0)
	h := (*fuse.InHeader)(unsafe.Pointer(&in[0]))
	c.counts.add(h.Opcode)
	switch h.Opcode {
	case opForget, opBatchForget:
		return true // no table of nodes grows with what the kernel knows
	case opInterrupt:
		if len(in) >= int(unsafe.Sizeof(fuse.InterruptIn{})) {
			c.raw.interrupts.interrupt((*fuse.InterruptIn)(unsafe.Pointer(&in[0])).Unique)
		}
		return true
	}
	r, ok := c.record(h, in)
	if !ok {
		return false
	}
	switch {
	case r.Deaths() >= deathsMax:
		c.refuse(in, r)
	case r.Deaths() == deathsMax-1:
		c.waits(h)
		c.suspect <- suspect{append([]byte(nil), in...), r}
	default:
		r.Run()
		return c.carryOut(in, out, r)
	}
	return true
}

// carryOut carries out a request that was recorded: at once, or in a goroutine of its own if
// it has to wait. false when it is left to the next process.
func (c *conn) carryOut(in, out []byte, r session.Request) bool {
	h := (*fuse.InHeader)(unsafe.Pointer(&in[0]))
	testFault(in)
	o := opOf(in)
	if o.changes && c.readOnly {
		c.sendError(h, syscall.EROFS)
		c.finish(r, h.Unique, false)
		return true
	}
	if !o.disk && h.Opcode != opRead && c.answer(c.fast, in, out) {
		c.finish(r, h.Unique, o.changes)
		return true
	}
	in, done, ok := c.keep(in, r)
	if !ok {
		return false
	}
	c.waits(h)
	b := beside{in, r, done}
	select {
	case c.work <- b:
		return true
	default:
	}
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		c.carryOutBeside(b)
	}()
	return true
}

// carryOutBeside carries out a request, and then others that come while few wait for them.
func (c *conn) carryOutBeside(b beside) {
	for ok := true; ok; {
		c.carryOutWaiting(b.in, b.r)
		b.done()
		b = beside{}
		if c.idle.Add(1) <= idleMax {
			b, ok = <-c.work
		} else {
			ok = false
		}
		c.idle.Add(-1)
	}
}

// carryOutWaiting carries out a request that may have to wait.
func (c *conn) carryOutWaiting(in []byte, r session.Request) {
	h := *(*fuse.InHeader)(unsafe.Pointer(&in[0])) // in may be gone when the request has ended
	changes := opOf(in).changes
	defer c.raw.interrupts.remove(h.Unique)
	switch {
	case changes && c.readOnly:
		c.sendError(&h, syscall.EROFS)
	case h.Opcode == opRead && len(in) >= int(unsafe.Sizeof(fuse.ReadIn{})):
		c.read((*fuse.ReadIn)(unsafe.Pointer(&in[0])))
	default:
		c.answer(c.slow, in, nil)
	}
	c.finish(r, h.Unique, changes)
}

// waits makes a request one that can be interrupted. The kernel tells of an interrupt once: a
// request that is carried out from the session may have been interrupted under the process before.
func (c *conn) waits(h *fuse.InHeader) {
	c.raw.interrupts.add(h.Unique)
	if c.replay && h.Unique&resentBit != 0 {
		c.raw.interrupts.interrupt(h.Unique)
	}
}

// finish forgets a request that was answered, and then what came of it: nobody sends it again. What
// was muted is left for the next process.
func (c *conn) finish(r session.Request, unique uint64, changed bool) {
	if c.mute.Load() {
		return
	}
	c.session.End(r)
	if changed {
		c.raw.fs.Answered(unique &^ resentBit)
	}
}

// answer has s carry out a request and writes the answer; false when it would have to wait.
// out is used when it is large enough.
func (c *conn) answer(s *fuse.ProtocolServer, in, out []byte) bool {
	h := (*fuse.InHeader)(unsafe.Pointer(&in[0]))
	if size := room(h, in); size > len(out) {
		out = make([]byte, size)
	}
	n, st := s.HandleRequest([][]byte{in}, [][]byte{out})
	if !st.Ok() {
		// Not even the header of an answer was made.
		c.log.Error("a FUSE request could not be taken apart", "opcode", h.Opcode, "status", st.String())
		n = int(unsafe.Sizeof(fuse.OutHeader{}))
		*(*fuse.OutHeader)(unsafe.Pointer(&out[0])) = fuse.OutHeader{Length: uint32(n), Status: -int32(syscall.EIO), Unique: h.Unique}
	}
	if n == 0 {
		return true // needs no answer
	}
	if s == c.fast && (*fuse.OutHeader)(unsafe.Pointer(&out[0])).Status == -int32(again) {
		return false
	}
	testFaultAnswer(in)
	if gone := c.send(h.Unique, out[:n]); gone {
		c.unanswered(h, out[:n])
	}
	return true
}

// unanswered takes back an open that nobody waits for any more, so that nobody will release it.
// What a process before this one had opened it may have answered, too.
func (c *conn) unanswered(h *fuse.InHeader, out []byte) {
	if (*fuse.OutHeader)(unsafe.Pointer(&out[0])).Status != 0 {
		return
	}
	open := out[unsafe.Sizeof(fuse.OutHeader{}):]
	if h.Opcode == opCreate && len(open) >= int(unsafe.Sizeof(fuse.CreateOut{})) {
		open = open[unsafe.Sizeof(fuse.EntryOut{}):]
	}
	if len(open) < int(unsafe.Sizeof(fuse.OpenOut{})) {
		return
	}
	fh := (*fuse.OpenOut)(unsafe.Pointer(&open[0])).Fh
	switch h.Opcode {
	case opOpen, opCreate:
		if c.session.Made(fh) {
			c.raw.fs.Release(fh)
		}
	case opOpendir:
		c.raw.releaseDir(fh)
	}
}

// room is how large the answer to a request may be. Only those that name a size themselves
// can be larger than outSize.
func room(h *fuse.InHeader, in []byte) int {
	size := 0
	switch h.Opcode {
	case opReaddir, opReaddirplus:
		if len(in) >= int(unsafe.Sizeof(fuse.ReadIn{})) {
			size = int((*fuse.ReadIn)(unsafe.Pointer(&in[0])).Size)
		}
	case opGetxattr, opListxattr:
		if len(in) >= int(unsafe.Sizeof(fuse.GetXAttrIn{})) {
			size = int((*fuse.GetXAttrIn)(unsafe.Pointer(&in[0])).Size)
		}
	}
	return size + 4096
}

// read carries out a READ.
func (c *conn) read(in *fuse.ReadIn) {
	head := fuse.OutHeader{Unique: in.Unique, Length: uint32(unsafe.Sizeof(fuse.OutHeader{}))}
	vecs := [][]byte{unsafe.Slice((*byte)(unsafe.Pointer(&head)), head.Length)}
	release, status := c.readNow(in, &vecs)
	defer release()
	head.Status = -int32(status)
	for _, v := range vecs[1:] {
		head.Length += uint32(len(v))
	}
	c.send(in.Unique, vecs...)
}

// readNow appends what was read to vecs.
func (c *conn) readNow(in *fuse.ReadIn, vecs *[][]byte) (release func(), status fuse.Status) {
	release = func() {}
	ctx := c.raw.context(nil, &in.InHeader)
	defer ctx.finish()
	d, err := c.raw.fs.Read(ctx, fs.NodeID(in.NodeId), in.Fh, int64(in.Offset), int64(in.Size), in.Pid)
	if err != nil {
		return release, c.raw.status("read", err)
	}
	*vecs = append(*vecs, d.Vecs...)
	return d.Release, fuse.OK
}

// send writes an answer; gone when nobody waits for it any more.
func (c *conn) send(unique uint64, vecs ...[]byte) (gone bool) {
	if c.mute.Load() {
		return false
	}
	if c.replay {
		// The kernel does not know that the request is carried out again.
		(*fuse.OutHeader)(unsafe.Pointer(&vecs[0][0])).Unique &^= resentBit
	}
	err := c.write(vecs...)
	c.sent.Store(c.now())
	switch {
	case err == nil, errors.Is(err, syscall.ENODEV):
	case errors.Is(err, syscall.ENOENT):
		// The request was aborted, or answered by the process before this one.
		c.log.Debug("an answer came too late", "unique", unique)
		return true
	default:
		c.log.Error("an answer could not be written", "unique", unique, "err", err)
	}
	return false
}

func (c *conn) write(vecs ...[]byte) error {
	for {
		var err error
		if len(vecs) == 1 {
			_, err = unix.Write(c.fd, vecs[0])
		} else {
			_, err = unix.Writev(c.fd, vecs)
		}
		if err != syscall.EINTR {
			return err
		}
	}
}

// notify sends a notification. The kernel makes who writes it wait, uninterruptibly, for requests
// that are under way: a process that is killed in it does not die before they are answered, which
// only the next process would do. So another process writes it where there is one.
func (c *conn) notify(b []byte) error {
	if c.tellKernel == nil {
		return c.write(b)
	}
	err := c.tellKernel(b)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		// There is no keeper any more, and when this process is killed it is the end of the mount.
		return c.write(b)
	}
	return err
}

// notifyEntry tells the kernel to forget a name.
func (c *conn) notifyEntry(parent uint64, name string) error {
	const code = 3 // FUSE_NOTIFY_INVAL_ENTRY
	type message struct {
		fuse.OutHeader
		fuse.NotifyInvalEntryOut
	}
	m := message{
		OutHeader:           fuse.OutHeader{Status: code},
		NotifyInvalEntryOut: fuse.NotifyInvalEntryOut{Parent: parent, NameLen: uint32(len(name))},
	}
	m.OutHeader.Length = uint32(unsafe.Sizeof(m)) + uint32(len(name)) + 1
	head := unsafe.Slice((*byte)(unsafe.Pointer(&m)), unsafe.Sizeof(m))
	return c.notify(append(append(head[:len(head):len(head)], name...), 0))
}

// notifyInode tells the kernel to drop all pages and attributes that it has of a node. It may
// wait for READs of the node that are under way.
func (c *conn) notifyInode(node uint64) error {
	const code = 2 // FUSE_NOTIFY_INVAL_INODE
	type message struct {
		fuse.OutHeader
		fuse.NotifyInvalInodeOut
	}
	m := message{
		OutHeader:           fuse.OutHeader{Status: code},
		NotifyInvalInodeOut: fuse.NotifyInvalInodeOut{Ino: node}, // from 0 to the end
	}
	m.OutHeader.Length = uint32(unsafe.Sizeof(m))
	return c.notify(unsafe.Slice((*byte)(unsafe.Pointer(&m)), unsafe.Sizeof(m)))
}

// The ioctls of passthrough: they tell the kernel of a file that it may read by itself.
const (
	iocBackingOpen  = 0x4010e501
	iocBackingClose = 0x4004e502
)

func (c *conn) registerBacking(fd int) (int32, error) {
	m := fuse.BackingMap{Fd: int32(fd)}
	id, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd), iocBackingOpen, uintptr(unsafe.Pointer(&m)))
	if errno != 0 {
		return 0, errno
	}
	return int32(id), nil
}

func (c *conn) unregisterBacking(id int32) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd), iocBackingClose, uintptr(unsafe.Pointer(&id)))
	if errno != 0 {
		return errno
	}
	return nil
}
