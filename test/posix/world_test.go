package posix

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leatfs/leatfs/test/mountpoint"
	"github.com/leatfs/leatfs/test/s3test"
)

// world is a directory that a suite works in: a mount of an empty bucket, or with -on any
// directory.
type world struct {
	t      *testing.T
	base   string // for files beside the directory; every user may go there
	dir    string
	server *s3test.Server // nil with -on
	bucket string
	mount  *mountpoint.Mount
	log    string
}

// modes runs a test on a mount that the kernel reads and writes by itself, and on one where the
// daemon does it. With -on there is one way.
func modes(t *testing.T, binary string, f func(w *world)) {
	if *onDir != "" {
		w := &world{t: t, base: base(t), dir: *onDir}
		f(w)
		return
	}
	for _, m := range []struct{ name, flag string }{
		{"passthrough", "--passthrough=auto"},
		{"daemon", "--passthrough=off"},
	} {
		t.Run(m.name, func(t *testing.T) {
			w := newWorld(t, binary, m.flag)
			f(w)
			w.close()
		})
	}
}

// base makes a directory that is removed at the end. Unlike those of the testing package, other
// users may go through it.
func base(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "leatfs-posix-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func newWorld(t *testing.T, binary, flag string) *world {
	t.Helper()
	w := &world{t: t, base: base(t)}
	w.dir, w.log = filepath.Join(w.base, "mnt"), filepath.Join(w.base, "log")
	w.server = s3test.StartOptionsTB(t, s3test.Options{Kind: s3test.Versitygw, Dir: filepath.Join(w.base, "server")})
	w.bucket = w.server.BucketTB(t)
	env := append(w.server.Env(), "AWS_ENDPOINT_URL="+w.server.Endpoint, "GORACE=halt_on_error=1 exitcode=66 atexit_sleep_ms=0")
	m, err := mountpoint.Start(t.Context(), mountpoint.Options{Bin: binary, Source: "s3://" + w.bucket, Dir: w.dir,
		Cache: filepath.Join(w.base, "cache"), Log: w.log, Env: env, Args: []string{flag, "--allow-other", "--cache-size", "4GiB"}})
	if err != nil {
		t.Fatal(err)
	}
	w.mount = m
	t.Cleanup(w.unmount)
	if s, err := m.Status(t.Context()); err != nil {
		t.Error(err)
	} else if flag == "--passthrough=auto" && !s.Passthrough {
		t.Error("this machine has no kernel passthrough (Linux 6.9 or later): that way is not tested")
	}
	return w
}

func (w *world) unmount() {
	if w.mount == nil {
		return
	}
	if err := w.mount.Unmount(); err != nil {
		w.t.Error(err)
	}
	w.mount = nil
}

// close unmounts and looks for what the log should not say.
func (w *world) close() {
	w.t.Helper()
	w.unmount()
	b, err := os.ReadFile(w.log)
	if err != nil {
		w.t.Error(err)
	}
	const most = 10
	n := 0
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, "level=WARN") && !strings.Contains(line, "level=ERROR") &&
			!strings.Contains(line, "DATA RACE") && !strings.Contains(line, "panic") {
			continue
		}
		if n++; n <= most {
			w.t.Errorf("in the daemon's log: %s", line)
		}
	}
	if n > most {
		w.t.Errorf("in the daemon's log: %d lines more of this kind", n-most)
	}
	if w.t.Failed() {
		keep(w.t, w.log)
	}
}

// keep saves a file that tells more of a failure.
func keep(t *testing.T, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Log(err)
		return
	}
	f, err := os.CreateTemp("", "leatfs-posix-*-"+filepath.Base(file))
	if err != nil {
		t.Log(err)
		return
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		t.Log(err)
		return
	}
	t.Logf("%s of this run is kept as %s", filepath.Base(file), f.Name())
}

// keys lists the bucket.
func (w *world) keys() ([]string, error) {
	var out []string
	p := s3.NewListObjectsV2Paginator(w.server.Client(), &s3.ListObjectsV2Input{Bucket: &w.bucket})
	for p.HasMorePages() {
		page, err := p.NextPage(context.Background())
		if err != nil {
			return nil, err
		}
		for _, o := range page.Contents {
			out = append(out, *o.Key)
		}
	}
	return out, nil
}
