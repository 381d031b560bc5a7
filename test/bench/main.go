// Command bench measures reading and writing through leatfs. Every work is done by leatfs and by the
// best that the machine could do instead (its limit), by turns, in one run, and the result
// is the ratio of the two: so it means the same on a slow machine and on a fast one.
//
// The S3 server is versitygw on a RAM disk, behind a link of 20 ms to the first byte and
// 90 MB/s per connection (package test/link). The limit of a cold work is a program that
// does nothing but download with the AWS SDK and store to the same disk; that of a warm
// one is the same reader on ext4, on a copy of the data. The limit of writing is the same
// program on ext4, and that of publishing a bare upload of files that lie there whole.
//
//	bench run [flags]     does the works and prints a table; "bench run -h" lists the flags
//	bench read-seq ...    and the other modes are the programs that it runs (see modes)
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := dispatch(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// modes are the programs under measurement, each a process of its own. They print a Result
// as JSON.
func modes() map[string]func(context.Context, []string) (Result, error) {
	return map[string]func(context.Context, []string) (Result, error){
		"read-seq":    readSeq,    // files from end to end
		"read-rand":   readRand,   // blocks of one file in random order
		"read-files":  readFiles,  // many small files, each open, fstat, read, close
		"sdk-get":     sdkGet,     // objects by ranges, stored with O_DIRECT
		"sdk-objects": sdkObjects, // small objects whole, stored with O_DIRECT
		"sdk-rand":    sdkRand,    // ranges of one object in random order
		"sdk-list":    sdkList,    // a listing, page by page

		"write-save":      writeSave,     // checkpoints: written, fsync, renamed
		"write-files":     writeFiles,    // many small files, each open, write, close
		"sdk-put":         sdkPut,        // files by parts
		"sdk-put-objects": sdkPutObjects, // small files, each by one PUT
	}
}

func dispatch(ctx context.Context, args []string, out io.Writer) error {
	names := []string{"run"}
	for n := range modes() {
		names = append(names, n)
	}
	slices.Sort(names[1:])
	if len(args) == 0 {
		return fmt.Errorf("what to do: %s", strings.Join(names, ", "))
	}
	if args[0] == "run" {
		return runBench(ctx, args[1:], out)
	}
	mode, ok := modes()[args[0]]
	if !ok {
		return fmt.Errorf("%q: use one of %s", args[0], strings.Join(names, ", "))
	}
	res, err := mode(ctx, args[1:])
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return json.NewEncoder(out).Encode(res)
}

// Result is what a program did. Start and End are on the machine's monotonic clock, in
// nanoseconds, so that those of several processes can be compared.
type Result struct {
	Bytes int64 `json:"bytes"`
	Ops   int64 `json:"ops"`
	Start int64 `json:"start"`
	End   int64 `json:"end"`
}

// clock reads the monotonic clock that all processes share.
func clock() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return time.Now().UnixNano()
	}
	return ts.Nano()
}
