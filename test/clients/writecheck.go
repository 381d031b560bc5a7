package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// tree is what is below a directory: its relative path and "file SIZE SHA256", "link TARGET",
// "dir" or "empty dir". Sockets, FIFOs and devices, which a bucket does not hold, are left out.
type tree map[string]string

// treeOf reads all of a directory.
func treeOf(root string) (tree, error) {
	t := tree{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			names, err := os.ReadDir(path)
			if err != nil {
				return err
			}
			t[rel] = "dir"
			if len(names) == 0 {
				t[rel] = "empty dir"
			}
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			t[rel] = "link " + target
		case d.Type().IsRegular():
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			t[rel], err = content(f)
			return errors.Join(err, f.Close())
		}
		return nil
	})
	return t, err
}

func content(r io.Reader) (string, error) {
	h := sha256.New()
	n, err := io.Copy(h, r)
	return fmt.Sprintf("file %d %s", n, hex.EncodeToString(h.Sum(nil))), err
}

// differs says how got, which a fresh mount shows, differs from t, or nil. A symbolic link may be a
// file there that holds the target: a listing of a bucket does not tell them apart.
func (t tree) differs(got tree) error {
	var lines []string
	for p, w := range t {
		if g, ok := got[p]; !ok {
			lines = append(lines, fmt.Sprintf("%s: missing, want %s", p, w))
		} else if g != w && g != asFile(w) {
			lines = append(lines, fmt.Sprintf("%s: %s, want %s", p, g, w))
		}
	}
	for p, g := range got {
		if _, ok := t[p]; !ok {
			lines = append(lines, fmt.Sprintf("%s: %s, and should not be there", p, g))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	sort.Strings(lines)
	return fmt.Errorf("the tree of the fresh mount is another one: %s", quoted(lines))
}

// asFile is what a symbolic link is as a file that holds its target, "" of anything else.
func asFile(what string) string {
	target, ok := strings.CutPrefix(what, "link ")
	if !ok {
		return ""
	}
	file, err := content(strings.NewReader(target))
	if err != nil {
		return ""
	}
	return file
}

// settled waits until everything is published, and compares the bucket with the mount. It returns
// what is in the mount.
func (r *writeRunner) settled(ctx context.Context, bucket, dir string) (tree, error) {
	ctx, cancel := context.WithTimeout(ctx, r.c.settle)
	defer cancel()
	synced, err := r.sync(ctx, dir)
	if err != nil {
		return nil, err
	}
	want, err := treeOf(dir)
	if err != nil {
		return nil, err
	}
	for {
		err := r.compareBucket(ctx, bucket, want)
		if err == nil || synced {
			return want, err
		}
		select { // a binary without the command: only the bucket tells when it is done
		case <-ctx.Done():
			return nil, fmt.Errorf("not published after %v: %w", r.c.settle, err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// sync runs "leatfs sync", if there is such a command.
func (r *writeRunner) sync(ctx context.Context, dir string) (bool, error) {
	out, err := exec.CommandContext(ctx, r.leatfs, "sync", dir).CombinedOutput()
	switch {
	case err == nil:
		return true, nil
	case bytes.Contains(out, []byte("unknown command")):
		return false, nil
	}
	return false, fmt.Errorf("leatfs sync: %w: %s", err, bytes.TrimSpace(out))
}

// compareBucket compares a bucket with a tree: each file is an object with its content, each link
// one with its target, and an empty directory has a marker. Directories may have one. There is
// nothing else, and no upload is unfinished but one for each kill.
func (r *writeRunner) compareBucket(ctx context.Context, bucket string, want tree) error {
	client := r.server.Client()
	found := map[string]bool{}
	var extra, missing, wrong, uploads []string
	pages := s3.NewListObjectsV2Paginator(client, &s3.ListObjectsV2Input{Bucket: &bucket})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return fmt.Errorf("list %s: %w", bucket, err)
		}
		for _, o := range page.Contents {
			found[*o.Key] = true
			p := strings.TrimSuffix(*o.Key, "/")
			w, ok := want[p]
			isDir := w == "dir" || w == "empty dir"
			if !ok || isDir != strings.HasSuffix(*o.Key, "/") {
				extra = append(extra, *o.Key)
			}
		}
	}
	for p, w := range want {
		if w != "dir" && !found[p] && !found[p+"/"] {
			missing = append(missing, p)
		}
	}
	u, err := client.ListMultipartUploads(ctx, &s3.ListMultipartUploadsInput{Bucket: &bucket})
	if err != nil {
		return fmt.Errorf("list the uploads of %s: %w", bucket, err)
	}
	empty := true
	for _, up := range u.Uploads {
		uploads = append(uploads, *up.Key)
		parts, err := client.ListParts(ctx, &s3.ListPartsInput{Bucket: &bucket, Key: up.Key, UploadId: up.UploadId})
		if err != nil {
			return fmt.Errorf("list the parts of an upload of %s: %w", *up.Key, err)
		}
		empty = empty && len(parts.Parts) == 0
	}
	if len(uploads) > 0 && len(uploads) <= r.kills && empty {
		// A kill while an upload is made loses its id before any part is sent (docs/OPERATIONS.md,
		// "Unfinished uploads").
		r.notes = append(r.notes, fmt.Sprintf("%d kills have left unfinished uploads behind: %s", r.kills, quoted(uploads)))
		uploads = nil
	}
	if len(extra)+len(missing)+len(uploads) == 0 { // content is dear: only when the names are right
		if wrong, err = r.wrongContent(ctx, bucket, want); err != nil {
			return err
		}
	}
	var lines []string
	for _, l := range []struct {
		what string
		keys []string
	}{{"files that are no objects", missing}, {"objects that are no files", extra}, {"uploads that are unfinished", uploads},
		{"objects with other content", wrong}} {
		if len(l.keys) > 0 {
			sort.Strings(l.keys)
			lines = append(lines, fmt.Sprintf("%s: %s", l.what, quoted(l.keys)))
		}
	}
	if len(lines) > 0 {
		return fmt.Errorf("bucket %s: %s", bucket, strings.Join(lines, "; "))
	}
	return nil
}

// wrongContent gets every object and compares.
func (r *writeRunner) wrongContent(ctx context.Context, bucket string, want tree) (wrong []string, err error) {
	for p, w := range want {
		if w == "dir" || w == "empty dir" {
			continue
		}
		out, err := r.server.Client().GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &p})
		if err != nil {
			return nil, fmt.Errorf("get %s: %w", p, err)
		}
		if target, ok := strings.CutPrefix(w, "link "); ok {
			b, err := io.ReadAll(out.Body)
			_ = out.Body.Close()
			if err != nil {
				return nil, fmt.Errorf("get %s: %w", p, err)
			}
			if string(b) != target {
				wrong = append(wrong, fmt.Sprintf("%s (%.100q, want %q)", p, b, target))
			}
			continue
		}
		got, err := content(out.Body)
		_ = out.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("get %s: %w", p, err)
		}
		if got != w {
			wrong = append(wrong, fmt.Sprintf("%s (%s, want %s)", p, got, w))
		}
	}
	return wrong, nil
}
