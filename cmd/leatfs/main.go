// Command leatfs mounts object storage as files. See "leatfs help".
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/leatfs/leatfs/cmd/leatfs/keeper"
)

// version is set by the linker.
var version = "dev"

// Exit codes.
const (
	exitOK    = 0
	exitError = 1 // it did not work; one line on standard error says why
	exitUsage = 2 // the command line or the configuration is wrong
	exitKept  = 3 // it is unmounted, and not all that was written is in the bucket yet
)

// usageError is an error of the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// keptError is for exitKept.
type keptError struct{ error }

func (e keptError) Unwrap() error { return e.error }

// toldError is an error that somebody else tells: the keeper, of its worker.
type toldError struct{ error }

func (e toldError) Unwrap() error { return e.error }

func main() {
	if len(os.Args) > 1 && os.Args[1] == keeperCommand {
		os.Exit(keep(os.Args[0], os.Args[2:])) // before anything that takes memory
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if !keeper.Started() { // a worker is ended by its keeper
		// A second signal ends the program at once.
		context.AfterFunc(ctx, stop)
	}
	code := runAs(ctx, os.Args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole program, for tests to call: it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:           "leatfs",
		Short:         "Mount S3 buckets as files, at the speed of the local NVMe",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
		Args:          usageArgs(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(mountCommand(), umountCommand(), statusCommand(), syncCommand(), retryCommand(), discardCommand(), verifyCommand(), upgradeCommand(), versionCommand())
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	var told toldError
	if errors.As(err, &told) {
		return exitError
	}
	var verdict verdictError
	if errors.As(err, &verdict) && verdict.err == nil {
		return verdict.code
	}
	fmt.Fprintf(stderr, "leatfs: %s\n", singleLine(err))
	if verdict.code != 0 {
		return verdict.code
	}
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	if errors.As(err, new(keptError)) {
		return exitKept
	}
	return exitError
}

// usageArgs makes the complaints about a command's arguments errors of usage.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{fmt.Errorf("%w; see \"%s --help\"", err, cmd.CommandPath())}
		}
		return nil
	}
}

// singleLine is the text of an error in one line: errors that were joined, and those of
// libraries, have several.
func singleLine(err error) string {
	var parts []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, "; ")
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  usageArgs(cobra.NoArgs),
		Run:   func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), "leatfs", version) },
	}
}
