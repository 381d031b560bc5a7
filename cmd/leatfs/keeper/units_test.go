package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestBackoffTable(t *testing.T) {
	times := DefaultTimes()
	crash := death{ready: -1}
	short := death{ready: 3 * time.Second}
	kill := death{outside: true, ready: -1}
	fail := death{ready: -1, said: true, took: 4 * time.Second}
	long := death{ready: 10 * time.Second}
	refuser := death{refuser: true, ready: time.Second}
	refuserKilled := death{refuser: true, outside: true, ready: time.Second}
	b := backoff{times: &times}
	for i, x := range []struct {
		d    death
		want next
	}{
		{crash, next{pause: 50 * time.Millisecond}},
		{short, next{pause: 100 * time.Millisecond}},
		{kill, next{}}, // counts neither way
		{crash, next{pause: 200 * time.Millisecond}},
		{crash, next{pause: 400 * time.Millisecond}},
		{crash, next{pause: 800 * time.Millisecond}},
		{crash, next{refuse: true, retry: 10 * time.Second}},
		{refuserKilled, next{refuse: true, retry: 10 * time.Second}},
		{refuser, next{refuse: true, retry: 10 * time.Second, pause: 50 * time.Millisecond}},
		{refuser, next{refuse: true, retry: 10 * time.Second, pause: 100 * time.Millisecond}},
		{crash, next{refuse: true, retry: 20 * time.Second}},
		{short, next{refuse: true, retry: 40 * time.Second}},
		{kill, next{}},
		{crash, next{refuse: true, retry: 60 * time.Second}},
		{crash, next{refuse: true, retry: 60 * time.Second}},
		{long, next{}},
		{crash, next{pause: 50 * time.Millisecond}},
		{fail, next{pause: 50 * time.Millisecond}},
		{fail, next{pause: 100 * time.Millisecond}},
		{fail, next{pause: 200 * time.Millisecond}},
		{crash, next{pause: 100 * time.Millisecond}},
		{fail, next{pause: 400 * time.Millisecond}},
		{fail, next{pause: 800 * time.Millisecond}},
		{fail, next{pause: time.Second}}, // 26.55 s
		{fail, next{refuse: true, retry: 10 * time.Second}},
		{fail, next{refuse: true, retry: 20 * time.Second}},
		{crash, next{refuse: true, retry: 40 * time.Second}},
		{long, next{}},
		{fail, next{pause: 50 * time.Millisecond}},
	} {
		if got := b.after(x.d); got != x.want {
			t.Fatalf("death %d, %+v: %+v, want %+v", i, x.d, got, x.want)
		}
	}
}

// Whatever dies, and how often: pauses are bounded, and a worker killed from outside is replaced
// by a real one at once.
func TestBackoffBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		times := DefaultTimes()
		b := backoff{times: &times}
		row, refuses := 0, false
		var failing time.Duration
		for range rapid.IntRange(1, 200).Draw(t, "deaths") {
			d := death{
				refuser: rapid.Bool().Draw(t, "refuser"), outside: rapid.Bool().Draw(t, "outside"),
				ready: time.Duration(rapid.Int64Range(-1, 20).Draw(t, "ready")) * time.Second,
				took:  time.Duration(rapid.Int64Range(0, 40).Draw(t, "took")) * time.Second,
			}
			d.said = !d.outside && d.ready < 0 && rapid.Bool().Draw(t, "said")
			n := b.after(d)
			if n.pause < 0 || n.pause > times.RetryMin {
				t.Fatalf("%+v: pause %v", d, n.pause)
			}
			if d.refuser {
				continue
			}
			switch {
			case d.ready >= times.StableAfter:
				row, failing, refuses = 0, 0, false
			case d.said:
				failing += d.took + n.pause
				if !refuses && n.refuse && failing+times.FailPause < times.FailFor {
					t.Fatalf("%+v: refused after %v", d, failing)
				}
				refuses = refuses || failing >= times.FailFor || n.refuse
			case !d.outside:
				row++
				refuses = refuses || row >= times.RefuseAfter
			}
			if counts := !d.outside && d.ready < times.StableAfter; n.refuse != (counts && refuses) {
				t.Fatalf("%+v is death %d in a row: %+v", d, row, n)
			}
			if n.refuse && (n.retry < times.RetryMin || n.retry > times.RetryMax) {
				t.Fatalf("%+v: retry %v", d, n.retry)
			}
			if d.outside && n != (next{}) {
				t.Fatalf("killed from outside: %+v", n)
			}
		}
	})
}

func TestJudge(t *testing.T) {
	exit := func(n int) syscall.WaitStatus { return syscall.WaitStatus(n << 8) }
	sig := func(s syscall.Signal) syscall.WaitStatus { return syscall.WaitStatus(s) }
	for _, x := range []struct {
		w    worker
		ws   syscall.WaitStatus
		oom  bool
		want verdict
	}{
		{ws: exit(0), want: verdict{text: "it exited without being told to"}},
		{ws: exit(2), want: verdict{text: "it exited with status 2", blame: true}},
		{ws: sig(unix.SIGSEGV) | 0x80, want: verdict{text: "it crashed with SIGSEGV", blame: true}},
		{ws: sig(unix.SIGBUS), want: verdict{text: "it crashed with SIGBUS", blame: true}},
		{ws: sig(unix.SIGKILL), want: verdict{text: "it was killed from outside with SIGKILL", outside: true}},
		{ws: sig(unix.SIGKILL), oom: true, want: verdict{text: "the kernel killed it for want of memory", blame: true}},
		{ws: sig(unix.SIGTERM), oom: true, want: verdict{text: "it was killed from outside with SIGTERM", outside: true}},
		{ws: sig(unix.SIGHUP), want: verdict{text: "it was killed from outside with SIGHUP", outside: true}},
		{w: worker{hung: "why"}, ws: sig(unix.SIGKILL), want: verdict{text: "it hung and was killed: why", blame: true}},
		{w: worker{hung: "why", ordered: true}, ws: exit(2), want: verdict{text: "it hung and was killed: why", blame: true}},
		{w: worker{ordered: true}, ws: sig(unix.SIGKILL), oom: true, want: verdict{text: "it was told to end and had to be killed"}},
		{w: worker{ended: true}, ws: exit(2), want: verdict{text: "the mount ended"}},
		{w: worker{told: true}, ws: exit(0), want: verdict{text: "it drained"}},
		{w: worker{told: true, drained: true}, ws: exit(2), want: verdict{text: "it drained"}},
		{w: worker{told: true}, ws: exit(2), want: verdict{text: "it exited with status 2", blame: true}},
		{w: worker{failed: true, failure: "no"}, ws: exit(1), want: verdict{text: "its start did not work: no"}},
	} {
		if got := judge(&x.w, x.ws, x.oom); got != x.want {
			t.Errorf("%+v %#x %v: %+v, want %+v", x.w, x.ws, x.oom, got, x.want)
		}
	}
}

func TestParseOOM(t *testing.T) {
	for _, x := range []struct {
		text string
		n    int64
		ok   bool
	}{
		{"low 0\nhigh 0\nmax 3\noom 1\noom_kill 17\noom_group_kill 0\n", 17, true},
		{"pgfault 1\noom_kill 2", 2, true},
		{"oom_kill_x 2\n", 0, false},
		{"oom_kill many\n", 0, false},
		{"", 0, false},
	} {
		if n, ok := parseOOM([]byte(x.text)); n != x.n || ok != x.ok {
			t.Errorf("%q: %d, %v", x.text, n, ok)
		}
	}
	c := newOOMCounter()
	defer c.close()
	if _, ok := c.read(); !ok {
		t.Error("this kernel has neither count")
	}
	c.last = [2]int64{-1, -1}
	if !c.grew() {
		t.Error("it grew")
	}
}

func TestFindMount(t *testing.T) {
	const text = `22 1 0:21 / / rw - ext4 /dev/vda rw
30 22 0:40 / /mnt/a\040b rw,nosuid shared:5 master:1 - fuse.leatfs s3://x rw
31 22 0:41 / /mnt/c rw - fuse.leatfs s3://x rw
32 31 0:42 / /mnt/c rw - tmpfs tmpfs rw
33 22 0:43 / /mnt/d rw - fuse.leatfs s3://x rw
34 33 0:44 / /mnt/d rw - fuse s3://y rw
`
	for path, want := range map[string]mountID{
		"/mnt/a b": "30 0:40", "/mnt/c": "", "/mnt/d": "34 0:44", "/": "", "/mnt": "",
	} {
		if got := findMount(text, path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

func TestWorkerEnv(t *testing.T) {
	got := strings.Join(WorkerEnv([]string{"A=1", "NOTIFY_SOCKET=/x", "NOTIFY_SOCKETS=2", "LISTEN_FDS=1", linkEnv + "=3"}), " ")
	if got != "A=1 NOTIFY_SOCKETS=2" {
		t.Error(got)
	}
}

func TestOneLine(t *testing.T) {
	if got := oneLine("a\nb\r\n\nc\x00"); got != "a; b; c" {
		t.Errorf("%q", got)
	}
	if got := oneLine(strings.Repeat("é", 5000)); len(got) > 1000 || !strings.HasSuffix(got, "é…") {
		t.Errorf("%d bytes: %q", len(got), got[len(got)-10:])
	}
}

// What comes out of a socket is what went in, or an error; never a descriptor too many.
func TestMessages(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, err := fileConn(os.NewFile(uintptr(pair[0]), "a"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := fileConn(os.NewFile(uintptr(pair[1]), "b"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	in := newReceiver(b)

	// A process's arguments may be long.
	args := []string{"mount", strings.Repeat("x", 100<<10)}
	if err := send(a, message{Kind: kindReady, Args: args}, nil, false); err != nil {
		t.Fatal(err)
	}
	if p, err := in.next(); err != nil || p.Args[1] != args[1] {
		t.Fatalf("%v", err)
	}
	if err := send(a, message{Kind: kindReady, Args: append(args, args...)}, nil, false); !errors.Is(err, errTooBig) {
		t.Errorf("too long: %v", err)
	}
	// As many descriptors as there may be.
	var m message
	var fds []int
	for i := range maxFiles {
		m.Names = append(m.Names, fmt.Sprintf("n%d", i))
		fds = append(fds, 2)
	}
	m.Kind = kindMounted
	if err := send(a, m, fds, false); err != nil {
		t.Fatal(err)
	}
	p, err := in.next()
	if err != nil || len(p.fds) != maxFiles {
		t.Fatalf("%d descriptors, %v", len(p.fds), err)
	}
	if fd := p.take("n3"); fd < 0 || p.take("n3") != -1 || p.take("other") != -1 {
		t.Error("take")
	} else {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("flags %#x, %v: not close-on-exec", flags, err)
		}
		_ = unix.Close(fd)
	}
	p.close()
	// No messages.
	raw, _ := a.SyscallConn()
	for _, text := range []string{
		"x", "[]", `{"Kind":1}`, `{"Kind":"mounted","Names":["a"]}`, strings.Repeat("x", maxMessage+1),
	} {
		_ = raw.Control(func(fd uintptr) {
			if _, err := unix.Write(int(fd), []byte(text)); err != nil {
				t.Error(err)
			}
		})
		if _, err := in.next(); !errors.Is(err, errGarbage) && !errors.Is(err, errTooBig) {
			t.Errorf("%.40q: %v", text, err)
		}
	}
	for _, names := range [][]string{{"A"}, {""}, {"a/b"}, {strings.Repeat("a", maxName+1)}, {"a", "a"}} {
		p := packet{message: message{Names: names}, fds: make([]int, len(names))}
		if p.check() == nil {
			t.Errorf("names %q pass", names)
		}
	}
	_ = a.Close()
	if _, err := in.next(); !errors.Is(err, io.EOF) {
		t.Errorf("closed: %v", err)
	}
}

// A keeper that does not read holds neither beats nor, for long, other words up.
func TestBeatDoesNotWait(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	keeperEnd, err := fileConn(os.NewFile(uintptr(pair[0]), "keeper"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = keeperEnd.Close() }()
	if err := send(keeperEnd, message{Kind: kindStart, Protocol: protocol, Mode: ModeMount}, nil, false); err != nil {
		t.Fatal(err)
	}
	conn, err := fileConn(os.NewFile(uintptr(pair[1]), "worker"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := newLink(conn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for range 3_000 { // more than any socket takes
		l.Beat()
	}
	// The commands come all the same, each once, and the end of the keeper closes them.
	for _, c := range []kind{kindDrain, kindDrain, kindStop, "later", kindGo} {
		if err := send(keeperEnd, message{Kind: c}, nil, false); err != nil {
			t.Fatal(err)
		}
	}
	_ = keeperEnd.Close()
	var got []Command
	for c := range l.Commands() {
		got = append(got, c)
	}
	if len(got) != 3 || got[0] != Drain {
		t.Errorf("%v", got)
	}
	if err := l.Ready(nil); err == nil {
		t.Error("Ready to no keeper")
	}
}

func TestAttachRefuses(t *testing.T) {
	if l, err := Attach(); l != nil || err != nil {
		t.Errorf("without a keeper: %v, %v", l, err)
	}
	for _, value := range []string{"", "x", "1", "99999"} {
		t.Setenv(linkEnv, value)
		if l, err := Attach(); l != nil || err == nil {
			t.Errorf("%q: %v, %v", value, l, err)
		}
	}
	// A keeper of another protocol.
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pair[0]) }()
	b, err := json.Marshal(message{Kind: kindStart, Protocol: protocol + 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(pair[0], b); err != nil {
		t.Fatal(err)
	}
	t.Setenv(linkEnv, fmt.Sprint(pair[1]))
	if _, err := Attach(); err == nil || !strings.Contains(err.Error(), "version 2 of the protocol") {
		t.Errorf("%v", err)
	}
}

func TestCleanMappings(t *testing.T) {
	const text = `00400000-00800000 r-xp 00000000 fe:00 1234 /usr/bin/leatfs (deleted)
Rss:                 100 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me sd
00800000-00900000 r--p 00400000 fe:00 1234 /usr/bin/leatfs
Anonymous:             4 kB
00900000-00a00000 rw-p 00500000 fe:00 1234 /usr/bin/leatfs
Anonymous:             0 kB
00a00000-00b00000 r--p 00600000 fe:00 1234 /usr/bin/leatfs
Anonymous:             0 kB
c000000000-c000400000 r--p 00000000 00:00 0 [anon: Go: heap]
Anonymous:             0 kB
7ffc5a9d6000-7ffc5a9d8000 r-xp 00000000 00:00 0 [vdso]
Anonymous:             0 kB
00b00000-00c00000 r-xs 00600000 fe:00 1234 /usr/bin/leatfs
Anonymous:             0 kB
`
	want := fmt.Sprint([][2]uintptr{{0x400000, 0x800000}, {0xa00000, 0xb00000}})
	if got := fmt.Sprint(cleanMappings(text)); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	shed() // and all goes on
	if b, err := os.ReadFile("/proc/self/smaps"); err != nil || len(cleanMappings(string(b))) == 0 {
		t.Errorf("nothing of this program could be dropped: %v", err)
	}
}
