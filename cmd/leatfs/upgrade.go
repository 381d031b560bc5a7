package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// upgradeWait is how long an upgrade may take: its new worker has 30 seconds to prepare itself.
const upgradeWait = 60 * time.Second

func upgradeCommand() *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:   "upgrade [MOUNTPOINT]",
		Short: "Go on with the program that is installed now, under a mount that stays",
		Long: `Replace the process that serves a mount by one of the program that is installed now, and
read the configuration file again. Applications see nothing of it. When the new one cannot go
on with the mount, the old one does, and the command says why.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			mountpoint := ""
			if len(args) > 0 {
				mountpoint = args[0]
			} else if config != "" {
				var c mountConfig
				other := mountCommand().Flags()
				fromFile, err := loadConfig(config, other)
				if err != nil {
					return err
				}
				c.mountpoint = fromFile[keyMountpoint]
				mountpoint = c.mountpoint
			}
			if mountpoint == "" {
				return usageError{errors.New("which mount: leatfs upgrade MOUNTPOINT, or --config FILE that names it")}
			}
			return upgrade(cmd.Context(), mountpoint)
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "YAML file of the mount, in place of its mount point")
	return cmd
}

func upgrade(ctx context.Context, mountpoint string) error {
	before, err := statusOf(ctx, mountpoint)
	if err != nil {
		return err
	}
	mp := before.Mountpoint
	if before.Keeper.Gone || before.Keeper.PID <= 0 {
		return fmt.Errorf("%s: its keeper has died, so nobody can replace its daemon; unmount it and mount it again", mp)
	}
	// What was asked for before may be an upgrade to the program before this one. An older keeper
	// does not count what it is asked for.
	past := max(before.Keeper.UpgradesAsked, before.Keeper.UpgradeTries)
	pid := before.Keeper.PID
	if err := unix.Kill(pid, unix.SIGHUP); err != nil {
		return fmt.Errorf("%s: ask its keeper (process %d) to upgrade: %w", mp, pid, err)
	}
	deadline := time.Now().Add(upgradeWait)
	for time.Now().Before(deadline) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
		now, err := askStatus(ctx, socketPath(mp))
		if err != nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			return fmt.Errorf("%s has ended: its keeper (process %d) is gone; see the log", mp, pid)
		}
		if err != nil {
			continue // between the two
		}
		switch k := now.Keeper; {
		case k.PID != pid:
			return fmt.Errorf("%s has ended, and another mount is there: its keeper (process %d) is gone", mp, pid)
		case k.Gone:
			return fmt.Errorf("%s: its keeper (process %d) has died; unmount it and mount it again", mp, pid)
		case k.UpgradeTries <= past:
		case k.UpgradeError != "":
			return fmt.Errorf("%s was not upgraded, and goes on as it was: %s", mp, k.UpgradeError)
		default:
			return nil
		}
	}
	return fmt.Errorf("%s: the upgrade has not come to an end within %v; see the log, and \"leatfs status %s\"", mp, upgradeWait, mp)
}
