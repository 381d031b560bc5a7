package meta

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// lockFile takes the index for this process. The file holds the owner's pid for people, and
// a tally of starts that ended badly; neither is part of the lock.
type lockFile struct {
	f *os.File
}

// lockDir locks path, or says who has it.
func lockDir(path, dir string) (*lockFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("index %s: cannot be locked: %w", dir, err)
		}
		pid := (&lockFile{f}).read().pid
		if pid == 0 {
			return nil, usedError(fmt.Sprintf("index %s is used by another mount", dir))
		}
		return nil, usedError(fmt.Sprintf("index %s is used by another mount (pid %d)", dir, pid))
	}
	return &lockFile{f}, nil
}

// usedError is ErrInUse with who uses it.
type usedError string

func (e usedError) Error() string        { return string(e) }
func (e usedError) Is(target error) bool { return target == ErrInUse }

// The file is three numbers and the boot id, of fixed width, so that rewriting it needs no
// space.
const lockFormat = "%-10d %-10d %-10d %-36.36s\n"

// lastOwner is what the file says of the process that had the index before.
type lastOwner struct {
	pid     int
	opening int    // starts in a row that died while opening the index
	early   int    // starts in a row that died within the first minute after it
	boot    string // boot id, "" when not known
}

func (l *lockFile) read() (o lastOwner) {
	b := make([]byte, 128)
	n, _ := l.f.ReadAt(b, 0)
	if fields := bytes.Fields(b[:n]); len(fields) >= 3 {
		o.pid, _ = strconv.Atoi(string(fields[0]))
		o.opening, _ = strconv.Atoi(string(fields[1]))
		o.early, _ = strconv.Atoi(string(fields[2]))
		if len(fields) > 3 {
			o.boot = string(fields[3])
		}
	}
	return o
}

// write records this process and the tally. It matters little whether it works.
func (l *lockFile) write(opening, early int) {
	_, _ = l.f.WriteAt(fmt.Appendf(nil, lockFormat, os.Getpid(), opening, early, bootID()), 0)
}

// tally records only how starts ended.
func (l *lockFile) tally(opening, early int) {
	boot := l.read().boot
	_, _ = l.f.WriteAt(fmt.Appendf(nil, lockFormat, os.Getpid(), opening, early, boot), 0)
}

// bootID names this run of the kernel; "" when it does not say.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

func (l *lockFile) unlock() error { return l.f.Close() }
