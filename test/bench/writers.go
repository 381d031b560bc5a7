package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The writers do what programs that train do: save a checkpoint beside the one it replaces, and
// make many small files.

// saveBlocks are the lengths of the writes of a checkpoint, in turn: tensors of a few sizes.
var saveBlocks = []int64{8 << 20, 64 << 20, 16 << 20, 32 << 20}

// writeSave writes files as torch.save behind an atomic rename does: NAME.tmp, fsync, rename.
func writeSave(_ context.Context, args []string) (res Result, err error) {
	fs := flag.NewFlagSet("write-save", flag.ContinueOnError)
	size := fs.Int64("size", 0, "of each file, in `bytes`")
	seed := fs.Uint64("seed", 1, "of the content")
	if err := fs.Parse(args); err != nil {
		return res, err
	}
	noise, err := noisy(64<<20, *seed)
	if err != nil {
		return res, err
	}
	res.Start = clock()
	for _, path := range fs.Args() {
		if err := save(path, *size, noise, &res); err != nil {
			return res, err
		}
	}
	res.End = clock()
	return res, nil
}

// noisy is memory full of bytes that do not compress.
func noisy(n int, seed uint64) ([]byte, error) {
	b, err := alignedBuffer(n)
	if err != nil {
		return nil, err
	}
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	_, _ = rand.NewChaCha8(key).Read(b) // never fails
	return b, nil
}

func save(path string, size int64, noise []byte, res *Result) error {
	tmp := path + ".tmp"
	fd, err := openFile(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return err
	}
	for off, i := int64(0), 0; off < size; i++ {
		n := min(saveBlocks[i%len(saveBlocks)], size-off)
		binary.LittleEndian.PutUint64(noise, uint64(off)) // no two parts are equal
		if err := writeAll(fd, noise[:n]); err != nil {
			return errors.Join(&os.PathError{Op: "write", Path: tmp, Err: err}, unix.Close(fd))
		}
		off += n
		res.Bytes += n
	}
	_, err = retry(func() (int, error) { return 0, unix.Fsync(fd) })
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return &os.PathError{Op: "fsync", Path: tmp, Err: err}
	}
	res.Ops++
	return os.Rename(tmp, path)
}

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := retry(func() (int, error) { return unix.Write(fd, b) })
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// writeFiles makes many small files in one directory, each open, write, close.
func writeFiles(_ context.Context, args []string) (res Result, err error) {
	fs := flag.NewFlagSet("write-files", flag.ContinueOnError)
	dir := fs.String("dir", "", "the `directory`")
	size := fs.Int64("size", 100_000, "of each file, in `bytes`")
	count := fs.Int("count", 0, "how many files there are in all")
	part := fs.Int("part", 0, "make only those whose number is part modulo parts")
	parts := fs.Int("parts", 1, "")
	if err := fs.Parse(args); err != nil {
		return res, err
	}
	noise, err := noisy(int(*size), uint64(*part))
	if err != nil {
		return res, err
	}
	res.Start = clock()
	for i := *part; i < *count; i += *parts {
		binary.LittleEndian.PutUint64(noise, uint64(i))
		path := filepath.Join(*dir, fileName(i))
		fd, err := openFile(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
		if err != nil {
			return res, err
		}
		if err := errors.Join(writeAll(fd, noise), unix.Close(fd)); err != nil {
			return res, &os.PathError{Op: "write", Path: path, Err: err}
		}
		res.Bytes += *size
		res.Ops++
	}
	res.End = clock()
	return res, nil
}

func fileName(i int) string { return fmt.Sprintf("sample_%06d.bin", i) }
