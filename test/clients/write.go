package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/leatfs/leatfs/test/s3test"
)

// writer is a client that writes: the script write_NAME.py.
type writer struct {
	name   string
	quick  bool     // part of "make test-clients-quick"
	layers []string // of test/pyenv that it needs beside the environment
}

// writers lists the clients, those that need least first.
func writers() []writer {
	return []writer{
		{name: "churn", quick: true},
		{name: "copy", quick: true}, // rsync, tar, cp
		{name: "make", quick: true},
		{name: "git", quick: true},
		{name: "sqlite", quick: true},
		{name: "fsspec", quick: true},
		{name: "numpy", quick: true},
		{name: "h5py", quick: true},
		{name: "parquet", quick: true},
		{name: "zarr", quick: true, layers: []string{"zarr"}},
		{name: "torch", quick: true},
		{name: "safetensors", quick: true},
		{name: "safetensors07", layers: []string{"safetensors-0.7"}},
		{name: "megatron"},
		{name: "dcp"},
		{name: "hfstaging"},
		{name: "datasets"},
		{name: "fsdp"},
		{name: "tensorstore", layers: []string{"orbax"}},
		{name: "orbax", layers: []string{"orbax"}},
		{name: "lightning", layers: []string{"lightning"}},
		{name: "trainer", layers: []string{"trainer"}},
		{name: "deepspeed"},
		{name: "mlflow", layers: []string{"mlflow"}},
		{name: "wandb", layers: []string{"wandb"}},
	}
}

// writeConfig is the command line of "clients write".
type writeConfig struct {
	config
	plain     string // work in this directory instead of mounts
	layers    string // the program that installs layers
	killEvery time.Duration
	settle    time.Duration // how long publication may take
	noKill    bool
}

// runWrite runs programs that write. Each, with a bucket of its own:
//
//	save    the client writes into a mount with an empty cache
//	load    it reads it all back and compares it with the sums it noted, on the same mount
//	bucket  every file is an object with the same bytes, by a plain S3 client; nothing else is
//	        in the bucket, and no multipart upload is unfinished (but one for each kill: it may come
//	        while an upload is made, whose id is lost then)
//	fresh   the same load on a new mount with an empty cache, and the tree is the same
//
// and once more from the beginning in another bucket, with the worker of the mount killed while
// the client saves. With -plain DIR only save and load are run, in that directory: that is how
// to tell a fault of the script from one of the mount.
func runWrite(ctx context.Context, args []string) error {
	var c writeConfig
	var only, kind string
	var quick bool
	fs := flag.NewFlagSet("clients write", flag.ContinueOnError)
	fs.StringVar(&c.leatfs, "leatfs", "bin/leatfs", "the `binary` to test")
	fs.StringVar(&c.python, "python", "", "the Python with the clients (test/pyenv/pyenv.sh prints it)")
	fs.StringVar(&c.layers, "layers", "test/pyenv/layers.sh", "the `program` that installs layers of packages")
	fs.StringVar(&c.scripts, "scripts", "test/clients", "`directory` of the scripts")
	fs.StringVar(&c.config.dir, "work", "/var/tmp", "`directory` to work in, on the disk that the cache is tested on")
	fs.StringVar(&c.plain, "dir", "", "save and load in this `directory` instead of a mount")
	fs.StringVar(&only, "only", "", "run only these clients, separated by commas")
	fs.BoolVar(&quick, "quick", false, "run only the clients that are quick")
	fs.StringVar(&kind, "server", string(s3test.Versitygw), "S3 server: versitygw or minio")
	fs.BoolVar(&c.keep, "keep", false, "keep data and logs also when all passed")
	fs.BoolVar(&c.noKill, "no-kill", false, "do not kill the worker")
	fs.DurationVar(&c.killEvery, "kill-every", killEvery, "time between kills of the worker")
	fs.DurationVar(&c.limit, "limit", 5*time.Minute, "time that one run of a script may take")
	fs.DurationVar(&c.settle, "settle", 2*time.Minute, "time until everything is in the bucket")
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
	chosen, err := chooseWriters(only, quick)
	if err != nil {
		return err
	}
	layers, err := c.install(ctx, chosen)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(c.config.dir, "leatfs-clients-")
	if err != nil {
		return err
	}
	var server *s3test.Server
	if c.plain == "" {
		if server, err = s3test.Start(ctx, s3test.Options{Kind: c.server, Dir: mustDir(work, "server")}); err != nil {
			return err
		}
		defer server.Stop()
	}

	start := time.Now()
	t := newTable(os.Stdout, c.phaseNames())
	var failed []string
	for _, w := range chosen {
		r := writeRunner{runner: runner{config: &c.config, name: w.name, server: server, work: filepath.Join(work, w.name)}, c: &c}
		for _, l := range w.layers {
			r.layers = append(r.layers, layers[l])
		}
		errs := r.run(ctx)
		if ctx.Err() != nil {
			if server != nil {
				server.Stop()
			}
			return errors.Join(errors.New("interrupted"), os.RemoveAll(work))
		}
		t.row(w.name, r.cells)
		for _, n := range r.notes {
			fmt.Printf("      note: %s\n", n)
		}
		for _, err := range errs {
			fmt.Printf("      %v\n", strings.ReplaceAll(err.Error(), "\n", "\n      "))
		}
		if len(errs) > 0 {
			failed = append(failed, w.name)
		} else if !c.keep {
			_ = os.RemoveAll(r.work)
		}
	}
	fmt.Printf("%d of %d clients passed in %.0f s\n", len(chosen)-len(failed), len(chosen), time.Since(start).Seconds())
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s (data and logs: %s)", strings.Join(failed, ", "), work)
	}
	if c.keep {
		fmt.Println("data and logs:", work)
		return nil
	}
	if server != nil {
		server.Stop()
	}
	return os.RemoveAll(work)
}

// chooseWriters lists the clients that were asked for.
func chooseWriters(only string, quick bool) ([]writer, error) {
	all := writers()
	var out []writer
	asked := strings.FieldsFunc(only, func(r rune) bool { return r == ',' })
	for _, w := range all {
		if len(asked) > 0 && slices.Contains(asked, w.name) || len(asked) == 0 && (w.quick || !quick) {
			out = append(out, w)
		}
	}
	for _, a := range asked {
		if !slices.ContainsFunc(all, func(w writer) bool { return w.name == a }) {
			var names []string
			for _, w := range all {
				names = append(names, w.name)
			}
			return nil, fmt.Errorf("there is no client %q: they are %s", a, strings.Join(names, ", "))
		}
	}
	return out, nil
}

// install installs the layers that the clients need, and returns where each is.
func (c *writeConfig) install(ctx context.Context, chosen []writer) (map[string]string, error) {
	var need []string
	for _, w := range chosen {
		for _, l := range w.layers {
			if !slices.Contains(need, l) {
				need = append(need, l)
			}
		}
	}
	out := map[string]string{}
	if len(need) == 0 {
		return out, nil
	}
	cmd := exec.CommandContext(ctx, c.layers, need...)
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w", c.layers, strings.Join(need, " "), err)
	}
	dirs := strings.Fields(stdout.String())
	if len(dirs) != len(need) {
		return nil, fmt.Errorf("%s %s printed %q, not a directory for each", c.layers, strings.Join(need, " "), stdout.String())
	}
	for i, l := range need {
		out[l] = dirs[i]
	}
	return out, nil
}
