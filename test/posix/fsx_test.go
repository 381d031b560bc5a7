package posix

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// fsxRun is one run of fsx: how large the file gets, whether each write to a mapping is followed
// by msync, and which part of the operations it is.
type fsxRun struct {
	name    string
	size    int // of the file at most, in bytes
	op      int // of one operation at most, in bytes
	msync   bool
	percent int
	seed    uint64 // 0: a random one
}

// fsxRuns are small and dense, so that operations meet; with msync after each write to a mapping
// and so not dense; and larger than what is fetched whole when it is opened, by a random seed.
func fsxRuns() []fsxRun {
	return []fsxRun{
		{name: "dense", size: 256 << 10, op: 32 << 10, percent: 50, seed: 1},
		{name: "msync", size: 256 << 10, op: 32 << 10, percent: 5, seed: 2, msync: true},
		{name: "random", size: 3 << 20, op: 256 << 10, percent: 45},
	}
}

// fsxMost is how many operations one process of fsx does at most: it never unmaps what it has mapped for reading. The
// kernel goes through all of these mappings at each truncation, so a run gets slower with each operation, and a process
// can have 65530 of them, which it reaches after about 380,000 operations.
const fsxMost = 25_000

// TestFsx: random operations on one file (read, write, mappings, truncate, fallocate, holes, copies within the
// file, sendfile, close and open again) always show what they should, and in the end the bucket
// holds the same bytes.
func TestFsx(t *testing.T) {
	seed := *fsxSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	modes(t, leatfs, func(w *world) {
		for _, r := range fsxRuns() {
			if r.seed == 0 {
				r.seed = seed
			}
			name := r.name
			for part, left := 0, max(1, *fsxOps*r.percent/100); left > 0 && !w.t.Failed(); part++ {
				n := min(left, fsxMost)
				w.fsx(r, n)
				left -= n
				r.seed++
				r.name = fmt.Sprintf("%s-%d", name, part+1)
			}
		}
	})
}

// fsx runs it once.
func (w *world) fsx(r fsxRun, ops int) {
	w.t.Helper()
	bin := tool(w.t, "fsx")
	config := filepath.Join(w.base, "fsx-"+r.name+".toml")
	if err := os.WriteFile(config, []byte(r.config()), 0o644); err != nil {
		w.t.Fatal(err)
	}
	name := "fsx-" + r.name
	file := filepath.Join(w.dir, name)
	// A fortieth of a second for each operation: a disk takes a tenth of a millisecond.
	wait := time.Minute + time.Duration(ops)*25*time.Millisecond
	ctx, cancel := context.WithTimeout(w.t.Context(), wait)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "-f", config, "-S", fmt.Sprint(r.seed), "-N", fmt.Sprint(ops), "-P", w.base, file)
	cmd.Env = append(os.Environ(), "RUST_BACKTRACE=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	if ctx.Err() != nil {
		err = fmt.Errorf("it had not ended after %v", wait)
	}
	if err != nil {
		w.t.Errorf("fsx -S %d -N %d with %s: %v\n%s", r.seed, ops, r.name, err, tail(out.String()))
		keep(w.t, config)
		return
	}
	fmt.Printf("%s: %s: %d operations, seed %d: as they should be (%.1f s)\n", w.t.Name(), r.name, ops, r.seed, took.Seconds())
	if w.server == nil {
		if err := os.Remove(file); err != nil {
			w.t.Error(err)
		}
		return
	}
	w.published(name)
}

// config is fsx's configuration file. Operations are at least one byte long, because fsx calls
// posix_fallocate with a length of 0 otherwise, which no file system accepts.
func (r fsxRun) config() string {
	return fmt.Sprintf(`flen = %d
nomsyncafterwrite = %v
[opsize]
min = 1
max = %d
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 5
fsync = 0.02
fdatasync = 0.02
posix_fallocate = 2
punch_hole = 2
sendfile = 2
posix_fadvise = 2
copy_file_range = 3
`, r.size, !r.msync, r.op)
}

// published waits until the bucket holds what the mount shows.
func (w *world) published(name string) {
	w.t.Helper()
	want, err := os.ReadFile(filepath.Join(w.dir, name))
	if err != nil {
		w.t.Error(err)
		return
	}
	w.eventually(name+" is in the bucket as the mount shows it", func() error {
		o, err := w.server.Client().GetObject(context.Background(), &s3.GetObjectInput{Bucket: &w.bucket, Key: &name})
		if err != nil {
			return err
		}
		defer o.Body.Close()
		var got bytes.Buffer
		if _, err := got.ReadFrom(o.Body); err != nil {
			return err
		}
		if !bytes.Equal(got.Bytes(), want) {
			return fmt.Errorf("%d bytes with SHA-256 %x there, %d bytes with %x here", got.Len(), sha256.Sum256(got.Bytes()), len(want), sha256.Sum256(want))
		}
		return nil
	})
}

// tail is the end of what fsx printed: the operations before the failure.
func tail(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	const most = 60
	if n := len(lines) - most; n > 0 {
		lines = append([]string{fmt.Sprintf("(%d lines before)", n)}, lines[n:]...)
	}
	return strings.Join(lines, "\n")
}
