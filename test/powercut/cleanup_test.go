package powercut

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leatfs/leatfs/test/powercut/record"
)

// childHold mounts a file system on a disk, says so, and waits for its end.
func childHold(args []string) error {
	at, dir := filepath.Join(args[0], "disk"), filepath.Join(args[0], "fs")
	for _, p := range []string{at, dir} {
		if err := os.Mkdir(p, 0o700); err != nil {
			return err
		}
	}
	disk, err := record.Start(at, 64<<20, 4096)
	if err != nil {
		return err
	}
	loop, err := disk.Attach()
	if err != nil {
		return err
	}
	opt := Options{FS: Ext4, Unit: 4096}
	if err := mkfs(loop.Path(), opt); err != nil {
		return err
	}
	if err := mount(loop.Path(), dir, opt); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("dirty"), 0o600); err != nil {
		return err
	}
	fmt.Println(disk.PID(), loop.Path())
	if err := loop.Close(); err != nil {
		return err
	}
	select {}
}

// Whatever dies, no mount and no loop device is left: at once when the test was killed, and at the next
// start when its disk's process was killed too.
func TestNothingIsLeft(t *testing.T) {
	for _, both := range []bool{false, true} {
		t.Run(map[bool]string{false: "test killed", true: "disk killed"}[both], func(t *testing.T) {
			dir := t.TempDir()
			cmd := child("hold", dir)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var pid int
			var loop string
			line, err := bufio.NewReader(out).ReadString('\n')
			if err == nil {
				_, err = fmt.Sscan(line, &pid, &loop)
			}
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(mounts(t), dir); n != 2 {
				t.Errorf("%d mounts below %s while it runs, want 2", n, dir)
			}
			if both {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // it was killed
			deadline := time.Now().Add(time.Minute)
			for {
				if both {
					if err := record.Sweep(); err != nil {
						t.Fatal(err)
					}
				}
				left := strings.Count(mounts(t), dir)
				busy := attached(loop, dir)
				if left == 0 && !busy {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("after a minute there are %d mounts; %s attached: %v", left, loop, busy)
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
}

func mounts(t *testing.T) string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// attached tells whether a loop device lies over a file below dir, or one of a recording disk whose directory is gone.
func attached(loop, dir string) bool {
	b, err := os.ReadFile("/sys/block/" + filepath.Base(loop) + "/loop/backing_file")
	s := string(b)
	return err == nil && (strings.HasPrefix(s, dir) || strings.HasPrefix(s, "/leatfs-record-"))
}
