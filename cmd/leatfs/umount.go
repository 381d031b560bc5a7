package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs/fuse"
)

func umountCommand() *cobra.Command {
	var lazy, noDrain bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:     "umount MOUNTPOINT",
		Aliases: []string{"unmount"},
		Short:   "Unmount, and wait until the daemon has ended",
		Long: `Publish what is not in the bucket yet, unmount, and wait until the daemon has ended.

What the bucket does not take within --drain-timeout is kept in the cache directory; the next mount with it
publishes it. The exit code is then 3, and the mount is gone all the same. Interrupted while it publishes,
the command leaves the mount as it is.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout < 0 {
				return usageError{fmt.Errorf("--drain-timeout %v: it cannot be negative", timeout)}
			}
			if noDrain {
				timeout = 0
			}
			return umount(cmd.Context(), args[0], lazy, timeout, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().DurationVar(&timeout, "drain-timeout", 5*time.Minute, "how long to publish what is not in the bucket yet")
	cmd.Flags().BoolVar(&noDrain, "no-drain", false, "publish nothing more: the next mount with this cache directory does")
	cmd.Flags().BoolVarP(&lazy, "lazy", "l", false, "take the mount out of sight now, end it when nobody uses it any more")
	return cmd
}

// umountWait is how long the daemon may take to put its state away.
const umountWait = 30 * time.Second

func umount(ctx context.Context, mountpoint string, lazy bool, drain time.Duration, stderr io.Writer) error {
	mp, err := mountedName(mountpoint)
	if err != nil {
		return err
	}
	fstype, err := fuse.MountedAt(mp)
	if err != nil {
		return err
	}
	switch fstype {
	case "fuse.leatfs":
	case "":
		return fmt.Errorf("%s: nothing is mounted there", mp)
	default:
		return fmt.Errorf("%s: a %s is mounted there, not leatfs", mp, fstype)
	}
	// Ask before: afterwards nobody may answer any more.
	var pids []int
	s, err := askStatus(ctx, socketPath(mp))
	if ctx.Err() != nil {
		return staysMounted(ctx, mp)
	}
	if err == nil {
		processes := []int{s.WorkerPID}
		if !s.Keeper.Gone {
			processes = append(processes, s.Keeper.PID)
		}
		for _, p := range processes {
			if fd, err := unix.PidfdOpen(p, 0); err == nil {
				defer func() { _ = unix.Close(fd) }()
				pids = append(pids, fd)
			}
		}
	}
	asked := err
	dead := errors.Is(asked, errNoDaemon)
	var left *drained
	if asked == nil && s.State == stateServing {
		if left, err = drainBefore(ctx, s, lazy, drain, stderr); err != nil {
			return err
		}
		defer left.end()
	}
	if err := fuse.Unmount(mp, lazy); err != nil {
		return err
	}
	if dead {
		_ = os.Remove(socketPath(mp)) // what it left; the next mount there would remove it
	}
	if lazy {
		return nil
	}
	if asked != nil && !dead {
		// It is unmounted, and so no failure; but its cache directory may not be free yet.
		fmt.Fprintf(stderr, "leatfs: %s is unmounted; its daemon could not be asked (%s) and may still be ending\n", mp, singleLine(asked))
	}
	kept := left.after(ctx)
	for _, pid := range pids {
		if err := waitExit(ctx, pid, mp); err != nil {
			return err
		}
	}
	return kept
}

// staysMounted is the error of an unmounting that was interrupted before anything was unmounted.
func staysMounted(ctx context.Context, mp string) error {
	return fmt.Errorf("%s stays mounted: interrupted before all was published; \"--no-drain\" leaves that to the next mount: %w", mp, context.Cause(ctx))
}

// waitExit waits for the process behind a pidfd.
func waitExit(ctx context.Context, pidfd int, mp string) error {
	deadline := time.Now().Add(umountWait)
	for time.Now().Before(deadline) && ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 200)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the daemon of %s: %w", mp, err)
		}
	}
	return fmt.Errorf("%s is unmounted, but its daemon has not ended within %v; see its log", mp, umountWait)
}

// mountedName is a mount point as the kernel names it: absolute and without links. The mount
// itself is not looked at where that can be avoided, since it may hang.
func mountedName(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if os.IsNotExist(err) {
		return "", fmt.Errorf("mount point %s does not exist", path)
	}
	if err != nil {
		return "", fmt.Errorf("mount point %s: %w", path, err)
	}
	name := filepath.Join(dir, filepath.Base(abs))
	mounts, err := fuse.Mounts()
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(mounts, func(m fuse.MountInfo) bool { return m.Mountpoint == name }) {
		return name, nil
	}
	if st, err := os.Lstat(name); err == nil && st.Mode()&os.ModeSymlink != 0 {
		return filepath.EvalSymlinks(name)
	}
	return name, nil
}
