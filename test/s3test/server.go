// Package s3test runs a real S3 server on loopback, as a process of its own, for tests,
// benchmarks and the demonstration.
//
// The servers are tools, never linked: "make tools" installs them into the tools
// directory (see ToolsDir). A server dies with the process that started it.
package s3test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// Kind names a server.
type Kind string

// The servers. The value is the name of the binary.
const (
	Versitygw Kind = "versitygw"
	MinIO     Kind = "minio"
)

// Kinds is every server that the behaviour suite runs on.
func Kinds() []Kind { return []Kind{Versitygw, MinIO} }

// Options is how to start a server. The zero value of each field is a default.
type Options struct {
	Kind Kind // default Versitygw
	// Dir holds the server's data, and "versions" and "log" beside it. It is made when
	// missing and never removed. Needed.
	Dir string
	// Addr is the address to listen on, "127.0.0.1:PORT"; default a free port.
	Addr string
	// AccessKey and SecretKey are the root user; default random, so that a port that
	// somebody else took is never mistaken for this server.
	AccessKey, SecretKey string
	// Versioning lets buckets keep versions (EnableVersioning). MinIO always can.
	Versioning bool
	// Ready is how long the server may take to answer; default 30 s.
	Ready time.Duration
	// Nice, when not 0, is added to the server's niceness.
	Nice int
}

// Server is a running S3 server. Its methods may be called in parallel, except Stop and
// Restart with each other.
type Server struct {
	Kind      Kind
	Endpoint  string // "http://127.0.0.1:PORT"
	Addr      string // "127.0.0.1:PORT"
	AccessKey string
	SecretKey string
	Region    string
	Dir       string // the directory whose subdirectories are the buckets

	opt    Options
	client *s3.Client

	mu   sync.Mutex // guards proc
	proc *process   // nil when stopped
}

// ToolsDir is where the server binaries are: $LEATFS_TOOLS, or leatfs/tools in the user's
// cache directory.
func ToolsDir() string {
	if d := os.Getenv("LEATFS_TOOLS"); d != "" {
		return d
	}
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			home = "/root"
		}
		base = filepath.Join(home, ".cache")
	}
	return filepath.Join(base, "leatfs", "tools")
}

// Binary is the path of a server's binary, or an error that says how to get it.
func Binary(k Kind) (string, error) {
	p := filepath.Join(ToolsDir(), string(k))
	if _, err := os.Stat(p); err != nil {
		return "", fmt.Errorf("s3test: %s is not in %s: run \"make tools\"", k, ToolsDir())
	}
	return p, nil
}

// Start starts a server and waits until it answers requests made with its own keys. The
// server lives until Stop, or until this process ends. ctx bounds the start only.
func Start(ctx context.Context, opt Options) (*Server, error) {
	if opt.Kind == "" {
		opt.Kind = Versitygw
	}
	if opt.Dir == "" {
		return nil, errors.New("s3test: Options.Dir is not set")
	}
	if opt.AccessKey == "" {
		opt.AccessKey = "LT" + rand.Text()[:18]
	}
	if opt.SecretKey == "" {
		opt.SecretKey = rand.Text() + rand.Text()[:14]
	}
	if opt.Ready == 0 {
		opt.Ready = 30 * time.Second
	}
	s := &Server{Kind: opt.Kind, AccessKey: opt.AccessKey, SecretKey: opt.SecretKey,
		Region: "us-east-1", Dir: filepath.Join(opt.Dir, "data"), opt: opt}
	var err error
	for range 5 { // another process may take the port between freeAddr and the server's bind
		s.Addr = opt.Addr
		if s.Addr == "" {
			if s.Addr, err = freeAddr(); err != nil {
				return nil, err
			}
		}
		s.Endpoint = "http://" + s.Addr
		s.client = s.newClient()
		if err = s.Restart(ctx); err == nil || opt.Addr != "" || ctx.Err() != nil ||
			!strings.Contains(err.Error(), "address already in use") {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// StartTB starts a server for the length of a test, in a directory of the test's own.
// A failed test logs the end of the server's log.
func StartTB(tb testing.TB, k Kind) *Server {
	tb.Helper()
	return StartOptionsTB(tb, Options{Kind: k, Dir: tb.TempDir()})
}

// StartOptionsTB is StartTB with options.
func StartOptionsTB(tb testing.TB, opt Options) *Server {
	tb.Helper()
	s, err := Start(context.Background(), opt)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		s.Stop()
		if tb.Failed() {
			tb.Logf("log of %s:\n%s", s.Kind, s.Log(8<<10))
		}
	})
	return s
}

// Restart starts the server again, at the same address with the same data, after Stop or
// Kill; it waits until the server answers.
func (s *Server) Restart(ctx context.Context) error {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return fmt.Errorf("s3test: %w", err)
	}
	cmd, err := s.command()
	if err != nil {
		return err
	}
	p, err := startProcess(cmd, s.logPath(), s.opt.Nice)
	if err != nil {
		return fmt.Errorf("s3test: start %s: %w", s.Kind, err)
	}
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()
	if err := s.waitReady(ctx, p); err != nil {
		s.Kill()
		return err
	}
	return nil
}

// Stop ends the server: politely, then by force after 3 s. It may be called twice.
func (s *Server) Stop() {
	if p := s.take(); p != nil {
		p.stop(syscall.SIGTERM, 3*time.Second)
	}
}

// Kill ends the server at once, as a crash would.
func (s *Server) Kill() {
	if p := s.take(); p != nil {
		p.stop(syscall.SIGKILL, 0)
	}
}

func (s *Server) take() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.proc
	s.proc = nil
	return p
}

// Pid is the server's process, 0 when it is stopped.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.cmd.Process.Pid
}

// Env is the environment that makes AWS clients use this server, as "NAME=value".
func (s *Server) Env() []string {
	return []string{
		"AWS_ACCESS_KEY_ID=" + s.AccessKey,
		"AWS_SECRET_ACCESS_KEY=" + s.SecretKey,
		"AWS_REGION=" + s.Region,
		"AWS_DEFAULT_REGION=" + s.Region,
		"AWS_ENDPOINT_URL=" + s.Endpoint,
		"AWS_EC2_METADATA_DISABLED=true",
	}
}

// Client is a plain SDK client with the server's root user.
func (s *Server) Client() *s3.Client { return s.client }

// CreateBucket makes a bucket; no error when it is there already.
func (s *Server) CreateBucket(ctx context.Context, name string) error {
	_, err := s.client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &name})
	var mine *types.BucketAlreadyOwnedByYou
	if err != nil && !errors.As(err, &mine) {
		return fmt.Errorf("s3test: create bucket %s: %w", name, err)
	}
	return nil
}

// EnableVersioning makes a bucket keep versions (needs Options.Versioning).
func (s *Server) EnableVersioning(ctx context.Context, bucket string) error {
	_, err := s.client.PutBucketVersioning(ctx, &s3.PutBucketVersioningInput{Bucket: &bucket,
		VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled}})
	if err != nil {
		return fmt.Errorf("s3test: enable versions of %s: %w", bucket, err)
	}
	return nil
}

// BucketTB makes a bucket with a name of its own and returns the name.
func (s *Server) BucketTB(tb testing.TB) string {
	tb.Helper()
	name := "b-" + strings.ToLower(rand.Text())
	if err := s.CreateBucket(tb.Context(), name); err != nil {
		tb.Fatal(err)
	}
	return name
}

func (s *Server) newClient() *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String(s.Endpoint),
		Region:       s.Region,
		UsePathStyle: true,
		Credentials:  credentials.NewStaticCredentialsProvider(s.AccessKey, s.SecretKey, ""),
	})
}

// waitReady asks for the list of buckets until the server answers: only a server that
// knows the keys counts.
func (s *Server) waitReady(ctx context.Context, p *process) error {
	ctx, cancel := context.WithTimeout(ctx, s.opt.Ready)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := s.client.ListBuckets(ctx, &s3.ListBucketsInput{},
			func(o *s3.Options) { o.Retryer = aws.NopRetryer{} })
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("s3test: %s ended before it answered: %v; its log:\n%s", s.Kind, p.err, s.Log(4<<10))
		case <-ctx.Done():
			return fmt.Errorf("s3test: %s did not answer within %v: %w; its log:\n%s", s.Kind, s.opt.Ready, err, s.Log(4<<10))
		case <-tick.C:
		}
	}
}

func (s *Server) logPath() string { return filepath.Join(s.opt.Dir, "log") }

// Log returns up to n bytes from the end of what the server said.
func (s *Server) Log(n int64) string {
	f, err := os.Open(s.logPath())
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if fi, err := f.Stat(); err == nil && fi.Size() > n {
		if _, err := f.Seek(-n, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// freeAddr finds a loopback port that nobody listens on now.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("s3test: no free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// process is a child with a goroutine that waits for it.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has ended
	err  error         // how it ended; valid after done
}

// startProcess runs cmd with its output in the file log. The child gets SIGKILL when the
// parent dies. The kernel sends that when the *thread* that forked ends, so the fork is
// made on a thread that waits for the child and ends after it.
func startProcess(cmd *exec.Cmd, log string, nice int) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() { // ends with the child; stop waits for it
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	if nice != 0 {
		_ = syscall.Setpriority(syscall.PRIO_PROCESS, cmd.Process.Pid, nice)
	}
	return p, nil
}

// stop sends sig and, if the child is not gone after grace, SIGKILL; it returns when the
// child is gone.
func (p *process) stop(sig syscall.Signal, grace time.Duration) {
	_ = p.cmd.Process.Signal(sig)
	if grace > 0 {
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-p.done:
			return
		case <-t.C:
		}
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}
