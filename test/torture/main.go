// Command torture kills the worker of a mount for a long time, in several parts:
//
//	campaign    kills at random moments under eight processes that check all they read
//	leaks       a thousand restarts, and then every file of the cache must be free
//	million     how long it takes to go on with an index of a million objects
//	memory      kills while processes of the mount have hardly any memory
//	dataloader  a PyTorch DataLoader whose worker process is killed every two seconds
//
// Each part prints a line of figures. The exit code is 0 when no process saw an error or a wrong
// byte, and nothing was left behind. Times are told and not judged: they depend on the machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/leatfs/leatfs/test/load"
)

// torture is one run of this program.
type torture struct {
	leatfs, python, scripts, dir, only string

	duration time.Duration
	kills    int
	restarts int
	objects  int
	seed     uint64

	work   string
	failed []string // what was wrong, one line each
}

func main() {
	load.Main()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	t := torture{seed: uint64(time.Now().UnixNano())}
	f := flag.NewFlagSet("torture", flag.ContinueOnError)
	f.StringVar(&t.leatfs, "leatfs", "bin/leatfs", "the `binary` to test")
	f.StringVar(&t.python, "python", "", "the Python with PyTorch (test/pyenv/pyenv.sh prints it); without it there is no part dataloader")
	f.StringVar(&t.scripts, "scripts", "test/clients", "`directory` of the client scripts")
	f.StringVar(&t.dir, "dir", "/var/tmp", "`directory` to work in, on the disk that the cache is tested on")
	f.StringVar(&t.only, "only", "", "run only these parts, separated by commas")
	f.DurationVar(&t.duration, "duration", 5*time.Minute, "length of the part campaign; the part memory takes a fifth of it")
	f.IntVar(&t.kills, "kills", 100, "workers killed in the part campaign")
	f.IntVar(&t.restarts, "restarts", 1000, "workers killed in the part leaks")
	f.IntVar(&t.objects, "objects", 1_000_000, "objects in the index in the part million")
	f.Uint64Var(&t.seed, "seed", t.seed, "of when to kill and what to read")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if t.kills < 1 || t.restarts < 1 || t.objects < 1000 || t.duration < time.Second {
		return errors.New("-kills and -restarts: at least 1; -objects: at least 1000; -duration: at least 1s")
	}
	if t.work, err = os.MkdirTemp(t.dir, "leatfs-torture-"); err != nil {
		return err
	}
	fmt.Printf("seed %d\n", t.seed)
	parts := []struct {
		name string
		run  func(context.Context) error
	}{{"campaign", t.campaign}, {"leaks", t.leaks}, {"million", t.million}, {"memory", t.memory}, {"dataloader", t.dataloader}}
	only := strings.FieldsFunc(t.only, func(r rune) bool { return r == ',' })
	for _, o := range only {
		if !slices.ContainsFunc(parts, func(p struct {
			name string
			run  func(context.Context) error
		}) bool {
			return p.name == o
		}) {
			return fmt.Errorf("-only %s: there is no such part", o)
		}
	}
	for _, p := range parts {
		if len(only) > 0 && !slices.Contains(only, p.name) {
			continue
		}
		if err := p.run(ctx); err != nil {
			t.wrong("%s: %v", p.name, err)
		}
		if ctx.Err() != nil {
			return errors.Join(errors.New("interrupted"), os.RemoveAll(t.work))
		}
	}
	if len(t.failed) > 0 {
		return fmt.Errorf("%d things are wrong (logs: %s):\n  %s", len(t.failed), t.work, strings.Join(t.failed, "\n  "))
	}
	return os.RemoveAll(t.work)
}

// wrong notes what should not be.
func (t *torture) wrong(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	fmt.Println("WRONG:", line)
	t.failed = append(t.failed, line)
}

func (t *torture) path(name ...string) string {
	return filepath.Join(append([]string{t.work}, name...)...)
}
