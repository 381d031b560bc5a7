package load

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Kill is a worker that was killed.
type Kill struct {
	At     time.Time
	PID    int
	Answer time.Duration // from the kill to the first request that was answered; 0 when not waited for
}

// Keeper returns the process that started a worker.
func Keeper(worker int) (pid int, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", worker))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if len(f) < 2 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", worker, b)
	}
	return strconv.Atoi(f[1])
}

// Workers returns the living children of a keeper, those that started last first.
func Workers(keeper int) (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for i := len(entries) - 1; i >= 0; i-- {
		pid, err := strconv.Atoi(entries[i].Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		if len(f) > 1 && f[0] != "Z" && f[0] != "X" && f[1] == strconv.Itoa(keeper) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// WaitWorker returns the worker of a keeper, as soon as there is one.
func WaitWorker(keeper int, bound time.Duration) (int, error) {
	deadline := time.Now().Add(bound)
	for {
		if w := Workers(keeper); len(w) > 0 {
			return w[0], nil
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("the keeper %d has no worker after %v", keeper, bound)
		}
		time.Sleep(time.Millisecond)
	}
}

// KillWorker kills the worker of a keeper, and with answered waits until the mount answers a
// request again that only a worker can answer.
func KillWorker(keeper int, mountpoint string, answered bool) (k Kill, err error) {
	if k.PID, err = WaitWorker(keeper, time.Minute); err != nil {
		return k, err
	}
	fd, err := unix.PidfdOpen(k.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return KillWorker(keeper, mountpoint, answered) // it died by itself, or was replaced
	}
	if err != nil {
		return k, os.NewSyscallError("pidfd_open", err)
	}
	defer func() { _ = unix.Close(fd) }()
	k.At = time.Now()
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return k, os.NewSyscallError("pidfd_send_signal", err)
	}
	// An answer of the dying one does not count.
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60_000)
		if n > 0 {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return k, fmt.Errorf("process %d does not die of SIGKILL", k.PID)
		}
	}
	if answered {
		var st unix.Statfs_t
		if err := unix.Statfs(mountpoint, &st); err != nil {
			return k, fmt.Errorf("statfs %s: %w", mountpoint, err)
		}
		k.Answer = time.Since(k.At)
	}
	return k, nil
}
