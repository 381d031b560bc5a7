package mount

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"golang.org/x/sys/unix"
)

// ok fails the test when a step did.
func ok(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// object reads an object, past the proxy.
func (w *world) object(key string) ([]byte, error) {
	out, err := w.server.Client().GetObject(context.Background(), &awss3.GetObjectInput{Bucket: &w.bucket, Key: &key})
	if err != nil {
		return nil, err
	}
	defer out.Body.Close()
	return io.ReadAll(out.Body)
}

// published waits until the bucket has an object with these bytes.
func (m *mnt) published(key string, want []byte) {
	m.t.Helper()
	m.eventually("object "+key+" is in the bucket", func() error {
		got, err := m.w.object(key)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("it has other bytes: %s", difference(got, want))
		}
		return nil
	})
}

// unpublished waits until the bucket has no such object.
func (m *mnt) unpublished(key string) {
	m.t.Helper()
	m.eventually("object "+key+" is gone from the bucket", func() error {
		if _, err := m.w.object(key); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
}

// wrote fails when WRITE requests came to the daemon for a file that the kernel writes, or none for
// one that the daemon does.
func (m *mnt) wrote(flag string) {
	m.t.Helper()
	n := m.status().Files.Requests["write"]
	if pass := flag == "--passthrough=auto"; pass && n != 0 || !pass && n == 0 {
		m.t.Errorf("%d WRITE requests with %s", n, flag)
	}
}

// TestWriteSizes: files of all sizes, written in pieces of several sizes, are read back and published.
func TestWriteSizes(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		m := w.mount(flag)
		for i, n := range sizes {
			data := random(uint64(i), n)
			f, err := os.Create(m.path(fmt.Sprintf("f%02d", i)))
			ok(t, "create", err)
			piece := []int{1 << 20, 3000, 4096, 100 << 10}[i%4]
			for rest := data; len(rest) > 0; {
				k, err := f.Write(rest[:min(piece, len(rest))])
				ok(t, "write", err)
				rest = rest[k:]
			}
			if st, err := f.Stat(); err != nil || st.Size() != int64(n) {
				t.Errorf("fstat of %d bytes: %v, %v", n, st.Size(), err)
			}
			ok(t, "close", f.Close())
			m.same(fmt.Sprintf("f%02d", i), data)
		}
		m.wrote(flag)
		for i, n := range sizes {
			m.published(fmt.Sprintf("f%02d", i), random(uint64(i), n))
			m.same(fmt.Sprintf("f%02d", i), random(uint64(i), n))
		}
	})
}

// TestWriteInPlace: what is appended, overwritten and cut off in a file that is in the bucket.
func TestWriteInPlace(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		want := random(1, 5<<20)
		w.put("d/f", want)
		m := w.mount(flag)
		reader := mustOpen(t, m.path("d/f"))
		f, err := os.OpenFile(m.path("d/f"), os.O_RDWR|os.O_APPEND, 0)
		ok(t, "open to append", err)
		_, err = f.Write([]byte("tail"))
		ok(t, "append", err)
		ok(t, "close", f.Close())
		want = append(want, "tail"...)
		m.same("d/f", want)

		f, err = os.OpenFile(m.path("d/f"), os.O_WRONLY, 0)
		ok(t, "open", err)
		_, err = f.WriteAt([]byte("middle"), 1<<20+1)
		ok(t, "overwrite", err)
		copy(want[1<<20+1:], "middle")
		ok(t, "ftruncate", f.Truncate(2<<20))
		want = want[:2<<20]
		ok(t, "fsync", f.Sync())
		ok(t, "close", f.Close())
		m.same("d/f", want)

		ok(t, "truncate", os.Truncate(m.path("d/f"), 3<<20))
		want = append(want, make([]byte, 1<<20)...)
		m.same("d/f", want)
		m.published("d/f", want)
		if _, err := reader.ReadAt(make([]byte, 10), 0); err != nil {
			t.Errorf("the handle that was open before: %v", err)
		}

		gets := w.mark()
		ok(t, "replace", os.WriteFile(m.path("d/f"), []byte("short"), 0o644)) // O_TRUNC
		if n := w.requests("GET", gets); n != 0 {
			t.Errorf("%d GETs for a file that is replaced", n)
		}
		m.same("d/f", []byte("short"))
		m.published("d/f", []byte("short"))
	})
}

// TestWriteNames: mkdir, rename, link, symlink, unlink of an open file, rmdir, and what refuses.
func TestWriteNames(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		w.put("old", []byte("old"))
		m := w.mount(flag)
		ok(t, "mkdir", os.Mkdir(m.path("d"), 0o750))
		wantErrno(t, "mkdir again", os.Mkdir(m.path("d"), 0o750), syscall.EEXIST)
		ok(t, "write", os.WriteFile(m.path("d/a.tmp"), []byte("new"), 0o640))
		_, err := os.OpenFile(m.path("d/a.tmp"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		wantErrno(t, "O_EXCL", err, syscall.EEXIST)
		wantErrno(t, "rmdir of one that is full", syscall.Rmdir(m.path("d")), syscall.ENOTEMPTY)
		ok(t, "rename", os.Rename(m.path("d/a.tmp"), m.path("d/a")))
		m.same("d/a", []byte("new"))
		wantErrno(t, "RENAME_NOREPLACE", unix.Renameat2(unix.AT_FDCWD, m.path("old"), unix.AT_FDCWD, m.path("d/a"), unix.RENAME_NOREPLACE), syscall.EEXIST)
		m.published("d/a", []byte("new"))
		if _, err := w.object("d/a.tmp"); err == nil {
			t.Error("the temporary name is in the bucket")
		}

		ok(t, "rename over another", os.Rename(m.path("old"), m.path("d/a")))
		m.same("d/a", []byte("old"))
		m.published("d/a", []byte("old"))
		m.unpublished("old")
		ok(t, "rename of a directory", os.Rename(m.path("d"), m.path("e")))
		m.same("e/a", []byte("old"))
		m.published("e/a", []byte("old"))
		m.unpublished("d/a")

		ok(t, "link", os.Link(m.path("e/a"), m.path("e/b")))
		a, err := os.Stat(m.path("e/a"))
		ok(t, "stat", err)
		b, err := os.Stat(m.path("e/b"))
		ok(t, "stat", err)
		if n := b.Sys().(*syscall.Stat_t).Nlink; n != 2 || !os.SameFile(a, b) {
			t.Errorf("a hard link: %d links, same %v", n, os.SameFile(a, b))
		}
		ok(t, "symlink", os.Symlink("../e/b", m.path("e/s")))
		if got, err := os.Readlink(m.path("e/s")); got != "../e/b" || err != nil {
			t.Errorf("readlink: %q %v", got, err)
		}
		m.same("e/s", []byte("old"))
		long := strings.Repeat("x", 4000) // its request is larger than 4096 bytes with its name
		ok(t, "long symlink", os.Symlink(long, m.path("e/"+strings.Repeat("n", 250))))
		if got, err := os.Readlink(m.path("e/" + strings.Repeat("n", 250))); got != long || err != nil {
			t.Errorf("readlink: %d bytes, %v", len(got), err)
		}
		ok(t, "unlink", os.Remove(m.path("e/"+strings.Repeat("n", 250))))

		f, err := os.OpenFile(m.path("e/b"), os.O_RDWR, 0)
		ok(t, "open", err)
		ok(t, "unlink", os.Remove(m.path("e/a")))
		ok(t, "unlink of an open file", os.Remove(m.path("e/b")))
		_, err = f.WriteAt([]byte("more"), 3)
		ok(t, "write to a file without a name", err)
		if got, err := io.ReadAll(f); string(got) != "oldmore" || err != nil {
			t.Errorf("a file without a name: %q %v", got, err)
		}
		ok(t, "close", f.Close())
		_, err = os.Stat(m.path("e/a"))
		wantErrno(t, "stat of what was unlinked", err, syscall.ENOENT)
		m.unpublished("e/a")
		ok(t, "unlink", os.Remove(m.path("e/s")))
		if got := m.names("e"); len(got) != 0 {
			t.Errorf("names %q", got)
		}
		ok(t, "rmdir", syscall.Rmdir(m.path("e")))
		_, err = unix.Open(m.dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
		wantErrno(t, "O_TMPFILE", err, syscall.EOPNOTSUPP)
		for _, n := range []string{"p", "q"} {
			ok(t, "write", os.WriteFile(m.path(n), []byte(n), 0o644))
		}
		for name, flag := range map[string]uint{"RENAME_EXCHANGE": unix.RENAME_EXCHANGE, "RENAME_WHITEOUT": unix.RENAME_WHITEOUT} {
			wantErrno(t, name, unix.Renameat2(unix.AT_FDCWD, m.path("p"), unix.AT_FDCWD, m.path("q"), flag), syscall.EINVAL)
		}
		for _, make := range []func(string) error{
			func(p string) error { return os.WriteFile(p, nil, 0o644) },
			func(p string) error { return os.Mkdir(p, 0o755) },
			func(p string) error { return os.Rename(m.path("p"), p) },
			func(p string) error { return os.Link(m.path("p"), p) },
			func(p string) error { return os.Symlink("p", p) },
		} {
			wantErrno(t, "a name that is not UTF-8", make(m.path("\xff\xfe")), syscall.EILSEQ)
		}
		m.same("p", []byte("p"))
	})
}

// TestWriteAttributes: chmod, utimens, extended attributes, FIFOs; they are there after a restart.
func TestWriteAttributes(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		m := w.mount(flag)
		p := m.path("f")
		ok(t, "write", os.WriteFile(p, random(1, 10000), 0o644))
		ok(t, "chmod", os.Chmod(p, 0o4711|os.ModeSetuid))
		when := time.Unix(1e9, 123456789)
		ok(t, "utimens", os.Chtimes(p, when.Add(time.Hour), when))
		value := random(2, 5000) // its request is larger than 4096 bytes
		ok(t, "setxattr", unix.Setxattr(p, "user.large", value, 0))
		ok(t, "setxattr", unix.Setxattr(p, "user.b", []byte("x"), unix.XATTR_CREATE))
		wantErrno(t, "XATTR_CREATE", unix.Setxattr(p, "user.b", []byte("x"), unix.XATTR_CREATE), syscall.EEXIST)
		wantErrno(t, "XATTR_REPLACE", unix.Setxattr(p, "user.none", []byte("x"), unix.XATTR_REPLACE), syscall.ENODATA)
		wantErrno(t, "another namespace", unix.Setxattr(p, "security.other", []byte("x"), 0), syscall.EOPNOTSUPP)
		_, err := unix.Getxattr(p, "system.posix_acl_access", make([]byte, 100))
		wantErrno(t, "an ACL", err, syscall.EOPNOTSUPP)
		ok(t, "mkfifo", unix.Mkfifo(m.path("fifo"), 0o600))
		check := func() {
			t.Helper()
			st, err := os.Stat(p)
			ok(t, "stat", err)
			if st.Mode() != 0o711|os.ModeSetuid || !st.ModTime().Equal(when) || st.Size() != 10000 {
				t.Errorf("stat: %v, %v, %d bytes", st.Mode(), st.ModTime(), st.Size())
			}
			if st, err := os.Lstat(m.path("fifo")); err != nil || st.Mode() != 0o600|os.ModeNamedPipe {
				t.Errorf("the FIFO: %v %v", st, err)
			}
			buf := make([]byte, 8192)
			n, err := unix.Getxattr(p, "user.large", buf)
			if err != nil || !bytes.Equal(buf[:n], value) {
				t.Errorf("getxattr: %d bytes, %v", n, err)
			}
			if n, err := unix.Getxattr(p, "user.large", nil); n != len(value) || err != nil {
				t.Errorf("size of an attribute: %d %v", n, err)
			}
			_, err = unix.Getxattr(p, "user.large", buf[:10])
			wantErrno(t, "getxattr with too little room", err, syscall.ERANGE)
			_, err = unix.Getxattr(p, "user.none", buf)
			wantErrno(t, "an attribute that is not there", err, syscall.ENODATA)
			n, err = unix.Listxattr(p, buf)
			ok(t, "listxattr", err)
			names := strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00")
			slices.Sort(names)
			if !slices.Equal(names, []string{"user.b", "user.large"}) {
				t.Errorf("listxattr: %q", names)
			}
		}
		check()
		m.published("f", random(1, 10000))
		check()
		m.stop()
		m.start()
		check()
		ok(t, "removexattr", unix.Removexattr(p, "user.b"))
		wantErrno(t, "removexattr again", unix.Removexattr(p, "user.b"), syscall.ENODATA)
	})
}

// TestWriteRanges: fallocate, SEEK_HOLE and copy_file_range, which the daemon carries out for files
// that the kernel writes too.
func TestWriteRanges(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		m := w.mount(flag)
		f, err := os.Create(m.path("f"))
		ok(t, "create", err)
		want := make([]byte, 4<<20)
		copy(want[3<<20:], random(1, 1<<20))
		_, err = f.WriteAt(want[3<<20:], 3<<20)
		ok(t, "write", err)
		if off, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA); off != 3<<20 || err != nil {
			t.Errorf("SEEK_DATA: %d %v", off, err)
		}
		if off, err := unix.Seek(int(f.Fd()), 3<<20, unix.SEEK_HOLE); off != 4<<20 || err != nil {
			t.Errorf("SEEK_HOLE: %d %v", off, err)
		}
		_, err = unix.Seek(int(f.Fd()), 4<<20, unix.SEEK_DATA)
		wantErrno(t, "SEEK_DATA at the end", err, syscall.ENXIO)
		ok(t, "punch", unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 3<<20, 8192))
		clear(want[3<<20 : 3<<20+8192])
		ok(t, "fallocate", unix.Fallocate(int(f.Fd()), 0, 4<<20, 4096))
		want = append(want, make([]byte, 4096)...)
		g, err := os.Create(m.path("g"))
		ok(t, "create", err)
		for off := int64(0); off < int64(len(want)); {
			from, to := off, off
			n, err := unix.CopyFileRange(int(f.Fd()), &from, int(g.Fd()), &to, len(want)-int(off), 0)
			ok(t, "copy_file_range", err)
			if n == 0 {
				t.Fatalf("copy_file_range ended at %d", off)
			}
			off += int64(n)
		}
		ok(t, "fsync", g.Sync())
		ok(t, "close", errors.Join(f.Close(), g.Close()))
		m.same("f", want)
		m.same("g", want)
		m.published("g", want)
	})
}

// TestWriteTakeover: workers are killed while the daemon writes; nothing is lost, whether the kernel
// sends requests again or not.
func TestWriteTakeover(t *testing.T) {
	for _, args := range [][]string{{"--passthrough=off"}, {"--passthrough=off", "--no-resend"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			w := newWorld(t)
			m := w.mount(args...)
			const files, size = 4, 24 << 20
			done := make(chan error, files)
			for i := range files {
				go func() { done <- os.WriteFile(m.path(fmt.Sprintf("f%d", i)), random(uint64(i), size), 0o644) }()
			}
			for range 3 {
				time.Sleep(100 * time.Millisecond)
				if err := syscall.Kill(m.status().WorkerPID, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			for range files {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			for i := range files {
				m.same(fmt.Sprintf("f%d", i), random(uint64(i), size))
			}
			if got := m.names("."); len(got) != files {
				t.Errorf("names %q", got)
			}
		})
	}
}

// TestChangesOnce: a change that was carried out by a worker that was killed before it had answered
// is not carried out again: nobody hears that what he has just made is there already, or that what
// he has just removed is not.
func TestChangesOnce(t *testing.T) {
	for _, args := range [][]string{{"--no-resend=false"}, {"--no-resend"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			w := newWorld(t)
			m := w.mount(args...)
			stop := make(chan struct{})
			done := make(chan error)
			const workers = 4
			round := func(who, i int) error {
				dir := m.path(fmt.Sprintf("w%d-%d", who, i))
				if err := os.Mkdir(dir, 0o755); err != nil {
					return err
				}
				f, err := os.OpenFile(dir+"/a", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
				if err != nil {
					return err
				}
				if err := f.Close(); err != nil {
					return err
				}
				for _, step := range []func() error{
					func() error {
						return unix.Renameat2(unix.AT_FDCWD, dir+"/a", unix.AT_FDCWD, dir+"/b", unix.RENAME_NOREPLACE)
					},
					func() error { return os.Link(dir+"/b", dir+"/c") },
					func() error { return os.Symlink("b", dir+"/s") },
					func() error { return unix.Setxattr(dir+"/b", "user.x", []byte("y"), unix.XATTR_CREATE) },
					func() error { return unix.Removexattr(dir+"/b", "user.x") },
					func() error { return syscall.Unlink(dir + "/s") },
					func() error { return syscall.Unlink(dir + "/b") },
					func() error { return syscall.Unlink(dir + "/c") },
					func() error { return syscall.Rmdir(dir) },
				} {
					if err := step(); err != nil {
						return err
					}
				}
				return nil
			}
			for who := range workers {
				go func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							done <- nil
							return
						default:
						}
						if err := round(who, i); err != nil {
							done <- fmt.Errorf("round %d: %w", i, err)
							return
						}
					}
				}()
			}
			for range 6 {
				time.Sleep(150 * time.Millisecond)
				if err := syscall.Kill(m.status().WorkerPID, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			close(stop)
			for range workers {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			m.quiet()
		})
	}
}

// TestUnanswered: each kind of change, carried out by a worker that is killed before it answers.
func TestUnanswered(t *testing.T) {
	t.Setenv("LEATFS_FAULT_UNANSWERED", ".once")
	binary := faulty(t)
	for _, args := range [][]string{{"--no-resend=false"}, {"--no-resend"}, {"--passthrough=off"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			w := newWorld(t)
			w.binary = binary
			m := w.mount(args...)
			p := m.path
			deaths := 0
			for _, c := range []struct {
				what string
				step func() error
			}{
				{"mkdir", func() error { return os.Mkdir(p("d.once"), 0o755) }},
				{"create", func() error {
					f, err := os.OpenFile(p("d.once/f.once"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
					if err != nil {
						return err
					}
					_, err = f.WriteString("x")
					return errors.Join(err, f.Close())
				}},
				{"mknod", func() error { return unix.Mkfifo(p("p.once"), 0o600) }},
				{"symlink", func() error { return os.Symlink("x", p("s.once")) }},
				{"link", func() error { return os.Link(p("d.once/f.once"), p("l.once")) }},
				{"rename", func() error {
					return unix.Renameat2(unix.AT_FDCWD, p("l.once"), unix.AT_FDCWD, p("r.once"), unix.RENAME_NOREPLACE)
				}},
				{"setxattr", func() error { return unix.Setxattr(p("r.once"), "user.once", []byte("y"), unix.XATTR_CREATE) }},
				{"removexattr", func() error { return unix.Removexattr(p("r.once"), "user.once") }},
				{"unlink", func() error { return syscall.Unlink(p("r.once")) }},
				{"unlink of the last name", func() error { return syscall.Unlink(p("d.once/f.once")) }},
				{"rmdir", func() error { return syscall.Rmdir(p("d.once")) }},
			} {
				if err := c.step(); err != nil {
					t.Errorf("%s: %v", c.what, err)
				}
				deaths++
			}
			if n := m.status().Keeper.Restarts; n != deaths {
				t.Errorf("%d workers died, want %d", n, deaths)
			}
			m.quiet()
		})
	}
}
