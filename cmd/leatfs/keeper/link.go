package keeper

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// linkEnv tells a worker on which descriptor its keeper speaks.
const linkEnv = "LEATFS_KEEPER_FD"

// How long a worker waits for a keeper that does not read, and for its first word.
const (
	linkSendWait  = 5 * time.Second
	linkStartWait = 30 * time.Second
)

// Start is what the keeper said when it started this worker. The files are nil in ModeMount
// and belong to the caller of Link.Start.
type Start struct {
	Mode Mode
	// Device is the connection to the kernel, Session the session file, Control the listening
	// control socket. Session and Control can be nil when the last worker handed none over.
	Device, Session, Control *os.File
	// Blame says that the worker before died of its own, or hung: a request that was being
	// executed may be why. It is false when that worker was killed from outside.
	Blame bool
	News
}

// Mount is what a worker hands over with Link.Mounted.
type Mount struct {
	// Device, Session and Control stay the caller's. What is nil is left as the keeper has it.
	Device, Session, Control *os.File
	// Mountpoint is the absolute path that the keeper unmounts when it must end without a worker.
	Mountpoint string
	// Socket is the absolute path of the control socket, which the keeper removes at the end;
	// empty when there is none.
	Socket string
	// Log is the absolute path of the log, empty when the log is standard error. It is opened for
	// appending and becomes the keeper's standard error, and so that of later workers; one that
	// cannot be opened is left out. It must not be on the mount.
	Log string
	// LogJSON asks the keeper to log in JSON.
	LogJSON bool
}

// Command is what the keeper wants of a worker.
type Command string

const (
	// Go comes to a standby: the old worker is gone, serve the mount. What Start and News return
	// is up to date by then.
	Go Command = "go"
	// Drain is to finish what is in flight within a bound, answer it, close everything, say
	// Drained and exit with status 0. The mount stays.
	Drain Command = "drain"
	// Stop is to unmount, say Ended and exit with status 0.
	Stop Command = "stop"
)

// Link is a worker's connection to its keeper. All methods may be called in parallel.
type Link struct {
	conn     *net.UnixConn
	commands chan Command  // closed by receive, its only sender, when the keeper is gone
	done     chan struct{} // closed by receive at its end
	asks     bool          // the keeper knows ask

	mu    sync.Mutex // guards start
	start Start

	sending sync.Mutex // held over a message and its deadline; not together with mu
}

// Started says that a keeper started this process, until Attach is called.
func Started() bool { return os.Getenv(linkEnv) != "" }

// Attach finds the keeper that started this process. It returns nil and no error when none
// did. To be called once, before other goroutines start processes: the variable that names the
// descriptor is unset here, and the descriptor made close-on-exec. The first word of the keeper
// is there already, so Attach does not wait in practice, and 30 s at most.
func Attach() (*Link, error) {
	value, ok := os.LookupEnv(linkEnv)
	if !ok {
		return nil, nil
	}
	if err := os.Unsetenv(linkEnv); err != nil {
		return nil, err
	}
	l, err := attach(value)
	if err != nil {
		return nil, fmt.Errorf("the keeper that %s=%s promises: %w; start leatfs by \"leatfs mount\"", linkEnv, value, err)
	}
	return l, nil
}

func attach(value string) (*Link, error) {
	fd, err := strconv.Atoi(value)
	if err != nil || fd < 3 {
		return nil, errors.New("not the number of a descriptor")
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return nil, err
	}
	if typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil {
		return nil, err
	} else if typ != unix.SOCK_SEQPACKET {
		return nil, errors.New("not a socket of a keeper")
	}
	conn, err := fileConn(os.NewFile(uintptr(fd), "keeper"))
	if err != nil {
		return nil, err
	}
	l, err := newLink(conn)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return l, nil
}

// newLink reads the first message and starts the goroutine that reads the rest.
func newLink(conn *net.UnixConn) (*Link, error) {
	in := newReceiver(conn)
	if err := conn.SetReadDeadline(time.Now().Add(linkStartWait)); err != nil {
		return nil, err
	}
	p, err := in.next()
	if err != nil {
		return nil, err
	}
	defer p.close()
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	if p.Kind != kindStart {
		return nil, fmt.Errorf("the first message is %q, not %q", p.Kind, kindStart)
	}
	if p.Protocol != protocol {
		return nil, fmt.Errorf("it speaks version %d of the protocol, this program %d: unmount and mount again",
			p.Protocol, protocol)
	}
	l := &Link{
		conn: conn,
		// Each command comes once at most, so receive never waits for a reader.
		commands: make(chan Command, 3),
		done:     make(chan struct{}),
		asks:     p.Asks,
		start: Start{
			Mode:    p.Mode,
			Device:  asFile(p.take(nameDevice), nameDevice),
			Session: asFile(p.take(nameSession), nameSession),
			Control: asFile(p.take(nameControl), nameControl),
			Blame:   p.Blame,
		},
	}
	if p.News != nil {
		l.start.News = *p.News
	}
	go l.receive(in)
	return l, nil
}

// receive reads what the keeper says until it is gone or the link is closed.
func (l *Link) receive(in *receiver) {
	defer close(l.done)
	defer close(l.commands)
	said := map[kind]bool{}
	for {
		p, err := in.next()
		if errors.Is(err, errGarbage) || errors.Is(err, errTooBig) {
			continue // a newer keeper's
		}
		if err != nil {
			return
		}
		p.close() // no message but the first has descriptors
		l.mu.Lock()
		if p.News != nil {
			l.start.News = *p.News
		}
		if p.Kind == kindGo {
			l.start.Blame = p.Blame
		}
		l.mu.Unlock()
		switch p.Kind {
		case kindGo, kindDrain, kindStop:
			if !said[p.Kind] {
				said[p.Kind] = true
				l.commands <- Command(p.Kind)
			}
		}
	}
}

// Start returns what the keeper said at the start. For a standby, Blame and News are those of
// the command Go once that has come.
func (l *Link) Start() Start {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.start
}

// News returns the latest news.
func (l *Link) News() News {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.start.News
}

// Commands returns the channel of commands: each comes once at most. It is closed when the
// keeper is gone; then nobody restarts this worker any more, and it should go on serving.
func (l *Link) Commands() <-chan Command { return l.commands }

// Mounted hands the mount to the keeper. To be called before the first request is answered: from
// then on the keeper starts another worker when this one dies. A worker that takes over calls it
// too, with what has changed, and always with the strings.
func (l *Link) Mounted(m Mount) error {
	msg := message{Kind: kindMounted, Mountpoint: m.Mountpoint, Socket: m.Socket, LogJSON: m.LogJSON}
	var files []*os.File
	add := func(name string, f *os.File) {
		if f != nil {
			msg.Names = append(msg.Names, name)
			files = append(files, f)
		}
	}
	add(nameDevice, m.Device)
	add(nameSession, m.Session)
	add(nameControl, m.Control)
	if m.Log != "" {
		// Opened here: a keeper that opened a file of a mount nobody serves would hang.
		if rel, err := filepath.Rel(m.Mountpoint, m.Log); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			return fmt.Errorf("the log %s is on the mount %s itself: put it elsewhere", m.Log, m.Mountpoint)
		}
		// A log that cannot be opened costs no mount: the keeper stays with the one that it has.
		if f, err := os.OpenFile(m.Log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600); err == nil {
			defer func() { _ = f.Close() }()
			add(nameLog, f)
		}
	}
	return l.sendFiles(msg, files)
}

// Log makes f, which stays the caller's, the keeper's standard error and that of later workers, as
// Mount.Log does: for a log that was turned over.
func (l *Link) Log(f *os.File) error {
	return l.sendFiles(message{Kind: kindLog, Names: []string{nameLog}}, []*os.File{f})
}

// Ready says that the mount answers. args is the resolved command line after the program's name,
// "mount" and so on: a worker that must replace this one after a crash is started with it, and
// does not read the configuration again.
func (l *Link) Ready(args []string) error {
	return l.send(message{Kind: kindReady, Args: args})
}

// Failed says that the start did not work, and why; usage that the command line or the
// configuration is wrong. The worker then exits.
func (l *Link) Failed(err error, usage bool) {
	_ = l.send(message{Kind: kindFailed, Text: oneLine(err.Error()), Usage: usage})
}

// Prepared says that a standby is ready for Go.
func (l *Link) Prepared() error { return l.send(message{Kind: kindPrepared}) }

// Drained says that this worker is done with device and index, by the command Drain. It exits
// after it.
func (l *Link) Drained() { _ = l.send(message{Kind: kindDrained}) }

// Ended says that the mount is gone: by the command Stop, because somebody unmounted it, or, in
// ModeTakeover, because the connection was dead. The worker exits after it.
func (l *Link) Ended() { _ = l.send(message{Kind: kindEnded}) }

// AskStop asks the keeper to end the mount, as its SIGTERM does; asking again, or when it has been
// told already, changes nothing. The command Stop follows. It fails when the keeper is gone, and with
// errors.ErrUnsupported when it is of a version that cannot be asked.
func (l *Link) AskStop() error {
	if !l.asks {
		return fmt.Errorf("ask the keeper to stop: %w", errors.ErrUnsupported)
	}
	return l.send(message{Kind: kindAsk})
}

// StatusText is shown by "systemctl status"; one line.
func (l *Link) StatusText(text string) { _ = l.send(message{Kind: kindStatus, Text: oneLine(text)}) }

// Tell has the keeper write b to the device, after what was told before. Where that waits for
// the kernel, this worker does not: see relay.
func (l *Link) Tell(b []byte) error { return l.send(message{Kind: kindTell, Data: b}) }

// Beat says that this worker is well. To be called once a second, by something that stops when
// the worker is not: a keeper that hears nothing for 10 s replaces the worker. It counts from the
// start in ModeTakeover and ModeRefuse, from Go in ModeStandby, and from Ready in ModeMount. A
// keeper that does not read is not waited for.
func (l *Link) Beat() {
	if !l.sending.TryLock() {
		return // what is being said is a sign of life too
	}
	defer l.sending.Unlock()
	_ = send(l.conn, message{Kind: kindBeat}, nil, false)
}

// Close closes the link and waits for the goroutine that reads it, so Commands is closed too. A
// keeper replaces a worker that lives on without its link: only for the end of the process.
func (l *Link) Close() error {
	err := l.conn.Close()
	<-l.done
	return err
}

func (l *Link) send(m message) error { return l.sendFiles(m, nil) }

// sendFiles sends m, and waits for a keeper that does not read for linkSendWait.
func (l *Link) sendFiles(m message, files []*os.File) error {
	fds := make([]int, len(files))
	for i, f := range files {
		var err error
		if fds[i], err = dup(f); err != nil {
			closeAll(fds[:i])
			return fmt.Errorf("hand %s to the keeper: %w", m.Names[i], err)
		}
	}
	defer closeAll(fds)
	l.sending.Lock()
	defer l.sending.Unlock()
	if err := l.conn.SetWriteDeadline(time.Now().Add(linkSendWait)); err != nil {
		return fmt.Errorf("tell the keeper: %w", err)
	}
	err := send(l.conn, m, fds, true)
	// A deadline that has passed would end every later write at once.
	if err = errors.Join(err, l.conn.SetWriteDeadline(time.Time{})); err != nil {
		return fmt.Errorf("tell the keeper: %w", err)
	}
	return nil
}

// dup duplicates the descriptor of a file, which File.Fd could make blocking.
func dup(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	cerr := raw.Control(func(n uintptr) { fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 3) })
	if cerr != nil {
		return -1, cerr
	}
	return fd, err
}

// asFile makes a file of a descriptor; nil of -1.
func asFile(fd int, name string) *os.File {
	if fd < 0 {
		return nil
	}
	return os.NewFile(uintptr(fd), name)
}

// oneLine is a text in one line of at most 1,000 bytes.
func oneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' || r == 0 }), "; ")
	if len(s) > 1000 {
		s = strings.ToValidUTF8(s[:997], "") + "…"
	}
	return s
}
