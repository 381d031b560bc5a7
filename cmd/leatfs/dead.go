package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/leatfs/leatfs/fs/fuse"
)

// A mount whose keeper and worker were killed at the same time is dead: no process can serve it any
// more, since nobody has its connection. The next mount at the place takes it away.

// silentWait is how long a mount that nobody listens for may not answer before it is ended. It is
// longer than a keeper leaves a worker that hangs.
const silentWait = 12 * time.Second

// seemsDead tells whether the leatfs at a mount point, if there is one, is to be looked at by
// removeDead, when nobody else mounts.
func seemsDead(mountpoint string) bool {
	dead, err := fuse.Dead(mountpoint)
	return dead || errors.Is(err, fuse.ErrSilent) && !listens(socketPath(mountpoint))
}

// removeDead takes away a mount that is dead, and tells whether there was one. One that hangs is
// dead if no daemon listens for it: then a thread in the kernel has its connection, which would wait
// for ever. To be called under lockRunDir: one that is coming about does not listen yet.
func removeDead(mountpoint string) (removed bool, err error) {
	dead, err := fuse.Dead(mountpoint)
	if !errors.Is(err, fuse.ErrSilent) {
		if err != nil || !dead {
			return false, err
		}
		return true, fuse.Unmount(mountpoint, true)
	}
	if listens(socketPath(mountpoint)) {
		return false, nil // somebody goes on with it: it is busy
	}
	dead, err = fuse.DeadWithin(mountpoint, silentWait)
	switch {
	case dead:
		return true, fuse.Unmount(mountpoint, true)
	case err == nil: // it answers after all
		return false, nil
	case !errors.Is(err, fuse.ErrSilent):
		return false, err
	}
	if err := fuse.Abort(mountpoint); err != nil {
		return false, fmt.Errorf("mount point %s: a leatfs is mounted there that does not answer, and it cannot be removed: %w", mountpoint, err)
	}
	return true, nil
}

// listens tells whether anybody listens on a control socket.
func listens(socket string) bool {
	c, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist)
	}
	_ = c.Close()
	return true
}
