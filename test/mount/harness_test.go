// Package mount tests the program as its users run it: the binary, a real S3 server, a real
// mount. Every mount is checked at its end: no warning in the log that the test did not
// expect, nothing held, nothing left behind.
package mount

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leatfs/leatfs/test/fault"
	"github.com/leatfs/leatfs/test/s3test"
)

// leatfs is the binary under test, built with the race detector by TestMain.
var leatfs string

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/mount:", err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (int, error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("these tests mount: run them as root")
	}
	if b := os.Getenv("LEATFS_BIN"); b != "" {
		leatfs = b
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("", "leatfs-bin-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // the mount as another user runs it too
		return 1, err
	}
	leatfs = filepath.Join(dir, "leatfs")
	if err := build(leatfs, "-race"); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// build builds the program.
func build(to string, flags ...string) error {
	args := append([]string{"build", "-o", to}, flags...)
	out, err := exec.Command("go", append(args, "github.com/leatfs/leatfs/cmd/leatfs")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
}

// world is a bucket on a real server, reached by the mount through a proxy that can be told
// to fail, and by the test directly.
type world struct {
	t      *testing.T
	server *s3test.Server
	proxy  *fault.Proxy
	bucket string
	source string // what is mounted when it is not the bucket
	binary string // when it is not leatfs
}

func newWorld(t *testing.T) *world { return newWorldOn(t, s3test.Options{Kind: s3test.Versitygw}) }

func newWorldOn(t *testing.T, opt s3test.Options) *world {
	t.Helper()
	opt.Dir = t.TempDir()
	s := s3test.StartOptionsTB(t, opt)
	p, err := fault.Start(s.Endpoint, fault.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return &world{t: t, server: s, proxy: p, bucket: s.BucketTB(t)}
}

// put stores an object, past the proxy.
func (w *world) put(key string, data []byte) {
	w.t.Helper()
	_, err := w.server.Client().PutObject(context.Background(), &awss3.PutObjectInput{
		Bucket: &w.bucket, Key: &key, Body: bytes.NewReader(data)})
	if err != nil {
		w.t.Fatalf("put %q: %v", key, err)
	}
}

func (w *world) del(key string) {
	w.t.Helper()
	_, err := w.server.Client().DeleteObject(context.Background(), &awss3.DeleteObjectInput{
		Bucket: &w.bucket, Key: aws.String(key)})
	if err != nil {
		w.t.Fatalf("delete %q: %v", key, err)
	}
}

// random is n bytes that do not compress and depend on seed alone.
func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	var s [32]byte
	s[0], s[1] = byte(seed), byte(seed>>8)
	_, _ = rand.NewChaCha8(s).Read(b) // never fails
	return b
}

// mnt is a mounted world.
type mnt struct {
	t      *testing.T
	w      *world
	dir    string // the mount point
	cache  string
	args   []string
	expect []string // texts of warnings that the test causes on purpose
	log    string
	up     bool
}

// mount mounts the world's bucket with extra arguments, on a fresh cache. With --cache-dir
// among them, that one is taken.
func (w *world) mount(args ...string) *mnt {
	w.t.Helper()
	dir := filepath.Join(w.t.TempDir(), "mnt")
	if err := os.Mkdir(dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	return w.mountAt(dir, args...)
}

// mountAt is mount at a directory that is there.
func (w *world) mountAt(dir string, args ...string) *mnt {
	w.t.Helper()
	base := w.t.TempDir()
	m := &mnt{t: w.t, w: w, dir: dir, cache: filepath.Join(base, "cache"), log: filepath.Join(base, "log"), args: args}
	if i := slices.Index(args, "--cache-dir"); i >= 0 {
		m.cache = args[i+1]
	}
	m.start()
	w.t.Cleanup(m.stop)
	return m
}

// mode is a way of serving that every test of reading runs in.
func modes(t *testing.T, f func(t *testing.T, flag string)) {
	for _, m := range []struct{ name, flag string }{
		{"passthrough", "--passthrough=auto"},
		{"daemon", "--passthrough=off"},
	} {
		t.Run(m.name, func(t *testing.T) { f(t, m.flag) })
	}
}

// env is the environment of the program: the test server's credentials and nothing of the
// machine's AWS configuration.
func (w *world) env() []string {
	env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "AWS_") })
	env = append(env, w.server.Env()...)
	return append(env, "AWS_ENDPOINT_URL="+w.proxy.URL(), "AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null",
		"GORACE=halt_on_error=1 exitcode=66 atexit_sleep_ms=0")
}

func (w *world) command(args ...string) *exec.Cmd {
	binary := leatfs
	if w.binary != "" {
		binary = w.binary
	}
	c := exec.Command(binary, args...)
	c.Env = w.env()
	return c
}

func (m *mnt) start() {
	m.t.Helper()
	source := m.w.source
	if source == "" {
		source = "s3://" + m.w.bucket
	}
	args := append([]string{"mount", source, m.dir, "--log-file", m.log}, m.args...)
	if !slices.Contains(m.args, "--cache-dir") {
		args = append(args, "--cache-dir", m.cache, "--cache-size", "4GiB")
	}
	if out, err := m.w.command(args...).CombinedOutput(); err != nil {
		m.t.Fatalf("leatfs %s: %v\n%s\n%s", strings.Join(args, " "), err, out, m.logText())
	}
	m.up = true
}

// stop unmounts and looks for what should not be there.
func (m *mnt) stop() {
	m.t.Helper()
	if !m.up {
		return
	}
	m.up = false
	m.quiet()
	s := m.status()
	if out, err := m.w.command("umount", "--drain-timeout=60s", m.dir).CombinedOutput(); err != nil {
		m.t.Errorf("umount: %v\n%s", err, out)
		_ = syscall.Unmount(m.dir, syscall.MNT_DETACH)
		_ = syscall.Kill(s.Keeper.PID, syscall.SIGKILL)
		_ = syscall.Kill(s.WorkerPID, syscall.SIGKILL)
	}
	for _, pid := range []int{s.Keeper.PID, s.WorkerPID} {
		if alive(pid) {
			m.t.Errorf("process %d of the daemon is still there after umount", pid)
		}
	}
	m.checkLog()
}

// alive tells whether a process runs: it is there, and not a zombie that nobody has reaped.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// kill ends the daemon as kill -9 of all its processes does, and removes the dead mount.
func (m *mnt) kill() {
	m.t.Helper()
	m.killOnly()
	if err := syscall.Unmount(m.dir, syscall.MNT_DETACH); err != nil {
		m.t.Fatal(err)
	}
}

// killOnly ends the daemon as kill -9 of all its processes does: the keeper first, or it would
// start another worker.
func (m *mnt) killOnly() {
	m.t.Helper()
	s := m.status()
	for _, pid := range []int{s.Keeper.PID, s.WorkerPID} {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			m.t.Fatal(err)
		}
		m.eventually("the killed process is gone", func() error {
			if alive(pid) {
				return fmt.Errorf("process %d is alive", pid)
			}
			return nil
		})
	}
	m.up = false
	m.expect = append(m.expect, "the keeper of this mount has died")
}

// quiet waits until the daemon holds nothing for anybody, and fails if it goes on to.
func (m *mnt) quiet() {
	m.t.Helper()
	m.eventually("no handle and no buffer is held", func() error {
		s := m.status()
		if s.Files.Handles != 0 || s.Memory.PoolHeld != 0 {
			return fmt.Errorf("%d handles, %d buffers", s.Files.Handles, s.Memory.PoolHeld)
		}
		return nil
	})
}

// proven waits until n objects are whole in the cache and compared with the bucket's checksum, which happens beside
// and after the reads.
func (m *mnt) proven(n int64) {
	m.t.Helper()
	m.eventually(fmt.Sprintf("%d objects are whole in the cache", n), func() error {
		if c := m.status().Cache; c.Proven != n {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
}

// noted waits until the index has all that the cache knows of its objects: what is whole is then there after kill -9,
// too.
func (m *mnt) noted() {
	m.t.Helper()
	get := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socketOf(m.dir))
	}}}
	m.eventually("the index has all", func() error {
		resp, err := get.Get("http://leatfs/metrics")
		if err != nil {
			return err
		}
		text, err := io.ReadAll(resp.Body)
		err = errors.Join(err, resp.Body.Close())
		if err == nil && !strings.Contains(string(text), "\nleatfs_cache_unnoted_objects 0\n") {
			err = errors.New("there are objects that are not noted")
		}
		return err
	})
}

func (m *mnt) checkLog() {
	m.t.Helper()
	for line := range strings.Lines(m.logText()) {
		bad := strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") ||
			strings.Contains(line, "DATA RACE") || strings.Contains(line, "panic")
		if bad && !slices.ContainsFunc(m.expect, func(s string) bool { return strings.Contains(line, s) }) {
			m.t.Errorf("in the daemon's log: %s", line)
		}
	}
}

func (m *mnt) logText() string {
	b, err := os.ReadFile(m.log)
	if err != nil && !os.IsNotExist(err) {
		m.t.Error(err)
	}
	return string(b)
}

// status is the part of "leatfs status --json" that tests look at.
type status struct {
	WorkerPID   int    `json:"worker_pid"`
	Passthrough bool   `json:"passthrough"`
	State       string `json:"state"`
	Keeper      struct {
		PID          int    `json:"pid"`
		Gone         bool   `json:"gone"`
		Restarts     int    `json:"restarts"`
		LastDeath    string `json:"last_death"`
		Upgrades     int    `json:"upgrades"`
		UpgradeError string `json:"upgrade_error"`
		GivenUp      int    `json:"given_up"`
		LastGivenUp  string `json:"last_given_up"`
	} `json:"keeper"`
	Origin struct {
		State    string `json:"state"`
		Error    string `json:"last_error"`
		Failures int64  `json:"consecutive_failures"`
		Retries  int64  `json:"retries"`
	} `json:"origin"`
	Files struct {
		Handles int   `json:"handles"`
		Failed  int64 `json:"failed_requests"`
		Pass    int64 `json:"opens_passthrough"`
		Daemon  int64 `json:"opens_daemon"`
		// Requests of the kernel, by name.
		Requests map[string]int64 `json:"requests"`
	} `json:"files"`
	Memory struct {
		PoolHeld int64 `json:"pool_held"`
		Counted  int64 `json:"counted"`
		Budget   int64 `json:"budget"`
	} `json:"memory"`
	Cache struct {
		Proven        int64 `json:"proven"`
		Unverifiable  int64 `json:"unverifiable"`
		Mismatches    int64 `json:"mismatches"`
		UsedBytes     int64 `json:"used_bytes"`
		BytesOrigin   int64 `json:"bytes_origin"`
		BytesUncached int64 `json:"bytes_uncached"`
		WriteErrors   int64 `json:"write_errors"`
		Dirs          []struct {
			Path     string `json:"path"`
			Used     int64  `json:"used_bytes"`
			Uncached bool   `json:"uncached"`
		} `json:"dirs"`
	} `json:"cache"`
}

func (m *mnt) status() (s status) {
	m.t.Helper()
	out, err := m.w.command("status", m.dir, "--json").Output()
	if err != nil {
		m.t.Fatalf("status: %v\n%s", err, m.logText())
	}
	if err := json.Unmarshal(out, &s); err != nil {
		m.t.Fatalf("status: %v\n%s", err, out)
	}
	return s
}

// eventually waits for something that other processes bring about; it is polled because
// there is nothing to wait on. A minute is for machines that are busy with something else: none
// of what is waited for is measured by it.
func (m *mnt) eventually(what string, f func() error) {
	m.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("not so after a minute: %s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (m *mnt) path(name string) string { return filepath.Join(m.dir, name) }

// same reads a file whole and compares it.
func (m *mnt) same(name string, want []byte) {
	m.t.Helper()
	got, err := os.ReadFile(m.path(name))
	if err != nil {
		m.t.Errorf("read %s: %v", name, err)
		return
	}
	if !bytes.Equal(got, want) {
		m.t.Errorf("%s: wrong bytes: %s", name, difference(got, want))
	}
}

func difference(got, want []byte) string {
	n := min(len(got), len(want))
	for i := range n {
		if got[i] != want[i] {
			return fmt.Sprintf("first difference at %d of %d", i, len(want))
		}
	}
	return fmt.Sprintf("got %d bytes, want %d", len(got), len(want))
}

// names lists a directory of the mount.
func (m *mnt) names(dir string) []string {
	m.t.Helper()
	es, err := os.ReadDir(m.path(dir))
	if err != nil {
		m.t.Fatal(err)
	}
	var out []string
	for _, e := range es {
		n := e.Name()
		if e.IsDir() {
			n += "/"
		}
		out = append(out, n)
	}
	return out
}

// wantErrno checks that err is the errno.
func wantErrno(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

func mustOpen(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// requests counts what the proxy saw of a class ("GET", "HEAD", "LIST") since a mark.
func (w *world) requests(class string, since int) (n int) {
	for _, r := range w.proxy.Requests()[since:] {
		if r.Class.String() == class {
			n++
		}
	}
	return n
}

func (w *world) mark() int { return len(w.proxy.Requests()) }
