package record

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Loop is a loop device over a file. It goes with its last user: who mounts it may Close it.
type Loop struct {
	f *os.File
	// Direct tells whether the device reads and writes the file past the page cache.
	Direct bool
}

// attach makes a loop device with sectors of sector bytes over the file at path, labelled with the
// tag of the process that serves the file.
func attach(path string, sector uint32, tag string) (*Loop, error) {
	back, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer back.Close()
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("loop devices are needed: %w", err)
	}
	defer ctl.Close()
	conf := unix.LoopConfig{Fd: uint32(back.Fd()), Size: sector,
		Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO}}
	copy(conf.Info.File_name[:len(conf.Info.File_name)-1], tag)
	for range 100 { // others take free devices too
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("no free loop device: %w", err)
		}
		f, err := openLoop(n)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(f.Fd()), &conf)
		if err == nil {
			info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
			if err != nil {
				f.Close()
				return nil, err
			}
			return &Loop{f: f, Direct: info.Flags&unix.LO_FLAGS_DIRECT_IO != 0}, nil
		}
		f.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("loop device %d over %s: %w", n, path, err)
		}
	}
	return nil, fmt.Errorf("loop device over %s: others were faster a hundred times", path)
}

// openLoop opens /dev/loopN, which is made where nothing else does.
func openLoop(n int) (*os.File, error) {
	path := "/dev/loop" + strconv.Itoa(n)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(n)))); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		f, err = os.OpenFile(path, os.O_RDWR, 0)
	}
	return f, err
}

// Path is the device's.
func (l *Loop) Path() string { return l.f.Name() }

// Close lets go of the device.
func (l *Loop) Close() error { return l.f.Close() }

// Sweep takes away what serving processes that are no more have left: file systems on their disks, loop devices,
// mounts. Those of living ones are not touched.
func Sweep() error {
	errs := []error{removeLoops(func(tag string, dead bool) bool { return dead || tag != "" && !living(tag) })}
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if m.kind == "fuse."+fsName && !living(m.source) {
			errs = append(errs, unix.Unmount(m.at, unix.MNT_DETACH))
		}
	}
	return errors.Join(errs...)
}

// removeLoops takes away those of our loop devices that which names, and the file systems on them. A device is
// known by its tag, or as dead when nobody serves its file any more, which also hides its tag.
func removeLoops(which func(tag string, dead bool) bool) error {
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range loops {
		name := strings.Split(l, "/")[3]
		if tag, dead := identify(name); !which(tag, dead) {
			continue
		}
		mounts, err := readMounts()
		if err != nil {
			return err
		}
		for _, m := range mounts {
			if m.device == "7:"+strings.TrimPrefix(name, "loop") {
				errs = append(errs, unix.Unmount(m.at, unix.MNT_DETACH))
			}
		}
		f, err := os.OpenFile("/dev/"+name, os.O_RDWR, 0)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// It may have gone with its mount, and be another's by now.
		if tag, dead := identify(name); which(tag, dead) {
			if _, err := unix.IoctlRetInt(int(f.Fd()), unix.LOOP_CLR_FD); err != nil && !errors.Is(err, unix.ENXIO) {
				errs = append(errs, fmt.Errorf("/dev/%s: %w", name, err))
			}
		}
		f.Close()
	}
	return errors.Join(errs...)
}

// identify returns the tag of a loop device of ours, by its name in /sys/block, or tells that it is one of
// ours and dead.
func identify(name string) (tag string, dead bool) {
	b, err := os.ReadFile("/sys/block/" + name + "/loop/backing_file")
	if err != nil || !strings.HasPrefix(filepath.Base(strings.TrimSpace(string(b))), fsName+"-") {
		return "", false
	}
	f, err := os.Open("/dev/" + name)
	if err != nil {
		return "", false
	}
	defer f.Close()
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err != nil {
		return "", errors.Is(err, unix.ENOTCONN)
	}
	if t := unix.ByteSliceToString(info.File_name[:]); strings.HasPrefix(t, fsName+":") {
		return t, false
	}
	return "", false
}

// living tells whether the process of a tag is there.
func living(tag string) bool {
	_, rest, _ := strings.Cut(tag, ":")
	number, since, _ := strings.Cut(rest, ":")
	pid, err := strconv.Atoi(number)
	return err == nil && begun(pid) == since
}

// begun is when a process was begun, in the kernel's words; "" when there is none.
func begun(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	if fields := strings.Fields(rest); len(fields) > 19 && fields[0] != "Z" {
		return fields[19]
	}
	return ""
}

// mount is a line of the table of mounts.
type mount struct{ device, at, kind, source string }

func readMounts() (out []mount, err error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(b)) {
		left, right, _ := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if len(l) > 4 && len(r) > 1 {
			out = append(out, mount{device: l[2], at: unescape.Replace(l[4]), kind: r[0], source: r[1]})
		}
	}
	return out, nil
}
