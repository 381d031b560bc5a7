package keeper

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// oomCounter counts the processes that the kernel killed for want of memory: those of this
// process's cgroup, or of the machine where there is no such count. A SIGKILL that comes while it
// grows is the kernel's. It keeps its file open and allocates nothing to read it.
type oomCounter struct {
	fd   int // -1 when nothing can be read
	buf  [16 << 10]byte
	last [2]int64 // at the last two ticks: the count is ahead of the death that it counts
}

func newOOMCounter() *oomCounter {
	c := &oomCounter{fd: -1}
	for _, path := range []string{ownEvents(), "/proc/vmstat"} {
		if path == "" {
			continue
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		c.fd = fd
		if n, ok := c.read(); ok {
			c.last = [2]int64{n, n}
			return c
		}
		_ = unix.Close(fd)
		c.fd = -1
	}
	return c
}

// ownEvents is the path of memory.events of this process's cgroup; empty when there is none.
func ownEvents() string {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return filepath.Join("/sys/fs/cgroup", path, "memory.events")
		}
	}
	return ""
}

// tick remembers the count of now.
func (c *oomCounter) tick() {
	if n, ok := c.read(); ok {
		c.last = [2]int64{c.last[1], n}
	}
}

// grew says that the kernel has killed since the tick before the last.
func (c *oomCounter) grew() bool {
	n, ok := c.read()
	return ok && n > c.last[0]
}

func (c *oomCounter) close() {
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
	}
}

func (c *oomCounter) read() (int64, bool) {
	if c.fd < 0 {
		return 0, false
	}
	n, err := unix.Pread(c.fd, c.buf[:], 0)
	if err != nil {
		return 0, false
	}
	return parseOOM(c.buf[:n])
}

// parseOOM finds the line "oom_kill N".
func parseOOM(b []byte) (int64, bool) {
	key := []byte("oom_kill ")
	for len(b) > 0 {
		line := b
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			line, b = b[:i], b[i+1:]
		} else {
			b = nil
		}
		if bytes.HasPrefix(line, key) {
			n, err := strconv.ParseInt(string(line[len(key):]), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// protectFromOOM asks the kernel to kill this process last, and returns the score that it had,
// which is for the workers; empty when nothing was changed. Only a privileged process may.
func protectFromOOM() string {
	const path = "/proc/self/oom_score_adj"
	b, err := os.ReadFile(path)
	if err != nil || os.WriteFile(path, []byte("-1000"), 0) != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// setOOMScore sets the score of a worker.
func setOOMScore(pid int, score string) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(score), 0)
}
