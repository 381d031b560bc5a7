// Package upload puts local files into a bucket, for programs that test or measure.
package upload

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"golang.org/x/sync/errgroup"
)

// parallel is how many objects are sent at once: enough to keep two cores busy.
const parallel = 8

// Tree puts every regular file under dir into the bucket, as prefix + its relative path.
// It returns how many objects and bytes that were.
func Tree(ctx context.Context, client *s3.Client, bucket, prefix, dir string) (objects int, size int64, err error) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		objects++
		size += info.Size()
		g.Go(func() error { return File(ctx, client, bucket, prefix+filepath.ToSlash(rel), path) })
		return ctx.Err()
	})
	if gerr := g.Wait(); gerr != nil {
		err = gerr
	}
	return objects, size, err
}

// File puts one file, by a single PUT: at most 5 GiB.
func File(ctx context.Context, client *s3.Client, bucket, key, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := client.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: f}); err != nil {
		return fmt.Errorf("upload %s: %w", key, err)
	}
	return nil
}
