package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leatfs/leatfs/test/mountpoint"
)

// checkpoint is the file that train.py saves, below the mount and so in the bucket.
const checkpoint = "checkpoints/epoch-2.pt"

// landed waits until the checkpoint is in the bucket, compares it with the file, and tells which
// requests it took; before is the status from before the training, which only reads.
func (d *demo) landed(ctx context.Context, m *mountpoint.Mount, e *epoch, before *mountpoint.Status) (string, error) {
	if e.Saved == 0 {
		return "", errors.New("train.py saved no checkpoint")
	}
	fmt.Printf("    $ leatfs sync %s\n", m.Dir)
	begun := time.Now()
	cmd := command(ctx, d.leatfs, "sync", m.Dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("leatfs sync: %w\n%s", err, out)
	}
	waited := time.Since(begun)
	after, err := m.Status(ctx)
	if err != nil {
		return "", err
	}
	file, err := os.Open(filepath.Join(m.Dir, checkpoint))
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // only read
	object, err := d.server.Client().GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String(checkpoint)})
	if err != nil {
		return "", err
	}
	defer func() { _ = object.Body.Close() }()
	in, err := sum(object.Body)
	if err != nil {
		return "", err
	}
	if here, err := sum(file); err != nil || !bytes.Equal(here, in) {
		return "", errors.Join(err, fmt.Errorf("%s: the object is not the file: %x, %x", checkpoint, in, here))
	}
	n := func(class string) int64 { return after.Origin.Requests[class] - before.Origin.Requests[class] }
	return fmt.Sprintf("%s, %.0f MB: written, fsynced and renamed in %.2f s; in the bucket %.2f s after \"leatfs sync\" was called.\n"+
		"The object equals the file (SHA-256 %x…). It took %d requests that write (an upload in parts, and the marker of its directory), %d copies, %d deletions.\n",
		checkpoint, float64(e.Saved)/1e6, e.Saving, waited.Seconds(), in[:6], n("PUT"), n("COPY"), n("DELETE")), nil
}

func sum(r io.Reader) ([]byte, error) {
	h := sha256.New()
	_, err := io.Copy(h, r)
	return h.Sum(nil), err
}
