//go:build leatfs_faults

package fuse

import (
	"bytes"
	"os"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// testFault makes this process die, or hang, of a lookup of a name that the environment gives.
// Tests build it in.
func testFault(in []byte) {
	h := (*fuse.InHeader)(unsafe.Pointer(&in[0]))
	if h.Opcode != opLookup {
		return
	}
	name, _, _ := bytes.Cut(in[unsafe.Sizeof(fuse.InHeader{}):], []byte{0})
	switch string(name) {
	case "":
	case os.Getenv("LEATFS_FAULT_PANIC"):
		panic("leatfs_faults: asked to by LEATFS_FAULT_PANIC")
	case os.Getenv("LEATFS_FAULT_HANG"):
		if _, err := os.Stat(os.Getenv("LEATFS_FAULT_HANG_ONCE")); err == nil {
			_ = os.Remove(os.Getenv("LEATFS_FAULT_HANG_ONCE"))
			select {}
		}
	}
}
