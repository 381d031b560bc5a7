// Package posix lets two suites that other file systems are tested with judge a mount:
// pjdfstest, which knows what POSIX says of each call, and fsx, which compares a file with what
// it should be after thousands of random operations. Both are programs of their own ("make
// tools" builds them); what they run on is the leatfs binary on a bucket of a real S3 server.
package posix

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/leatfs/leatfs/test/s3test"
)

// What all tests use; set by TestMain.
var (
	leatfs     string // the binary as it is released
	leatfsRace string // with the race detector

	fsxOps  = flag.Int("fsx-ops", 40_000, "operations of fsx for each way of serving")
	fsxSeed = flag.Uint64("fsx-seed", 0, "seed of fsx's last run instead of a random one")
	onDir   = flag.String("on", "", "test this `directory`, of any file system, instead of a mount: what fails there is the suites' own trouble")
)

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/posix:", err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (int, error) {
	flag.Parse()
	if os.Geteuid() != 0 {
		return 1, errors.New("these tests mount, and become other users: run them as root")
	}
	if b := os.Getenv("LEATFS_BIN"); b != "" || *onDir != "" {
		leatfs, leatfsRace = b, b
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("", "leatfs-bin-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	leatfs, leatfsRace = filepath.Join(dir, "leatfs"), filepath.Join(dir, "leatfs-race")
	if err := build(leatfs, "-trimpath"); err != nil {
		return 1, err
	}
	if err := build(leatfsRace, "-race"); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

func build(to string, flags ...string) error {
	args := append(append([]string{"build"}, flags...), "-o", to, "github.com/leatfs/leatfs/cmd/leatfs")
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
}

// tool is the path of one of the two programs.
func tool(t *testing.T, name string) string {
	t.Helper()
	p := filepath.Join(s3test.ToolsDir(), name)
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("%s is not in %s: run \"make tools\", which needs cargo (Rust 1.85 or later)", name, s3test.ToolsDir())
	}
	return p
}
