package keeper

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reapOrphans takes the status of dead children that are no workers: as process 1 of a container
// the keeper inherits them.
func (k *keeper) reapOrphans() {
	if os.Getpid() != 1 {
		return
	}
	for {
		var info unix.Siginfo
		if unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil) != nil || info.Signo == 0 {
			return
		}
		pid := siginfoPid(&info)
		if pid <= 0 || k.cur != nil && pid == k.cur.pid() || k.next != nil && pid == k.next.pid() {
			return // a worker's waiter takes it
		}
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &ws, syscall.WNOHANG, nil); err != nil {
			return
		}
	}
}

// siginfoPid is the pid of a SIGCHLD's siginfo.
func siginfoPid(info *unix.Siginfo) int {
	// si_pid follows three ints and what aligns the union: at byte 16 on 64 bits.
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), 16)))
}
