package fuse

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// MountOptions say what is mounted where.
type MountOptions struct {
	Mountpoint string
	Source     string // shown as the device in /proc/mounts
	AllowOther bool
	ReadOnly   bool
	// Extra are options as after mount -o: "noexec", "noatime", "context=…", "nonempty".
	Extra []string
}

// MaxRead is the largest READ and WRITE in bytes: the kernel's limit of 256 pages.
const MaxRead = 1 << 20

// flagOptions are the options that mount(2) takes as flags.
func flagOptions() map[string]uintptr {
	return map[string]uintptr{
		"noexec": unix.MS_NOEXEC, "noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME,
		"relatime": unix.MS_RELATIME, "strictatime": unix.MS_STRICTATIME, "sync": unix.MS_SYNCHRONOUS,
		"dirsync": unix.MS_DIRSYNC, "lazytime": unix.MS_LAZYTIME,
		// On by itself, or of no effect here; taken so that a line of fstab works.
		"nosuid": 0, "nodev": 0, "ro": unix.MS_RDONLY, "rw": 0, "exec": 0, "atime": 0, "async": 0, "defaults": 0,
		"auto": 0, "noauto": 0, "user": 0, "nouser": 0, "users": 0, "_netdev": 0, "nofail": 0,
		"default_permissions": 0, "allow_other": 0, "nonempty": 0,
	}
}

// split sorts options into flags of mount(2) and data for FUSE.
func (o *MountOptions) split() (flags uintptr, data []string, err error) {
	known := flagOptions()
	flags = unix.MS_NOSUID | unix.MS_NODEV
	for _, x := range o.Extra {
		switch {
		case x == "" || strings.HasPrefix(x, "x-") || strings.HasPrefix(x, "comment="):
		case x == "suid" || x == "dev":
			return 0, nil, fmt.Errorf("mount option %q: leatfs always mounts nosuid,nodev", x)
		case strings.Contains(x, "context="):
			data = append(data, x)
		default:
			flag, ok := known[x]
			if !ok {
				return 0, nil, fmt.Errorf("mount option %q is not known", x)
			}
			flags |= flag
		}
	}
	if o.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	data = append(data, "default_permissions", fmt.Sprintf("max_read=%d", MaxRead))
	if o.AllowOther || o.has("allow_other") {
		data = append(data, "allow_other")
	}
	return flags, data, nil
}

// readOnly tells whether nothing can be changed.
func (o *MountOptions) readOnly() bool { return o.ReadOnly || o.has("ro") }

func (o *MountOptions) has(option string) bool {
	for _, x := range o.Extra {
		if x == option {
			return true
		}
	}
	return false
}

// Check tells in one line why a mount point cannot be mounted on; nil when it can.
func (o *MountOptions) Check() error {
	if _, _, err := o.split(); err != nil {
		return err
	}
	mp := o.Mountpoint
	// A mount that is there may hang: it is asked within a bound.
	if fstype, err := MountedAt(mp); err != nil {
		return err
	} else if strings.HasPrefix(fstype, "fuse.") && !gone(probe(mp, probeWait)) {
		return fmt.Errorf("mount point %s is busy: a %s is mounted there already", mp, fstype)
	}
	st, err := os.Stat(mp)
	switch {
	case errors.Is(err, syscall.ENOTCONN):
		return fmt.Errorf("mount point %s: a mount whose daemon has died is still there; remove it with \"leatfs umount %s\"", mp, mp)
	case os.IsNotExist(err):
		return fmt.Errorf("mount point %s does not exist; create it with \"mkdir -p %s\"", mp, mp)
	case err != nil:
		return fmt.Errorf("mount point %s: %w", mp, err)
	case !st.IsDir():
		return fmt.Errorf("mount point %s is not a directory", mp)
	}
	if o.has("nonempty") {
		return nil
	}
	d, err := os.Open(mp)
	if err != nil {
		return fmt.Errorf("mount point %s: %w", mp, err)
	}
	names, _ := d.Readdirnames(1)
	if err := d.Close(); err != nil {
		return err
	}
	if len(names) > 0 {
		return fmt.Errorf("mount point %s is not empty (it holds %q, which the mount would hide); empty it, or mount with -o nonempty", mp, names[0])
	}
	return nil
}

// MountedAt returns the type of the file system mounted exactly at path, "" if none.
func MountedAt(path string) (string, error) {
	top, err := topAt(path)
	return top.Type, err
}

// fsType is the type of a mount of leatfs in /proc/self/mountinfo.
const fsType = "fuse.leatfs"

// topAt is the topmost mount at a path, which it does not touch; the zero value when nothing is
// mounted there.
func topAt(path string) (top MountInfo, err error) {
	mounts, err := Mounts()
	if err != nil {
		return top, err
	}
	for _, m := range mounts {
		if m.Mountpoint == path {
			top = m // the last one covers those before
		}
	}
	return top, nil
}

// deviceAt is the device number of the topmost mount at a path if that is a leatfs, else empty.
func deviceAt(path string) string {
	if top, err := topAt(path); err == nil && top.Type == fsType {
		return top.Dev
	}
	return ""
}

// MountInfo is one line of /proc/self/mountinfo.
type MountInfo struct {
	Mountpoint, Type, Source string
	Dev                      string // "0:59"
	Options                  string // of the file system, separated by commas
}

// Mounts reads the mounts this process sees.
func Mounts() ([]MountInfo, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []MountInfo
	for line := range strings.Lines(string(b)) {
		left, right, ok := strings.Cut(strings.TrimSpace(line), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 2 {
			continue
		}
		m := MountInfo{Dev: l[2], Mountpoint: unescape(l[4]), Type: r[0], Source: unescape(r[1])}
		if len(r) > 2 {
			m.Options = r[2]
		}
		out = append(out, m)
	}
	return out, nil
}

// unescape undoes the octal escapes of /proc (space, tab, newline, backslash).
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// mount mounts and returns the descriptor of the connection: by mount(2) as root, else through
// fusermount3.
func mount(o *MountOptions) (int, error) {
	if os.Geteuid() != 0 {
		return fusermount(o)
	}
	flags, data, err := o.split()
	if err != nil {
		return -1, err
	}
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("FUSE is not there: %w (load it with \"modprobe fuse\"; in a container, pass /dev/fuse in)", err)
	}
	data = append(data, fmt.Sprintf("fd=%d", dev), "rootmode=40000", "user_id=0", "group_id=0")
	if err := unix.Mount(o.Source, o.Mountpoint, fsType, flags, strings.Join(data, ",")); err != nil {
		return -1, errors.Join(fmt.Errorf("mount %s on %s: %w", o.Source, o.Mountpoint, err), unix.Close(dev))
	}
	return dev, nil
}

// fusermount asks the setuid helper to mount, as any user may, and receives the connection
// over a socket.
func fusermount(o *MountOptions) (int, error) {
	helper, err := exec.LookPath("fusermount3")
	if err != nil {
		return -1, errors.New("mounting as an ordinary user needs fusermount3; install the package fuse3, or mount as root")
	}
	flags, data, err := o.split()
	if err != nil {
		return -1, err
	}
	if flags&unix.MS_RDONLY != 0 {
		data = append(data, "ro")
	}
	if flags&unix.MS_NOEXEC != 0 {
		data = append(data, "noexec")
	}
	if flags&unix.MS_NOATIME != 0 {
		data = append(data, "noatime")
	}
	data = append(data, "fsname="+strings.NewReplacer(`\`, `\\`, ",", `\,`).Replace(o.Source), "subtype=leatfs")
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socketpair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "fusermount"), os.NewFile(uintptr(fds[1]), "fusermount")
	defer func() { _ = ours.Close() }()
	cmd := exec.Command(helper, "-o", strings.Join(data, ","), "--", o.Mountpoint)
	cmd.Env = append(os.Environ(), "_FUSE_COMMFD=3")
	cmd.ExtraFiles = []*os.File{theirs}
	out, err := cmd.CombinedOutput()
	_ = theirs.Close()
	if err != nil {
		return -1, fmt.Errorf("fusermount3: %s", strings.TrimSpace(string(out)))
	}
	return receiveFile(ours)
}

// receiveFile takes the descriptor that fusermount3 sends.
func receiveFile(sock *os.File) (int, error) {
	c, err := net.FileConn(sock)
	if err != nil {
		return -1, err
	}
	defer func() { _ = c.Close() }()
	buf, oob := make([]byte, 32), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.(*net.UnixConn).ReadMsgUnix(buf, oob)
	if err != nil {
		return -1, fmt.Errorf("fusermount3 sent no connection: %w", err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return -1, fmt.Errorf("fusermount3 sent no connection (%d messages): %w", len(msgs), err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return -1, fmt.Errorf("fusermount3 sent %d descriptors: %w", len(fds), err)
	}
	unix.CloseOnExec(fds[0])
	return fds[0], nil
}

// Unmount removes a mount: at once, or, when lazy, from sight now and wholly once nobody
// uses it.
func Unmount(mountpoint string, lazy bool) error {
	if os.Geteuid() != 0 {
		args := []string{"-u"}
		if lazy {
			args = append(args, "-z")
		}
		out, err := exec.Command("fusermount3", append(args, "--", mountpoint)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("unmount %s: %s", mountpoint, strings.TrimSpace(string(out)))
		}
		return nil
	}
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	err := unix.Unmount(mountpoint, flags)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("unmount %s: it is in use (see who with \"fuser -vm %s\"): %w", mountpoint, mountpoint, err)
	}
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: nothing is mounted there", mountpoint)
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", mountpoint, err)
	}
	return nil
}
