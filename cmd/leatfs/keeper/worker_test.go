package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// testDir tells a process of these tests where it finds its script and writes what it did.
const testDir = "KEEPER_TEST_DIR"

// TestMain is also the worker, and the keeper, of these tests: real processes.
func TestMain(m *testing.M) {
	if os.Getenv(linkEnv) != "" {
		os.Exit(actor())
	}
	if len(os.Args) > 1 && os.Args[1] == "test-keeper" {
		os.Exit(testKeeper())
	}
	os.Exit(m.Run())
}

// testKeeper is a keeper in a process of its own. Its configuration is the file "config".
func testKeeper() int {
	dir := os.Getenv(testDir)
	b, err := os.ReadFile(filepath.Join(dir, "config"))
	if err != nil {
		panic(err)
	}
	var cfg Config
	if err := json.Unmarshal(b, &cfg); err != nil {
		panic(err)
	}
	cfg.Report = func(err error, usage bool) { note(dir, "report %v %v", err, usage) }
	code, _ := Run(context.Background(), cfg)
	return code
}

// note adds a line to the log of what happened.
func note(dir, format string, args ...any) {
	f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err == nil {
		_, err = fmt.Fprintf(f, format+"\n", args...)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		panic(err)
	}
}

// player is a worker that plays a script: words that are done in order.
type player struct {
	dir    string
	n      int // the how many-eth worker this is, from 0
	link   *Link
	device *os.File
	pipe   []*os.File // kept open
}

// actor is the worker process. The N-th worker plays the N-th line of the file "script", and
// those beyond it the last line.
func actor() int {
	p := player{dir: os.Getenv(testDir)}
	for ; ; p.n++ {
		f, err := os.OpenFile(filepath.Join(p.dir, "worker."+strconv.Itoa(p.n)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			_, _ = fmt.Fprint(f, os.Getpid())
			_ = f.Close()
			break
		}
	}
	var err error
	if p.link, err = Attach(); err != nil || p.link == nil {
		note(p.dir, "BAD attach: %v", err)
		return 3
	}
	if _, ok := os.LookupEnv(linkEnv); ok {
		note(p.dir, "BAD: children would see %s", linkEnv)
	}
	s := p.link.Start()
	p.device = s.Device
	note(p.dir, "worker %d mode=%s blame=%v args=%s", p.n, s.Mode, s.Blame, strings.Join(os.Args[1:], ","))
	if s.Mode != ModeStandby {
		p.claim()
	}
	b, err := os.ReadFile(filepath.Join(p.dir, "script"))
	if err != nil {
		note(p.dir, "BAD: %v", err)
		return 3
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	for _, word := range strings.Fields(lines[min(p.n, len(lines)-1)]) {
		if code := p.do(word); code >= 0 {
			return code
		}
	}
	note(p.dir, "BAD: worker %d is at the end of its script", p.n)
	return 3
}

// claim takes the place on the mount; somebody else there is what must never be.
func (p *player) claim() {
	f, err := os.OpenFile(filepath.Join(p.dir, "place"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		note(p.dir, "BAD: two workers: %v", err)
	}
	p.pipe = append(p.pipe, f) // open until this process ends
}

// do does one word of the script. It returns the exit code, -1 to go on.
func (p *player) do(word string) int {
	verb, arg, _ := strings.Cut(word, ":")
	switch verb {
	case "beat":
		go func() {
			for ; ; time.Sleep(20 * time.Millisecond) {
				p.link.Beat()
			}
		}()
	case "mounted":
		p.mounted(arg)
	case "same":
		p.same()
	case "ready":
		if err := p.link.Ready([]string{"resolved" + arg}); err != nil {
			note(p.dir, "BAD ready: %v", err)
		}
		note(p.dir, "ready %d", p.n)
	case "prepared":
		if err := p.link.Prepared(); err != nil {
			note(p.dir, "BAD prepared: %v", err)
		}
	case "go":
		for c := range p.link.Commands() {
			if c == Go {
				break
			}
			note(p.dir, "BAD: %s before go", c)
		}
		p.claim()
		note(p.dir, "go %d blame=%v", p.n, p.link.Start().Blame)
	case "fail", "usage":
		p.link.Failed(errors.New(arg), verb == "usage")
		return 1
	case "ended":
		p.link.Ended()
		return 0
	case "exit":
		n, _ := strconv.Atoi(arg)
		return n
	case "signal":
		n, _ := strconv.Atoi(arg)
		_ = unix.Kill(os.Getpid(), unix.Signal(n))
		select {}
	case "exe":
		exe, err := os.Readlink("/proc/self/exe")
		note(p.dir, "exe %d %s %v", p.n, exe, err)
	case "fds":
		names, err := os.ReadDir("/proc/self/fd")
		note(p.dir, "fds %d %d %v", p.n, len(names), err)
	case "news":
		go func() {
			for said := ""; ; time.Sleep(5 * time.Millisecond) {
				if e := p.link.News().UpgradeError; e != said {
					said = e
					note(p.dir, "news %d %s", p.n, e)
				}
			}
		}()
	case "ask":
		if err := p.link.AskStop(); err != nil {
			note(p.dir, "BAD ask: %v", err)
		}
	case "trap":
		c := make(chan os.Signal, 1)
		signal.Notify(c, unix.SIGTERM)
		go func() {
			<-c
			note(p.dir, "BAD: SIGTERM for worker %d", p.n)
		}()
	case "stick":
		if err := p.stick(); err != nil {
			note(p.dir, "BAD stick: %v", err)
		}
		note(p.dir, "stuck %d", p.n)
	case "log":
		f, err := os.OpenFile(filepath.Join(p.dir, arg), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err == nil {
			err = errors.Join(p.link.Log(f), f.Close())
		}
		if err != nil {
			note(p.dir, "BAD log: %v", err)
		}
	case "tries":
		for strconv.Itoa(p.link.News().UpgradeTries) != arg {
			time.Sleep(5 * time.Millisecond)
		}
		n := p.link.News()
		note(p.dir, "tries %d %d of %d", p.n, n.UpgradeTries, n.UpgradesAsked)
	case "holds":
		names, err := filepath.Glob("/proc/self/fd/*")
		if err != nil || len(names) == 0 {
			note(p.dir, "BAD: %v", err)
		}
		for _, name := range names {
			if target, _ := os.Readlink(name); target == filepath.Join(p.dir, arg) {
				note(p.dir, "BAD: %s is inherited", arg)
			}
		}
	case "text":
		p.link.StatusText(arg)
	case "until":
		for {
			if _, err := os.Stat(filepath.Join(p.dir, arg)); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
	case "hang":
		time.Sleep(time.Hour)
	case "garbage":
		raw, _ := p.link.conn.SyscallConn()
		_ = raw.Control(func(fd uintptr) {
			_, _ = unix.Write(int(fd), []byte("{garbage"))
			_, _ = unix.Write(int(fd), bytes.Repeat([]byte("x"), maxMessage+100))
			_, _ = unix.Write(int(fd), []byte(`{"Kind":"mounted","Names":["device"]}`))
			_, _ = unix.Write(int(fd), []byte(`{"Kind":"something","New":1}`))
			// More descriptors than a message has.
			_ = unix.Sendmsg(int(fd), []byte(`{"Kind":"mounted"}`), unix.UnixRights(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), nil, 0)
		})
	case "flood":
		raw, _ := p.link.conn.SyscallConn()
		_ = raw.Control(func(fd uintptr) {
			for range 2 * maxGarbage {
				_, _ = unix.Write(int(fd), []byte("garbage"))
			}
		})
	case "closelink":
		_ = p.link.Close()
	case "serve":
		return p.serve()
	default:
		note(p.dir, "BAD word %s", word)
	}
	return -1
}

// serve obeys until the end. Without a keeper it lives on until the file "end" is there.
func (p *player) serve() int {
	for c := range p.link.Commands() {
		note(p.dir, "%s %d", c, p.n)
		switch c {
		case Drain:
			p.link.Drained()
			return 0
		case Stop:
			p.link.Ended()
			return 0
		}
	}
	note(p.dir, "orphan %d", p.n)
	p.do("until:end")
	return 0
}

// mounted hands over a device that is a memory file with a line for each worker, or, with the
// argument fuse, a real mount.
func (p *player) mounted(arg string) {
	mountpoint := filepath.Join(p.dir, "mnt")
	if p.device == nil {
		fd, err := unix.MemfdCreate("device", unix.MFD_CLOEXEC)
		if arg == "fuse" {
			fd, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err == nil {
				opt := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
				err = unix.Mount("keeper-test", mountpoint, "fuse.leatfs", unix.MS_NODEV|unix.MS_NOSUID, opt)
			}
		}
		if err != nil {
			note(p.dir, "BAD device: %v", err)
			return
		}
		p.device = os.NewFile(uintptr(fd), "device")
	}
	fd, err := unix.MemfdCreate("session", unix.MFD_CLOEXEC)
	if err != nil {
		note(p.dir, "BAD session: %v", err)
		return
	}
	m := Mount{
		Device: p.device, Session: os.NewFile(uintptr(fd), "session"),
		Mountpoint: mountpoint, Socket: filepath.Join(p.dir, "socket"),
	}
	if arg == "log" {
		m.Log, m.LogJSON = filepath.Join(p.dir, "worker.log"), true
	}
	if err := p.link.Mounted(m); err != nil {
		note(p.dir, "BAD mounted: %v", err)
	}
	if arg != "fuse" {
		_, _ = fmt.Fprintf(p.device, "made by %d\n", p.n)
	}
}

// same checks that the descriptors are those of the worker that mounted, by adding to the file.
func (p *player) same() {
	s := p.link.Start()
	if s.Device == nil || s.Session == nil || s.Control != nil {
		note(p.dir, "BAD: device %v session %v control %v", s.Device, s.Session, s.Control)
		return
	}
	_, _ = fmt.Fprintf(s.Device, "seen by %d\n", p.n)
	b := make([]byte, 1<<16)
	n, _ := s.Device.ReadAt(b, 0)
	note(p.dir, "device %d %q", p.n, b[:n])
}
