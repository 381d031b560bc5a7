package main

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs/fuse"
)

// Where systemd or autofs(8) mount on first use, whoever touches the mount point waits until the
// mount is there: all but the process group of the one that asked for the mount. So there the
// keeper and its workers stay in the group that "leatfs mount" was started in.

// onAutomount tells whether a mount point is one that waits for its mount.
func onAutomount(mountpoint string) bool {
	fstype, err := fuse.MountedAt(mountpoint)
	return err == nil && fstype == "autofs"
}

// inGroupOfMount tells a keeper in the background whether it was left in the process group of
// its "leatfs mount".
func inGroupOfMount() bool {
	sid, err := unix.Getsid(0)
	return err == nil && sid != os.Getpid()
}
