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
	if err := unix.Kill(before.Keeper.PID, unix.SIGHUP); err != nil {
		return fmt.Errorf("%s: ask its keeper (process %d) to upgrade: %w", mp, before.Keeper.PID, err)
	}
	deadline := time.Now().Add(upgradeWait)
	for time.Now().Before(deadline) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
		now, err := askStatus(ctx, socketPath(mp))
		if err != nil {
			continue // between the two
		}
		switch k := now.Keeper; {
		case k.UpgradeTries == before.Keeper.UpgradeTries:
		case k.UpgradeError != "":
			return fmt.Errorf("%s was not upgraded, and goes on as it was: %s", mp, k.UpgradeError)
		default:
			return nil
		}
	}
	return fmt.Errorf("%s: the upgrade has not come to an end within %v; see the log, and \"leatfs status %s\"", mp, upgradeWait, mp)
}
