// Command demo shows leatfs at work: it fills a bucket of an S3 server on this machine with
// pictures, mounts it, and lets an ordinary PyTorch DataLoader read two epochs from it, from
// a tree of JPEGs (ImageFolder) and from WebDataset shards. The training ends with a checkpoint that
// torch.save writes to the mount; it is compared with what the bucket has then. Beside the two epochs the
// demonstration shows what the same DataLoader reaches on plain files of the same disk, and how long the AWS SDK
// takes to do nothing but download the same objects.
//
// Whatever happens, also Ctrl-C, nothing of it is left behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/test/mountpoint"
	"github.com/leatfs/leatfs/test/s3test"
	"github.com/leatfs/leatfs/test/upload"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

const bucket = "pictures"

// demo is what the steps share.
type demo struct {
	leatfs, bench, python, scripts string

	images int
	work   string
	server *s3test.Server
}

// dataset is a way to keep pictures, and what was measured with it.
type dataset struct {
	kind, dir, title string

	objects          int
	size             int64 // bytes
	sdk              time.Duration
	cold, warm, ext4 epoch
}

func run(ctx context.Context, args []string) (err error) {
	var d demo
	var dir string
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.StringVar(&d.leatfs, "leatfs", "bin/leatfs", "the leatfs `binary`")
	fs.StringVar(&d.bench, "bench", "bin/bench", "the `binary` of test/bench, which has the SDK's download")
	fs.StringVar(&d.python, "python", "", "the Python with PyTorch (test/pyenv/pyenv.sh prints it)")
	fs.StringVar(&d.scripts, "scripts", "test/demo", "`directory` of the scripts")
	fs.StringVar(&dir, "dir", "/var/tmp", "`directory` to work in, on a local disk")
	fs.IntVar(&d.images, "images", 3000, "how many JPEGs the tree has; the shards have twice as many")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if d.python == "" {
		return errors.New("no Python given: use -python \"$(test/pyenv/pyenv.sh)\"")
	}
	if d.work, err = os.MkdirTemp(dir, "leatfs-demo-"); err != nil {
		return err
	}
	defer func() {
		if rerr := os.RemoveAll(d.work); err == nil {
			err = rerr
		}
	}()
	return d.show(ctx)
}

func (d *demo) show(ctx context.Context) (err error) {
	begun := time.Now()
	say("start an S3 server (versitygw) on loopback")
	if d.server, err = s3test.Start(ctx, s3test.Options{Kind: s3test.Versitygw, Dir: d.path("server")}); err != nil {
		return err
	}
	defer d.server.Stop()

	say("generate %d JPEGs as a tree, and %d in WebDataset shards", d.images, 2*d.images)
	local := d.path("local")
	if err := d.script(ctx, "generate.py", local, fmt.Sprint(d.images)); err != nil {
		return err
	}
	sets := []*dataset{
		{kind: "imagefolder", dir: "tree", title: "ImageFolder"},
		{kind: "webdataset", dir: "shards", title: "WebDataset"},
	}
	if err := d.server.CreateBucket(ctx, bucket); err != nil {
		return err
	}
	for _, s := range sets {
		s.objects, s.size, err = upload.Tree(ctx, d.server.Client(), bucket, s.dir+"/", filepath.Join(local, s.dir))
		if err != nil {
			return err
		}
		say("put into s3://%s/%s/: %d objects, %.0f MB", bucket, s.dir, s.objects, float64(s.size)/1e6)
	}

	for _, s := range sets {
		say("download with the SDK alone: %s", s.dir)
		if s.sdk, err = d.download(ctx, s); err != nil {
			return err
		}
	}
	var shown mounted
	if shown, err = d.onMount(ctx, sets); err != nil {
		return err
	}
	for _, s := range sets {
		say("%s on plain files, for comparison", s.title)
		es, err := d.train(ctx, s, filepath.Join(local, s.dir), 1)
		if err != nil {
			return err
		}
		s.ext4 = es[0]
	}
	fmt.Printf("\n%s\n%s\n%s\n", table(sets), shown.checkpoint, shown.status)
	fmt.Printf("Done in %.0f s; everything was removed again.\n", time.Since(begun).Seconds())
	return nil
}

// mounted is what was seen on the mount, for people.
type mounted struct{ checkpoint, status string }

// onMount does the two epochs of both data sets, each with one DataLoader, and writes a checkpoint.
func (d *demo) onMount(ctx context.Context, sets []*dataset) (shown mounted, err error) {
	mnt := d.path("mnt")
	fmt.Printf("    $ leatfs mount s3://%s %s --cache-dir %s\n", bucket, mnt, d.path("cache"))
	m, err := mountpoint.Start(ctx, mountpoint.Options{
		Bin: d.leatfs, Source: "s3://" + bucket, Dir: mnt, Cache: d.path("cache"), Log: d.path("leatfs.log"),
		Env: d.server.Env(), Args: []string{"--cache-size", "8GiB"},
	})
	if err != nil {
		return shown, err
	}
	defer func() {
		fmt.Printf("    $ leatfs umount %s\n", mnt)
		if uerr := m.Unmount(); err == nil {
			err = uerr
		}
	}()
	for i, s := range sets {
		last := i == len(sets)-1
		before, err := m.Status(ctx)
		if err != nil {
			return shown, err
		}
		var more []string
		if last {
			say("%s: two epochs of a DataLoader on the mount, and torch.save of a checkpoint", s.title)
			more = []string{filepath.Join(mnt, checkpoint)}
		} else {
			say("%s: two epochs of a DataLoader on the mount", s.title)
		}
		es, err := d.train(ctx, s, filepath.Join(mnt, s.dir), 2, more...)
		if err != nil {
			return shown, errors.Join(err, complaints(m))
		}
		s.cold, s.warm = es[0], es[1]
		if last {
			if shown.checkpoint, err = d.landed(ctx, m, &es[1], before); err != nil {
				return shown, errors.Join(err, complaints(m))
			}
		}
	}
	text, err := m.Show(ctx)
	shown.status = fmt.Sprintf("$ leatfs status %s\n%s", mnt, text)
	return shown, err
}

func complaints(m *mountpoint.Mount) error {
	if c := m.Complaints(); len(c) > 0 {
		return errors.New("the daemon's log: " + strings.Join(c, "\n"))
	}
	return nil
}

func table(sets []*dataset) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	row := func(name string, f func(*dataset) string) {
		fmt.Fprintf(t, "%s\t", name)
		for _, s := range sets {
			fmt.Fprintf(t, "%s\t", f(s))
		}
		fmt.Fprintln(t)
	}
	of := func(e func(*dataset) epoch) func(*dataset) string {
		return func(s *dataset) string {
			x := e(s)
			return fmt.Sprintf("%4.0f MB/s  %5.0f images/s", float64(x.Bytes)/1e6/x.Seconds, float64(x.Samples)/x.Seconds)
		}
	}
	row("", func(s *dataset) string {
		return fmt.Sprintf("%s (%d objects, %.0f MB)", s.title, s.objects, float64(s.size)/1e6)
	})
	row("the SDK alone: download and store", func(s *dataset) string {
		return fmt.Sprintf("%4.0f MB/s", float64(s.size)/1e6/s.sdk.Seconds())
	})
	row("DataLoader on leatfs, epoch 1: cold, from the bucket", of(func(s *dataset) epoch { return s.cold }))
	row("DataLoader on leatfs, epoch 2: warm, from the local disk", of(func(s *dataset) epoch { return s.warm }))
	row("DataLoader on plain files of the same disk", of(func(s *dataset) epoch { return s.ext4 }))
	_ = t.Flush() // into memory
	return b.String()
}

func say(format string, args ...any) { fmt.Printf("demo: "+format+"\n", args...) }

func (d *demo) path(name string) string { return filepath.Join(d.work, name) }

// dropCaches empties the page cache, so that a disk is measured and not memory. Only root
// can; for others the second epoch comes partly from memory, on both sides.
func dropCaches() {
	unix.Sync()
	_ = os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}
