package mount

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sizes around the block, the small-object limit and the request size.
var sizes = []int{0, 1, 4095, 4096, 4097, 128<<10 - 1, 128 << 10, 128<<10 + 1, 1 << 20, 2 << 20, 2<<20 + 1, 9<<20 + 12345}

// TestMount reads files of all sizes cold, warm from the daemon, warm from the kernel and
// after a restart.
func TestMount(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		for i, n := range sizes {
			w.put(fmt.Sprintf("dir/f%02d", i), random(uint64(i), n))
		}
		m := w.mount(flag)
		check := func() {
			t.Helper()
			for i, n := range sizes {
				m.same(fmt.Sprintf("dir/f%02d", i), random(uint64(i), n))
			}
		}
		check()
		check()
		dropCaches(t)
		check()
		m.proven(int64(len(sizes) - 1)) // all but the empty one
		if s := m.status(); s.Passthrough != (flag == "--passthrough=auto") {
			t.Errorf("passthrough is %v with %s", s.Passthrough, flag)
		} else if s.Passthrough && s.Files.Pass == 0 {
			t.Error("no open was answered with passthrough")
		}
		m.stop()
		mark := w.mark()
		m.start()
		check()
		if n := w.requests("GET", mark); n != 0 {
			t.Errorf("%d GETs after a restart with everything in the cache", n)
		}
	})
}

// TestRestartAsksLittle: with a full cache, one LIST for each directory and nothing else.
func TestRestartAsksLittle(t *testing.T) {
	w := newWorld(t)
	for d := range 3 {
		for i := range 20 {
			w.put(fmt.Sprintf("d%d/f%d", d, i), random(uint64(i), 5000))
		}
	}
	m := w.mount("--ttl=0s")
	read := func() {
		err := filepath.WalkDir(m.dir, func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				_, err = os.ReadFile(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	read()
	m.stop()
	m.args = nil
	time.Sleep(10 * time.Millisecond) // what the index holds is older than the mount
	mark := w.mark()
	m.start()
	read()
	if g, h := w.requests("GET", mark), w.requests("HEAD", mark); g != 0 || h > 1 {
		t.Errorf("%d GET and %d HEAD requests, want none", g, h)
	}
	// One for each directory and the root, one when the bucket is looked at.
	if n := w.requests("LIST", mark); n > 5 {
		t.Errorf("%d LIST requests for 4 directories", n)
	}
}

// TestReadModes: the ways in which programs read.
func TestReadModes(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		data := random(7, 11<<20+777)
		ways := map[string]func(t *testing.T, path string){
			"mmap shared":      func(t *testing.T, p string) { readMmap(t, p, "MAP_SHARED", data) },
			"mmap private":     func(t *testing.T, p string) { readMmap(t, p, "MAP_PRIVATE", data) },
			"O_DIRECT":         func(t *testing.T, p string) { readDirect(t, p, data) },
			"random preads":    func(t *testing.T, p string) { readRandom(t, p, data, 8) },
			"backwards":        func(t *testing.T, p string) { readBackwards(t, p, data) },
			"children":         func(t *testing.T, p string) { readChildren(t, p, data) },
			"cp":               func(t *testing.T, p string) { readCp(t, p, data) },
			"one byte at ends": func(t *testing.T, p string) { readEnds(t, p, data) },
		}
		for name := range ways {
			w.put(strings.ReplaceAll(name, " ", "-"), data)
		}
		m := w.mount(flag)
		for name, read := range ways {
			t.Run(name, func(t *testing.T) {
				p := m.path(strings.ReplaceAll(name, " ", "-"))
				read(t, p) // cold
				read(t, p) // as far as it is in the cache
				m.same(filepath.Base(p), data)
				dropCaches(t)
				read(t, p) // warm
			})
		}
	})
}

// readMmap reads a mapping in a process of its own: a page fault stops no goroutine but its
// thread, so that a garbage collection here would wait for the fault, and the fault for the
// proxy to S3, which runs here.
func readMmap(t *testing.T, path, flags string, want []byte) {
	cmd := exec.Command("python3", "-c", `import mmap, sys
f = open(sys.argv[1], "rb")
m = mmap.mmap(f.fileno(), 0, flags=getattr(mmap, sys.argv[2]), prot=mmap.PROT_READ)
ends = bytes(m[k] for k in (len(m) - 1, 0, len(m) // 2))
sys.stdout.buffer.write(ends + m[:])`, path, flags)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	got, err := cmd.Output()
	if err != nil {
		t.Fatalf("mapping of %s: %v %s", path, err, complaint.String())
	}
	n := len(want)
	if ends := []byte{want[n-1], want[0], want[n/2]}; !bytes.HasPrefix(got, ends) {
		t.Errorf("the last, first and middle byte of the mapping are %x, want %x", got[:min(3, len(got))], ends)
	} else if !bytes.Equal(got[3:], want) {
		t.Errorf("mapping: %s", difference(got[3:], want))
	}
}

func readDirect(t *testing.T, path string, want []byte) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(buf)
	var got []byte
	for {
		n, err := f.ReadAt(buf, int64(len(got)))
		got = append(got, buf[:n]...)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, want) {
		t.Errorf("O_DIRECT: %s", difference(got, want))
	}
}

func readRandom(t *testing.T, path string, want []byte, threads int) {
	f := mustOpen(t, path)
	var wg sync.WaitGroup
	for k := range threads {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rand.New(rand.NewPCG(1, uint64(k)))
			for range 60 {
				off, n := r.IntN(len(want)), 1+r.IntN(300<<10)
				buf := make([]byte, n)
				got, err := f.ReadAt(buf, int64(off))
				if err != nil && err != io.EOF {
					t.Errorf("pread: %v", err)
					return
				}
				if !bytes.Equal(buf[:got], want[off:min(len(want), off+n)]) {
					t.Errorf("pread of %d at %d: wrong bytes", n, off)
				}
			}
		}()
	}
	wg.Wait()
}

func readBackwards(t *testing.T, path string, want []byte) {
	f := mustOpen(t, path)
	got := make([]byte, len(want))
	for end := len(want); end > 0; end -= 100_000 {
		off := max(0, end-100_000)
		if _, err := f.ReadAt(got[off:end], int64(off)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, want) {
		t.Errorf("backwards: %s", difference(got, want))
	}
}

// readChildren: several processes read one inherited descriptor at their own offsets, as the
// loaders of model files do.
func readChildren(t *testing.T, path string, want []byte) {
	f := mustOpen(t, path)
	var wg sync.WaitGroup
	part := (len(want) + 3) / 4
	for k := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			off, end := k*part, min(len(want), (k+1)*part)
			cmd := exec.Command("python3", "-c", "import os,sys\no,e=int(sys.argv[1]),int(sys.argv[2])\n"+
				"while o<e:\n b=os.pread(3,min(65536,e-o),o); sys.stdout.buffer.write(b); o+=len(b)",
				fmt.Sprint(off), fmt.Sprint(end))
			cmd.ExtraFiles = []*os.File{f}
			out, err := cmd.Output()
			if err != nil || !bytes.Equal(out, want[off:end]) {
				t.Errorf("child %d: %v, %d bytes", k, err, len(out))
			}
		}()
	}
	wg.Wait()
}

func readCp(t *testing.T, path string, want []byte) {
	dst := filepath.Join(t.TempDir(), "copy")
	if out, err := exec.Command("cp", path, dst).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v %s", err, out)
	}
	got, err := os.ReadFile(dst)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("cp: %v %s", err, difference(got, want))
	}
}

func readEnds(t *testing.T, path string, want []byte) {
	f := mustOpen(t, path)
	var b [1]byte
	for _, off := range []int64{int64(len(want)) - 1, 0} {
		if _, err := f.ReadAt(b[:], off); err != nil || b[0] != want[off] {
			t.Errorf("byte %d: %v", off, err)
		}
	}
	if n, err := f.ReadAt(b[:], int64(len(want))); n != 0 || err != io.EOF {
		t.Errorf("read at the end: %d bytes, %v", n, err)
	}
}

func dropCaches(t *testing.T) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		t.Fatal(err)
	}
}

// TestSwitchWhileOpen: a file open through the daemon becomes complete; the next open is
// passed through, the old one goes on, and st_ino is the same.
func TestSwitchWhileOpen(t *testing.T) {
	w := newWorld(t)
	data := random(3, 8<<20)
	w.put("f", data)
	m := w.mount()
	old := mustOpen(t, m.path("f"))
	head := make([]byte, 4096)
	if _, err := old.ReadAt(head, 0); err != nil {
		t.Fatal(err)
	}
	m.same("f", data) // reads all of it
	m.eventually("an open is passed through while another is served by the daemon", func() error {
		f, err := os.Open(m.path("f"))
		if err != nil {
			return err
		}
		defer f.Close()
		if m.status().Files.Pass == 0 {
			return errors.New("still served by the daemon")
		}
		a, b := stat(t, f), stat(t, old)
		if a.Ino != b.Ino {
			t.Errorf("st_ino differs: %d and %d", a.Ino, b.Ino)
		}
		got := make([]byte, len(data))
		if _, err := old.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
			t.Errorf("old handle: %v", err)
		}
		if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
			t.Errorf("new handle: %v", err)
		}
		// Opened again by descriptor, not by name.
		again, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", old.Fd()))
		if err != nil || !bytes.Equal(again, data) {
			t.Errorf("opened through /proc/self/fd: %v", err)
		}
		return nil
	})
}

func stat(t *testing.T, f *os.File) *syscall.Stat_t {
	t.Helper()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return st.Sys().(*syscall.Stat_t)
}

// TestReadOnly: every change answers EROFS, and nothing changes.
func TestReadOnly(t *testing.T) {
	w := newWorld(t)
	w.put("dir/f", []byte("x"))
	m := w.mount("--read-only")
	f := m.path("dir/f")
	for what, try := range map[string]func() error{
		"create":   func() error { _, err := os.Create(m.path("new")); return err },
		"truncate": func() error { return os.Truncate(f, 0) },
		"write":    func() error { _, err := os.OpenFile(f, os.O_WRONLY, 0); return err },
		"append":   func() error { _, err := os.OpenFile(f, os.O_APPEND|os.O_RDWR, 0); return err },
		"unlink":   func() error { return os.Remove(f) },
		"mkdir":    func() error { return os.Mkdir(m.path("d"), 0o755) },
		"rmdir":    func() error { return syscall.Rmdir(m.path("dir")) },
		"rename":   func() error { return os.Rename(f, m.path("g")) },
		"link":     func() error { return os.Link(f, m.path("g")) },
		"symlink":  func() error { return os.Symlink("f", m.path("g")) },
		"chmod":    func() error { return os.Chmod(f, 0o600) },
		"chown":    func() error { return os.Chown(f, 1, 1) },
		"utimes":   func() error { return os.Chtimes(f, time.Now(), time.Now()) },
		"setxattr": func() error { return unix.Setxattr(f, "user.x", []byte("y"), 0) },
		"mknod":    func() error { return unix.Mknod(m.path("p"), unix.S_IFIFO|0o600, 0) },
	} {
		wantErrno(t, what, try(), syscall.EROFS)
	}
	m.same("dir/f", []byte("x"))
	if got := m.names("."); !slices.Equal(got, []string{"dir/"}) {
		t.Errorf("names %q", got)
	}
}

// TestAttributes: what stat shows.
func TestAttributes(t *testing.T) {
	w := newWorld(t)
	w.put("dir/f", random(1, 1000))
	m := w.mount("--uid=1234", "--gid=4321", "--umask=027")
	st, err := os.Stat(m.path("dir/f"))
	if err != nil {
		t.Fatal(err)
	}
	s := st.Sys().(*syscall.Stat_t)
	if s.Uid != 1234 || s.Gid != 4321 || st.Mode() != 0o640 || s.Size != 1000 || s.Blksize != 1<<20 || s.Nlink != 1 {
		t.Errorf("stat %+v", s)
	}
	if d := time.Since(st.ModTime()); d < 0 || d > time.Hour || s.Mtim != s.Ctim {
		t.Errorf("mtime %v", st.ModTime())
	}
	if st, err = os.Stat(m.path("dir")); err != nil || st.Mode() != os.ModeDir|0o750 {
		t.Errorf("directory: %v %v", st.Mode(), err)
	}
	var fsst unix.Statfs_t
	if err := unix.Statfs(m.dir, &fsst); err != nil || fsst.Namelen != 255 || fsst.Bavail == 0 {
		t.Errorf("statfs %+v %v", fsst, err)
	}
	if fsst.Flags&unix.ST_NOSUID == 0 || fsst.Flags&unix.ST_NODEV == 0 {
		t.Errorf("mounted without nosuid,nodev: %x", fsst.Flags)
	}
	if _, err := unix.Getxattr(m.path("dir/f"), "user.none", nil); err != unix.ENODATA {
		t.Errorf("getxattr: %v", err)
	}
}

// TestLocks: flock and fcntl hold between processes of the node.
func TestLocks(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("x"))
	m := w.mount()
	a, b := mustOpen(t, m.path("f")), mustOpen(t, m.path("f"))
	if err := unix.Flock(int(a.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, "second flock", unix.Flock(int(b.Fd()), unix.LOCK_EX|unix.LOCK_NB), syscall.EWOULDBLOCK)
	lk := unix.Flock_t{Type: unix.F_RDLCK}
	if err := unix.FcntlFlock(a.Fd(), unix.F_OFD_SETLK, &lk); err != nil {
		t.Errorf("OFD lock: %v", err)
	}
}

// TestInodeNumbersStay over a restart.
func TestInodeNumbersStay(t *testing.T) {
	w := newWorld(t)
	for i := range 5 {
		w.put(fmt.Sprintf("d/f%d", i), []byte{1})
	}
	m := w.mount()
	inos := func() (out []uint64) {
		for _, n := range append(m.names("d"), ".") {
			var st unix.Stat_t
			if err := unix.Stat(m.path("d/"+n), &st); err != nil {
				t.Fatal(err)
			}
			out = append(out, st.Ino)
		}
		return out
	}
	before := inos()
	m.stop()
	m.start()
	if after := inos(); !slices.Equal(before, after) {
		t.Errorf("inode numbers %v, before the restart %v", after, before)
	}
	m.kill()
	m.start()
	if after := inos(); !slices.Equal(before, after) {
		t.Errorf("inode numbers %v, before kill -9 %v", after, before)
	}
}
