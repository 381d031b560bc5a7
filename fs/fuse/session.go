package fuse

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"strings"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs"
	"github.com/leatfs/leatfs/fs/session"
)

// Options of a session.
type Options struct {
	Mount MountOptions
	Log   *slog.Logger
	// Passthrough false: the daemon serves every read itself.
	Passthrough bool
	// StackedCache: the cache directory is on a stacked file system such as overlayfs, so the
	// mount must allow one level more.
	StackedCache bool
	// ReadAheadKiB is the kernel's readahead for files that the daemon serves; 0 leaves it.
	ReadAheadKiB int
	// Tell has another process write a notification to the device, so that this one can be killed
	// while the kernel makes it wait; nil, or an error: this process writes it itself.
	Tell func([]byte) error
	// Debug logs every request.
	Debug bool
	// NoResend: what the process before was sent and did not answer is carried out from its
	// records, as with kernels before 6.9, which do not send it again.
	NoResend bool

	noPass bool // see as
}

// Session is one connection to the kernel, from the mount to its end, or to its being left to
// another process.
type Session struct {
	opt  Options
	raw  *raw
	conn *conn
	pass bool
}

// Mount mounts and answers the kernel's INIT. Nothing else is answered before Serve. What was
// agreed stands in sess then.
func Mount(opt Options, sess *session.Session, origin json.RawMessage) (*Session, error) {
	fd, err := mount(&opt.Mount)
	if err != nil {
		return nil, err
	}
	s, err := newSession(opt, fd, sess)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd), Unmount(opt.Mount.Mountpoint, true))
	}
	in, out, err := s.conn.handshake()
	if err == nil {
		err = sess.SetInfo(session.Info{Source: opt.Mount.Source, Mountpoint: opt.Mount.Mountpoint, Dev: deviceAt(opt.Mount.Mountpoint),
			InitIn: in, InitOut: out, Origin: origin})
	}
	if err != nil {
		return nil, errors.Join(err, s.conn.close(), Unmount(opt.Mount.Mountpoint, true))
	}
	s.agreed(in, out)
	return s, nil
}

// TakeOver goes on with the connection of a process that is gone. blame says that it died of
// itself, and so perhaps of a request.
func TakeOver(opt Options, device *os.File, sess *session.Session, blame bool) (*Session, error) {
	// A descriptor of its own: the runtime's poller must not know it twice.
	fd, err := unix.FcntlInt(device.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/fuse: %w", err)
	}
	if err := device.Close(); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	info, err := sess.Info()
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	opt.as(&info)
	s, err := newSession(opt, fd, sess)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	if err == nil {
		err = s.same(&info)
	}
	if err != nil {
		return nil, errors.Join(err, s.conn.close())
	}
	s.agreed(info.InitIn, info.InitOut)
	s.conn.inherit(blame)
	return s, nil
}

// Check tells why this program cannot go on with a mount, nil if it can.
func Check(opt Options, info *session.Info) error {
	opt.as(info)
	return newServers(opt, 0).same(info)
}

// as takes over from a mount what was decided for it when it was made: whether files on a stacked
// file system can be passed through, and whether any can. A worker that is told otherwise later
// may still not give the kernel any.
func (o *Options) as(info *session.Info) {
	if len(info.InitOut) >= int(unsafe.Sizeof(fuse.OutHeader{})+unsafe.Sizeof(fuse.InitOut{})) {
		out := (*fuse.InitOut)(unsafe.Pointer(&info.InitOut[unsafe.Sizeof(fuse.OutHeader{})]))
		o.StackedCache = out.MaxStackDepth > 1
		o.noPass = !o.Passthrough
		o.Passthrough = out.Flags64()&fuse.CAP_PASSTHROUGH != 0
	}
}

// same makes sure that the mount is the one that is meant, and that the kernel was promised what
// this program would promise.
func (s *Session) same(info *session.Info) error {
	if len(info.InitIn) < int(unsafe.Sizeof(fuse.InitIn{})) || len(info.InitOut) < int(unsafe.Sizeof(fuse.OutHeader{})+unsafe.Sizeof(fuse.InitOut{})) {
		return errors.New("nothing is known of the handshake with the kernel; unmount and mount again")
	}
	if m := s.opt.Mount; info.Source != m.Source || info.Mountpoint != m.Mountpoint {
		return fmt.Errorf("what is mounted is %s on %s, not %s on %s; unmount it first", info.Source, info.Mountpoint, m.Source, m.Mountpoint)
	}
	out, err := s.conn.agree(info.InitIn)
	if err != nil {
		return err
	}
	if !bytes.Equal(out, info.InitOut) {
		return errors.New("this version, or its options, speak to the kernel otherwise than the one that mounted; unmount and mount again to use it")
	}
	return nil
}

func newSession(opt Options, fd int, sess *session.Session) (*Session, error) {
	s := newServers(opt, sess.Epoch())
	return s, s.conn.open(fd, sess)
}

// newServers makes a session without its connection.
func newServers(opt Options, epoch uint32) *Session {
	s := &Session{opt: opt, raw: newRaw(opt.Log, epoch)}
	depth := 1
	if opt.StackedCache {
		depth = 2
	}
	mo := &fuse.MountOptions{
		MaxBackground: 64,
		MaxWrite:      MaxRead,
		Name:          "leatfs",
		DisableSplice: true,
		MaxStackDepth: depth,
		Debug:         opt.Debug,
		Logger:        log.New(slogWriter{opt.Log}, "", 0),
		PanicHandler:  crash,
		// Without HANDLE_KILLPRIV_V2 every write() that the kernel passes through would first
		// ask for security.capability, and so wait for the daemon.
		ExtraCapabilities: fuse.CAP_READDIRPLUS_AUTO | capHandleKillprivV2 |
			fuse.CAP_DIRECT_IO_ALLOW_MMAP | fuse.CAP_ASYNC_DIO |
			// O_TRUNC comes with the open: what is not wanted any more need not be fetched.
			fuse.CAP_ATOMIC_O_TRUNC,
		ExplicitDataCacheControl: true,
	}
	if !opt.Passthrough {
		mo.DisabledCapabilities |= fuse.CAP_PASSTHROUGH
	}
	s.conn = newConn(s.raw, mo, opt.Log)
	s.conn.tellKernel, s.conn.readOnly = opt.Tell, opt.Mount.readOnly()
	return s
}

// agreed looks at what the handshake came to.
func (s *Session) agreed(in, out []byte) {
	i := (*fuse.InitIn)(unsafe.Pointer(&in[0]))
	o := (*fuse.InitOut)(unsafe.Pointer(&out[unsafe.Sizeof(fuse.OutHeader{})]))
	s.pass = o.Flags64()&fuse.CAP_PASSTHROUGH != 0 && os.Geteuid() == 0 && !s.opt.noPass
	s.conn.replay = s.opt.NoResend || i.Flags64()&fuse.CAP_HAS_RESEND == 0
}

// capHandleKillprivV2 is FUSE_HANDLE_KILLPRIV_V2 of the protocol.
const capHandleKillprivV2 = 1 << 28

// Passthrough tells whether the kernel may read cache files itself.
func (s *Session) Passthrough() bool { return s.pass }

// Backing is what fs.Config wants, nil when there is no passthrough.
func (s *Session) Backing() fs.Backing {
	if !s.pass {
		return nil
	}
	return backing{s.conn}
}

type backing struct{ conn *conn }

func (b backing) Register(f *os.File) (int32, error) {
	id, err := b.conn.registerBacking(int(f.Fd()))
	if err != nil {
		return 0, fmt.Errorf("register %s for passthrough: %w", f.Name(), err)
	}
	return id, nil
}

func (b backing) Unregister(id int32) {
	// Fails only when the connection is gone, and the id with it.
	_ = b.conn.unregisterBacking(id)
}

// EntryChanged implements fs.Notifier.
func (s *Session) EntryChanged(parent fs.NodeID, name string) {
	// ENOENT: the kernel does not know the name; nothing to forget.
	_ = s.conn.notifyEntry(uint64(parent), name)
}

// ContentChanged implements fs.Notifier.
func (s *Session) ContentChanged(node fs.NodeID) {
	for {
		err := s.conn.notifyInode(uint64(node))
		// ENOENT: the kernel does not know the node; it has nothing of it.
		if err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
			return
		}
		// The keeper is slow to listen. Nothing else would make the kernel drop the pages.
		select {
		case <-s.raw.dead:
			return
		case <-time.After(100 * time.Millisecond):
			if s.conn.leaving.Load() {
				return // the next process tells of all that is open
			}
		}
	}
}

// Serve answers requests until the mount ends or Leave is called, and returns when the last is
// answered, or left to the next process. It is called once. ended tells which it was.
func (s *Session) Serve(f *fs.FS) (ended bool) {
	s.raw.fs = f
	return s.conn.serve()
}

// Leave makes Serve return while the mount goes on, for another process to take it over.
// Requests that are not answered within a bound are left to that process.
func (s *Session) Leave() { s.conn.leave() }

// Device is the connection, to be handed to the keeper.
func (s *Session) Device() *os.File { return s.conn.file }

// Close lets go of the connection. It is called last, when Serve has returned (or was never
// called) and the file system is closed.
func (s *Session) Close() error { return s.conn.close() }

// SetReadAhead raises the kernel's readahead of the mount, which is 128 KiB whatever a FUSE
// server asks for. It must be called while Serve runs; it needs root.
func (s *Session) SetReadAhead() error {
	if s.opt.ReadAheadKiB == 0 {
		return nil
	}
	mounts, err := Mounts()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if m.Mountpoint == s.opt.Mount.Mountpoint && strings.HasPrefix(m.Type, "fuse.") {
			return os.WriteFile("/sys/class/bdi/"+m.Dev+"/read_ahead_kb", fmt.Appendf(nil, "%d", s.opt.ReadAheadKiB), 0)
		}
	}
	return fmt.Errorf("mount point %s is not in the list of mounts", s.opt.Mount.Mountpoint)
}

// Health tells why this process should be replaced, nil when it should not; limit is how long a
// request may take that waits for the origin.
func (s *Session) Health(limit time.Duration) error { return s.conn.health(limit) }

// GivenUp is how many requests were answered EIO because processes died of them, and the last.
func (s *Session) GivenUp() (count int, last string) {
	s.conn.poison.mu.Lock()
	defer s.conn.poison.mu.Unlock()
	return s.conn.poison.count, s.conn.poison.last
}

// Failed counts the requests answered with an errno that is no everyday one.
func (s *Session) Failed() int64 { return s.raw.failed.Load() }

// slogWriter turns the server's log lines into records.
type slogWriter struct{ log *slog.Logger }

func (w slogWriter) Write(p []byte) (int, error) {
	w.log.Warn("fuse: " + strings.TrimSpace(string(p)))
	return len(p), nil
}
