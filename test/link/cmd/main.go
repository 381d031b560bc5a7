// Command cmd runs a shaped link in front of a server until it is told to end:
//
//	go run ./test/link/cmd -target 127.0.0.1:7070 -listen 127.0.0.1:7071 -per-conn 90MB
//
// It prints the address it listens on as the first line of stdout, and its counters as
// JSON at the end. SIGUSR1 takes the link down (connections refused), SIGUSR2 up again.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/leatfs/leatfs/test/link"
)

func main() {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	if err := run(os.Args[1:], os.Stdout, os.Stderr, signals); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "link:", err)
		os.Exit(1)
	}
}

// run serves until a signal ends it.
func run(args []string, stdout, stderr io.Writer, signals <-chan os.Signal) error {
	var opt link.Options
	fs := flag.NewFlagSet("link", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&opt.Target, "target", "", "server, `host:port`")
	fs.StringVar(&opt.Listen, "listen", "127.0.0.1:0", "listen on `host:port`")
	fs.DurationVar(&opt.FirstByte, "first-byte", 20*time.Millisecond, "time to the first byte of an answer")
	opt.PerConn = 90e6
	fs.Func("per-conn", "`bytes/s` of each connection, 0 for no limit (default 90MB)", size(&opt.PerConn))
	fs.Func("total", "`bytes/s` of all connections together, 0 for no limit (default 0)", size(&opt.Total))
	if err := fs.Parse(args); err != nil {
		return err
	}
	if opt.Target == "" {
		return errors.New("no server given: use -target host:port")
	}
	l, err := link.Start(opt)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Fprintln(stdout, l.Addr())
	for s := range signals {
		switch s {
		case syscall.SIGUSR1:
			err = l.SetDown(true)
		case syscall.SIGUSR2:
			err = l.SetDown(false)
		default:
			return json.NewEncoder(stdout).Encode(l.Counters())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// size parses "90MB", "64MiB" or plain bytes into v.
func size(v *int64) func(string) error {
	return func(s string) error {
		n, err := humanize.ParseBytes(s)
		*v = int64(n)
		return err
	}
}
