package load

import (
	"fmt"
	"runtime/debug"
)

// catchFault turns the SIGBUS of a page that could not be read into an error.
func catchFault(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("SIGBUS: %v", p)
	}
}

// faultsPanic makes a page that cannot be read a panic of this goroutine.
func faultsPanic() { debug.SetPanicOnFault(true) }
