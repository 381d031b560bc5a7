package keeper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// endRelay ends the relay when nobody serves the mount, and it is out of sight. A relay that waits
// for the kernel then waits for a request that nobody answers, and with its descriptor keeps the
// connection, and this process, from ending: the connection is aborted.
func (k *keeper) endRelay() {
	r := k.relay
	k.relay = nil
	if r.close() {
		return
	}
	minor, err := k.held.mount.minor()
	if err == nil {
		err = abort(minor)
	}
	if err != nil {
		k.log.Error("the kernel waits for requests that nobody answers", "error", err,
			"hint", "write 1 to the abort file of the connection, in "+connections)
		return
	}
	k.log.Warn("the connection was aborted: the kernel waited for requests that nobody answers", "connection", minor)
	if !r.ended() {
		k.log.Error("the kernel still waits after the connection was aborted", "connection", minor)
	}
}

// connections is where the kernel has those of FUSE.
const connections = "/sys/fs/fuse/connections"

// minor is the number of the connection of a mount that is out of sight. It is not given for one
// that is to be seen somewhere: it may be another's by now.
func (id mountID) minor() (string, error) {
	_, dev, ok := strings.Cut(string(id), " ")
	_, minor, ok2 := strings.Cut(dev, ":")
	if !ok || !ok2 {
		return "", errors.New("the number of the connection is not known")
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && f[2] == dev {
			return "", fmt.Errorf("connection %s is of %s", minor, unescape(f[4]))
		}
	}
	return minor, nil
}

// abort aborts a connection.
func abort(minor string) error {
	name := minor + "/abort"
	err := os.WriteFile(filepath.Join(connections, name), []byte("1"), 0)
	if err == nil {
		return nil
	}
	// Containers often lack that file system: it need not be mounted anywhere to be used.
	dir, ferr := fusectl()
	if ferr != nil {
		return errors.Join(err, ferr)
	}
	defer func() { _ = unix.Close(dir) }()
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open "+name, err)
	}
	defer func() { _ = unix.Close(fd) }()
	_, err = unix.Write(fd, []byte("1"))
	return os.NewSyscallError("write "+name, err)
}

// fusectl is the root of the file system of connections.
func fusectl() (dir int, err error) {
	fs, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("fsopen fusectl", err)
	}
	defer func() { _ = unix.Close(fs) }()
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, os.NewSyscallError("fsconfig fusectl", err)
	}
	dir, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	return dir, os.NewSyscallError("fsmount fusectl", err)
}
