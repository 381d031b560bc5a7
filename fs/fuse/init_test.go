package fuse

import (
	"log/slog"
	"testing"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// TestInit: what a kernel that offers everything is promised, and what it must not be.
func TestInit(t *testing.T) {
	s := newServers(Options{Log: slog.Default(), Passthrough: true}, 1)
	in := fuse.InitIn{InHeader: fuse.InHeader{Opcode: 26, Length: uint32(unsafe.Sizeof(fuse.InitIn{}))}, Major: 7, Minor: 45,
		Flags: 0xffffffff, Flags2: 0xffffffff, MaxReadAhead: 128 << 10}
	out, err := s.conn.agree(unsafe.Slice((*byte)(unsafe.Pointer(&in)), unsafe.Sizeof(in)))
	if err != nil {
		t.Fatal(err)
	}
	o := (*fuse.InitOut)(unsafe.Pointer(&out[unsafe.Sizeof(fuse.OutHeader{})]))
	const must = fuse.CAP_PASSTHROUGH | fuse.CAP_HANDLE_KILLPRIV_V2 | fuse.CAP_ATOMIC_O_TRUNC | fuse.CAP_PARALLEL_DIROPS |
		fuse.CAP_BIG_WRITES | fuse.CAP_EXPLICIT_INVAL_DATA | fuse.CAP_DIRECT_IO_ALLOW_MMAP | fuse.CAP_READDIRPLUS_AUTO
	// With WRITEBACK_CACHE passthrough never happens; locks are the kernel's; the umask is too.
	const mustNot = fuse.CAP_WRITEBACK_CACHE | fuse.CAP_POSIX_LOCKS | fuse.CAP_FLOCK_LOCKS | fuse.CAP_POSIX_ACL | fuse.CAP_EXPORT_SUPPORT |
		fuse.CAP_DONT_MASK | fuse.CAP_OVER_IO_URING | fuse.CAP_ALLOW_IDMAP | fuse.CAP_AUTO_INVAL_DATA | fuse.CAP_HANDLE_KILLPRIV
	if f := o.Flags64(); f&must != must || f&mustNot != 0 {
		t.Errorf("flags %#x: %#x are missing, %#x must not be there", f, must&^f, f&mustNot)
	}
	if o.MaxWrite != MaxRead || o.MaxStackDepth != 1 {
		t.Errorf("%+v", o)
	}
}
