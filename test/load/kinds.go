package load

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// runner is a job that runs in this process. It has one goroutine.
type runner struct {
	Job
	stop   <-chan struct{}
	rng    *rand.Rand
	report *Report
	buf    []byte
}

func run(job Job, stop <-chan struct{}) *Report {
	r := &runner{Job: job, stop: stop, rng: rand.New(rand.NewPCG(job.Seed, 1)), report: &Report{Kind: job.Kind}, buf: make([]byte, 1<<20)}
	round, ok := map[string]func(n int){
		"seq": r.seq, "random": r.random, "warm": r.warm, "mmap": r.mmap(), "walk": r.walk, "storm": r.storm, "hold": r.hold(), "fork": r.fork,
	}[job.Kind]
	if !ok {
		r.report.note("start", time.Now(), 0, fmt.Errorf("there is no kind %q", job.Kind))
		return r.report
	}
	faultsPanic()
	for n := 0; !r.stopped(); n++ {
		round(n)
	}
	return r.report
}

func (r *runner) stopped() bool {
	select {
	case <-r.stop:
		return true
	default:
		return false
	}
}

// op carries out and records an operation; f returns how many bytes it compared.
func (r *runner) op(name string, f func() (int, error)) bool {
	start := time.Now()
	n, err := f()
	r.report.note(name, start, n, err)
	return err == nil
}

func (r *runner) path(key string) string { return filepath.Join(r.Dir, key) }

func (r *runner) anySmall() File {
	return r.Data.small(r.rng.IntN(r.Data.Dirs), r.rng.IntN(r.Data.PerDir))
}
func (r *runner) anyLarge() File { return r.Data.large(r.rng.IntN(r.Data.Large)) }

// open is nil when it failed.
func (r *runner) open(f File) (file *os.File) {
	r.op("open "+f.Key, func() (n int, err error) {
		file, err = os.Open(r.path(f.Key))
		return 0, err
	})
	return file
}

// close closes a file. Unless they are to be kept, the kernel forgets its pages first, so that
// the next reader asks the mount.
func (r *runner) close(f *os.File) {
	if !r.Keep {
		_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	r.op("close "+f.Name(), func() (int, error) { return 0, f.Close() })
}

// readAt reads and compares.
func (r *runner) readAt(f *os.File, file File, off int64, n int) bool {
	n = int(min(int64(n), file.Size-off))
	return r.op(fmt.Sprintf("read %s at %d", file.Key, off), func() (int, error) {
		got, err := f.ReadAt(r.buf[:n], off)
		if err != nil {
			return 0, err
		}
		return got, Check(file.Key, off, r.buf[:got])
	})
}

// readAll reads a file from its beginning to its end.
func (r *runner) readAll(f *os.File, file File, chunk int) {
	for off := int64(0); off < file.Size && !r.stopped(); off += int64(chunk) {
		if !r.readAt(f, file, off, chunk) {
			return
		}
	}
	r.op("end of "+file.Key, func() (int, error) {
		if n, err := f.ReadAt(r.buf[:1], file.Size); n != 0 || !errors.Is(err, io.EOF) {
			return 0, &WrongBytes{Key: file.Key, Offset: file.Size}
		}
		return 0, nil
	})
}

// seq reads large files one after the other.
func (r *runner) seq(n int) {
	file := r.Data.large(n % r.Data.Large)
	if f := r.open(file); f != nil {
		r.readAll(f, file, 256<<10)
		r.close(f)
	}
}

// random reads pieces of large files.
func (r *runner) random(int) {
	file := r.anyLarge()
	f := r.open(file)
	if f == nil {
		return
	}
	for range 16 {
		r.readAt(f, file, r.rng.Int64N(file.Size), 1+r.rng.IntN(256<<10))
	}
	r.close(f)
}

// warm reads hot files again and again.
func (r *runner) warm(n int) {
	file := r.Data.hot(n % r.Data.Hot)
	if f := r.open(file); f != nil {
		r.readAll(f, file, 128<<10)
		r.close(f)
	}
}

// mmap maps files and compares pages of them. One mapping stays, without a descriptor.
func (r *runner) mmap() func(int) {
	type mapping struct {
		file File
		mem  []byte
	}
	mapIt := func(file File) (m mapping) {
		f := r.open(file)
		if f == nil {
			return m
		}
		r.op("mmap "+file.Key, func() (int, error) {
			mem, err := unix.Mmap(int(f.Fd()), 0, int(file.Size), unix.PROT_READ, unix.MAP_SHARED)
			m = mapping{file, mem}
			return 0, err
		})
		r.op("close "+file.Key, func() (int, error) { return 0, f.Close() })
		return m
	}
	touch := func(m mapping, pages int) {
		for range pages {
			off := r.rng.Int64N(int64(len(m.mem))) &^ 4095
			end := min(off+4096, int64(len(m.mem)))
			r.op(fmt.Sprintf("page of %s at %d", m.file.Key, off), func() (n int, err error) {
				defer catchFault(&err)
				return int(end - off), Check(m.file.Key, off, m.mem[off:end])
			})
		}
	}
	kept := mapIt(r.Data.hot(0))
	return func(n int) {
		file := r.anyLarge()
		if n%3 == 0 {
			file = r.Data.hot(r.rng.IntN(r.Data.Hot))
		}
		if m := mapIt(file); m.mem != nil {
			touch(m, 32)
			if !r.Keep {
				_ = unix.Madvise(m.mem, unix.MADV_DONTNEED)
			}
			r.op("munmap "+file.Key, func() (int, error) { return 0, unix.Munmap(m.mem) })
		}
		if kept.mem != nil {
			_ = unix.Madvise(kept.mem, unix.MADV_DONTNEED)
			touch(kept, 8)
		}
	}
}

// WrongNames: a directory did not list what it holds.
type WrongNames struct{ What string }

func (e *WrongNames) Error() string { return "WRONG NAMES: " + e.What }

// walk lists a directory and asks for the attributes of all in it.
func (r *runner) walk(n int) {
	dir := n % r.Data.Dirs
	var names []string
	ok := r.op("list "+smallDir(dir), func() (int, error) {
		d, err := os.Open(r.path(smallDir(dir)))
		if err != nil {
			return 0, err
		}
		names, err = d.Readdirnames(-1)
		return 0, errors.Join(err, d.Close())
	})
	if !ok {
		return
	}
	slices.Sort(names)
	if len(names) != r.Data.PerDir || len(slices.Compact(names)) != r.Data.PerDir {
		r.report.note("list", time.Now(), 0, &WrongNames{fmt.Sprintf("%s holds %d names, not %d", smallDir(dir), len(names), r.Data.PerDir)})
	}
	for i := range r.Data.PerDir {
		file := r.Data.small(dir, i)
		r.op("stat "+file.Key, func() (int, error) {
			st, err := os.Lstat(r.path(file.Key))
			if err != nil {
				return 0, err
			}
			if st.Size() != file.Size || !st.Mode().IsRegular() {
				return 0, &WrongNames{fmt.Sprintf("%s has %d bytes, mode %v", file.Key, st.Size(), st.Mode())}
			}
			return 0, nil
		})
	}
	r.op("stat of a missing name", func() (int, error) {
		_, err := os.Lstat(r.path(fmt.Sprintf("%s/missing%d", smallDir(dir), r.rng.IntN(4))))
		if !errors.Is(err, unix.ENOENT) {
			return 0, fmt.Errorf("a missing name: %w", err)
		}
		return 0, nil
	})
}

// storm opens, reads and closes small files.
func (r *runner) storm(int) {
	file := r.anySmall()
	if f := r.open(file); f != nil {
		r.readAt(f, file, 0, int(file.Size))
		r.close(f)
	}
}

// hold opens files once and reads them for as long as it runs.
func (r *runner) hold() func(int) {
	type held struct {
		File
		f *os.File
	}
	var all []held
	files := []File{r.Data.hot(0), r.Data.hot(r.Data.Hot - 1), r.Data.large(0), r.Data.large(r.Data.Large - 1), r.anyLarge(), r.anyLarge()}
	for range 10 {
		files = append(files, r.anySmall())
	}
	for _, file := range files {
		if f := r.open(file); f != nil {
			all = append(all, held{file, f})
		}
	}
	return func(n int) {
		if len(all) == 0 {
			time.Sleep(time.Millisecond)
			return
		}
		h := all[r.rng.IntN(len(all))]
		f := h.f
		if n%10 == 0 { // the handle through another descriptor
			fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				r.report.note("dup", time.Now(), 0, err)
				return
			}
			f = os.NewFile(uintptr(fd), f.Name())
			defer r.close(f)
		}
		r.readAt(f, h.File, r.rng.Int64N(h.Size), 1+r.rng.IntN(128<<10))
		_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
}

// fork passes an open file to a child, which reads it.
func (r *runner) fork(n int) {
	file := r.Data.hot(r.rng.IntN(r.Data.Hot))
	if n%2 == 0 {
		file = r.anyLarge()
	}
	f := r.open(file)
	if f == nil {
		return
	}
	r.op("child reads "+file.Key, func() (int, error) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), childEnv+"="+strconv.FormatInt(file.Size, 10)+" "+file.Key)
		cmd.ExtraFiles = []*os.File{f}
		out, err := cmd.CombinedOutput()
		if err != nil {
			return 0, fmt.Errorf("a child with a file that it inherited: %w: %s", err, out)
		}
		return int(min(file.Size, childReads)), nil
	})
	r.close(f)
}

// childReads is how many bytes a child reads.
const childReads = 1 << 20

// child reads the file that it inherited as descriptor 3; "SIZE KEY" says what it is.
func child(arg string) int {
	size, key, _ := strings.Cut(arg, " ")
	n, err := strconv.ParseInt(size, 10, 64)
	if err == nil {
		f := os.NewFile(3, key)
		b := make([]byte, min(n, childReads))
		if _, err = f.ReadAt(b, 0); err == nil {
			err = Check(key, 0, b)
		}
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
