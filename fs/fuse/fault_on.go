//go:build leatfs_faults

package fuse

import (
	"bytes"
	"os"
	"syscall"
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

// testFaultAnswer kills this process when it has carried out a change of a name that ends as the
// environment says, for the first time, and has not answered it.
func testFaultAnswer(in []byte) {
	end := os.Getenv("LEATFS_FAULT_UNANSWERED")
	h := (*fuse.InHeader)(unsafe.Pointer(&in[0]))
	if end != "" && opOf(in).changes && h.Unique&resentBit == 0 && bytes.Contains(in, append([]byte(end), 0)) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
