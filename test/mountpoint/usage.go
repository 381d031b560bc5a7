package mountpoint

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Usage is what all processes of a mount use, now or (CPU) since they started.
type Usage struct {
	CPU time.Duration // user and system, with children that ended
	// Memory is RssAnon + RssShmem, in bytes: what the memory budget caps.
	Memory int64
	// Files is RssFile, in bytes: mapped files, not counted in the budget.
	Files int64
}

// tick is the unit of the times in /proc/PID/stat: USER_HZ, which is 100 on all of Linux.
const tick = 10 * time.Millisecond

// Usage reads /proc. A process that ends meanwhile is left out.
func (m *Mount) Usage() (u Usage, err error) {
	pids := m.pids()
	if len(pids) == 0 {
		return u, fmt.Errorf("mountpoint: no process serves %s", m.Dir)
	}
	for _, pid := range pids {
		p, err := ProcessUsage(pid)
		if err != nil {
			continue
		}
		u.CPU += p.CPU
		u.Memory += p.Memory
		u.Files += p.Files
	}
	return u, nil
}

// ProcessUsage reads /proc of one process.
func ProcessUsage(pid int) (u Usage, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, err
	}
	// The name, in brackets, may hold spaces and brackets: the rest begins after the last.
	_, rest, ok := bytes.Cut(stat[max(0, bytes.LastIndexByte(stat, ')')):], []byte(" "))
	fields := strings.Fields(string(rest))
	if !ok || len(fields) < 15 {
		return u, fmt.Errorf("mountpoint: /proc/%d/stat is not understood: %q", pid, stat)
	}
	for _, f := range fields[11:15] { // utime stime cutime cstime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return u, fmt.Errorf("mountpoint: /proc/%d/stat: %w", pid, err)
		}
		u.CPU += time.Duration(n) * tick
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "RssAnon", "RssShmem":
			u.Memory += kb << 10
		case "RssFile":
			u.Files += kb << 10
		}
	}
	return u, nil
}

// pids finds the processes that run the binary for this mount point.
func (m *Mount) pids() (pids []int) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	for _, d := range dirs {
		exe, err := os.Readlink(d + "/exe")
		if err != nil || strings.TrimSuffix(exe, " (deleted)") != m.bin {
			continue
		}
		args, err := os.ReadFile(d + "/cmdline")
		if err != nil || !bytes.Contains(args, []byte("\x00"+m.Dir+"\x00")) || bytes.Contains(args, []byte("\x00status\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(d)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
