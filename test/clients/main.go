// Command clients runs real, unmodified programs on a mounted bucket of a real S3 server
// and compares every sample that they got with what was put there.
//
// For each client: its script generates data in a local directory, with a manifest of
// digests; the data are uploaded; the bucket is mounted with an empty cache. Then the
// script checks, in this order,
//
//	cold       everything comes from the bucket
//	warm       the same mount, pages of the cache files dropped
//	remounted  a new daemon on the same cache, which must not fetch anything again
//	daemon     a new cache, and --passthrough=off: all bytes go through the daemon
//	killed     a new cache, and the mount's process killed every 2 s (of some clients only)
//
// One line per client says PASS or FAIL; after a failure the logs are kept.
//
// "clients write" runs programs that write: see runWrite.
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

	"github.com/leatfs/leatfs/test/s3test"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	f, args := run, os.Args[1:]
	if len(args) > 0 && args[0] == "write" {
		f, args = runWrite, args[1:]
	}
	if err := f(ctx, args); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, "clients:", err)
		os.Exit(1)
	}
}

// config is the command line.
type config struct {
	leatfs, python, scripts, dir string

	server s3test.Kind
	keep   bool
	limit  time.Duration // for one run of a script
}

func run(ctx context.Context, args []string) error {
	var c config
	var only, kind string
	fs := flag.NewFlagSet("clients", flag.ContinueOnError)
	fs.StringVar(&c.leatfs, "leatfs", "bin/leatfs", "the `binary` to test")
	fs.StringVar(&c.python, "python", "", "the Python with the clients (test/pyenv/pyenv.sh prints it)")
	fs.StringVar(&c.scripts, "scripts", "test/clients", "`directory` of the scripts")
	fs.StringVar(&c.dir, "dir", "/var/tmp", "`directory` to work in, on the disk that the cache is tested on")
	fs.StringVar(&only, "only", "", "run only these clients, separated by commas")
	fs.StringVar(&kind, "server", string(s3test.Versitygw), "S3 server: versitygw or minio")
	fs.BoolVar(&c.keep, "keep", false, "keep data and logs also when all passed")
	fs.DurationVar(&c.limit, "limit", 5*time.Minute, "time that one check may take")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	c.server = s3test.Kind(kind)
	if c.python == "" {
		return errors.New("no Python given: use -python \"$(test/pyenv/pyenv.sh)\"")
	}
	clients, err := choose(c.scripts, only)
	if err != nil {
		return err
	}

	work, err := os.MkdirTemp(c.dir, "leatfs-clients-")
	if err != nil {
		return err
	}
	server, err := s3test.Start(ctx, s3test.Options{Kind: c.server, Dir: mustDir(work, "server")})
	if err != nil {
		return err
	}
	defer server.Stop()

	start := time.Now()
	var failed []string
	for _, name := range clients {
		r := runner{config: &c, name: name, server: server, work: filepath.Join(work, name)}
		err := r.run(ctx)
		if ctx.Err() != nil {
			server.Stop()
			_ = os.RemoveAll(work)
			return errors.New("interrupted")
		}
		if err != nil {
			failed = append(failed, name)
			fmt.Printf("FAIL  %-12s %s\n      %v\n", name, r.times(), strings.ReplaceAll(err.Error(), "\n", "\n      "))
		} else {
			fmt.Printf("PASS  %-12s %s\n", name, r.times())
			if !c.keep {
				_ = os.RemoveAll(r.work)
			}
		}
	}
	fmt.Printf("%d of %d clients passed in %.0f s\n", len(clients)-len(failed), len(clients), time.Since(start).Seconds())
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s (data and logs: %s)", strings.Join(failed, ", "), work)
	}
	if c.keep {
		fmt.Println("data and logs:", work)
		return nil
	}
	server.Stop()
	return os.RemoveAll(work)
}

// choose lists the scripts read_NAME.py, or those of them that were asked for.
func choose(dir, only string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "read_*.py"))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, f := range files {
		all = append(all, strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), "read_"), ".py"))
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no scripts read_*.py in %s", dir)
	}
	if only == "" {
		return all, nil
	}
	names := strings.Split(only, ",")
	for _, n := range names {
		if !slices.Contains(all, n) {
			return nil, fmt.Errorf("there is no client %q: they are %s", n, strings.Join(all, ", "))
		}
	}
	return names, nil
}

// mustDir joins, and makes the directory.
func mustDir(elem ...string) string {
	d := filepath.Join(elem...)
	_ = os.MkdirAll(d, 0o755) // what comes next says that it is not there
	return d
}
