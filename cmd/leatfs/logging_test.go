package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A log that is turned over says so to who else writes to it, and not while it holds its lock.
func TestLogTurnsOver(t *testing.T) {
	stderr, err := unix.FcntlInt(os.Stderr.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(stderr) }()
	path := filepath.Join(t.TempDir(), "log")
	l, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Dup3(stderr, int(os.Stderr.Fd()), 0); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	var moved []string
	l.moved = func(f *os.File) error {
		if !l.mu.TryLock() {
			t.Error("the lock is held")
		} else {
			l.mu.Unlock()
		}
		target, err := os.Readlink(fmt.Sprint("/proc/self/fd/", f.Fd()))
		moved = append(moved, target)
		return err
	}
	line := make([]byte, 1<<20)
	for range maxLog/len(line) + 1 {
		if _, err := l.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if len(moved) != 0 {
		t.Errorf("moved early: %q", moved)
	}
	if _, err := l.Write([]byte("new")); err != nil {
		t.Fatal(err)
	}
	if len(moved) != 1 || moved[0] != path {
		t.Errorf("moved: %q", moved)
	}
	if b, err := os.ReadFile(path); string(b) != "new" {
		t.Errorf("%q %v", b, err)
	}
}
