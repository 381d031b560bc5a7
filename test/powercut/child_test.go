package powercut

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// envChild names the function that a test binary runs instead of tests.
const envChild = "LEATFS_POWERCUT_CHILD"

func TestMain(m *testing.M) {
	Serve()
	if name := os.Getenv(envChild); name != "" {
		run := map[string]func(args []string) error{
			"hold":       childHold,
			"meta-write": childMetaWrite,
			"meta-check": childMetaCheck,
		}[name]
		if err := run(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0) // without what a proper end does
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "leatfs-powercut-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries = dir
	return m.Run()
}

// child is a command that runs one of the functions.
func child(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), envChild+"="+name)
	return cmd
}

// output runs a command and returns what it says; what it says of errors is in the error.
func output(cmd *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
