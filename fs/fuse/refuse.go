package fuse

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs/session"
)

// Refuser answers EIO to every request of a mount that no process can serve, so that nobody
// waits for ever. It needs neither index nor cache, nothing that the others may have died of.
type Refuser struct {
	conn    *conn
	leaving atomic.Bool
}

// NewRefuser takes over the connection. sess may be nil when it cannot be read.
func NewRefuser(device *os.File, sess *session.Session, log *slog.Logger) (*Refuser, error) {
	fd, err := unix.FcntlInt(device.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/fuse: %w", err)
	}
	if err := device.Close(); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	r := &Refuser{conn: &conn{log: log}}
	return r, r.conn.open(fd, sess)
}

// Serve refuses requests until the connection ends or Leave is called; ended tells which. It
// closes the connection.
func (r *Refuser) Serve() (ended bool) {
	c := r.conn
	defer func() { _ = c.close() }()
	_ = c.askResend() // those that a process died with shall not wait either; see refuseRecorded
	r.refuseRecorded()
	in := make([]byte, inSize)
	if c.session != nil {
		in = c.session.Inbox()[:inSize] // found there by the next process, should this one be killed
	}
	populate(in)
	for {
		n, err := c.file.Read(in)
		switch {
		case err == nil && n >= int(unsafe.Sizeof(fuse.InHeader{})):
			r.refuse(in[:n])
			(*fuse.InHeader)(unsafe.Pointer(&in[0])).Length = 0
		case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.EINTR):
		case errors.Is(err, os.ErrDeadlineExceeded) && r.leaving.Load():
			return false
		default:
			return true
		}
	}
}

// refuseRecorded answers those that a kernel that cannot send them again waits for.
func (r *Refuser) refuseRecorded() {
	if r.conn.session == nil {
		return
	}
	s := r.conn.session
	if in := lastRead(s); in != nil {
		r.refuse(in)
	}
	for _, u := range s.Unfinished(false) {
		// Where they are sent again this number is not known any more, and nothing happens.
		h := fuse.InHeader{Unique: u.Unique}
		if gone := r.conn.sendError(&h, syscall.EIO); !gone {
			if fh, _, ok := s.HandleOf(u.Unique); ok {
				s.FreeHandle(fh)
			}
		}
		s.End(u.Request)
	}
}

func (r *Refuser) refuse(in []byte) {
	h := (*fuse.InHeader)(unsafe.Pointer(&in[0]))
	status := syscall.EIO
	s := r.conn.session
	switch h.Opcode {
	case opForget, opBatchForget, opInterrupt:
		return
	case opRelease:
		if len(in) >= int(unsafe.Sizeof(fuse.ReleaseIn{})) && s != nil {
			s.FreeHandle((*fuse.ReleaseIn)(unsafe.Pointer(&in[0])).Fh)
		}
		status = 0
	case opOpen, opCreate:
		if h.Unique&resentBit != 0 && s != nil {
			// It had been carried out, and not answered.
			if fh, _, ok := s.HandleOf(h.Unique &^ resentBit); ok {
				s.FreeHandle(fh)
			}
		}
	case opReleasedir:
		status = 0
	}
	r.conn.sendError(h, status)
}

// Leave makes Serve return while the mount goes on.
func (r *Refuser) Leave() {
	r.leaving.Store(true)
	_ = r.conn.file.SetReadDeadline(time.Unix(1, 0))
}
