package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// The readers use system calls directly, and one processor (in Go's sense) for each of
// their threads: a thread that waits in the kernel must not hold up another.

// alignedBuffer is memory that O_DIRECT accepts, faulted in.
func alignedBuffer(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("buffer of %d bytes: %w", n, err)
	}
	return b, nil
}

// retry calls f again while it is interrupted.
func retry(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func openFile(path string, flags int) (int, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0o644) })
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

func readSeq(_ context.Context, args []string) (res Result, err error) {
	fs := flag.NewFlagSet("read-seq", flag.ContinueOnError)
	block := fs.Int("block", 1<<20, "`bytes` of a read")
	passes := fs.Int("passes", 1, "how often each file is read")
	if err := fs.Parse(args); err != nil {
		return res, err
	}
	buf, err := alignedBuffer(*block)
	if err != nil {
		return res, err
	}
	res.Start = clock()
	for _, path := range fs.Args() {
		fd, err := openFile(path, unix.O_RDONLY)
		if err != nil {
			return res, err
		}
		for range *passes {
			for off := int64(0); ; {
				n, err := retry(func() (int, error) { return unix.Pread(fd, buf, off) })
				if err != nil {
					return res, &os.PathError{Op: "read", Path: path, Err: err}
				}
				if n == 0 {
					break
				}
				off += int64(n)
				res.Bytes += int64(n)
				res.Ops++
			}
		}
		if err := unix.Close(fd); err != nil {
			return res, err
		}
	}
	res.End = clock()
	return res, nil
}

// randomBlocks is count different blocks of a file of size bytes, in random order; when the
// file has fewer, they come again.
func randomBlocks(size, block int64, count int, seed uint64) ([]int64, error) {
	n := size / block
	if n == 0 {
		return nil, fmt.Errorf("%d bytes hold no block of %d", size, block)
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	var out []int64
	for len(out) < count {
		for _, i := range rng.Perm(int(n)) {
			out = append(out, int64(i)*block)
		}
	}
	return out[:count], nil
}

func readRand(ctx context.Context, args []string) (res Result, err error) {
	fs := flag.NewFlagSet("read-rand", flag.ContinueOnError)
	block := fs.Int("block", 4096, "`bytes` of a read")
	count := fs.Int("count", 1000, "how many reads")
	threads := fs.Int("threads", 1, "how many at once")
	seed := fs.Uint64("seed", 1, "of the order")
	if err := fs.Parse(args); err != nil {
		return res, err
	}
	runtime.GOMAXPROCS(*threads + 1)
	path := fs.Arg(0)
	fd, err := openFile(path, unix.O_RDONLY)
	if err != nil {
		return res, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return res, err
	}
	offsets, err := randomBlocks(st.Size, int64(*block), *count, *seed)
	if err != nil {
		return res, err
	}
	var next atomic.Int64
	g, _ := errgroup.WithContext(ctx)
	res.Start = clock()
	for range *threads {
		g.Go(func() error {
			buf, err := alignedBuffer(*block)
			if err != nil {
				return err
			}
			for {
				i := next.Add(1) - 1
				if i >= int64(len(offsets)) {
					return nil
				}
				n, err := retry(func() (int, error) { return unix.Pread(fd, buf, offsets[i]) })
				if err != nil || n != *block {
					return fmt.Errorf("read %d bytes of %s at %d: got %d, %v", *block, path, offsets[i], n, err)
				}
			}
		})
	}
	if err := g.Wait(); err != nil {
		return res, err
	}
	res.End = clock()
	res.Ops, res.Bytes = int64(*count), int64(*count)*int64(*block)
	return res, nil
}

func readFiles(ctx context.Context, args []string) (res Result, err error) {
	fs := flag.NewFlagSet("read-files", flag.ContinueOnError)
	list := fs.String("list", "", "`file` with the paths, one on a line")
	root := fs.String("root", "", "`directory` that the paths are relative to")
	part := fs.Int("part", 0, "read only those whose place is part modulo parts")
	parts := fs.Int("parts", 1, "")
	threads := fs.Int("threads", 1, "how many at once")
	seed := fs.Uint64("seed", 1, "of the order")
	if err := fs.Parse(args); err != nil {
		return res, err
	}
	runtime.GOMAXPROCS(*threads + 1)
	names, err := shuffledLines(*list, *seed, *part, *parts)
	if err != nil {
		return res, err
	}
	dir, err := openFile(*root, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return res, err
	}
	var next, bytes atomic.Int64
	g, _ := errgroup.WithContext(ctx)
	res.Start = clock()
	for range *threads {
		g.Go(func() error {
			buf, err := alignedBuffer(1 << 20)
			if err != nil {
				return err
			}
			for {
				i := next.Add(1) - 1
				if i >= int64(len(names)) {
					return nil
				}
				n, err := readWhole(dir, names[i], buf)
				if err != nil {
					return err
				}
				bytes.Add(n)
			}
		})
	}
	if err := g.Wait(); err != nil {
		return res, err
	}
	res.End = clock()
	res.Ops, res.Bytes = int64(len(names)), bytes.Load()
	return res, nil
}

// readWhole does what Python's open(...).read() does: open, fstat, read until the end.
func readWhole(dir int, name string, buf []byte) (total int64, err error) {
	fd, err := retry(func() (int, error) { return unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	for {
		n, err := retry(func() (int, error) { return unix.Read(fd, buf) })
		if err != nil {
			return total, &os.PathError{Op: "read", Path: name, Err: err}
		}
		if n == 0 {
			break
		}
		total += int64(n)
	}
	if total != st.Size {
		return total, fmt.Errorf("%s: read %d bytes, its size is %d", name, total, st.Size)
	}
	return total, nil
}

// shuffledLines reads a file of lines, shuffles them and returns those of one part.
func shuffledLines(path string, seed uint64, part, parts int) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var all, out []string
	for s := bufio.NewScanner(f); s.Scan(); {
		all = append(all, s.Text())
	}
	rng := rand.New(rand.NewPCG(seed, 2))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i, s := range all {
		if i%parts == part {
			out = append(out, s)
		}
	}
	return out, nil
}
