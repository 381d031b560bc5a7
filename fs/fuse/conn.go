package fuse

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs"
)

// conn reads requests from /dev/fuse and writes the answers.
//
// One goroutine reads, and carries out at once what needs no waiting: a lookup or an open that
// the index answers takes less time than waking another thread would. What has to wait, for
// the origin or for a disk, is begun anew in a goroutine of its own, and so is every READ.
// The device is read through Go's poller: a thread that sits in read(2) keeps the runtime's
// monitor awake, which on small machines cost more than the requests themselves.
//
// The requests are taken apart by go-fuse's ProtocolServer; READ is not, since its answer goes
// out as a vector over the cache's memory, without a copy.
type conn struct {
	fd   int      // the device
	file *os.File // the same, for reading through the poller
	log  *slog.Logger
	raw  *raw                 // may wait
	fast *fuse.ProtocolServer // answers EAGAIN to what would have to wait
	slow *fuse.ProtocolServer

	wg sync.WaitGroup // requests in goroutines of their own

	mu    sync.Mutex
	reads map[uint64]chan struct{} // READs under way by unique; closed when interrupted; by mu
}

// The opcodes of the protocol that are told apart here.
const (
	opForget      = 2
	opRead        = 15
	opInterrupt   = 36
	opBatchForget = 42
)

const (
	// The kernel wants room for its largest write in every read of the device.
	inSize = MaxRead + 64<<10
	// outSize holds every answer but READ's and that of a large directory read.
	outSize = 64 << 10
)

// again is what the fast server answers in place of waiting.
const again = fuse.Status(syscall.EAGAIN)

func newConn(fd int, s *raw, opt *fuse.MountOptions, log *slog.Logger) (*conn, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("/dev/fuse: %w", err)
	}
	c := &conn{fd: fd, log: log, raw: s, file: os.NewFile(uintptr(fd), "/dev/fuse"),
		reads: make(map[uint64]chan struct{})}
	c.fast = fuse.NewProtocolServer(&raw{RawFileSystem: s.RawFileSystem, shared: s.shared, noWait: true}, opt)
	c.slow = fuse.NewProtocolServer(s, opt)
	return c, nil
}

// handshake answers INIT and returns the capabilities that were agreed. Old kernels send a
// shorter message than new ones; go-fuse knows both.
func (c *conn) handshake() (agreed uint64, err error) {
	in := make([]byte, inSize)
	n, err := c.file.Read(in)
	if err != nil {
		return 0, fmt.Errorf("FUSE handshake: %w", err)
	}
	var out []byte
	for _, s := range []*fuse.ProtocolServer{c.fast, c.slow} {
		out = make([]byte, 4096)
		m, st := s.HandleRequest([][]byte{in[:n]}, [][]byte{out})
		if !st.Ok() || m < int(unsafe.Sizeof(fuse.OutHeader{})+unsafe.Sizeof(fuse.InitOut{})) {
			return 0, fmt.Errorf("FUSE handshake: %v, %d bytes", st, m)
		}
		out = out[:m]
	}
	if st := (*fuse.OutHeader)(unsafe.Pointer(&out[0])).Status; st != 0 {
		return 0, fmt.Errorf("FUSE handshake: %w", syscall.Errno(-st))
	}
	agreed = (*fuse.InitOut)(unsafe.Pointer(&out[unsafe.Sizeof(fuse.OutHeader{})])).Flags64()
	return agreed, c.write(out)
}

// serve answers requests until the connection ends, and waits for those under way, which end
// early: nobody waits for their answers any more. The device stays open until close, since
// others still write notifications to it.
func (c *conn) serve() {
	in, out := make([]byte, inSize), make([]byte, outSize)
	for {
		n, err := c.file.Read(in)
		switch {
		case err == nil && n >= int(unsafe.Sizeof(fuse.InHeader{})):
			c.request(in[:n], out)
			continue
		case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.EINTR):
			continue // interrupted before it was read
		case errors.Is(err, syscall.ENODEV), errors.Is(err, os.ErrClosed):
		default:
			c.log.Error("the FUSE connection ended", "err", err, "bytes", n)
		}
		break
	}
	close(c.raw.dead)
	c.wg.Wait()
}

// close closes the device. Nobody may notify or register any more.
func (c *conn) close() error { return c.file.Close() }

// request carries out one request. in and out are the reader's: what goes on without it gets a
// copy.
func (c *conn) request(in, out []byte) {
	h := (*fuse.InHeader)(unsafe.Pointer(&in[0]))
	switch h.Opcode {
	case opForget, opBatchForget:
		return // no table of nodes grows with what the kernel knows
	case opRead:
		if len(in) >= int(unsafe.Sizeof(fuse.ReadIn{})) {
			r := *(*fuse.ReadIn)(unsafe.Pointer(&in[0]))
			interrupted := make(chan struct{})
			c.mu.Lock()
			c.reads[r.Unique] = interrupted
			c.mu.Unlock()
			c.wg.Add(1)
			go func() {
				defer c.wg.Done()
				c.read(&r, interrupted)
			}()
			return
		}
	case opInterrupt:
		if !c.interruptRead(in) {
			c.answer(c.slow, in, out)
		}
		return
	}
	if !c.answer(c.fast, in, out) {
		waits := append([]byte(nil), in...)
		c.wg.Add(1)
		go func() {
			defer c.wg.Done()
			c.answer(c.slow, waits, nil)
		}()
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
	c.send(h.Unique, out[:n])
	return true
}

// room is how large the answer to a request may be. Only those that name a size themselves
// can be larger than outSize.
func room(h *fuse.InHeader, in []byte) int {
	const opReaddir, opReaddirplus, opGetxattr, opListxattr = 28, 44, 22, 23
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

// interruptRead passes an interrupt on; false when it is not a READ that it is for.
func (c *conn) interruptRead(in []byte) bool {
	if len(in) < int(unsafe.Sizeof(fuse.InterruptIn{})) {
		return false
	}
	unique := (*fuse.InterruptIn)(unsafe.Pointer(&in[0])).Unique
	c.mu.Lock()
	defer c.mu.Unlock()
	ch, ok := c.reads[unique]
	if ok && ch != nil {
		close(ch)
		c.reads[unique] = nil // only once
	}
	return ok
}

// read carries out a READ.
func (c *conn) read(in *fuse.ReadIn, interrupted <-chan struct{}) {
	head := fuse.OutHeader{Unique: in.Unique, Length: uint32(unsafe.Sizeof(fuse.OutHeader{}))}
	vecs := [][]byte{unsafe.Slice((*byte)(unsafe.Pointer(&head)), head.Length)}
	release, status := c.readNow(in, interrupted, &vecs)
	defer release()
	c.mu.Lock()
	delete(c.reads, in.Unique)
	c.mu.Unlock()
	head.Status = -int32(status)
	for _, v := range vecs[1:] {
		head.Length += uint32(len(v))
	}
	c.send(in.Unique, vecs...)
}

// readNow appends what was read to vecs. A panic is EIO, as in every other request.
func (c *conn) readNow(in *fuse.ReadIn, interrupted <-chan struct{}, vecs *[][]byte) (release func(), status fuse.Status) {
	release = func() {}
	defer func() {
		if p := recover(); p != nil {
			c.log.Error("panic in a read", "panic", p, "stack", string(debug.Stack()))
			*vecs, status = (*vecs)[:1], fuse.EIO
		}
	}()
	ctx := c.raw.context(interrupted, in.Pid)
	defer ctx.finish()
	d, err := c.raw.fs.Read(ctx, fs.NodeID(in.NodeId), in.Fh, int64(in.Offset), int64(in.Size), in.Pid)
	if err != nil {
		return release, c.raw.status("read", err)
	}
	*vecs = append(*vecs, d.Vecs...)
	return d.Release, fuse.OK
}

// send writes an answer.
func (c *conn) send(unique uint64, vecs ...[]byte) {
	err := c.write(vecs...)
	switch {
	case err == nil, errors.Is(err, syscall.ENODEV):
	case errors.Is(err, syscall.ENOENT):
		// The request was aborted, or nobody waits for its answer any more.
		c.log.Debug("an answer came too late", "unique", unique)
	default:
		c.log.Error("an answer could not be written", "unique", unique, "err", err)
	}
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
	return c.write(unsafe.Slice((*byte)(unsafe.Pointer(&m)), unsafe.Sizeof(m)), append([]byte(name), 0))
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
	return c.write(unsafe.Slice((*byte)(unsafe.Pointer(&m)), unsafe.Sizeof(m)))
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
