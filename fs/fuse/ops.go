package fuse

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// The opcodes of the protocol that are told apart here.
const (
	opLookup      = 1
	opForget      = 2
	opUnlink      = 10
	opRmdir       = 11
	opOpen        = 14
	opRead        = 15
	opRelease     = 18
	opGetxattr    = 22
	opListxattr   = 23
	opOpendir     = 27
	opReaddir     = 28
	opReleasedir  = 29
	opCreate      = 35
	opInterrupt   = 36
	opBatchForget = 42
	opReaddirplus = 44
)

// op is what is known of an opcode.
type op struct {
	name string
	// changes: something is different afterwards. A read-only mount refuses it, and package fs may
	// have recorded what came of it for the case that it is sent again.
	changes bool
	// disk: it goes to a disk, and so is never carried out by the reader.
	disk bool
}

// ops has an entry for every opcode below opMax; those without a name are not asked for, or go-fuse
// refuses them.
var ops = [opMax]op{
	opLookup: {name: "lookup"}, opForget: {name: "forget"}, 3: {name: "getattr"},
	4: {name: "setattr", changes: true, disk: true}, 5: {name: "readlink"},
	6: {name: "symlink", changes: true, disk: true}, 8: {name: "mknod", changes: true, disk: true},
	9: {name: "mkdir", changes: true, disk: true}, opUnlink: {name: "unlink", changes: true, disk: true},
	opRmdir: {name: "rmdir", changes: true, disk: true}, 12: {name: "rename", changes: true, disk: true},
	13: {name: "link", changes: true, disk: true}, opOpen: {name: "open"}, opRead: {name: "read"},
	16: {name: "write", changes: true, disk: true}, 17: {name: "statfs"}, opRelease: {name: "release"},
	20: {name: "fsync", disk: true}, 21: {name: "setxattr", changes: true, disk: true},
	opGetxattr: {name: "getxattr"}, opListxattr: {name: "listxattr"},
	24: {name: "removexattr", changes: true, disk: true}, 25: {name: "flush", disk: true}, 26: {name: "init"},
	opOpendir: {name: "opendir"}, opReaddir: {name: "readdir"}, opReleasedir: {name: "releasedir"},
	30: {name: "fsyncdir", disk: true}, 34: {name: "access"}, opCreate: {name: "create", changes: true, disk: true},
	opInterrupt: {name: "interrupt"}, 37: {name: "bmap"}, 38: {name: "destroy"}, 39: {name: "ioctl"}, 40: {name: "poll"},
	opBatchForget: {name: "batch_forget"}, 43: {name: "fallocate", changes: true, disk: true},
	opReaddirplus: {name: "readdirplus"}, 45: {name: "rename2", changes: true, disk: true}, 46: {name: "lseek", disk: true},
	47: {name: "copy_file_range", changes: true, disk: true}, 50: {name: "syncfs", disk: true},
	51: {name: "tmpfile", changes: true, disk: true}, 52: {name: "statx"}, 53: {name: "copy_file_range_64", changes: true},
}

const opMax = 64

// opOf is what is known of a request. An open, and its release, go to the disk when the handle can
// write.
func opOf(in []byte) op {
	h := (*fuse.InHeader)(unsafe.Pointer(&in[0]))
	if h.Opcode >= opMax {
		return op{}
	}
	o := ops[h.Opcode]
	switch {
	case h.Opcode == opOpen && len(in) >= int(unsafe.Sizeof(fuse.OpenIn{})):
		o.changes = writes((*fuse.OpenIn)(unsafe.Pointer(&in[0])).Flags)
		o.disk = o.changes
	case h.Opcode == opRelease && len(in) >= int(unsafe.Sizeof(fuse.ReleaseIn{})):
		o.disk = writes((*fuse.ReleaseIn)(unsafe.Pointer(&in[0])).Flags)
	}
	return o
}

// writes tells whether one who opens with flags can change the file.
func writes(flags uint32) bool {
	return flags&unix.O_ACCMODE != unix.O_RDONLY || flags&unix.O_TRUNC != 0
}

// opName is what messages call a request.
func opName(code uint32) string {
	if code < opMax && ops[code].name != "" {
		return ops[code].name
	}
	return fmt.Sprintf("request %d", code)
}

// requestCounts counts requests by opcode.
type requestCounts [opMax]atomic.Int64

func (c *requestCounts) add(code uint32) {
	if code < opMax {
		c[code].Add(1)
	}
}

// Requests is how many requests of the kernel this process was sent, by name; those of which there
// was none are left out.
func (s *Session) Requests() map[string]int64 {
	out := make(map[string]int64)
	for code := range s.conn.counts {
		if n := s.conn.counts[code].Load(); n != 0 {
			out[opName(uint32(code))] = n
		}
	}
	return out
}
