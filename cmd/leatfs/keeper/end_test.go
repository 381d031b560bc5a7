package keeper

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Another mount at the same place has made its socket at the same path: a worker that takes over
// does not make it this mount's.
func TestSocketOfAnotherStays(t *testing.T) {
	t.Parallel()
	dir, cfg := scripted(t, first, "beat mounted ready serve")
	path := filepath.Join(dir, "socket")
	listen := func() {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		t.Cleanup(func() { _ = l.Close() })
	}
	listen()
	b := begin(t, dir, cfg)
	b.ready(0)
	if err := os.Rename(path, path+".old"); err != nil { // kept, so that the next has another inode
		t.Fatal(err)
	}
	listen()
	b.signal(0, unix.SIGKILL)
	b.ready(1)
	b.signals <- unix.SIGTERM
	b.end(exitOK)
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

// What the keeper's caller has open is not the workers'.
func TestWorkersInheritNothing(t *testing.T) {
	t.Parallel()
	dir, cfg := scripted(t, "beat holds:lock mounted ready serve")
	cfg.Shared = false
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	b := beginProcess(t, dir, cfg, nil, lock)
	b.ready(0)
	b.never("BAD")
}

// What systemd has is not taken away from it to be stored again.
func TestStoredOnce(t *testing.T) {
	t.Parallel()
	s := newSystemd(t)
	dir, cfg := scripted(t, first, "beat mounted text:second ready serve")
	b := beginProcess(t, dir, cfg, []string{"NOTIFY_SOCKET=" + s.path})
	s.next("READY=1")
	b.signal(0, unix.SIGKILL)
	s.next("STATUS=second")
	stored, sessions := 0, 0
	for i, n := range s.seen {
		if strings.Contains(n.text, "FDSTORE=1\nFDNAME=leatfs-device") {
			stored++
		}
		if strings.Contains(n.text, "FDSTORE=1\nFDNAME=leatfs-session") {
			sessions++
		}
		if stored > 0 && strings.Contains(n.text, "FDSTOREREMOVE=1\nFDNAME=leatfs-device") {
			t.Errorf("notification %d is %q", i, n.text)
		}
	}
	if stored != 1 {
		t.Errorf("the device was stored %d times", stored)
	}
	if sessions != 2 { // each worker of this test makes one
		t.Errorf("%d sessions were stored", sessions)
	}
}

// An adopted mount that only ever had a refuser, and that is unmounted, is not mounted anew.
func TestAdoptedAndUnmounted(t *testing.T) {
	t.Parallel()
	dir, cfg := scripted(t, "exit:2", "ready until:x ended", first)
	cfg.Times.RefuseAfter = 1
	cfg.Times.RetryMin, cfg.Times.RetryMax = patience, patience
	fd, err := unix.MemfdCreate("device", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	device := os.NewFile(uintptr(fd), "device")
	defer func() { _ = device.Close() }()
	b := beginProcess(t, dir, cfg, []string{"LISTEN_FDS=1", "LISTEN_FDNAMES=leatfs-device"}, device)
	b.see("worker 1 mode=refuse")
	b.mark("x")
	b.end(exitOK)
	b.never("worker 2")
}

// A worker that cannot die does not keep the mount in sight. A tracer that does not look holds it,
// as a disk that does not answer would.
func TestStopUnmountsBeforeWorkerDies(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root mounts")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse here")
	}
	dir, cfg := scripted(t, "beat mounted:fuse ready hang")
	cfg.Times.StopWait = time.Millisecond
	b := beginProcess(t, dir, cfg, nil)
	b.ready(0)
	mountpoint := filepath.Join(dir, "mnt")
	t.Cleanup(func() { _ = unix.Unmount(mountpoint, unix.MNT_DETACH) })
	pid, _ := b.worker(0)
	runtime.LockOSThread() // the tracer is a thread
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(pid); err != nil {
		t.Skipf("processes cannot be traced here: %v", err)
	}
	if err := unix.Kill(b.pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if id, err := mountedAt(mountpoint); id == "" && err == nil {
			break
		}
		if time.Now().After(end) {
			t.Errorf("still mounted\n%s", b.all())
			break
		}
	}
	select {
	case <-b.done:
		t.Errorf("the keeper did not wait for its worker\n%s", b.all())
	default:
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(pid, &ws, unix.WALL, nil); err != nil {
		t.Error(err)
	}
	b.end(exitOK)
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	ptmx, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	n, err := unix.IoctlGetInt(ptmx, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(ptmx, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open("/dev/pts/"+strconv.Itoa(n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll([]int{fd})
	if !isTerminal(fd) {
		t.Error("a terminal is none")
	}
	closeAll([]int{ptmx})
	if isTerminal(fd) {
		t.Error("a terminal that was closed is one")
	}
}
