package cache_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/cache/buf"
	"github.com/leatfs/leatfs/cache/cachetest"
)

// tryOpen opens and closes a cache in dir and returns the error.
func tryOpen(t *testing.T, dir string) error {
	t.Helper()
	pool, err := buf.New(buf.Options{Cap: 32 * buf.Size})
	if err != nil {
		t.Fatal(err)
	}
	pool.Check(t)
	c, err := cache.Open(cache.Config{Dirs: []cache.DirConfig{{Path: dir, Size: 16 << 20}}, Index: cachetest.NewIndex(), Pool: pool, ReserveFree: -1})
	if err != nil {
		return err
	}
	return c.Close()
}

func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", words)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("the error has more than one line: %v", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	t.Run("missing", func(t *testing.T) {
		if err := tryOpen(t, filepath.Join(dir, "new")); err != nil {
			t.Errorf("the last component should be made: %v", err)
		}
		fi, err := os.Stat(filepath.Join(dir, "new"))
		if err != nil || fi.Mode().Perm() != 0o700 {
			t.Errorf("mode %v, %v; want 0700", fi.Mode(), err)
		}
		wantError(t, tryOpen(t, filepath.Join(dir, "a", "b")), filepath.Join(dir, "a", "b"), "parent", "create it")
	})
	t.Run("file", func(t *testing.T) {
		name := filepath.Join(dir, "file")
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		wantError(t, tryOpen(t, name), name, "not a directory")
	})
	t.Run("tmpfs", func(t *testing.T) {
		tmp, err := os.MkdirTemp("/dev/shm", "leatfs")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(tmp)
		wantError(t, tryOpen(t, tmp), tmp, "tmpfs", "NVMe")
	})
	t.Run("newer", func(t *testing.T) {
		d := filepath.Join(dir, "newer")
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d, "leatfs-cache.json"), []byte(`{"format":9,"uuid":"x","number":1}`), 0o600); err != nil {
			t.Fatal(err)
		}
		wantError(t, tryOpen(t, d), d, "format 9", "newer leatfs")
	})
	t.Run("damaged", func(t *testing.T) {
		d := filepath.Join(dir, "damaged")
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d, "leatfs-cache.json"), []byte(`{"for`), 0o600); err != nil {
			t.Fatal(err)
		}
		wantError(t, tryOpen(t, d), d, "damaged")
	})
	t.Run("read-only", func(t *testing.T) {
		d := loopMount(t, 32<<20)
		if err := unix.Mount("", d, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		wantError(t, tryOpen(t, d), d, "read-only", "remount")
	})
	t.Run("full", func(t *testing.T) {
		d := loopMount(t, 32<<20)
		fill(t, d)
		wantError(t, tryOpen(t, d), d, "full")
	})
}

// TestLockNamesTheOther uses a real second process: this test binary.
func TestLockNamesTheOther(t *testing.T) {
	dir := t.TempDir()
	if os.Getenv("LEATFS_TEST_HOLD") != "" {
		dir = os.Getenv("LEATFS_TEST_HOLD")
		pool, err := buf.New(buf.Options{Cap: 32 * buf.Size})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cache.Open(cache.Config{Dirs: []cache.DirConfig{{Path: dir, Size: 16 << 20}}, Index: cachetest.NewIndex(), Pool: pool}); err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString("held\n")
		os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestLockNamesTheOther$")
	cmd.Env = append(os.Environ(), "LEATFS_TEST_HOLD="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("the other process said %q", line)
	}
	err = tryOpen(t, dir)
	wantError(t, err, dir, "used by another mount", strconv.Itoa(cmd.Process.Pid))
	if !errors.Is(err, cache.ErrInUse) {
		t.Errorf("%v is not ErrInUse", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	in.Close()
	if err := tryOpen(t, dir); err != nil {
		t.Errorf("after the other was killed: %v", err)
	}
}

// loopMount makes an ext4 of n bytes and mounts it.
func loopMount(t testing.TB, n int64) string {
	t.Helper()
	base := t.TempDir()
	img, dir := filepath.Join(base, "img"), filepath.Join(base, "mnt")
	if err := os.WriteFile(img, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(img, n); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0", img}, {"mount", "-o", "loop", img, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			if os.Geteuid() != 0 {
				t.Skipf("a loop mount needs root: %s", out)
			}
			if _, serr := os.Stat("/dev/loop-control"); serr != nil {
				t.Skipf("there are no loop devices: %s", out)
			}
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

// fill leaves no space in dir; it returns the name of the file that takes it.
func fill(t testing.TB, dir string) string {
	t.Helper()
	name := filepath.Join(dir, "ballast")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for n := 1 << 20; n >= 512; {
		if _, err := f.Write(make([]byte, n)); err != nil {
			n /= 2
		}
	}
	return name
}

func TestDiskFull(t *testing.T) {
	dir := loopMount(t, 64<<20)
	e := newEnv(t, 0, 64, func(c *cache.Config) { c.Dirs = []cache.DirConfig{{Path: dir, Size: 1 << 30}} })
	data, ident := e.store.put("big", 9<<20)
	o := e.object(ident)
	e.wantRead(o, data, 8<<20, block) // its file is there already
	eventually(t, "stored", func() bool { return o.ResidentBytes() == block })
	ballast := fill(t, dir)
	e.wantRead(o, data, 0, ident.Size)
	e.wantRead(o, data, 3<<20, 1<<20)
	err := o.Fetch(t.Context())
	if !errors.Is(err, cache.ErrNotKept) {
		t.Errorf("Fetch on a full disk: %v, want ErrNotKept", err)
	}
	o.Release()
	if s := e.Stats(); s.FillErrors == 0 && s.NotKept == 0 {
		t.Errorf("nothing counted: %+v", s)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cache takes data again", func() bool {
		o := e.object(ident)
		defer o.Release()
		return o.Fetch(t.Context()) == nil
	})
	o = e.object(ident)
	e.wantLent(o, data)
	o.Release()
}

func TestReserveOnDisk(t *testing.T) {
	dir := loopMount(t, 128<<20)
	const reserve = 40 << 20
	e := newEnv(t, 0, 64, func(c *cache.Config) {
		c.Dirs = []cache.DirConfig{{Path: dir, Size: 1 << 30}} // more than the disk has
		c.ReserveFree = reserve
	})
	for i := range 60 {
		data, ident := e.store.put(keyOf(i), 3<<20)
		o := e.object(ident)
		e.wantRead(o, data, 0, ident.Size)
		o.Release()
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		if free := int64(st.Bavail) * st.Bsize; free < reserve-4<<20 {
			t.Fatalf("after %d objects %d bytes are free, want %d", i, free, reserve)
		}
	}
	if e.Stats().Evicted == 0 {
		t.Error("nothing was evicted")
	}
}
