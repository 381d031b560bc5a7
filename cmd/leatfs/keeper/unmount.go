package keeper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// mountID is the field of /proc/self/mountinfo that tells a mount from the next one at the same
// place: its number and that of its device. Empty when it is not known.
type mountID string

// mountedAt is the topmost mount at a path, without touching it; empty when nothing is mounted
// there.
func mountedAt(mountpoint string) (mountID, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("what is mounted at %s: %w", mountpoint, err)
	}
	return findMount(string(b), mountpoint), nil
}

// findMount finds the last FUSE mount at a path in the text of mountinfo; empty when what is
// there last is no FUSE mount.
func findMount(text, mountpoint string) mountID {
	id := mountID("")
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 9 || unescape(f[4]) != mountpoint {
			continue
		}
		id = ""
		for i := 6; i+1 < len(f); i++ {
			if f[i] == "-" {
				if strings.HasPrefix(f[i+1], "fuse") {
					id = mountID(f[0] + " " + f[2])
				}
				break
			}
		}
	}
	return id
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// unmountWait bounds fusermount3.
const unmountWait = 10 * time.Second

// unmount takes the mount away when no worker can: lazily, so that it works for a busy one too.
// A mount at the place that is not the one that was handed over is left alone.
func (h *held) unmount() error {
	if h.mountpoint == "" {
		return errors.New("no worker said where the mount is; find it with \"mount -t fuse.leatfs\" and \"umount -l\" it")
	}
	now, err := mountedAt(h.mountpoint)
	if err != nil {
		return err
	}
	if now == "" || h.mount != "" && now != h.mount {
		return nil // gone already
	}
	err = unix.Unmount(h.mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EPERM) {
		ctx, cancel := context.WithTimeout(context.Background(), unmountWait)
		defer cancel()
		cmd := exec.CommandContext(ctx, "fusermount3", "-u", "-z", "--", h.mountpoint)
		cmd.Dir = "/"
		var out []byte
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("fusermount3: %w: %s", err, oneLine(string(out)))
		}
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w; try \"umount -l %s\"", h.mountpoint, err, h.mountpoint)
	}
	return nil
}

// removeSocket removes the control socket's name, which its worker leaves when it cannot.
func (h *held) removeSocket() error {
	if h.socketFile == nil {
		return nil
	}
	// After a lazy unmount another mount may be at the same place by now, and its socket here.
	st, err := os.Lstat(h.socket)
	if err == nil && os.SameFile(st, h.socketFile) {
		err = os.Remove(h.socket)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the control socket: %w", err)
	}
	return nil
}
