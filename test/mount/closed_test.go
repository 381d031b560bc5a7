package mount

import (
	"errors"
	"fmt"
	"os"
	"testing"
)

// TestClosedBothKilled: what was closed right before both processes of the mount are killed is published by the next mount,
// as programs left it that make one file after the other; what is open is held.
func TestClosedBothKilled(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		m := w.mount(flag)
		m.expect = []string{"a file was being written when the mount ended"}
		const files = 300
		content := func(i int) []byte { return random(uint64(i), 3000+i) }
		mkdir(t, m.path("d"))
		open, err := os.Create(m.path("open"))
		ok(t, "create", err)
		for i := range files {
			ok(t, "write", os.WriteFile(m.path(fmt.Sprintf("d/%03d", i)), content(i), 0o644))
			if i%3 == 0 { // as programs do that write a file in two goes
				f, err := os.OpenFile(m.path(fmt.Sprintf("d/%03d", i)), os.O_WRONLY|os.O_APPEND, 0)
				ok(t, "open", err)
				_, err = f.Write([]byte("more"))
				ok(t, "append", errors.Join(err, f.Close()))
			}
		}
		m.eventually("the daemon has been told of all closes", func() error { // the kernel does it after them
			if n := m.status().Files.Handles; n != 1 {
				return fmt.Errorf("%d handles", n)
			}
			return nil
		})
		m.kill()
		_ = open.Close()
		m.start()
		out, _ := m.ends(1, "sync", m.dir)
		contains(t, "sync", out, "held", "/open")
		contains(t, "status", m.statusText(), "1 HELD", "held      /open", "it was open for writing when both processes of the mount ended")
		for i := range files {
			want := content(i)
			if i%3 == 0 {
				want = append(want, "more"...)
			}
			if got, err := w.object(fmt.Sprintf("d/%03d", i)); err != nil || string(got) != string(want) {
				t.Errorf("d/%03d: the bucket has %d bytes, %v; want %d", i, len(got), err, len(want))
			}
		}
		m.ends(0, "discard", m.dir, m.path("open"))
	})
}
