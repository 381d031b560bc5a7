package keeper

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// binary is a program held open, so that what is started from it is the same program whatever
// happens to its name.
type binary struct {
	fd   int
	name string // for people
}

// firstBinaryFD keeps the descriptors of binaries away from those that a child is given: these
// are put over whatever has their numbers, before the program is opened.
const firstBinaryFD = 200

// openBinary holds the program at a path.
func openBinary(path string) (*binary, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the program %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, firstBinaryFD)
	if err != nil {
		return nil, fmt.Errorf("hold the program %s: %w", path, err)
	}
	return &binary{fd: high, name: path}, nil
}

func (b *binary) path() string { return "/proc/self/fd/" + strconv.Itoa(b.fd) }

func (b *binary) close() {
	if b != nil {
		_ = unix.Close(b.fd)
	}
}

// phase is what the keeper expects of a worker.
type phase int

const (
	starting phase = iota // until Ready, or for a standby until Go and then Ready
	ready                 // it serves, or refuses
	draining              // it was told Drain
	stopping              // it was told Stop
	leaving               // it said Ended, Failed or Drained
	dying                 // it was sent SIGQUIT, SIGKILL comes
	killed                // it was sent SIGKILL
)

// worker is a process. mode, bin, proc, conn and since are set at the start; garbage is its
// reader's; the loop owns the rest.
type worker struct {
	mode  Mode
	bin   *binary
	proc  *os.Process
	conn  *net.UnixConn
	since time.Time // when it was started

	phase    phase
	readyAt  time.Time // zero until Ready
	silent   int       // ticks without a sign of life
	prepared bool      // a standby that waits for Go
	hung     string    // why the keeper kills it as one that hangs; empty when it does not
	ordered  bool      // the keeper wanted it gone: its death is nobody's fault
	told     bool      // to drain: its death is what was wanted
	drained  bool      // it said that it did
	ended    bool      // it said that the mount is gone
	failed   bool      // it said that its start did not work
	failure  string    // why
	usage    bool      // and whose fault that was
	deadline *alarm    // of the phase; nil for none

	garbage int // packets that were no messages
}

// pid is the worker's process id.
func (w *worker) pid() int { return w.proc.Pid }

// watched says that silence means that the worker hangs: not while it mounts, which may wait for
// the network, nor when another deadline holds.
func (w *worker) watched() bool {
	switch w.phase {
	case starting:
		return w.mode != ModeMount
	case ready, stopping:
		return !w.readyAt.IsZero()
	}
	return false
}

// spawn starts a worker from a binary. First the keeper's first word and the descriptors lie in
// the socket, then the process is started: it never waits for them, and nothing is left when the
// start does not work.
func (k *keeper) spawn(bin *binary, mode Mode, args []string, blame bool) (*worker, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("a socket for the worker: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "keeper")
	defer func() { _ = theirs.Close() }()
	conn, err := fileConn(os.NewFile(uintptr(pair[0]), "worker"))
	if err != nil {
		return nil, fmt.Errorf("a socket for the worker: %w", err)
	}
	news := k.news
	err = send(conn, message{
		Kind: kindStart, Protocol: protocol, Mode: mode, Blame: blame, News: &news, Asks: true, Names: k.held.names,
	}, k.held.fds, false)
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("speak to the worker: %w", err)
	}
	proc, err := os.StartProcess(bin.path(), append([]string{k.cfg.Exe}, args...), &os.ProcAttr{
		Dir:   "/",
		Env:   append(k.env[:len(k.env):len(k.env)], linkEnv+"=3"),
		Files: []*os.File{k.null, k.cfg.Stderr, k.cfg.Stderr, theirs},
		Sys:   &syscall.SysProcAttr{Setpgid: !k.cfg.OneGroup},
	})
	if err != nil {
		_ = conn.Close()
		var perr *os.PathError // its path is that of the descriptor
		if errors.As(err, &perr) {
			err = perr.Err
		}
		return nil, fmt.Errorf("start the program %s: %w", bin.name, err)
	}
	if k.oomScore != "" {
		if err := setOOMScore(proc.Pid, k.oomScore); err != nil && !errors.Is(err, os.ErrNotExist) {
			k.log.Warn("the worker keeps the keeper's protection from the OOM killer", "error", err)
		}
	}
	w := &worker{mode: mode, bin: bin, proc: proc, conn: conn, since: time.Now()}
	read := make(chan struct{})
	k.goroutines.Go(func() {
		defer close(read)
		k.read(w)
	})
	k.goroutines.Go(func() {
		state, err := proc.Wait()
		// What it said before it died must be known before its death is judged. A child of the
		// worker may hold the other end open: it says nothing more.
		_ = conn.SetReadDeadline(time.Now().Add(lastWords))
		<-read
		_ = conn.Close()
		k.post(func() { k.died(w, state, err) })
	})
	return w, nil
}

// lastWords bounds the reading of what a dead worker said.
const lastWords = 200 * time.Millisecond

// maxGarbage is how many packets of a worker may be no messages, before it is not heard any more.
const maxGarbage = 100

// read passes what a worker says to the loop, until the link is closed.
func (k *keeper) read(w *worker) {
	in := newReceiver(w.conn)
	for {
		p, err := in.next()
		switch {
		case err == nil:
			if !k.post(func() { k.heard(w, &p) }) {
				p.close()
				return
			}
		case errors.Is(err, errGarbage) || errors.Is(err, errTooBig):
			w.garbage++
			if w.garbage == 1 || w.garbage == maxGarbage {
				k.post(func() { k.log.Warn("the worker sent what is no message", "worker", w.pid(), "error", err) })
			}
			if w.garbage >= maxGarbage {
				k.post(func() { k.linkClosed(w) })
				return
			}
		default:
			k.post(func() { k.linkClosed(w) })
			return
		}
	}
}

// verdict is how a worker's death is judged.
type verdict struct {
	text    string // one line
	blame   bool   // it crashed of its own, or hung
	outside bool   // somebody else killed it
}

// judge looks at a death. oom says that the kernel killed for want of memory at about that time.
func judge(w *worker, ws syscall.WaitStatus, oom bool) verdict {
	switch {
	case w.hung != "":
		return verdict{text: "it hung and was killed: " + w.hung, blame: true}
	case w.failed:
		return verdict{text: "its start did not work: " + w.failure}
	case w.ended:
		return verdict{text: "the mount ended"}
	case w.ordered:
		return verdict{text: "it was told to end and had to be killed"}
	case w.drained, w.told && ws.Exited() && ws.ExitStatus() == 0:
		return verdict{text: "it drained"} // whatever happened to it after that
	case ws.Exited() && ws.ExitStatus() == 0:
		return verdict{text: "it exited without being told to"}
	case ws.Exited():
		return verdict{text: fmt.Sprintf("it exited with status %d", ws.ExitStatus()), blame: true}
	case !ws.Signaled():
		return verdict{text: fmt.Sprintf("it ended with wait status %#x", uint32(ws)), blame: true}
	}
	name := unix.SignalName(ws.Signal())
	if name == "" {
		name = fmt.Sprintf("signal %d", int(ws.Signal()))
	}
	switch ws.Signal() {
	case unix.SIGKILL:
		if oom {
			return verdict{text: "the kernel killed it for want of memory", blame: true}
		}
	case unix.SIGSEGV, unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP, unix.SIGSYS,
		unix.SIGQUIT, unix.SIGXCPU, unix.SIGXFSZ:
		return verdict{text: "it crashed with " + name, blame: true}
	}
	return verdict{text: "it was killed from outside with " + name, outside: true}
}

// state is the letter of a process's state in /proc, 'D' for uninterruptible wait; 0 if unknown.
func processState(pid int) byte {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	for i := len(b) - 3; i > 0; i-- { // after the last ')': the name may have some
		if b[i] == ')' {
			return b[i+2]
		}
	}
	return 0
}
