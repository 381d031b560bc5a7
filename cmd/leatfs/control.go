package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"
)

// The control socket of a mount speaks HTTP: /status answers a Status in JSON, /metrics the
// metrics in Prometheus' text format. It lies in runDir, readable by its owner alone, under a
// name made of the mount point's.

// runDir is where sockets of running mounts are.
func runDir() string {
	if os.Geteuid() == 0 {
		return "/run/leatfs"
	}
	if d := os.Getenv("XDG_RUNTIME_DIR"); d != "" {
		return filepath.Join(d, "leatfs")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("leatfs-%d", os.Geteuid()))
}

// makeRunDir makes the directory of sockets. Where anybody may make one (/tmp), one of that
// name that is not ours alone is refused.
func makeRunDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("directory of control sockets: %w", err)
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("directory of control sockets: %w", err)
	}
	if sys := st.Sys().(*syscall.Stat_t); !st.IsDir() || int(sys.Uid) != os.Geteuid() || st.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("directory of control sockets %s: others may write to it; remove it, or set XDG_RUNTIME_DIR to a directory of your own", dir)
	}
	return nil
}

// lockRunDir is taken while a mount comes about: looking at the mount point, mounting and
// making the socket are one step, or two mounts at the same place would both think that
// they are the first. The lock ends with the process, too.
func lockRunDir(ctx context.Context) (unlock func(), err error) {
	dir := runDir()
	if err := makeRunDir(dir); err != nil {
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("directory of control sockets: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("another mount is about to be made and does not come to an end (lock of %s): %w", dir, err), f.Close())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// lockWait is how long other mounts may take to come about; each takes milliseconds.
const lockWait = 20 * time.Second

func socketPath(mountpoint string) string {
	h := sha256.Sum256([]byte(mountpoint))
	return filepath.Join(runDir(), hex.EncodeToString(h[:8])+".sock")
}

// control serves the control socket of one mount.
type control struct {
	server *http.Server
	path   string
	file   os.FileInfo   // the socket in path, when it is ours to remove
	done   chan struct{} // closed when the server has ended
}

// listenControl makes the control socket of a mount.
func listenControl(mountpoint string) (net.Listener, error) {
	path := socketPath(mountpoint)
	// A socket left by a daemon that died: nobody answers on it.
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // see stop
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("control socket: %w", err), l.Close(), os.Remove(path))
	}
	return l, nil
}

// takeListener is the control socket that the process before listened on: who asked meanwhile
// has waited.
func takeListener(f *os.File) (net.Listener, error) {
	l, err := net.FileListener(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("control socket: %w", err), f.Close())
	}
	return l, f.Close()
}

// startControl answers on l, which it closes. made says that this process has just made the socket,
// and removes it at the end: what lies at the path of one that was taken over may be another
// mount's. status is what is told in JSON; metrics may be nil.
func startControl(l net.Listener, made bool, status func() any, metrics prometheus.Gatherer, log *slog.Logger) *control {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(status()); err != nil {
			log.Debug("status not sent", "err", err)
		}
	})
	if metrics != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	}
	c := &control{server: &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}, path: l.Addr().String(), done: make(chan struct{})}
	if made {
		c.file, _ = os.Lstat(c.path) // nil when somebody has removed it
	}
	go func() {
		defer close(c.done)
		if err := c.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("control socket ended", "path", c.path, "err", err)
		}
	}()
	return c
}

// stop stops answering. The socket stays when another process goes on with it.
func (c *control) stop(leave bool) {
	_ = c.server.Close()
	<-c.done
	if leave || c.file == nil {
		return
	}
	// After a lazy unmount another mount may be at the same place by now, and its socket here.
	if now, err := os.Lstat(c.path); err == nil && os.SameFile(now, c.file) {
		_ = os.Remove(c.path)
	}
}

// serveMetrics serves /metrics alone on a TCP address; stop ends it.
func serveMetrics(addr string, metrics prometheus.Gatherer, log *slog.Logger) (stop func(), err error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--metrics-addr: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics listener ended", "addr", addr, "err", err)
		}
	}()
	return func() { _ = srv.Close(); <-done }, nil
}

// errNoDaemon: nobody answers for this mount.
var errNoDaemon = errors.New("no leatfs answers for it")

// askStatus asks the daemon behind a socket.
func askStatus(ctx context.Context, socket string) (*Status, error) {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer tr.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://leatfs/status", nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
		return nil, errNoDaemon
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var s Status
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		return nil, fmt.Errorf("its answer cannot be read: %w", err)
	}
	return &s, nil
}

// sockets are the control sockets there are, in a fixed order.
func sockets() ([]string, error) {
	entries, err := os.ReadDir(runDir())
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".sock") {
			out = append(out, filepath.Join(runDir(), e.Name()))
		}
	}
	sort.Strings(out)
	return out, nil
}
