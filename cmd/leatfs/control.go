package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"
)

// The control socket of a mount speaks HTTP: /status answers a Status in JSON, /metrics the
// metrics in Prometheus' text format, and the rest is in ledgercontrol.go. It lies in runDir, readable by its owner alone, under a
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
	file   os.FileInfo    // the socket in path, when it is ours to remove
	done   chan struct{}  // closed when the server has ended
	cancel func()         // ends the contexts of requests
	work   sync.WaitGroup // requests of startControl's handlers
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
// mount's. status is what is told in JSON; metrics may be nil. handlers are what else is answered, by
// pattern; their contexts end with stop, which waits for them.
func startControl(l net.Listener, made bool, status func() any, metrics prometheus.Gatherer, handlers map[string]http.HandlerFunc, log *slog.Logger) *control {
	ctx, cancel := context.WithCancel(context.Background())
	c := &control{path: l.Addr().String(), done: make(chan struct{}), cancel: cancel}
	mux := http.NewServeMux()
	for pattern, h := range handlers {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			c.work.Add(1)
			defer c.work.Done()
			if ctx.Err() == nil {
				h(w, r)
			}
		})
	}
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(status()); err != nil {
			log.Debug("status not sent", "err", err)
		}
	})
	if metrics != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	}
	c.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
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

// stopWait is how long the last answers may take.
const stopWait = time.Second

// stop stops answering. The socket stays when another process goes on with it.
func (c *control) stop(leave bool) {
	c.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), stopWait)
	defer cancel()
	if c.server.Shutdown(ctx) != nil {
		_ = c.server.Close()
	}
	<-c.done
	c.work.Wait()
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

// ask sends a request to the daemon behind a socket. The caller closes the answer's body.
func ask(ctx context.Context, socket, method, path string, query url.Values) (*http.Response, error) {
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	u := url.URL{Scheme: "http", Host: "leatfs", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
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
	switch resp.StatusCode {
	case http.StatusOK:
		return resp, nil
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		err = errNotAnswered
	default:
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		err = errors.New(strings.TrimSpace(string(b)))
	}
	_ = resp.Body.Close()
	return nil, err
}

// errNotAnswered: the daemon does not know the question. It is of another version, or refuses requests.
var errNotAnswered = errors.New("its daemon does not answer this: it is of an older version, or keeps dying (see \"leatfs status\")")

// askJSON asks for something that takes no time.
func askJSON(ctx context.Context, socket, method, path string, query url.Values, to any) error {
	resp, err := ask(ctx, socket, method, path, query)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(to); err != nil {
		return fmt.Errorf("its answer cannot be read: %w", err)
	}
	return nil
}

// askStatus asks the daemon behind a socket.
func askStatus(ctx context.Context, socket string) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var s Status
	if err := askJSON(ctx, socket, http.MethodGet, "/status", nil, &s); err != nil {
		return nil, err
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
