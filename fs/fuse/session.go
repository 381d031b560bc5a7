package fuse

import (
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs"
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
	// Debug logs every request.
	Debug bool
}

// Session is one connection to the kernel, from the mount to its end.
type Session struct {
	opt  Options
	raw  *raw
	conn *conn
	pass bool
}

// Mount mounts and answers the kernel's INIT. Nothing else is answered before Serve.
func Mount(opt Options) (*Session, error) {
	fd, err := mount(&opt.Mount)
	if err != nil {
		return nil, err
	}
	s := &Session{opt: opt, raw: newRaw(opt.Log)}
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
		// Without HANDLE_KILLPRIV_V2 every write() that the kernel passes through would first
		// ask for security.capability, and so wait for the daemon.
		ExtraCapabilities: fuse.CAP_READDIRPLUS_AUTO | capHandleKillprivV2 |
			fuse.CAP_DIRECT_IO_ALLOW_MMAP | fuse.CAP_ASYNC_DIO,
		ExplicitDataCacheControl: true,
	}
	if !opt.Passthrough {
		mo.DisabledCapabilities |= fuse.CAP_PASSTHROUGH
	}
	if s.conn, err = newConn(fd, s.raw, mo, opt.Log); err != nil {
		return nil, errors.Join(err, unix.Close(fd), Unmount(opt.Mount.Mountpoint, true))
	}
	agreed, err := s.conn.handshake()
	if err != nil {
		return nil, errors.Join(err, s.conn.close(), Unmount(opt.Mount.Mountpoint, true))
	}
	s.pass = agreed&fuse.CAP_PASSTHROUGH != 0 && os.Geteuid() == 0
	return s, nil
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
	// ENOENT: the kernel does not know the node; it has nothing of it.
	_ = s.conn.notifyInode(uint64(node))
}

// Serve answers requests until the mount ends, and returns when the last is answered. It is
// called once.
func (s *Session) Serve(f *fs.FS) {
	s.raw.fs = f
	s.conn.serve()
}

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

// Failed counts the requests answered with an errno that is no everyday one.
func (s *Session) Failed() int64 { return s.raw.failed.Load() }

// slogWriter turns the server's log lines into records.
type slogWriter struct{ log *slog.Logger }

func (w slogWriter) Write(p []byte) (int, error) {
	w.log.Warn("fuse: " + strings.TrimSpace(string(p)))
	return len(p), nil
}
