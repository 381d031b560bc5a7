package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// The limit of cold works: nothing but the SDK and the disk. It keeps a fixed number of
// requests in flight, reads each body into memory of its own that it writes with O_DIRECT,
// verifies nothing and looks nothing up.

const (
	page = 4096
	// Go's scheduler notices late that a thread waits in pwrite; with more processors (in
	// its sense) than cores the others go on. On two cores 2 to 32 differ little.
	sdkProcs = 8
)

// sdkFlags are those that all programs of this file have.
type sdkFlags struct {
	bucket   string
	inflight int
	out      string
}

func (s *sdkFlags) add(fs *flag.FlagSet) {
	fs.StringVar(&s.bucket, "bucket", "", "")
	fs.IntVar(&s.inflight, "inflight", 32, "how many requests at once")
	fs.StringVar(&s.out, "out", "", "`directory` to store into")
}

// sdkClient takes the server from the environment, as all S3 programs do.
func sdkClient(conns int) *s3.Client {
	runtime.GOMAXPROCS(max(sdkProcs, runtime.NumCPU()))
	return s3.New(s3.Options{
		BaseEndpoint: aws.String(os.Getenv("AWS_ENDPOINT_URL")),
		Region:       os.Getenv("AWS_REGION"),
		UsePathStyle: true,
		Credentials:  credentials.NewStaticCredentialsProvider(os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), ""),
		HTTPClient: &http.Client{Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			MaxIdleConns:        conns,
			MaxIdleConnsPerHost: conns,
			DisableCompression:  true,
			ReadBufferSize:      64 << 10,
		}},
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
	})
}

// fetch reads a range, or (length < 0) a whole object, into buf and returns its length.
func fetch(ctx context.Context, c *s3.Client, bucket, key string, off, length int64, buf []byte) (int, error) {
	in := &s3.GetObjectInput{Bucket: &bucket, Key: &key}
	if length >= 0 {
		in.Range = aws.String(fmt.Sprintf("bytes=%d-%d", off, off+length-1))
	}
	resp, err := c.GetObject(ctx, in)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	n := int(aws.ToInt64(resp.ContentLength))
	if n > len(buf) || length >= 0 && int64(n) != length {
		return 0, fmt.Errorf("%s: %d bytes came, %d were asked for, the buffer holds %d", key, n, length, len(buf))
	}
	if _, err := io.ReadFull(resp.Body, buf[:n]); err != nil {
		return 0, err
	}
	// Only a body that was read to its end gives its connection back.
	if _, err := resp.Body.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("%s: the body is longer than it said: %v", key, err)
	}
	return n, nil
}

// store writes with O_DIRECT: what goes to the disk is whole pages.
func store(fd int, buf []byte, n int, off int64) error {
	n = (n + page - 1) &^ (page - 1)
	for done := 0; done < n; {
		w, err := retry(func() (int, error) { return unix.Pwrite(fd, buf[done:n], off+int64(done)) })
		if err != nil {
			return fmt.Errorf("store: %w", err)
		}
		done += w
	}
	return nil
}

// create makes a file for O_DIRECT with its final size, all of it allocated: faster by about
// a tenth than to let every write allocate.
func create(path string, size int64) (int, error) {
	fd, err := openFile(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_DIRECT)
	if err != nil {
		return -1, err
	}
	if err := unix.Fallocate(fd, 0, 0, size); err != nil {
		return -1, fmt.Errorf("allocate %d bytes: %w", size, err)
	}
	return fd, nil
}

func sdkGet(ctx context.Context, args []string) (res Result, err error) {
	var s sdkFlags
	fs := flag.NewFlagSet("sdk-get", flag.ContinueOnError)
	s.add(fs)
	part := fs.Int64("part", 8<<20, "`bytes` of a request")
	if err := fs.Parse(args); err != nil {
		return res, err
	}
	c := sdkClient(s.inflight)
	type piece struct {
		key    string
		fd     int
		off, n int64
	}
	work := make(chan piece)
	g, ctx := errgroup.WithContext(ctx)
	buffers := make([][]byte, s.inflight)
	for i := range buffers {
		if buffers[i], err = alignedBuffer(int(*part)); err != nil {
			return res, err
		}
	}
	var bytes, ops atomic.Int64
	res.Start = clock()
	for i := range s.inflight {
		buf := buffers[i]
		g.Go(func() error {
			for p := range work {
				n, err := fetch(ctx, c, s.bucket, p.key, p.off, p.n, buf)
				if err != nil {
					return err
				}
				if err := store(p.fd, buf, n, p.off); err != nil {
					return err
				}
				bytes.Add(int64(n))
				ops.Add(1)
			}
			return nil
		})
	}
	g.Go(func() error { // hands out the pieces, in order
		defer close(work)
		for _, key := range fs.Args() {
			head, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.bucket, Key: &key})
			if err != nil {
				return err
			}
			size := aws.ToInt64(head.ContentLength)
			fd, err := create(filepath.Join(s.out, strings.ReplaceAll(key, "/", "_")), size)
			if err != nil {
				return err
			}
			for off := int64(0); off < size; off += *part {
				select {
				case work <- piece{key: key, fd: fd, off: off, n: min(*part, size-off)}:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return res, err
	}
	res.End = clock()
	res.Bytes, res.Ops = bytes.Load(), ops.Load()
	return res, nil
}

func sdkObjects(ctx context.Context, args []string) (res Result, err error) {
	var s sdkFlags
	fs := flag.NewFlagSet("sdk-objects", flag.ContinueOnError)
	s.add(fs)
	list := fs.String("list", "", "`file` with the keys, one on a line")
	prefix := fs.String("prefix", "", "goes before every key of the list")
	seed := fs.Uint64("seed", 1, "of the order")
	if err := fs.Parse(args); err != nil {
		return res, err
	}
	keys, err := shuffledLines(*list, *seed, 0, 1)
	if err != nil {
		return res, err
	}
	c := sdkClient(s.inflight)
	var next, bytes atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	res.Start = clock()
	for range s.inflight {
		g.Go(func() error {
			buf, err := alignedBuffer(1 << 20)
			if err != nil {
				return err
			}
			for {
				i := next.Add(1) - 1
				if i >= int64(len(keys)) {
					return nil
				}
				n, err := fetch(ctx, c, s.bucket, *prefix+keys[i], 0, -1, buf)
				if err != nil {
					return err
				}
				if err := storeSmall(filepath.Join(s.out, fmt.Sprint(i)), buf, n); err != nil {
					return err
				}
				bytes.Add(int64(n))
			}
		})
	}
	if err := g.Wait(); err != nil {
		return res, err
	}
	res.End = clock()
	res.Bytes, res.Ops = bytes.Load(), int64(len(keys))
	return res, nil
}

// storeSmall makes a file of n bytes in one write: whole pages, then cut to size.
func storeSmall(path string, buf []byte, n int) error {
	fd, err := openFile(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_DIRECT)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := store(fd, buf, n, 0); err != nil {
		return err
	}
	return unix.Ftruncate(fd, int64(n))
}

func sdkRand(ctx context.Context, args []string) (res Result, err error) {
	var s sdkFlags
	fs := flag.NewFlagSet("sdk-rand", flag.ContinueOnError)
	s.add(fs)
	block := fs.Int64("block", 128<<10, "`bytes` of a request")
	count := fs.Int("count", 1000, "how many requests")
	size := fs.Int64("size", 0, "of the object, in `bytes`")
	seed := fs.Uint64("seed", 1, "of the order")
	if err := fs.Parse(args); err != nil {
		return res, err
	}
	offsets, err := randomBlocks(*size, *block, *count, *seed)
	if err != nil {
		return res, err
	}
	c := sdkClient(s.inflight)
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	res.Start = clock()
	for range s.inflight {
		g.Go(func() error {
			buf, err := alignedBuffer(int(*block))
			if err != nil {
				return err
			}
			for {
				i := next.Add(1) - 1
				if i >= int64(len(offsets)) {
					return nil
				}
				if _, err := fetch(ctx, c, s.bucket, fs.Arg(0), offsets[i], *block, buf); err != nil {
					return err
				}
			}
		})
	}
	if err := g.Wait(); err != nil {
		return res, err
	}
	res.End = clock()
	res.Ops, res.Bytes = int64(*count), int64(*count)**block
	return res, nil
}

func sdkList(ctx context.Context, args []string) (res Result, err error) {
	var s sdkFlags
	fs := flag.NewFlagSet("sdk-list", flag.ContinueOnError)
	s.add(fs)
	if err := fs.Parse(args); err != nil {
		return res, err
	}
	c := sdkClient(1)
	in := &s3.ListObjectsV2Input{Bucket: &s.bucket, Prefix: aws.String(fs.Arg(0)), Delimiter: aws.String("/")}
	res.Start = clock()
	for p := s3.NewListObjectsV2Paginator(c, in); p.HasMorePages(); {
		out, err := p.NextPage(ctx)
		if err != nil {
			return res, err
		}
		res.Ops += int64(len(out.Contents))
	}
	res.End = clock()
	return res, nil
}
