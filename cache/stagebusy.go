package cache

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// StageBusy tells whether anybody on the machine has a staging file open for writing or mapped
// so, and whether anybody has it open or mapped at all; FileBusy of a descriptor of its own. A
// descriptor that the caller, or the kernel for it, keeps open on the file is such a user, and
// one that is open for writing a writer: use FileBusy on it, or close it first.
func (c *Cache) StageBusy(id ID) (writers, users bool, err error) {
	f, err := c.OpenStage(id, unix.O_RDONLY)
	if err != nil {
		return false, false, err
	}
	defer f.Close()
	return FileBusy(f)
}

// FileBusy tells whether anybody has the file of f open for writing, or mapped shared and
// writable, and whether anybody uses it in any way, other than by f itself. f must be open for
// reading only: with one that is open for writing the answer would always be yes, so that is an
// error.
//
// It takes a lease of the file, which the kernel refuses if there are such users, and drops it at
// once. Who opens the file just then waits for that moment, or, with O_NONBLOCK, gets
// EWOULDBLOCK: the caller keeps opens away meanwhile. The answer is of the moment of asking.
func FileBusy(f *os.File) (writers, users bool, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return false, false, err
	}
	cerr := raw.Control(func(fd uintptr) {
		var flags int
		if flags, err = unix.FcntlInt(fd, unix.F_GETFL, 0); err != nil {
			return
		}
		if flags&unix.O_ACCMODE != unix.O_RDONLY {
			err = unix.EBADF
			return
		}
		if writers, err = refused(fd, unix.F_RDLCK); err == nil {
			users, err = refused(fd, unix.F_WRLCK)
		}
	})
	if err = errors.Join(err, cerr); err != nil {
		return false, false, fmt.Errorf("%s: who uses the file cannot be found out: %w", f.Name(), err)
	}
	return writers, users || writers, nil
}

// refused tells whether the kernel refuses a lease of a file because of who uses it.
func refused(fd uintptr, kind int) (bool, error) {
	_, err := unix.FcntlInt(fd, unix.F_SETLEASE, kind)
	if errors.Is(err, unix.EAGAIN) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	_, err = unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_UNLCK)
	return false, err
}
