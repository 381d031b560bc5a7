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
	began := time.Now()
	r.close()
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
