// Package powercut cuts the power of a disk, as often as a test wants, and shows what a file system has
// kept: ext4 or xfs on a recording disk (package record) under a loop device. Neither a device mapper
// nor a kernel module is needed; root is.
//
// A test makes a Disk, does its work in Dir and says with Ack, as soon as something was promised, what. Then
// Check takes many moments of the past, and for each of them a way to lose some of what was written and not
// flushed; the disk as it is then is mounted, and the test's function looks whether every promise was
// kept that had been made by then.
//
//	func TestMain(m *testing.M) {
//		powercut.Serve()
//		os.Exit(m.Run())
//	}
//
// What maps files of such a disk may run in the test's own process. A program that Boot starts finds another
// boot id in /proc.
package powercut

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/test/powercut/record"
)

// Serve must be called first by TestMain: the test binary is also the process that serves the disks.
func Serve() { record.Serve() }

// FS is a file system.
type FS string

// The file systems.
const (
	Ext4 FS = "ext4"
	XFS  FS = "xfs"
)

// Both calls fn for each file system, in a test of its own.
func Both(t *testing.T, fn func(t *testing.T, fs FS)) {
	for _, fs := range []FS{Ext4, XFS} {
		t.Run(string(fs), func(t *testing.T) { fn(t, fs) })
	}
}

// Options make a Disk. The zero value of a field means the default.
type Options struct {
	FS FS // Ext4
	// Size of the disk in bytes: 1 GiB. It costs nothing. xfs needs 300 MiB.
	Size int64
	// Unit is what the disk writes whole or not at all, and its sector: 4096 bytes, or 512.
	Unit int64
	// Mkfs are more arguments for mkfs, Mount more mount options, separated by commas.
	Mkfs  []string
	Mount string
}

// Disk is a disk with a mounted file system. All methods may be called in parallel.
type Disk struct {
	t     testing.TB
	opt   Options
	disk  *record.Disk
	base  string
	start int // how many events there were when it was mounted
	up    bool
}

// New makes a disk, a file system on it, and mounts it. At the end of the test all of it goes.
func New(t testing.TB, opt Options) *Disk {
	t.Helper()
	return begin(t, opt, func(loop string, opt Options) error { return mkfs(loop, opt) })
}

// From makes another disk that begins as d is after a cut, so that its power can be cut a second time. Its events
// begin after it was mounted.
func (d *Disk) From(c record.Cut) *Disk {
	d.t.Helper()
	return begin(d.t, d.opt, func(to string, _ Options) error {
		from, drop, err := d.disk.AttachCut(c)
		if err != nil {
			return err
		}
		return errors.Join(copyDisk(from.Path(), to), from.Close(), drop())
	})
}

// copyDisk copies a device to one that is all zeros.
func copyDisk(from, to string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer w.Close()
	b, zeros := make([]byte, 1<<20), make([]byte, 1<<20)
	for off := int64(0); ; off += int64(len(b)) {
		n, err := io.ReadFull(r, b)
		if n > 0 && !bytes.Equal(b[:n], zeros[:n]) {
			if _, err := w.WriteAt(b[:n], off); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return w.Sync()
		}
		if err != nil {
			return err
		}
	}
}

// begin makes a disk that fill fills, and mounts it.
func begin(t testing.TB, opt Options, fill func(loop string, opt Options) error) *Disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("powercut mounts: run it as root")
	}
	if opt.FS == "" {
		opt.FS = Ext4
	}
	if opt.Size == 0 {
		opt.Size = 1 << 30
	}
	if opt.Unit == 0 {
		opt.Unit = 4096
	}
	d := &Disk{t: t, opt: opt, base: t.TempDir()}
	at := filepath.Join(d.base, "disk")
	for _, dir := range []string{at, d.Dir()} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if d.disk, err = record.Start(at, opt.Size, opt.Unit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Unmount()
		if err := d.disk.Close(); err != nil {
			t.Error(err)
		}
	})
	loop, err := d.disk.Attach()
	if err != nil {
		t.Fatal(err)
	}
	defer loop.Close()
	if err := fill(loop.Path(), opt); err != nil {
		t.Fatal(err)
	}
	if err := mount(loop.Path(), d.Dir(), opt); err != nil {
		t.Fatal(err)
	}
	d.up = true
	// A file system that nobody has written to is not what is tested.
	if err := syncFS(d.Dir()); err != nil {
		t.Fatal(err)
	}
	if d.start, err = d.disk.Position(); err != nil {
		t.Fatal(err)
	}
	return d
}

// mkfs makes a file system that writes nothing by itself later on.
func mkfs(dev string, opt Options) error {
	var args []string
	switch opt.FS {
	case Ext4:
		args = []string{"mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=1,lazy_journal_init=1,assume_storage_prezeroed=1"}
	case XFS:
		args = []string{"mkfs.xfs", "-q", "-f", "-s", fmt.Sprintf("size=%d", opt.Unit)}
	default:
		return fmt.Errorf("powercut: no file system is called %q", opt.FS)
	}
	args = append(append(args, opt.Mkfs...), dev)
	return tool(args...)
}

// tool runs a program that may be where only root looks.
func tool(args ...string) error {
	cmd := exec.Command(program(args[0]), args[1:]...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

func program(name string) string {
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if p := filepath.Join(dir, name); unix.Access(p, unix.X_OK) == nil {
			return p
		}
	}
	return name
}

func mount(dev, dir string, opt Options) error {
	data := []string{"nouuid"} // xfs: the same disk is mounted as it was and as it is
	if opt.FS == Ext4 {
		data = []string{"noinit_itable"}
	}
	if opt.Mount != "" {
		data = append(data, opt.Mount)
	}
	if err := unix.Mount(dev, dir, string(opt.FS), 0, strings.Join(data, ",")); err != nil {
		return fmt.Errorf("mount %s (%s, %s) at %s: %w", dev, opt.FS, strings.Join(data, ","), dir, err)
	}
	return nil
}

// unmount waits for the last user for a while: the kernel closes some files late.
func unmount(dir string) error {
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Unmount(dir, 0)
		if err != unix.EBUSY || time.Since(begun) > time.Minute {
			if err != nil {
				return fmt.Errorf("unmount %s: %w", dir, err)
			}
			return nil
		}
	}
}

func syncFS(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// Dir is where the file system is mounted.
func (d *Disk) Dir() string { return filepath.Join(d.base, "fs") }

// Unmount unmounts the file system in order; nothing after Unmount is written to the disk. A test that
// is not interested in that need not call it.
func (d *Disk) Unmount() {
	d.t.Helper()
	if !d.up {
		return
	}
	d.up = false
	if err := unmount(d.Dir()); err != nil {
		d.t.Error(err)
		_ = unix.Unmount(d.Dir(), unix.MNT_DETACH)
	}
}

// Ack says that something is promised from now on: each cut after it is told so.
func (d *Disk) Ack(format string, args ...any) {
	d.t.Helper()
	if err := d.disk.Mark(fmt.Sprintf(format, args...)); err != nil {
		d.t.Fatal(err)
	}
}

// AckFile is Ack for other processes: what one write writes to this file is said.
func (d *Disk) AckFile() string { return d.disk.Marks() }

// Position is the present moment: how many events the disk has seen, for Cut.At.
func (d *Disk) Position() int {
	d.t.Helper()
	n, err := d.disk.Position()
	if err != nil {
		d.t.Fatal(err)
	}
	return n
}

// Events is what the disk has seen since it was first mounted.
func (d *Disk) Events() []record.Event {
	d.t.Helper()
	es, err := d.disk.Events(d.start)
	if err != nil {
		d.t.Fatal(err)
	}
	return es
}
