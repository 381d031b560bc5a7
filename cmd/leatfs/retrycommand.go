package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"

	"github.com/spf13/cobra"
)

func retryCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "retry MOUNTPOINT [PATH]",
		Short: "Try at once to publish what failed, and what is held",
		Long: `Try at once to publish what failed or waits, in PATH or in all of the mount, and publish files that
are held, since nobody knows whether they are whole: those that were open for writing when both processes of the
mount ended, or were not known to be on the disk when the machine stopped.`,
		Args: usageArgs(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeLedger(cmd.Context(), "/retry", args[0], args[1:], url.Values{}, "tried again: %d\n", asJSON, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func discardCommand() *cobra.Command {
	var asJSON, all bool
	cmd := &cobra.Command{
		Use:   "discard MOUNTPOINT PATH...",
		Short: "Give up what was written and is not in the bucket",
		Long: `Give up what was done under a name and is not in the bucket: the name becomes what the bucket has, or
vanishes. A file that was removed shows again while its object is not deleted yet. Nobody may have the
file open. This cannot be undone.`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			query := url.Values{}
			switch {
			case all && len(args) > 1:
				return usageError{errors.New("--all and paths: use one or the other")}
			case all:
				query.Set("all", "1")
			case len(args) < 2:
				return usageError{errors.New("which files: leatfs discard MOUNTPOINT PATH..., or --all")}
			}
			return changeLedger(cmd.Context(), "/discard", args[0], args[1:], query, "given up: %d\n", asJSON, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "give up everything that is not in the bucket")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// changeLedger asks the daemon of a mount to do something with files in it.
func changeLedger(ctx context.Context, what, mountpoint string, files []string, query url.Values, done string, asJSON bool, w io.Writer) error {
	s, err := servingStatus(ctx, mountpoint)
	if err != nil {
		return err
	}
	for _, file := range files {
		p, err := belowMount(s.Mountpoint, file)
		if err != nil {
			return usageError{err}
		}
		query.Add("path", p)
	}
	var a changeAnswer
	if err := askJSON(ctx, socketPath(s.Mountpoint), http.MethodPost, what, query, &a); err != nil {
		return fmt.Errorf("%s: %w", s.Mountpoint, err)
	}
	if asJSON {
		err = json.NewEncoder(w).Encode(a)
	} else if a.Count > 0 || len(a.Errors) == 0 {
		_, err = fmt.Fprintf(w, done, a.Count)
	}
	for _, e := range a.Errors {
		err = errors.Join(err, errors.New(e))
	}
	return err
}

// belowMount is the path of a file below a mount point, with a leading "/". The file itself is not looked
// at: it may be one that was removed. A path that is not below the mount point, as given or from the
// working directory, is taken as below it.
func belowMount(mountpoint, file string) (string, error) {
	if file == "" {
		return "", errors.New("a path is empty")
	}
	abs, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	for _, p := range []string{abs, filepath.Join(resolve(filepath.Dir(abs)), filepath.Base(abs))} {
		if !within(p, mountpoint) {
			continue
		}
		rel, err := filepath.Rel(mountpoint, p)
		if err != nil {
			return "", err
		}
		return filepath.Join("/", rel), nil
	}
	return filepath.Join("/", file), nil
}
