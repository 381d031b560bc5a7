package keeper

import (
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// CloseOnExec keeps every descriptor from 3 on from the programs that this process starts, but for
// those that it hands over. It fails on Linux before 5.11.
func CloseOnExec() error {
	return os.NewSyscallError("close_range", unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC))
}

// isTerminal says that a descriptor is an open terminal; one that was hung up is none.
func isTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}
