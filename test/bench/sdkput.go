package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sync/errgroup"
)

// The limit of works that write: nothing but the SDK and files that lie there whole. It computes no
// checksum, neither of the content nor for the signature, and asks for nothing to be compared.

// sdkPutClient is an sdkClient that sends no checksums.
func sdkPutClient(conns int) *s3.Client {
	return s3.New(sdkClient(conns).Options(), func(o *s3.Options) {
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.APIOptions = append(o.APIOptions, v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware)
	})
}

// sdkPut uploads files by parts, all files at the same time.
func sdkPut(ctx context.Context, args []string) (res Result, err error) {
	var s sdkFlags
	fs := flag.NewFlagSet("sdk-put", flag.ContinueOnError)
	s.add(fs)
	part := fs.Int64("part", 16<<20, "`bytes` of a part")
	prefix := fs.String("prefix", "", "goes before every key")
	if err := fs.Parse(args); err != nil {
		return res, err
	}
	c := sdkPutClient(s.inflight)
	slots := make(chan struct{}, s.inflight)
	var bytes atomic.Int64
	g, gctx := errgroup.WithContext(ctx)
	res.Start = clock()
	for _, p := range fs.Args() {
		g.Go(func() error {
			n, err := putParts(gctx, c, s.bucket, *prefix+filepath.Base(p), p, *part, slots)
			bytes.Add(n)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return res, err
	}
	res.End = clock()
	res.Bytes, res.Ops = bytes.Load(), int64(fs.NArg())
	return res, nil
}

// putParts uploads one file; each part takes a slot.
func putParts(ctx context.Context, c *s3.Client, bucket, key, file string, part int64, slots chan struct{}) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	up, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &bucket, Key: &key})
	if err != nil {
		return 0, err
	}
	done := make([]types.CompletedPart, (st.Size()+part-1)/part)
	g, gctx := errgroup.WithContext(ctx)
	for i := range done {
		select {
		case slots <- struct{}{}:
		case <-gctx.Done():
			return 0, g.Wait()
		}
		g.Go(func() error {
			defer func() { <-slots }()
			off, number := int64(i)*part, aws.Int32(int32(i+1))
			out, err := c.UploadPart(gctx, &s3.UploadPartInput{Bucket: &bucket, Key: &key, UploadId: up.UploadId, PartNumber: number,
				Body: io.NewSectionReader(f, off, min(part, st.Size()-off))})
			if err == nil {
				done[i] = types.CompletedPart{ETag: out.ETag, PartNumber: number}
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	_, err = c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{Bucket: &bucket, Key: &key, UploadId: up.UploadId,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: done}})
	return st.Size(), err
}

// sdkPutObjects uploads the files of a directory, each by one PUT.
func sdkPutObjects(ctx context.Context, args []string) (res Result, err error) {
	var s sdkFlags
	fs := flag.NewFlagSet("sdk-put-objects", flag.ContinueOnError)
	s.add(fs)
	dir := fs.String("dir", "", "the `directory`")
	prefix := fs.String("prefix", "", "goes before every key")
	if err := fs.Parse(args); err != nil {
		return res, err
	}
	names, err := os.ReadDir(*dir)
	if err != nil {
		return res, err
	}
	if len(names) == 0 {
		return res, fmt.Errorf("%s is empty", *dir)
	}
	c := sdkPutClient(s.inflight)
	var next, bytes atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	res.Start = clock()
	for range s.inflight {
		g.Go(func() error {
			for {
				i := next.Add(1) - 1
				if i >= int64(len(names)) {
					return nil
				}
				n, err := putFile(ctx, c, s.bucket, path.Join(*prefix, names[i].Name()), filepath.Join(*dir, names[i].Name()))
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
	res.Bytes, res.Ops = bytes.Load(), int64(len(names))
	return res, nil
}

func putFile(ctx context.Context, c *s3.Client, bucket, key, file string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	_, err = c.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: f})
	return st.Size(), err
}
