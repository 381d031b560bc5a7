package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/leatfs/leatfs/cmd/leatfs/keeper"
)

// keeperCommand makes this program the keeper of a mount; what follows "--" is the command line
// of its workers. It is for this program itself to use.
const keeperCommand = "keeper"

func keeperLine(args []string) []string { return append([]string{keeperCommand, "--"}, args...) }

// keep is the keeper's main. It returns the exit code.
func keep(exe string, args []string) int {
	if len(args) < 2 || args[0] != "--" || !filepath.IsAbs(exe) {
		fmt.Fprintln(os.Stderr, "leatfs: the keeper of a mount is started by \"leatfs mount\"")
		return exitUsage
	}
	pipe := readyPipe()
	told := false
	code, err := keeper.Run(context.Background(), keeper.Config{Args: args[1:], Exe: exe, OneGroup: pipe != nil && inGroupOfMount(), Report: func(err error, usage bool) {
		if pipe != nil {
			told = err != nil
			report(pipe, err, usage)
		}
	}})
	if err != nil && !told {
		fmt.Fprintf(os.Stderr, "leatfs: %s\n", singleLine(err))
	}
	return code
}

// inherited tells whether the service manager has kept a mount for this process, whose keeper
// has died.
func inherited() bool {
	return os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) && strings.Contains(os.Getenv("LISTEN_FDNAMES"), "leatfs-device")
}

// becomeKeeper makes this process the keeper of the mount: a service manager sees no other.
func becomeKeeper(args []string) error {
	exe, err := executable()
	if err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return os.NewSyscallError("exec "+exe, syscall.Exec(exe, append([]string{exe}, keeperLine(args)...), os.Environ()))
}

// executable is the path that this program was started by, absolute: where an upgrade will be,
// also when that is a symbolic link. When something else is there, it is the file itself.
func executable() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	called, err := exec.LookPath(os.Args[0])
	if err != nil {
		return self, nil
	}
	if called, err = filepath.Abs(called); err != nil {
		return "", err
	}
	a, aerr := os.Stat(called)
	b, berr := os.Stat("/proc/self/exe")
	if aerr != nil || berr != nil || !os.SameFile(a, b) {
		return self, nil
	}
	return called, nil
}
