package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// protocol is the version of the messages. A keeper lives on while its workers are upgraded,
// so either side may be older: a side leaves unknown types and fields alone, and the number
// grows only when that is not enough. Then the newer side refuses in one line.
const protocol = 1

// Limits of a message.
const (
	maxMessage = 128 << 10 // bytes of JSON
	maxFiles   = 8         // descriptors
	maxName    = 32        // bytes of a descriptor's name
)

// kind is the type of a message.
type kind string

// From the keeper: the first message to each worker, then commands and news.
const (
	kindStart kind = "start"
	kindNews  kind = "news"
	kindGo    kind = "go"
	kindDrain kind = "drain"
	kindStop  kind = "stop"
)

// From the worker.
const (
	kindMounted  kind = "mounted"
	kindReady    kind = "ready"
	kindFailed   kind = "failed"
	kindPrepared kind = "prepared"
	kindDrained  kind = "drained"
	kindEnded    kind = "ended"
	kindStatus   kind = "status"
	kindBeat     kind = "beat"
	kindTell     kind = "tell"
	kindAsk      kind = "ask"
	kindLog      kind = "log"
)

// message is one packet on the socket between keeper and worker. Which fields count depends
// on Kind.
type message struct {
	Kind     kind
	Protocol int      `json:",omitempty"` // start
	Mode     Mode     `json:",omitempty"` // start
	Blame    bool     `json:",omitempty"` // start, go
	News     *News    `json:",omitempty"` // start, news
	Asks     bool     `json:",omitempty"` // start: the keeper knows ask
	Args     []string `json:",omitempty"` // ready
	Text     string   `json:",omitempty"` // failed, status: one line
	Usage    bool     `json:",omitempty"` // failed
	Data     []byte   `json:",omitempty"` // tell: for the device

	Mountpoint, Socket string `json:",omitempty"` // mounted
	LogJSON            bool   `json:",omitempty"` // mounted

	// Names are those of the descriptors that come with the message, in their order.
	Names []string `json:",omitempty"`
}

// The names of descriptors. The keeper holds what it is given under any name, so that a later
// worker can leave it more; log is not held but becomes the keeper's standard error.
const (
	nameDevice  = "device"
	nameSession = "session"
	nameControl = "control"
	nameLog     = "log"
)

// Mode is what a worker is started for.
type Mode string

const (
	// ModeMount is the first start: do everything and mount.
	ModeMount Mode = "mount"
	// ModeTakeover is to serve the existing mount with the files of Start.
	ModeTakeover Mode = "takeover"
	// ModeStandby is the start of a hot upgrade: check the configuration, the credentials, and that
	// the formats of session and index can be understood, without touching index and device;
	// then Prepared, wait for the command Go, and go on as ModeTakeover.
	ModeStandby Mode = "standby"
	// ModeRefuse is to answer EIO to everything until told to stop, because real workers keep dying.
	ModeRefuse Mode = "refuse"
)

// News is what the keeper knows of the mount's past.
type News struct {
	KeeperPID   int       // process id of the keeper
	Since       time.Time // when the keeper started
	Restarts    int       // workers started because one had died
	LastDeath   string    // how the last worker died, one line; empty when none did
	LastDeathAt time.Time
	Upgrades    int // upgrades that worked
	LastUpgrade time.Time
	// UpgradesAsked is how many upgrades were asked for, and UpgradeTries how many of those have
	// ended, those that did not work too. Several that were asked for while one went on are one.
	UpgradesAsked, UpgradeTries int

	UpgradeError string // why the last upgrade did not work, one line; empty when it did
}

// errTooBig is a packet that is longer, or has more descriptors, than any message.
var errTooBig = errors.New("the message is too big")

// errGarbage is a packet that is not a message.
var errGarbage = errors.New("not a message")

// packet is a message with its descriptors, which the receiver owns. They are numbers and not
// files because the runtime would poll a file: that would wake the keeper at every request of
// the mount.
type packet struct {
	message
	fds []int // -1 where taken
}

// close closes the descriptors that nobody took.
func (p *packet) close() {
	closeAll(p.fds)
	p.fds = nil
}

// take gives the descriptor of that name away; -1 when there is none.
func (p *packet) take(name string) int {
	for i, n := range p.Names {
		if n == name {
			fd := p.fds[i]
			p.fds[i] = -1
			return fd
		}
	}
	return -1
}

// closeAll closes descriptors, -1 excepted.
func closeAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// encode makes the bytes of a packet and its control message.
func encode(m message, fds []int) (data, oob []byte, err error) {
	data, err = json.Marshal(m)
	if err != nil {
		return nil, nil, err
	}
	if len(data) > maxMessage || len(fds) > maxFiles || len(fds) != len(m.Names) {
		return nil, nil, fmt.Errorf("message %q with %d bytes and %d descriptors: %w", m.Kind, len(data), len(fds), errTooBig)
	}
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	return data, oob, nil
}

// send sends m with the descriptors fds, which stay the caller's. When the other side does not
// read and the socket is full it waits until the conn's write deadline if wait is set, and
// fails with EAGAIN at once if not.
func send(conn *net.UnixConn, m message, fds []int, wait bool) error {
	data, oob, err := encode(m, fds)
	if err != nil {
		return err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Write(func(fd uintptr) bool {
		for {
			serr = unix.Sendmsg(int(fd), data, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if serr != unix.EINTR {
				return serr != unix.EAGAIN || !wait
			}
		}
	})
	if err == nil {
		err = serr
	}
	if err != nil {
		return fmt.Errorf("send %q: %w", m.Kind, err)
	}
	return nil
}

// receiver reads packets from a conn; one goroutine at a time may use it.
type receiver struct {
	conn *net.UnixConn
	buf  []byte // grows with the packets, up to maxMessage+1
	oob  []byte
}

func newReceiver(conn *net.UnixConn) *receiver {
	return &receiver{conn: conn, oob: make([]byte, unix.CmsgSpace(4*maxFiles))}
}

// peek waits for a packet and makes the buffer long enough for it: most are short, and a keeper
// is small.
func (r *receiver) peek() error {
	raw, err := r.conn.SyscallConn()
	if err != nil {
		return err
	}
	var n int
	var rerr error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, _, rerr = unix.Recvfrom(int(fd), nil, unix.MSG_PEEK|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
			if rerr != unix.EINTR {
				return rerr != unix.EAGAIN
			}
		}
	})
	if err == nil {
		err = rerr
	}
	if n = min(n, maxMessage+1); n > len(r.buf) {
		r.buf = make([]byte, max(n, 1<<10))
	}
	return err
}

// next waits for a packet. The error is io.EOF when the other side has closed its end, wraps
// errTooBig or errGarbage when the packet was no message and the next may be one, and is
// another when the conn is of no more use.
func (r *receiver) next() (packet, error) {
	err := r.peek()
	if errors.Is(err, unix.ECONNRESET) {
		// The other side closed its end with packets unread, and that is said once, before what
		// it sent last.
		err = r.peek()
	}
	if err != nil {
		return packet{}, err
	}
	n, oobn, flags, _, err := r.conn.ReadMsgUnix(r.buf, r.oob)
	if errors.Is(err, unix.ECONNRESET) { // since the peek
		n, oobn, flags, _, err = r.conn.ReadMsgUnix(r.buf, r.oob)
	}
	if err != nil {
		return packet{}, err
	}
	var p packet
	p.fds, err = descriptors(r.oob[:oobn])
	switch {
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = errTooBig
	case err != nil:
		err = fmt.Errorf("%w: %w", errGarbage, err)
	default:
		if jerr := json.Unmarshal(r.buf[:n], &p.message); jerr != nil {
			err = fmt.Errorf("%w: %w", errGarbage, jerr)
		} else if cerr := p.check(); cerr != nil {
			err = fmt.Errorf("%w: %w", errGarbage, cerr)
		}
	}
	if err != nil {
		p.close()
		return packet{}, err
	}
	return p, nil
}

// check checks what a message must keep whatever its kind.
func (p *packet) check() error {
	if len(p.Names) != len(p.fds) {
		return fmt.Errorf("%d names for %d descriptors", len(p.Names), len(p.fds))
	}
	for i, name := range p.Names {
		if name == "" || len(name) > maxName {
			return fmt.Errorf("the name of descriptor %d has %d bytes", i, len(name))
		}
		for _, c := range []byte(name) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return fmt.Errorf("the name of descriptor %d is %q", i, name)
			}
		}
		for _, other := range p.Names[:i] {
			if other == name {
				return fmt.Errorf("two descriptors are named %q", name)
			}
		}
	}
	return nil
}

// descriptors takes the descriptors out of a control message. They are close-on-exec. Those it
// could take are returned with an error too.
func descriptors(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var all []int
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return all, err
		}
		all = append(all, fds...)
	}
	return all, nil
}

// fileConn makes a conn of one end of the socket pair, and closes f.
func fileConn(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("a %s socket, not a unix one", c.LocalAddr().Network())
	}
	return conn, nil
}
