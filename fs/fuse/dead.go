package fuse

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// UnmountOwn is Unmount of the mount with the device number dev, as in MountInfo.Dev and
// session.Info.Dev. It does nothing when that is not the topmost one at mountpoint: then it is out
// of sight already, and what is there is somebody else's. An empty dev (a session of an older
// version) means whatever is there.
func UnmountOwn(mountpoint, dev string, lazy bool) error {
	if dev != "" {
		top, err := topAt(mountpoint)
		if err != nil {
			return fmt.Errorf("unmount %s: %w", mountpoint, err)
		}
		if top.Type != fsType || top.Dev != dev {
			return nil
		}
	}
	return Unmount(mountpoint, lazy)
}

// ErrSilent: a mount does not answer. Its daemon may hang, be about to be replaced, or be gone.
var ErrSilent = errors.New("the mount does not answer")

// probeWait is how long a mount that works may take to answer a statfs.
const probeWait = 2 * time.Second

// Dead tells whether a leatfs is mounted at a path whose connection nobody holds any more, or was
// aborted. It returns ErrSilent when the mount has not answered within 2 s, and touches no mount
// that is not one of leatfs.
func Dead(mountpoint string) (bool, error) { return DeadWithin(mountpoint, probeWait) }

// DeadWithin is Dead with another bound.
func DeadWithin(mountpoint string, wait time.Duration) (bool, error) {
	top, err := topAt(mountpoint)
	if err != nil || top.Type != fsType {
		return false, err
	}
	err = probe(mountpoint, wait)
	switch {
	case gone(err):
		return true, nil
	case errors.Is(err, ErrSilent):
		return false, fmt.Errorf("mount point %s: %w within %v", mountpoint, err, wait)
	}
	return false, nil // what else is wrong with it, who uses it hears
}

// OwnDead tells whether the mount with the device number dev is still at mountpoint, and dead. An
// empty dev means whatever leatfs is there.
func OwnDead(mountpoint, dev string) bool {
	if dev != "" && deviceAt(mountpoint) != dev {
		return false
	}
	dead, err := Dead(mountpoint)
	return err == nil && dead
}

func gone(err error) bool { return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED) }

// probe asks a mount by statfs, since a stat of a dead mount's root may still be answered by the
// kernel, from its cache. When nobody answers, a thread waits on, until somebody does, the mount is
// aborted, or the process ends: nothing else ends such a call.
func probe(mountpoint string, wait time.Duration) error {
	answer := make(chan error, 1)
	go func() { answer <- unix.Statfs(mountpoint, new(unix.Statfs_t)) }()
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case err := <-answer:
		return err
	case <-t.C:
		return ErrSilent
	}
}

// Abort ends the connection of the leatfs at a path, whoever holds it, and takes the mount out of
// sight. Who uses it gets ENOTCONN. A mount of another user is left alone. The error says what an
// operator can do.
func Abort(mountpoint string) error {
	top, err := topAt(mountpoint)
	if err != nil {
		return err
	}
	if top.Type != fsType {
		return fmt.Errorf("%s: no leatfs is mounted there", mountpoint)
	}
	_, minor, _ := strings.Cut(top.Dev, ":")
	file := "/sys/fs/fuse/connections/" + minor + "/abort"
	hint := fmt.Sprintf("end it with \"echo 1 > %s\" and unmount it with \"umount -l %s\"", file, mountpoint)
	if !slices.Contains(strings.Split(top.Options, ","), fmt.Sprintf("user_id=%d", os.Geteuid())) {
		return fmt.Errorf("it is another user's; %s", hint)
	}
	if os.Geteuid() == 0 {
		err = unix.Unmount(mountpoint, unix.MNT_FORCE|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	} else if err = os.WriteFile(file, []byte("1"), 0); err == nil {
		err = Unmount(mountpoint, true)
	}
	if err != nil {
		return fmt.Errorf("%w; %s", err, hint)
	}
	return nil
}
