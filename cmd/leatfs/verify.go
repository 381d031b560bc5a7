package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/leatfs/leatfs/fs"
	"github.com/leatfs/leatfs/fs/fuse"
)

// verifyParallel is how many files are compared at once.
const verifyParallel = 4

// verdictError is the end of "leatfs verify": its exit code, and what is still to be said, nil if all is.
type verdictError struct {
	code int
	err  error
}

func (e verdictError) Error() string {
	if e.err == nil {
		return "not all is equal"
	}
	return e.err.Error()
}

func (e verdictError) Unwrap() error { return e.err }

// The exit codes of verify.
const (
	verifyExitDiffers   = 1
	verifyExitUnchecked = 2
)

// verifyFlags are the choices of one verify.
type verifyFlags struct {
	json, deep, strict bool
	manifest           string
	write              bool
}

func verifyCommand() *cobra.Command {
	var o verifyFlags
	cmd := &cobra.Command{
		Use:   "verify PATH…",
		Short: "Compare files with the bucket, or with a manifest",
		Long: `Compare what is on this node's disk with what the bucket has, for each file at and below the paths:
its version, its size, and the checksum of the whole object that the bucket holds (CRC64NVME, CRC32C, CRC32, or
the MD5 in an ETag). A file that differs is told with the ranges in which it does.

Each file is one of
  equal         what is here is what the bucket has
  remote        the bucket has the version that is shown; nothing of it is here, or not all
  unpublished   the bucket has not yet what is here
  differs       the bucket has another version, none, or other bytes
  unverifiable  the bucket has no checksum of it (--deep reads the object then), or it cannot be asked
  local         a FIFO, socket or device: never in a bucket

Ranges that were never written ("holes") are told too. They read as zeros, which is legal, but in a
checkpoint they are suspicious: --strict makes them count as differences.

--manifest FILE compares the files below one PATH with a manifest: the SHA-256 of each file, in the format of
sha256sum. With --write the manifest is made. PATH need not be below a mount then, and "sha256sum -c FILE",
run in PATH, does the same comparison. Symlinks and empty directories are in no manifest.

The exit code is 0 when all files are equal (or remote, or local), 1 when one differs or is not published,
2 when one is unverifiable or nothing could be checked.`,
		Example: `  leatfs verify /mnt/data/checkpoints/step-1000
  leatfs verify --manifest step-1000.sha256 --write /mnt/data/checkpoints/step-1000`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return verify(cmd.Context(), &o, args, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.json, "json", false, "print JSON")
	f.BoolVar(&o.deep, "deep", false, "read every object from the bucket and compare all bytes")
	f.BoolVar(&o.strict, "strict", false, "ranges that were never written, and files that are not in the manifest, are differences")
	f.StringVar(&o.manifest, "manifest", "", "compare with this manifest")
	f.BoolVar(&o.write, "write", false, "write the manifest instead")
	return cmd
}

func verify(ctx context.Context, o *verifyFlags, paths []string, stdout io.Writer) error {
	switch {
	case o.write && o.manifest == "":
		return usageError{errors.New("--write is for --manifest FILE")}
	case o.manifest != "" && len(paths) > 1:
		return usageError{errors.New("--manifest is of one PATH")}
	}
	report := newVerifyReport(stdout, o)
	var m *manifestCheck
	if o.manifest != "" {
		var err error
		if m, err = newManifestCheck(o.manifest, o.write); err != nil {
			return verdictError{verifyExitUnchecked, err}
		}
	}
	for _, p := range paths {
		if err := verifyPath(ctx, o, p, m, report); err != nil {
			return verdictError{verifyExitUnchecked, errors.Join(err, report.end())}
		}
	}
	if m != nil {
		if err := m.finish(report); err != nil {
			return verdictError{verifyExitUnchecked, errors.Join(err, report.end())}
		}
	}
	if err := report.end(); err != nil {
		return verdictError{verifyExitUnchecked, err}
	}
	if code := report.code(); code != 0 {
		return verdictError{code: code}
	}
	return nil
}

// verifyPath compares all below one path.
func verifyPath(ctx context.Context, o *verifyFlags, path string, m *manifestCheck, report *verifyReport) error {
	mountpoint, below, abs, err := findMount(path)
	if err != nil {
		return err
	}
	if mountpoint == "" {
		if m == nil {
			return fmt.Errorf("%s is not below a mount of leatfs", path)
		}
		return m.plain(ctx, abs, report)
	}
	if _, err := servingStatus(ctx, mountpoint); err != nil {
		return err
	}
	v := &verifier{mountpoint: mountpoint, socket: socketPath(mountpoint), deep: o.deep, sums: m != nil}
	base := abs
	if m != nil {
		if base, err = m.base(abs); err != nil {
			return err
		}
	}
	return v.all(ctx, below, func(c *fs.Copy) bool { return m == nil || !m.skip(c, v.mountpoint+c.Path) }, func(r *verifyResult) error {
		if m != nil {
			if r.relative, err = filepath.Rel(base, r.Path); err != nil {
				return err
			}
			m.take(r)
		}
		return report.add(r)
	})
}

// findMount finds the mount that a path is on, and what is below its mount point; "" for none. A symlink at
// the end of the path is itself, if it is on a mount.
func findMount(path string) (mountpoint, below, abs string, err error) {
	if abs, err = filepath.Abs(path); err != nil {
		return "", "", "", err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", "", "", err
	}
	mounts, err := fuse.Mounts()
	if err != nil {
		return "", "", "", err
	}
	on := func(p string) string {
		best := ""
		for _, m := range mounts {
			if m.Type == "fuse.leatfs" && len(m.Mountpoint) > len(best) && (p == m.Mountpoint || strings.HasPrefix(p, strings.TrimSuffix(m.Mountpoint, "/")+"/")) {
				best = m.Mountpoint
			}
		}
		return best
	}
	abs = filepath.Join(dir, filepath.Base(abs))
	if mountpoint = on(abs); mountpoint == "" {
		if abs, err = filepath.EvalSymlinks(abs); err != nil {
			return "", "", "", err
		}
		mountpoint = on(abs)
	}
	return mountpoint, strings.TrimPrefix(abs, mountpoint), abs, nil
}

// all compares all files at and below a path, several at once, and gives the results in order.
func (v *verifier) all(ctx context.Context, below string, wanted func(*fs.Copy) bool, each func(*verifyResult) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	results := make(chan chan verifyResult, verifyParallel)
	var asked error
	wg.Go(func() {
		defer close(results)
		asked = v.copies(ctx, below, func(c fs.Copy) error {
			if !wanted(&c) {
				return nil
			}
			one := make(chan verifyResult, 1)
			select {
			case results <- one:
			case <-ctx.Done():
				return ctx.Err()
			}
			wg.Go(func() { one <- v.file(ctx, c) })
			return nil
		})
	})
	for one := range results {
		r := <-one
		if err := each(&r); err != nil {
			return err
		}
	}
	return asked
}

// copies asks what is known of the files at and below a path.
func (v *verifier) copies(ctx context.Context, below string, each func(fs.Copy) error) error {
	resp, err := ask(ctx, v.socket, http.MethodGet, "/verify/files", url.Values{"path": {below}})
	if err != nil {
		return fmt.Errorf("%s: %w", v.mountpoint, err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	in := json.NewDecoder(resp.Body)
	for {
		var m verifyMessage
		if err := in.Decode(&m); err != nil {
			return fmt.Errorf("%s: the daemon's answer was broken off: %w", v.mountpoint, err)
		}
		switch {
		case m.Error != "":
			return fmt.Errorf("%s: %s", v.mountpoint+below, m.Error)
		case m.Done:
			return nil
		case m.Copy != nil:
			if err := each(*m.Copy); err != nil {
				return err
			}
		}
	}
}

// verifySummary counts what came of all files.
type verifySummary struct {
	Files        int   `json:"files"`
	Bytes        int64 `json:"bytes"`
	Equal        int   `json:"equal"`
	Remote       int   `json:"remote"`
	Unpublished  int   `json:"unpublished"`
	Differs      int   `json:"differs"`
	Unverifiable int   `json:"unverifiable"`
	Local        int   `json:"local"`
	Extra        int   `json:"extra"`
	WithHoles    int   `json:"with_holes"`
}

// verifyReport prints results as they come: {"files": […], "summary": {…}}, or lines for people of what
// is not as it should be.
type verifyReport struct {
	w      io.Writer
	json   bool
	strict bool
	sum    verifySummary
	ended  bool
}

func newVerifyReport(w io.Writer, o *verifyFlags) *verifyReport {
	return &verifyReport{w: w, json: o.json, strict: o.strict}
}

func (p *verifyReport) add(r *verifyResult) error {
	s := &p.sum
	s.Files++
	s.Bytes += r.Size
	switch r.State {
	case verifyEqual:
		s.Equal++
	case verifyRemote:
		s.Remote++
	case verifyUnpublished:
		s.Unpublished++
	case verifyDiffers:
		s.Differs++
	case verifyUnverifiable:
		s.Unverifiable++
	case verifyLocal:
		s.Local++
	case verifyExtra:
		s.Extra++
	}
	if len(r.Holes) > 0 {
		s.WithHoles++
	}
	if p.json {
		b, err := json.Marshal(r)
		if err != nil {
			return err
		}
		lead := ","
		if s.Files == 1 {
			lead = `{"files":[`
		}
		_, err = fmt.Fprintf(p.w, "%s\n%s", lead, b)
		return err
	}
	switch r.State {
	case verifyEqual, verifyRemote, verifyLocal:
	default:
		detail := r.Detail
		if len(r.At) > 0 {
			detail += "; at bytes " + rangesText(r.At)
		}
		if _, err := fmt.Fprintf(p.w, "%-12s  %s  %s\n", r.State, r.Path, detail); err != nil {
			return err
		}
	}
	if len(r.Holes) > 0 {
		_, err := fmt.Fprintf(p.w, "%-12s  %s  never written: bytes %s\n", "holes", r.Path, rangesText(r.Holes))
		return err
	}
	return nil
}

// rangesText shows a few ranges, first and last byte.
func rangesText(rs []byteRange) string {
	const show = 4
	var parts []string
	for _, r := range rs[:min(len(rs), show)] {
		parts = append(parts, fmt.Sprintf("%d-%d", r.Offset, r.Offset+r.Length-1))
	}
	if len(rs) > show {
		parts = append(parts, "…")
	}
	return strings.Join(parts, ", ")
}

// end prints the summary, once.
func (p *verifyReport) end() error {
	if p.ended {
		return nil
	}
	p.ended = true
	s := &p.sum
	if p.json {
		b, err := json.Marshal(s)
		if err != nil {
			return err
		}
		lead := "\n]"
		if s.Files == 0 {
			lead = `{"files":[]`
		}
		_, err = fmt.Fprintf(p.w, "%s,\"summary\":%s}\n", lead, b)
		return err
	}
	text := fmt.Sprintf("%d files, %s: %d equal", s.Files, humanBytes(s.Bytes), s.Equal)
	for _, x := range []struct {
		n    int
		what string
	}{
		{s.Remote, "only in the bucket"}, {s.Unpublished, "not published yet"}, {s.Differs, "DIFFER"},
		{s.Unverifiable, "could not be checked"}, {s.Local, "only here"}, {s.Extra, "not in the manifest"}, {s.WithHoles, "with ranges never written"},
	} {
		if x.n > 0 {
			text += fmt.Sprintf(", %d %s", x.n, x.what)
		}
	}
	_, err := fmt.Fprintln(p.w, text)
	return err
}

// code is the exit code.
func (p *verifyReport) code() int {
	s := &p.sum
	switch {
	case s.Differs > 0, s.Unpublished > 0, p.strict && s.WithHoles > 0, p.strict && s.Extra > 0:
		return verifyExitDiffers
	case s.Unverifiable > 0:
		return verifyExitUnchecked
	}
	return 0
}

// statPlain is Stat of a path that must be a file or a directory.
func statPlain(path string) (os.FileInfo, error) {
	st, err := os.Stat(path)
	if err == nil && !st.IsDir() && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is neither a file nor a directory", path)
	}
	return st, err
}
