package keeper

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestBeatsAfterMessage: a message has a deadline, which must not outlive it.
func TestBeatsAfterMessage(t *testing.T) {
	t.Parallel()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, err := fileConn(os.NewFile(uintptr(pair[0]), "worker"))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := fileConn(os.NewFile(uintptr(pair[1]), "keeper"))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	l := &Link{conn: a}
	l.StatusText("serving")
	time.Sleep(linkSendWait + 100*time.Millisecond)
	l.Beat()
	if err := b.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	in := newReceiver(b)
	for _, want := range []kind{kindStatus, kindBeat} {
		if p, err := in.next(); err != nil || p.Kind != want {
			t.Fatalf("got %q %v, want %q", p.Kind, err, want)
		}
	}
}
