package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/leatfs/leatfs/fs"
)

// manifestCheck compares files with a manifest, or makes one. It is not for parallel use.
type manifestCheck struct {
	file  string // of the manifest
	write bool
	want  map[string]fs.ManifestFile // what was not seen yet
	made  []fs.ManifestFile
	bad   bool // a file could not be read: no manifest is written
}

func newManifestCheck(file string, write bool) (*manifestCheck, error) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	m := &manifestCheck{file: abs, write: write}
	if write {
		return m, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	list, err := fs.ReadManifest(f)
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", file, err)
	}
	m.want = make(map[string]fs.ManifestFile, len(list))
	for _, x := range list {
		m.want[x.Path] = x
	}
	return m, nil
}

// base is the directory that names of the manifest are relative to.
func (m *manifestCheck) base(abs string) (string, error) {
	st, err := statPlain(abs)
	if err != nil {
		return "", err
	}
	if !st.IsDir() {
		return filepath.Dir(abs), nil
	}
	return abs, nil
}

// skip tells what is in no manifest: what is not a file, and the manifest itself.
func (m *manifestCheck) skip(c *fs.Copy, path string) bool { return c.Kind != "file" || m.itself(path) }

func (m *manifestCheck) itself(path string) bool {
	if filepath.Base(path) != filepath.Base(m.file) {
		return false
	}
	a, err := os.Stat(path)
	if err != nil {
		return path == m.file
	}
	b, err := os.Stat(m.file)
	return err == nil && os.SameFile(a, b)
}

// take compares one result with the manifest, or takes it into the one that is made.
func (m *manifestCheck) take(r *verifyResult) {
	if m.write {
		var f fs.ManifestFile
		if r.SHA256 == "" {
			m.bad = true
			return
		}
		f.Path, f.Size = r.relative, r.Size
		if _, err := hex.Decode(f.SHA256[:], []byte(r.SHA256)); err != nil {
			m.bad = true
			return
		}
		if r.State == verifyEqual || r.State == verifyRemote {
			f.ETag = r.ETag
		}
		m.made = append(m.made, f)
		return
	}
	f, ok := m.want[r.relative]
	delete(m.want, r.relative)
	switch {
	case !ok:
		if r.State == verifyEqual || r.State == verifyRemote {
			r.State, r.Detail = verifyExtra, "it is not in the manifest"
		}
	case r.SHA256 == "":
		if r.State != verifyDiffers {
			r.State = verifyUnverifiable
		}
	case f.Size >= 0 && f.Size != r.Size:
		r.State, r.Detail = verifyDiffers, fmt.Sprintf("it has %d bytes, in the manifest it has %d", r.Size, f.Size)
	case hex.EncodeToString(f.SHA256[:]) != r.SHA256:
		r.State, r.Detail = verifyDiffers, "its content is not that of the manifest"
	case f.ETag != "" && r.ETag != "" && f.ETag != r.ETag && (r.State == verifyEqual || r.State == verifyRemote):
		r.Detail = "the same content, in another object than that of the manifest"
	}
}

// finish tells of what the manifest has and was not seen, or writes it.
func (m *manifestCheck) finish(report *verifyReport) error {
	if m.write {
		if m.bad {
			return fmt.Errorf("manifest %s is not written: not all files could be read", m.file)
		}
		return m.save()
	}
	var missing []string
	for p := range m.want {
		missing = append(missing, p)
	}
	slices.Sort(missing)
	for _, p := range missing {
		if err := report.add(&verifyResult{Path: p, State: verifyDiffers, Size: 0, Detail: "it is in the manifest, and not here"}); err != nil {
			return err
		}
	}
	return nil
}

// save writes the manifest whole or not at all.
func (m *manifestCheck) save() (err error) {
	f, err := os.CreateTemp(filepath.Dir(m.file), "."+filepath.Base(m.file)+".*")
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
			err = fmt.Errorf("manifest: %w", err)
		}
	}()
	if err := fs.WriteManifest(f, m.made); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), m.file)
}

// plain compares, or takes, what lies on any file system.
func (m *manifestCheck) plain(ctx context.Context, abs string, report *verifyReport) error {
	base, err := m.base(abs)
	if err != nil {
		return err
	}
	return filepath.WalkDir(abs, func(path string, e iofs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case !e.Type().IsRegular() || m.itself(path):
			return nil
		}
		r := verifyResult{Path: path, State: verifyEqual, By: "SHA-256"}
		if r.relative, err = filepath.Rel(base, path); err != nil {
			return err
		}
		if err := sumPlain(ctx, &r); err != nil {
			r.State, r.Detail = verifyUnverifiable, err.Error()
		}
		m.take(&r)
		return report.add(&r)
	})
}

func sumPlain(ctx context.Context, r *verifyResult) error {
	f, err := os.Open(r.Path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	st, err := f.Stat()
	if err != nil {
		return err
	}
	r.Size = st.Size()
	if r.Holes, err = holes(f); err != nil {
		return err
	}
	sum := sha256.New()
	if err := copyAll(ctx, sum, io.NewSectionReader(f, 0, r.Size), r.Size); err != nil {
		return err
	}
	r.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return nil
}
