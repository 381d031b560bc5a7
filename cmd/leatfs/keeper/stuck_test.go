package keeper

import (
	endian "encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A relay that waits for a request that nobody will answer does not keep the keeper from ending.
func TestStuckRelayEnds(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root mounts")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse here")
	}
	if fd, err := fusectl(); err != nil {
		t.Skipf("connections cannot be aborted here: %v", err)
	} else {
		closeAll([]int{fd})
	}
	dir, cfg := scripted(t, "beat mounted:fuse stick ready hang")
	cfg.Times.StopWait = time.Millisecond
	b := beginProcess(t, dir, cfg, nil)
	mountpoint := filepath.Join(dir, "mnt")
	t.Cleanup(func() { _ = unix.Unmount(mountpoint, unix.MNT_DETACH) })
	b.ready(0)
	id, err := mountedAt(mountpoint)
	if id == "" || err != nil {
		t.Fatalf("not mounted: %v\n%s", err, b.all())
	}
	_, minor, _ := strings.Cut(string(id), ":")
	t.Cleanup(func() { // before the end of the keeper is waited for
		if t.Failed() {
			_ = abort(minor)
		}
	})
	time.Sleep(200 * time.Millisecond) // for the relay to wait
	if err := unix.Kill(b.pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.done:
	case <-time.After(patience):
		t.Fatalf("the keeper does not end\n%s", b.all())
	}
	b.end(exitOK)
	b.seeIn("stderr", "the connection was aborted")
}

// stick answers the first request of the mount, has a process look for a name in it, leaves that
// unanswered, and has the keeper tell the kernel that a name is not valid: that waits for the look.
func (p *player) stick() error {
	fd := int(p.device.Fd())
	buf := make([]byte, 1<<18)
	next := func() (opcode uint32, unique uint64, err error) {
		n, err := unix.Read(fd, buf)
		if err != nil || n < 40 {
			return 0, 0, fmt.Errorf("read %d: %w", n, err)
		}
		return endian.NativeEndian.Uint32(buf[4:]), endian.NativeEndian.Uint64(buf[8:]), nil
	}
	opcode, unique, err := next()
	if err != nil || opcode != 26 { // FUSE_INIT
		return fmt.Errorf("opcode %d: %w", opcode, err)
	}
	e := endian.NativeEndian
	out := e.AppendUint32(nil, 16+64)
	out = e.AppendUint32(out, 0)
	out = e.AppendUint64(out, unique)
	out = e.AppendUint32(out, 7)
	out = e.AppendUint32(out, 31)
	out = append(out, make([]byte, 64-8)...)
	e.PutUint32(out[16+20:], 1<<16) // max_write
	if _, err := unix.Write(fd, out); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	cmd := exec.Command("stat", filepath.Join(p.dir, "mnt", "name"))
	if err := cmd.Start(); err != nil {
		return err
	}
	for opcode != 1 { // FUSE_LOOKUP
		if opcode, _, err = next(); err != nil {
			return err
		}
	}
	tell := e.AppendUint32(nil, 16+16+5)
	tell = e.AppendUint32(tell, 3) // FUSE_NOTIFY_INVAL_ENTRY
	tell = e.AppendUint64(tell, 0)
	tell = e.AppendUint64(tell, 1) // in the root
	tell = e.AppendUint32(tell, 4)
	tell = e.AppendUint32(tell, 0)
	return p.link.Tell(append(tell, "name\x00"...))
}
