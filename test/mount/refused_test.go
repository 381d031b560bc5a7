package mount

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// refusal is a mount that must not come about, and what shall be said of it.
type refusal struct {
	args []string // after "mount"
	env  []string // beside the world's; later ones win
	dir  string   // the mount point that it is about
	code int
	says []string // each must be in the one line
	// gone are paths that must not be there afterwards, empty directories that must be so.
	gone, empty []string
	within      time.Duration // default prompt
}

// check tries the mount in the background and in the foreground. However it was started:
// the exit code is right, standard error has one line that names the thing and the remedy,
// and nothing is left.
func (r refusal) check(t *testing.T, w *world) {
	t.Helper()
	for _, how := range []string{"background", "foreground"} {
		args := append([]string{"mount"}, r.args...)
		if how == "foreground" {
			args = append(args, "--foreground")
		}
		cmd := w.command(args...)
		cmd.Env = append(cmd.Env, r.env...)
		r.run(t, how, cmd)
	}
}

func (r refusal) run(t *testing.T, how string, cmd *exec.Cmd) {
	t.Helper()
	within := r.within
	if within == 0 {
		within = prompt
	}
	code, stdout, stderr := outcome(t, cmd, within)
	if code != r.code {
		t.Errorf("%s: exit code %d, want %d (%s)", how, code, r.code, stderr)
	}
	if stdout != "" {
		t.Errorf("%s: on standard output: %q", how, stdout)
	}
	oneLine(t, how, stderr, r.says...)
	for _, p := range r.gone {
		if _, err := os.Lstat(p); !os.IsNotExist(err) {
			t.Errorf("%s: %s is there (%v)", how, p, err)
		}
	}
	for _, p := range r.empty {
		if es, err := os.ReadDir(p); err != nil || len(es) > 0 {
			t.Errorf("%s: %s holds %v (%v)", how, p, es, err)
		}
	}
	if r.dir != "" {
		nothingLeft(t, how, r.dir)
	}
}

// prompt is how long a command may take that waits for nobody, on a busy machine. It is less than the program gives a
// bucket, to answer a mount or to take what was written.
const prompt = 25 * time.Second

// outcome runs a command that must end within d.
func outcome(t *testing.T, cmd *exec.Cmd, d time.Duration) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !stop() {
		t.Errorf("%v: not over after %v", cmd.Args, d)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// oneLine checks what stands on standard error.
func oneLine(t *testing.T, how, stderr string, says ...string) {
	t.Helper()
	if strings.Count(stderr, "\n") != 1 || !strings.HasSuffix(stderr, "\n") || !strings.HasPrefix(stderr, "leatfs: ") {
		t.Errorf("%s: not one line that begins with \"leatfs: \":\n%s", how, stderr)
	}
	for _, s := range says {
		if !strings.Contains(stderr, s) {
			t.Errorf("%s: %q does not say %q", how, stderr, s)
		}
	}
}

// socketOf is where the control socket of a mount point is.
func socketOf(dir string) string {
	h := sha256.Sum256([]byte(dir))
	return filepath.Join("/run/leatfs", hex.EncodeToString(h[:8])+".sock")
}

// mountsAt counts the mounts of leatfs at a path.
func mountsAt(t *testing.T, dir string) (n int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); f[4] == dir && strings.Contains(line, " fuse.leatfs ") {
			n++
		}
	}
	return n
}

// processesOf are the processes with the mount point in their command line.
func processesOf(t *testing.T, dir string) (out []string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range lines {
		b, err := os.ReadFile(f)
		if err == nil && slices.Contains(strings.Split(string(b), "\x00"), dir) && bytes.Contains(b, []byte("leatfs")) {
			out = append(out, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return out
}

// nothingLeft checks that no mount, process or socket is there for a mount point.
func nothingLeft(t *testing.T, how, dir string) {
	t.Helper()
	if n := mountsAt(t, dir); n != 0 {
		t.Errorf("%s: %d mounts are left at %s", how, n, dir)
		_ = syscall.Unmount(dir, syscall.MNT_DETACH)
	}
	// Where the end was not waited for, the keeper ends after the last process of the mount.
	var err error
	var p []string
	for range 3000 {
		p = processesOf(t, dir)
		if _, err = os.Lstat(socketOf(dir)); len(p) == 0 && os.IsNotExist(err) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%s: processes are left: %v; control socket: %v", how, p, err)
}

// place is a mount point and a cache directory that is not there yet.
func place(t *testing.T) (dir, cache string) {
	t.Helper()
	base := t.TempDir()
	dir = filepath.Join(base, "mnt")
	mkdir(t, dir)
	return dir, filepath.Join(base, "cache")
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// ext4 makes an ext4 file system of size bytes in a file, mounts it with the options and
// returns where.
func ext4(t *testing.T, size int64, options string) string {
	t.Helper()
	base := t.TempDir()
	image, dir := filepath.Join(base, "image"), filepath.Join(base, "disk")
	mkdir(t, dir)
	write(t, image, "")
	if err := os.Truncate(image, size); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{
		{"mkfs.ext4", "-q", "-m", "0", image},
		{"mount", "-o", "loop," + options, image, dir},
	} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c, err, out)
		}
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
			_ = syscall.Unmount(dir, syscall.MNT_DETACH)
		}
	})
	return dir
}

// fill leaves left bytes free on the disk of dir, and returns the file that takes the rest.
func fill(t *testing.T, dir string, left int64) string {
	t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var full error
	for range 8 { // what is freed meanwhile is taken too
		var st syscall.Statfs_t
		if err := syscall.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		n := int64(st.Bavail)*st.Bsize - left
		if n <= 0 {
			return name
		}
		fi, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		full = syscall.Fallocate(int(f.Fd()), 0, fi.Size(), n)
		if full == syscall.ENOSPC { // somebody has taken some of it since
			full = fmt.Errorf("fill %s with %d bytes: %w", dir, n, full)
		} else if full != nil {
			t.Fatal(fmt.Errorf("fill %s with %d bytes: %w", dir, n, full))
		}
	}
	if full != nil {
		t.Fatal(full)
	}
	return name
}
