package systemd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What all tests use; set by TestMain.
var (
	tree   string // Debian with systemd: the lower layer of each machine
	leatfs string // the binary, as it is released
)

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/systemd:", err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (int, error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("these tests boot machines: run them as root")
	}
	cmd := exec.Command("./tree.sh")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 1, fmt.Errorf("tree.sh: %w", err)
	}
	tree = strings.TrimSpace(string(out))
	if leatfs = os.Getenv("LEATFS_BIN"); leatfs != "" {
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("", "leatfs-bin-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	leatfs = filepath.Join(dir, "leatfs")
	cmd = exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", leatfs, "github.com/leatfs/leatfs/cmd/leatfs")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build: %w\n%s", err, out)
	}
	return m.Run(), nil
}
