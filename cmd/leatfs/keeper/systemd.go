package keeper

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// fdPrefix is put before a descriptor's name in systemd's store.
const fdPrefix = "leatfs-"

// notifier speaks to systemd as sd_notify(3) does. A nil one says nothing.
type notifier struct {
	fd   int
	addr unix.Sockaddr
}

// newNotifier connects to NOTIFY_SOCKET; nil when this process is no service.
func newNotifier() (*notifier, error) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil, nil
	}
	if path[0] != '/' && path[0] != '@' {
		return nil, fmt.Errorf("NOTIFY_SOCKET=%s is no address that is known", path)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("a socket for systemd: %w", err)
	}
	// A manager that does not read must not stop the keeper.
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 1})
	return &notifier{fd: fd, addr: &unix.SockaddrUnix{Name: path}}, nil
}

// send sends lines, with descriptors.
func (n *notifier) send(fds []int, lines ...string) error {
	if n == nil {
		return nil
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		err := unix.Sendmsg(n.fd, []byte(strings.Join(lines, "\n")), oob, n.addr, unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			if err != nil {
				return fmt.Errorf("tell systemd %q: %w", lines[0], err)
			}
			return nil
		}
	}
}

// store puts a descriptor in systemd's store in place of the one of that name.
func (n *notifier) store(name string, fd int) error {
	if err := n.remove(name); err != nil {
		return err
	}
	return n.send([]int{fd}, "FDSTORE=1", "FDNAME="+fdPrefix+name)
}

// remove takes the descriptors of that name out of systemd's store.
func (n *notifier) remove(name string) error {
	return n.send(nil, "FDSTOREREMOVE=1", "FDNAME="+fdPrefix+name)
}

func (n *notifier) close() {
	if n != nil {
		_ = unix.Close(n.fd)
	}
}

// watchdogInterval is how often systemd wants to hear of this process: half of WATCHDOG_USEC;
// 0 for not at all.
func watchdogInterval() time.Duration {
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || usec <= 1 || usec > int64(365*24*time.Hour/time.Microsecond) {
		return 0
	}
	return time.Duration(usec) * time.Microsecond / 2
}

// storedFiles are the descriptors that systemd kept over the death of an earlier keeper, by name.
// Those that are no keeper's are closed. Without a device the others are of no use: none then.
func storedFiles() map[string]int {
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil
	}
	n, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if err != nil || n < 1 || n > 1000 {
		return nil
	}
	files := map[string]int{}
	names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	for i := range n {
		fd := 3 + i
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			continue
		}
		name, ok := "", false
		if i < len(names) {
			name, ok = strings.CutPrefix(names[i], fdPrefix)
		}
		if !ok || name == "" {
			_ = unix.Close(fd)
			continue
		}
		if old, dup := files[name]; dup {
			_ = unix.Close(old)
		}
		files[name] = fd
	}
	if _, ok := files[nameDevice]; !ok {
		for _, fd := range files {
			_ = unix.Close(fd)
		}
		return nil
	}
	return files
}

// keeperEnv are the variables that are meant for the keeper alone.
var keeperEnv = [...]string{
	"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES",
	"LISTEN_PIDFDID", "MAINPID", linkEnv,
}

// WorkerEnv is an environment without what a service manager has put there for one process alone:
// a service of its own has these from nobody else.
func WorkerEnv(env []string) []string {
	var out []string
next:
	for _, v := range env {
		for _, name := range keeperEnv {
			if len(v) > len(name) && v[len(name)] == '=' && v[:len(name)] == name {
				continue next
			}
		}
		out = append(out, v)
	}
	return out
}

// monotonicUsec is the time that RELOADING=1 must carry.
func monotonicUsec() string {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return fmt.Sprintf("MONOTONIC_USEC=%d", ts.Nano()/1000)
}
