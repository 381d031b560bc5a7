package fuse

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
)

// TestErrno: what applications see of every error, however it is wrapped.
func TestErrno(t *testing.T) {
	file := func(e syscall.Errno) error { return &os.PathError{Op: "pwrite", Path: "/cache/staging/1", Err: e} }
	for _, c := range []struct {
		err  error
		want syscall.Errno
	}{
		{nil, 0},
		{fs.ErrNotExist, syscall.ENOENT},
		{fs.ErrExist, syscall.EEXIST},
		{fs.ErrNotEmpty, syscall.ENOTEMPTY},
		{fs.ErrNotAllowed, syscall.EPERM},
		{fs.ErrNoAttr, syscall.ENODATA},
		{fs.ErrUnsupported, syscall.EOPNOTSUPP},
		{fs.ErrCrossDevice, syscall.EXDEV},
		{fs.ErrTooManyLinks, syscall.EMLINK},
		{fs.ErrTooBig, syscall.EFBIG},
		{fs.ErrNoData, syscall.ENXIO},
		{fs.ErrReadOnly, syscall.EROFS},
		{fs.ErrNotUTF8, syscall.EILSEQ},
		{fs.ErrProtected, syscall.EPERM},
		{fs.ErrNoRoom, syscall.ENOSPC},
		{meta.ErrNoSpace, syscall.ENOSPC},
		{meta.ErrExist, syscall.EEXIST},
		{context.Canceled, syscall.EINTR},
		{file(syscall.ENOSPC), syscall.ENOSPC},
		{file(syscall.EDQUOT), syscall.EDQUOT},
		{file(syscall.EFBIG), syscall.EFBIG},
		{errors.Join(errors.New("x"), file(syscall.ENXIO)), syscall.ENXIO},
		// Of a file that only we know, and of a disk that fails.
		{file(syscall.ENOENT), syscall.EIO},
		{file(syscall.EACCES), syscall.EIO},
		{file(syscall.EBADF), syscall.EIO},
		{file(syscall.EIO), syscall.EIO},
		{errors.New("anything else"), syscall.EIO},
		// The network's errno is nobody's.
		{&objstore.Error{Op: "PUT", Key: "k", Err: &os.SyscallError{Syscall: "write", Err: syscall.ENOMEM}}, syscall.EIO},
		{&objstore.Error{Op: "GET", Key: "k", Kind: objstore.NotFound}, syscall.ENOENT},
		{&objstore.Error{Op: "GET", Key: "k", Kind: objstore.AccessDenied}, syscall.EACCES},
	} {
		err := c.err
		for range 2 {
			if got := errnoOf(err); got != c.want {
				t.Errorf("%v: %v, want %v", err, got, c.want)
			}
			if err == nil {
				break
			}
			err = &fs.PathError{Op: "write", Path: "/a", Err: fmt.Errorf("staging: %w", err)}
		}
	}
}

// TestSetAttr: each bit of a SETATTR sets what it means and nothing else.
func TestSetAttr(t *testing.T) {
	now := time.Unix(1000, 7)
	in := fuse.SetAttrInCommon{Size: 5, Mode: syscall.S_IFREG | 0o4755, Atime: 1, Atimensec: 2, Mtime: math.MaxUint64, Mtimensec: 999_999_999,
		Ctime: 3, Ctimensec: 4}
	in.Uid, in.Gid = 6, 7
	show := func(s fs.SetAttr) string {
		var b strings.Builder
		put := func(name string, v any, ok bool) {
			if ok {
				fmt.Fprintf(&b, "%s=%v ", name, v)
			}
		}
		num := func(p *int64) int64 {
			if p == nil {
				return 0
			}
			return *p
		}
		u := func(p *uint32) uint32 {
			if p == nil {
				return 0
			}
			return *p
		}
		put("mode", fmt.Sprintf("%o", u(s.Mode)), s.Mode != nil)
		put("uid", u(s.UID), s.UID != nil)
		put("gid", u(s.GID), s.GID != nil)
		put("size", num(s.Size), s.Size != nil)
		put("atime", num(s.ATime), s.ATime != nil)
		put("mtime", num(s.MTime), s.MTime != nil)
		put("ctime", num(s.CTime), s.CTime != nil)
		put("kill", "", s.KillSUIDGID)
		return strings.TrimSpace(b.String())
	}
	for _, c := range []struct {
		valid uint32
		want  string
	}{
		{0, ""},
		{fuse.FATTR_MODE, "mode=4755"},
		{fuse.FATTR_UID, "uid=6"},
		{fuse.FATTR_GID | fuse.FATTR_UID, "uid=6 gid=7"},
		{fuse.FATTR_SIZE | fuse.FATTR_KILL_SUIDGID, "size=5 kill="},
		{fuse.FATTR_ATIME, "atime=1000000002"},
		{fuse.FATTR_ATIME | fuse.FATTR_ATIME_NOW, "atime=1000000000007"},
		{fuse.FATTR_MTIME, "mtime=-1"}, // before 1970
		{fuse.FATTR_MTIME | fuse.FATTR_MTIME_NOW, "mtime=1000000000007"},
		{fuse.FATTR_CTIME, "ctime=3000000004"},
		{fuse.FATTR_FH | fuse.FATTR_LOCKOWNER, ""},
	} {
		in.Valid = c.valid
		set, ok := setAttrOf(&in, now)
		if got := show(set); got != c.want || !ok {
			t.Errorf("bits %#x: %q %v, want %q", c.valid, got, ok, c.want)
		}
	}
	in.Valid, in.Size = fuse.FATTR_SIZE, 1<<63
	if _, ok := setAttrOf(&in, now); ok {
		t.Error("a size of 2^63 is taken")
	}
}

// TestTimes: what goes out as seconds and nanoseconds comes back the same, and what does not fit
// becomes the nearest that does.
func TestTimes(t *testing.T) {
	for _, ns := range []int64{0, 1, -1, 1e9, -1e9, -1e9 - 1, 1763756487123456789, math.MaxInt64 - 1e9, -math.MaxInt64 + 2e9} {
		sec, nsec := seconds(ns)
		if nsec >= 1e9 {
			t.Errorf("%d: %d nanoseconds", ns, nsec)
		}
		if got := nanoseconds(int64(sec), nsec); got != ns {
			t.Errorf("%d became %d s %d ns and that %d", ns, int64(sec), nsec, got)
		}
	}
	for sec, want := range map[int64]int64{math.MaxInt64: math.MaxInt64, 1e10: math.MaxInt64, -1e10: -math.MaxInt64, math.MinInt64: -math.MaxInt64} {
		if got := nanoseconds(sec, 5); got != want {
			t.Errorf("%d s: %d, want %d", sec, got, want)
		}
	}
}

// TestOpenFlags: no answer to an open is a mix that the kernel refuses, and a close that
// the daemon wants to see is told.
func TestOpenFlags(t *testing.T) {
	for i := range 8 {
		o := fs.Opened{FH: 9, Backing: 3, Passthrough: i&1 != 0, Direct: i&2 != 0, Flush: i&4 != 0}
		var out fuse.OpenOut
		fillOpen(&out, &o)
		pass, direct, keep := out.OpenFlags&fuse.FOPEN_PASSTHROUGH != 0, out.OpenFlags&fuse.FOPEN_DIRECT_IO != 0, out.OpenFlags&fuse.FOPEN_KEEP_CACHE != 0
		if pass != o.Passthrough || direct != o.Direct || keep == (pass || direct) || out.OpenFlags&fuse.FOPEN_NOFLUSH != 0 == o.Flush ||
			out.Fh != 9 || pass && out.BackingID != 3 {
			t.Errorf("%+v: %+v", o, out)
		}
	}
}

// TestXattrProtocol: an empty buffer asks for the size, one that is too small is ERANGE.
func TestXattrProtocol(t *testing.T) {
	for _, c := range []struct {
		room int
		want fuse.Status
	}{{0, fuse.OK}, {1, fuse.ERANGE}, {2, fuse.ERANGE}, {3, fuse.OK}, {10, fuse.OK}} {
		dest := make([]byte, c.room)
		n, st := fit(dest, "abc")
		if st != c.want || st.Ok() && (n != 3 || c.room > 0 && string(dest[:n]) != "abc") {
			t.Errorf("%d bytes of room: %d %v %q", c.room, n, st, dest)
		}
	}
	if n, st := fit(nil, ""); n != 0 || !st.Ok() {
		t.Errorf("empty value: %d %v", n, st)
	}
	r := newRaw(nil, 1) // package fs is not asked
	for attr, want := range map[string]syscall.Errno{
		"security.capability": syscall.ENODATA, "system.posix_acl_access": syscall.EOPNOTSUPP, "system.posix_acl_default": syscall.EOPNOTSUPP,
		"security.selinux": syscall.EOPNOTSUPP, "user.": syscall.EOPNOTSUPP, "other": syscall.EOPNOTSUPP,
	} {
		if _, st := r.GetXAttr(nil, &fuse.InHeader{}, attr, nil); st != fuse.Status(want) {
			t.Errorf("getxattr %s: %v, want %v", attr, st, want)
		}
		if st := r.RemoveXAttr(nil, &fuse.InHeader{}, attr); st != fuse.Status(want) {
			t.Errorf("removexattr %s: %v, want %v", attr, st, want)
		}
		if st := r.SetXAttr(nil, &fuse.SetXAttrIn{}, attr, nil); st != fuse.Status(syscall.EOPNOTSUPP) {
			t.Errorf("setxattr %s: %v", attr, st)
		}
	}
}

// TestOps: an open and a release count as writing by their flags.
func TestOps(t *testing.T) {
	for flags, want := range map[uint32]bool{unix.O_RDONLY: false, unix.O_RDONLY | unix.O_NOATIME: false, unix.O_WRONLY: true,
		unix.O_RDWR | unix.O_APPEND: true, unix.O_RDONLY | unix.O_TRUNC: true} {
		in := fuse.OpenIn{InHeader: fuse.InHeader{Opcode: opOpen}, Flags: flags}
		if o := opOf(unsafe.Slice((*byte)(unsafe.Pointer(&in)), unsafe.Sizeof(in))); o.changes != want || o.disk != want {
			t.Errorf("open with flags %#o: %+v", flags, o)
		}
		rel := fuse.ReleaseIn{InHeader: fuse.InHeader{Opcode: opRelease}, Flags: flags}
		if o := opOf(unsafe.Slice((*byte)(unsafe.Pointer(&rel)), unsafe.Sizeof(rel))); o.changes || o.disk != want {
			t.Errorf("release with flags %#o: %+v", flags, o)
		}
	}
	unknown := fuse.InHeader{Opcode: 4000}
	if o := opOf(unsafe.Slice((*byte)(unsafe.Pointer(&unknown)), unsafe.Sizeof(unknown))); o != (op{}) {
		t.Errorf("an unknown opcode: %+v", o)
	}
}
