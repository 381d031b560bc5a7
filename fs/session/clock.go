package session

import "golang.org/x/sys/unix"

// monotonic is the clock that all processes of the machine share, in nanoseconds.
func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail
	return t.Nano()
}
