package keeper

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// held is what the keeper holds of the mount. It knows the descriptors by name only.
type held struct {
	names      []string // of fds, in that order
	fds        []int
	mountpoint string
	socket     string
	socketFile os.FileInfo // what was at socket when it was handed over; nil when nothing was
	mount      mountID     // of what was at mountpoint when it was handed over
	args       []string    // resolved command line; nil until a worker was ready
}

// maxHeld is how many descriptors are held at most; with log, a start message carries that many.
const maxHeld = maxFiles - 1

// has says that there is a mount.
func (h *held) has() bool { return slices.Contains(h.names, nameDevice) }

// fd is the descriptor of that name, -1 when there is none.
func (h *held) fd(name string) int {
	if i := slices.Index(h.names, name); i >= 0 {
		return h.fds[i]
	}
	return -1
}

// stored says that systemd has what is fd under that name already. To store it again would be to
// remove it first, and a keeper that is killed in between leaves the mount to nobody.
func (h *held) stored(name string, fd int) bool {
	old := h.fd(name)
	if old < 0 {
		return false
	}
	var a, b unix.Stat_t
	if unix.Fstat(old, &a) != nil || unix.Fstat(fd, &b) != nil {
		return false
	}
	return a.Dev == b.Dev && a.Ino == b.Ino
}

// put takes a descriptor over, in place of the one of that name.
func (h *held) put(name string, fd int) error {
	if i := slices.Index(h.names, name); i >= 0 {
		_ = unix.Close(h.fds[i])
		h.fds[i] = fd
		return nil
	}
	if len(h.names) >= maxHeld {
		_ = unix.Close(fd)
		return fmt.Errorf("a keeper holds %d descriptors at most, not %q too", maxHeld, name)
	}
	h.names = append(h.names, name)
	h.fds = append(h.fds, fd)
	return nil
}

// drop closes everything.
func (h *held) drop() {
	closeAll(h.fds)
	*h = held{}
}
