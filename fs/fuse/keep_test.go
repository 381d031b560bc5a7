package fuse

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/leatfs/leatfs/fs/session"
)

// reader is a conn as its reader sees it, without a device.
func reader(t *testing.T, replay bool) (*conn, *session.Session) {
	t.Helper()
	sess, err := session.Create()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sess.Close() })
	c := newConn(newRaw(slog.Default(), 1), &fuse.MountOptions{}, slog.Default())
	c.session, c.replay = sess, replay
	c.in = c.kept.buffer()
	if replay {
		c.in = sess.Inbox()[:inSize]
	}
	t.Cleanup(c.endLeft)
	return c, sess
}

// arrive has a request of n bytes, all of them b, lie in the reader's buffer.
func arrive(c *conn, b byte, n int) []byte {
	for i := range c.in[:n] {
		c.in[i] = b
	}
	return c.in[:n]
}

// TestKeep: requests under way stay as they were while the reader goes on, in a bounded amount of
// memory, which is used again.
func TestKeep(t *testing.T) {
	sizes := []int{80, keptFree, keptFree + 1, copiedMax, copiedMax + 1, MaxRead + 80}
	for _, replay := range []bool{false, true} {
		c, sess := reader(t, replay)
		for round := range 3 {
			type request struct {
				kept []byte
				b    byte
				n    int
				end  func()
			}
			var all []request
			for i, n := range sizes {
				b := byte(10*round + i + 1)
				in := arrive(c, b, n)
				var content []byte
				if replay {
					content = in
				}
				r, err := sess.Begin(uint64(b), 1, 16, content)
				if err != nil {
					t.Fatal(err)
				}
				kept, done, ok := c.keep(in, r)
				if !ok {
					t.Fatal("not kept")
				}
				all = append(all, request{kept, b, n, func() { sess.End(r); done() }})
			}
			arrive(c, 0xff, inSize)
			for _, r := range all {
				if len(r.kept) != r.n || bytes.Count(r.kept, []byte{r.b}) != r.n {
					t.Errorf("replay %v: a request of %d bytes is not what it was", replay, r.n)
				}
				r.end()
			}
		}
		if n := len(c.kept.free); n > 2 {
			t.Errorf("replay %v: %d buffers were made for two at a time", replay, n)
		}
		if !c.kept.room.TryAcquire(keptMax) {
			t.Errorf("replay %v: not all memory was given back", replay)
		}
	}
}

// TestKeepFull: the reader waits when too much is under way, until something ends or it is told to
// leave.
func TestKeepFull(t *testing.T) {
	c, _ := reader(t, false)
	var ends []func()
	for range keptMax / inSize {
		_, done, ok := c.keep(arrive(c, 1, MaxRead+80), session.Request{})
		if !ok {
			t.Fatal("not kept")
		}
		ends = append(ends, done)
	}
	one := make(chan bool)
	try := func() {
		_, done, ok := c.keep(arrive(c, 2, MaxRead+80), session.Request{})
		if ok {
			ends = append(ends, done)
		}
		one <- ok
	}
	go try()
	select {
	case <-one:
		t.Fatal("one more than fits is kept")
	case <-time.After(50 * time.Millisecond):
	}
	ends[0]()
	if !<-one {
		t.Error("there is room, and it is not kept")
	}
	go try()
	time.Sleep(10 * time.Millisecond)
	c.endLeft()
	if <-one {
		t.Error("told to leave, it is kept")
	}
	for _, end := range ends[1:] {
		end()
	}
	if !c.kept.room.TryAcquire(keptMax) {
		t.Error("not all memory was given back")
	}
}
