package keeper

import (
	"bytes"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRelay: a device that makes its writer wait does not make anybody else wait, and gets all
// that was said, in order.
func TestRelay(t *testing.T) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer closeAll(p[:1])
	r, err := newRelay(p[1])
	if err != nil {
		t.Fatal(err)
	}
	closeAll(p[1:])
	page := func(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 2048) }
	n := 0
	for r.put(page(n)) {
		n++
	}
	if n < relayMax {
		t.Fatalf("%d messages fit", n)
	}
	name := make([]byte, 40)
	name[4] = 3 // little endian
	if r.put(name) || r.lost != (lost{names: 1, contents: 1}) {
		t.Errorf("lost %+v", r.lost)
	}
	began := time.Now()
	if r.close() {
		t.Error("it has ended")
	}
	if d := time.Since(began); d < relayEnd/2 || d > 30*time.Second {
		t.Errorf("the end of a relay that waits took %v", d)
	}
	b := make([]byte, 4096)
	for i := range n {
		for got := 0; got < len(b); {
			m, err := unix.Read(p[0], b[got:])
			if err != nil || m == 0 {
				t.Fatalf("message %d: %d bytes, %v", i, m, err)
			}
			got += m
		}
		if !bytes.Equal(b, page(i)) {
			t.Fatalf("message %d is another", i)
		}
	}
	<-r.done
	(*relay)(nil).close()
}

// Names make room for contents.
func TestRelayDropsNamesFirst(t *testing.T) {
	t.Parallel()
	r := &relay{queue: make(chan []byte, relayMax)}
	name, content := make([]byte, 40), make([]byte, 40)
	name[4], content[4] = 3, 2
	for range relayMax {
		r.put(name)
	}
	if want := (lost{names: relayMax - relayNames}); r.lost != want || len(r.queue) != relayNames {
		t.Errorf("lost %+v, queued %d", r.lost, len(r.queue))
	}
	for range relayMax - relayNames {
		if !r.put(content) {
			t.Fatal("no room for content")
		}
	}
	if r.put(content) || r.lost.contents != 1 {
		t.Errorf("lost %+v", r.lost)
	}
	if n := r.caughtUp(); n != (lost{}) {
		t.Errorf("caught up with %d queued: %+v", len(r.queue), n)
	}
	for len(r.queue) > 0 {
		<-r.queue
	}
	if n := r.caughtUp(); n.names != relayMax-relayNames || n.contents != 1 {
		t.Errorf("%+v", n)
	}
	if n := r.caughtUp(); n != (lost{}) {
		t.Errorf("said twice: %+v", n)
	}
}
