package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/leatfs/leatfs/cmd/leatfs/keeper"
)

// readyEnv tells a daemon on which descriptor to say that it is ready, or why not.
const readyEnv = "LEATFS_READY_FD"

// readyMessage is what the daemon says, once.
type readyMessage struct {
	OK    bool
	Error string
	Usage bool
}

// startBackground starts the keeper of a mount in a session of its own (but see onAutomount), and
// waits until the mount answers or it says why not. When ctx ends before, the keeper is told to end too.
func startBackground(ctx context.Context, mountpoint string, args []string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	exe, err := executable()
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	cmd := exec.Command(exe, keeperLine(args)...)
	// It is not part of the service that this process may be part of.
	cmd.Env = append(keeper.WorkerEnv(os.Environ()), readyEnv+"=3")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = null, null, null
	cmd.ExtraFiles = []*os.File{w}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: !onAutomount(mountpoint)}
	// What the caller has open, a lock of its shell say, must not live on in the mount. An old kernel
	// cannot; then it does.
	_ = keeper.CloseOnExec()
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	b, err := io.ReadAll(r)
	var msg readyMessage
	if err != nil || json.Unmarshal(b, &msg) != nil {
		werr := cmd.Wait()
		return fmt.Errorf("the daemon ended before it was ready (%v); its log says more", werr)
	}
	if !msg.OK {
		_ = cmd.Wait()
		if msg.Usage {
			return usageError{errors.New(msg.Error)}
		}
		return errors.New(msg.Error)
	}
	if !stop() { // asked to end at the last moment: the daemon does
		_ = cmd.Wait()
		return context.Cause(ctx)
	}
	return cmd.Process.Release()
}

// readyPipe returns where to report to, nil when this process was not started in the
// background.
func readyPipe() *os.File {
	if os.Getenv(readyEnv) == "" {
		return nil
	}
	_ = os.Unsetenv(readyEnv)
	syscall.CloseOnExec(3)
	return os.NewFile(3, "ready")
}

// report sends the one message and closes the pipe.
func report(pipe *os.File, err error, usage bool) {
	msg := readyMessage{OK: err == nil, Usage: usage}
	if err != nil {
		msg.Error = err.Error()
	}
	b, merr := json.Marshal(msg)
	if merr == nil {
		_, _ = pipe.Write(b) // the parent may be gone; then nobody needs to know
	}
	_ = pipe.Close()
}
