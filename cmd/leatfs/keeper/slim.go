package keeper

import (
	"runtime"
	"runtime/debug"
)

// Slim makes the process small: to be called first in a process that will do nothing but Run.
func Slim() {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(25)
	debug.SetMemoryLimit(8 << 20)
}
