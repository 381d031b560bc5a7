package keeper

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fullPipe is a pipe that has no room left.
func fullPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{4096, 1} {
		for {
			_, err := unix.Write(p[1], []byte(strings.Repeat("x", size-1)+"\n"))
			if errors.Is(err, unix.EAGAIN) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, fd := range p {
		if err := unix.SetNonblock(fd, false); err != nil {
			t.Fatal(err)
		}
	}
	return os.NewFile(uintptr(p[0]), "read"), os.NewFile(uintptr(p[1]), "write")
}

// A log that nobody reads does not stop the keeper.
func TestFullLog(t *testing.T) {
	t.Parallel()
	r, w := fullPipe(t)
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() }) // after the keeper
	dir, cfg := scripted(t, first, later)
	cfg.Stderr = w
	b := begin(t, dir, cfg)
	const kills = 20
	for n := range kills {
		b.see(fmt.Sprintf("ready %d\n", n))
		b.signal(n, unix.SIGKILL)
	}
	b.see(fmt.Sprintf("ready %d\n", kills))
	b.signals <- unix.SIGTERM
	b.end(exitOK)
}

// What a log was too slow for is counted, and what it took is whole and in order.
func TestLogout(t *testing.T) {
	t.Parallel()
	r, w := fullPipe(t)
	defer func() { _ = w.Close() }()
	l := newLogout(w)
	const lines = 2 * logQueue
	for i := range lines {
		if _, err := fmt.Fprintf(l, "line %d\n", i); err != nil {
			t.Fatal(err)
		}
	}
	if n := l.dropped(); n != 0 {
		t.Errorf("%d said to be lost while more would be", n)
	}
	fd, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if l.move(fd) {
		t.Error("moved while it was full")
	}
	got := make(chan int)
	go func() {
		n, last := 0, -1
		for s := bufio.NewScanner(r); s.Scan(); {
			// The pipe is full, but of which line on the writer takes none depends on when it began.
			if line, ok := strings.CutPrefix(s.Text(), "line "); ok {
				i, err := strconv.Atoi(line)
				if err != nil || i <= last {
					t.Errorf("%q after line %d", line, last)
				}
				last = i
				n++
			}
		}
		got <- n
	}()
	l.close()
	<-l.done
	lost := l.lost
	_ = w.Close()
	if n := <-got; n+lost != lines || n < logQueue || lost == 0 {
		t.Errorf("%d lines came and %d are lost, of %d", n, lost, lines)
	}
}
