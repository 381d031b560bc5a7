package powercut

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Boot makes a command that is not started yet run as after the boot number n of the machine: it finds another
// boot id in /proc than processes of other boots do, and nothing else changes. It has mounts of its own for
// that: what it mounts is seen through /proc/PID/root, and what is mounted when it starts stays in
// use until it ends.
func (d *Disk) Boot(cmd *exec.Cmd, n int) *exec.Cmd {
	d.t.Helper()
	id := filepath.Join(d.base, fmt.Sprintf("boot-%d", n))
	if err := os.WriteFile(id, fmt.Appendf(nil, "00000000-0000-4000-8000-%012d\n", n), 0o444); err != nil {
		d.t.Fatal(err)
	}
	const script = `mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"`
	cmd.Args = append([]string{"sh", "-c", script, id, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Unshareflags |= syscall.CLONE_NEWNS
	return cmd
}
