package record

import (
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// envServe says to a process that it is to serve a recording disk, and where: "DIR SIZE UNIT".
const envServe = "LEATFS_RECORD"

// Serve turns a process that Start began into the one that serves the disk, and does not return
// then; in any other process it does nothing. It is the first thing that TestMain calls.
func Serve() {
	if os.Getenv(envServe) == "" {
		return
	}
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "recording disk:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve serves until the other side of stdin is closed, then takes away what lies above.
func serve() error {
	// The terminal's Ctrl-C is for the tests; this process ends when they do.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	var dir string
	var size, unit int64
	if _, err := fmt.Sscanf(os.Getenv(envServe), "%d %d %s", &size, &unit, &dir); err != nil {
		return fmt.Errorf("%s: %w", envServe, err)
	}
	log, err := NewLog(dir, size, unit)
	if err != nil {
		return err
	}
	defer log.Close()
	at := mountpoint(dir)
	if err := os.Mkdir(at, 0o700); err != nil {
		return err
	}
	r := &root{log: log, files: map[string]medium{diskName: log}}
	server, err := fs.Mount(at, r, &fs.Options{MountOptions: fuse.MountOptions{
		Name: fsName, FsName: tag(os.Getpid()), DirectMountStrict: true, MaxWrite: 1 << 20, MaxBackground: 64}})
	if err != nil {
		return fmt.Errorf("mount %s: %w", at, err)
	}
	s := rpc.NewServer()
	if err := s.Register(&Control{root: r}); err != nil {
		return err
	}
	s.ServeConn(stdio{os.Stdin, os.Stdout}) // until the other side is gone
	mine := tag(os.Getpid())
	err = removeLoops(func(tag string, _ bool) bool { return tag == mine })
	if uerr := server.Unmount(); uerr != nil {
		err = errors.Join(err, syscall.Unmount(at, syscall.MNT_DETACH))
	}
	return errors.Join(err, os.Remove(at))
}

// stdio makes a connection of two pipes.
type stdio struct {
	io.ReadCloser
	io.WriteCloser
}

func (s stdio) Close() error { return errors.Join(s.ReadCloser.Close(), s.WriteCloser.Close()) }

const (
	// fsName is the type of the file system as the table of mounts has it, after "fuse.". The names of its
	// files begin with it: a loop device says what file it is over, even when nobody serves that any more.
	fsName = "leatfs-record"
	// diskName is the file that is recorded, cutName begins those after a cut.
	diskName = fsName + "-disk"
	cutName  = fsName + "-cut-"
)

func mountpoint(dir string) string { return dir + "/recorded" }

// tag names a serving process for whoever finds what it left: its number and when it was begun.
func tag(pid int) string { return fsName + ":" + strconv.Itoa(pid) + ":" + begun(pid) }

// Control is what the process that serves is asked over its pipes, by net/rpc.
type Control struct {
	root *root
	cuts atomic.Int64
}

// Nothing stands for no argument or no result.
type Nothing struct{}

// Events returns the events from an index on.
func (c *Control) Events(from int, out *[]Event) error {
	*out = c.root.log.Events(from)
	return c.root.log.Err()
}

// Position is how many events there are.
func (c *Control) Position(_ Nothing, out *int) error {
	*out = c.root.log.Position()
	return c.root.log.Err()
}

// Mark notes a fact.
func (c *Control) Mark(text string, _ *Nothing) error {
	c.root.log.Mark(text)
	return c.root.log.Err()
}

// Cut makes the disk after a cut and returns its file's name.
func (c *Control) Cut(cut Cut, name *string) error {
	if err := c.root.log.Err(); err != nil {
		return err
	}
	im, err := c.root.log.Cut(cut)
	if err != nil {
		return err
	}
	*name = cutName + strconv.FormatInt(c.cuts.Add(1), 10)
	c.root.add(*name, im)
	return nil
}

// Drop forgets a file that Cut made.
func (c *Control) Drop(name string, _ *Nothing) error {
	c.root.remove(name)
	return nil
}
