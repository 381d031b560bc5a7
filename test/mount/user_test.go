package mount

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// TestKilledDaemon: after kill -9, umount and mount; what was in the cache is there.
func TestKilledDaemon(t *testing.T) {
	w := newWorld(t)
	data := random(1, 9<<20)
	w.put("d/large", data)
	w.put("d/small", data[:1000])
	m := w.mount()
	m.same("d/large", data)
	m.same("d/small", data[:1000])
	m.proven(2)
	m.noted()
	m.killOnly()
	_, err := os.Stat(m.path("d/new"))
	// The second is for a request that was sent while the connection was being torn down.
	if !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, syscall.ECONNABORTED) {
		t.Errorf("access to a dead mount: %v", err)
	}
	if code, _, stderr := outcome(t, w.command("umount", m.dir), prompt); code != 0 {
		t.Fatalf("umount: %s", stderr)
	}
	nothingLeft(t, "after umount", m.dir)
	mark := w.mark()
	m.start()
	m.same("d/large", data)
	// Without the umount, the next mount removes what is left of the dead one.
	m.killOnly()
	m.expect = append(m.expect, "processes were all gone")
	m.start()
	if n := mountsAt(t, m.dir); n != 1 {
		t.Errorf("%d mounts are there", n)
	}
	m.same("d/large", data)
	m.same("d/small", data[:1000])
	if n := w.requests("GET", mark); n != 0 {
		t.Errorf("%d GETs", n)
	}
}

// TestTwoMounts of one bucket, with a cache each, do not disturb each other.
func TestTwoMounts(t *testing.T) {
	w := newWorld(t)
	for i := range 20 {
		w.put(fmt.Sprintf("d/%02d", i), random(uint64(i), 1<<20))
	}
	a, b := w.mount(), w.mount()
	var wg sync.WaitGroup
	for _, m := range []*mnt{a, b} {
		wg.Go(func() {
			for i := range 20 {
				m.same(fmt.Sprintf("d/%02d", i), random(uint64(i), 1<<20))
			}
		})
	}
	wg.Wait()
	out, err := w.command("status", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []struct{ Mountpoint string }
	if err := json.Unmarshal(out, &all); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*mnt{a, b} {
		if !slices.ContainsFunc(all, func(s struct{ Mountpoint string }) bool { return s.Mountpoint == m.dir }) {
			t.Errorf("status does not tell of %s: %s", m.dir, out)
		}
	}
	a.stop()
	b.same("d/00", random(0, 1<<20))
}

// TestOrdinaryUser mounts, reads, looks and unmounts without any privilege.
func TestOrdinaryUser(t *testing.T) {
	w := newWorld(t)
	data := random(1, 9<<20)
	w.put("d/large", data)
	w.put("d/small", data[:1000])
	// Everybody may open the device on an ordinary machine; in a container it may be otherwise.
	if st, err := os.Stat("/dev/fuse"); err != nil {
		t.Fatal(err)
	} else if st.Mode().Perm() != 0o666 {
		t.Cleanup(func() { _ = os.Chmod("/dev/fuse", st.Mode().Perm()) })
		if err := os.Chmod("/dev/fuse", 0o666); err != nil {
			t.Fatal(err)
		}
	}
	const uid = 65534
	base, err := os.MkdirTemp("/tmp", "leatfs-user-") // where that user may go
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	dir := filepath.Join(base, "mnt")
	mkdir(t, dir)
	for _, p := range []string{base, dir} {
		if err := os.Chown(p, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	as := func(name string, args ...string) *exec.Cmd {
		c := exec.Command(name, args...)
		c.Env = append(w.env(), "HOME="+base, "XDG_RUNTIME_DIR="+base, "XDG_CACHE_HOME="+base+"/cache")
		c.Dir = base
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		return c
	}
	run := func(name string, args ...string) []byte {
		t.Helper()
		out, err := as(name, args...).Output()
		if err != nil {
			t.Errorf("%s %v: %v %s", name, args, err, errText(err))
		}
		return out
	}
	run(leatfs, "mount", "s3://"+w.bucket, dir)
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	for range 2 {
		if got := run("cat", dir+"/d/large"); !bytes.Equal(got, data) {
			t.Errorf("wrong bytes: %s", difference(got, data))
		}
		if got := run("cat", dir+"/d/small"); !bytes.Equal(got, data[:1000]) {
			t.Errorf("wrong bytes: %s", difference(got, data[:1000]))
		}
		dropCaches(t)
	}
	if got := string(run("stat", "-c", "%u %a", dir+"/d/small")); got != "65534 644\n" {
		t.Errorf("stat: %s", got)
	}
	var s status
	(&mnt{t: t}).eventually("both are compared with the bucket's checksum", func() error {
		if err := json.Unmarshal(run(leatfs, "status", dir, "--json"), &s); err != nil {
			return err
		}
		if s.Cache.Proven != 2 {
			return fmt.Errorf("%+v", s.Cache)
		}
		return nil
	})
	if s.Passthrough || s.Files.Pass != 0 {
		t.Errorf("status %+v", s)
	}
	// Nobody else gets in, root neither; it was not mounted with --allow-other.
	if _, err := os.ReadDir(dir); err == nil {
		t.Error("root reads it")
	}
	cacheDir := base + "/cache/leatfs/mounts/" + strings.ReplaceAll(strings.Trim(dir, "/"), "/", "-")
	for path, mode := range map[string]os.FileMode{cacheDir: 0o700, base + "/leatfs": 0o700} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v %v", path, st, err)
		}
	}
	for _, f := range objects(t, cacheDir) {
		if st, err := os.Stat(f); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", f, st, err)
		}
	}
	log, err := os.ReadFile(cacheDir + "/leatfs.log")
	if err != nil || bytes.Contains(log, []byte("level=WARN")) || bytes.Contains(log, []byte("level=ERROR")) {
		t.Errorf("log: %v\n%s", err, log)
	}

	// Busy, as an ordinary user.
	hold := as("sh", "-c", "exec sleep 60 <"+dir+"/d/small")
	if err := hold.Start(); err != nil {
		t.Fatal(err)
	}
	(&mnt{t: t}).eventually("the file is held", func() error {
		if l, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", hold.Process.Pid)); l != dir+"/d/small" {
			return fmt.Errorf("fd 0 is %q", l)
		}
		return nil
	})
	code, _, stderr := outcome(t, as(leatfs, "umount", dir), prompt)
	if code != 1 {
		t.Errorf("umount of a busy mount: exit code %d", code)
	}
	oneLine(t, "busy umount", stderr, dir, "busy")
	_ = hold.Process.Kill()
	_ = hold.Wait()
	run(leatfs, "umount", dir)
	if alive(s.WorkerPID) {
		t.Error("the daemon is still there")
	}
	if mountsAt(t, dir) != 0 {
		t.Error("the mount is still there")
	}
	if es, err := os.ReadDir(base + "/leatfs"); err != nil || len(es) != 0 {
		t.Errorf("sockets are left: %v %v", es, err)
	}

	// What such a user may not do is said.
	closed := filepath.Join(base, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil { // root's
		t.Fatal(err)
	}
	for says, args := range map[string][]string{
		"cache directory " + closed: {"s3://" + w.bucket, dir, "--cache-dir", closed},
		"not writable":              {"s3://" + w.bucket, dir, "--cache-dir", closed},
		"mount point /root/mnt":     {"s3://" + w.bucket, "/root/mnt"},
		"fusermount3":               {"s3://" + w.bucket, "/var/empty-of-root"},
	} {
		if says == "fusermount3" { // a mount point that the user may not write to
			args[1] = filepath.Join(base, "roots")
			mkdir(t, args[1])
		}
		code, stdout, stderr := outcome(t, as(leatfs, append([]string{"mount"}, args...)...), prompt)
		if code != 1 || stdout != "" {
			t.Errorf("%v: exit code %d %s", args, code, stdout)
		}
		oneLine(t, says, stderr, says)
		nothingLeft(t, says, args[1])
	}
}

func errText(err error) []byte {
	if e, ok := err.(*exec.ExitError); ok {
		return e.Stderr
	}
	return nil
}

// TestSignals: SIGTERM and SIGINT to the daemon unmount, in the background and in the
// foreground; a mount that is in use goes out of sight and ends with its last user.
func TestSignals(t *testing.T) {
	w := newWorld(t)
	data := random(1, 9<<20)
	w.put("f", data)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		m := w.mount()
		m.same("f", data)
		pid := m.status().WorkerPID
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
		m.up = false
		m.eventually(fmt.Sprintf("%v ends the mount", sig), func() error {
			if alive(pid) {
				return fmt.Errorf("process %d is alive", pid)
			}
			return nil
		})
		m.checkLog()
		nothingLeft(t, sig.String(), m.dir)
	}

	m := w.mount()
	m.expect = []string{"in use"}
	f := mustOpen(t, m.path("f"))
	pid := m.status().WorkerPID
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	m.up = false
	m.eventually("the mount is out of sight", func() error {
		if n := mountsAt(t, m.dir); n != 0 {
			return fmt.Errorf("%d mounts", n)
		}
		return nil
	})
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read after SIGTERM: %v %s", err, difference(got, data))
	}
	if !alive(pid) {
		t.Error("the daemon ended under its last user")
	}
	_ = f.Close()
	m.eventually("the daemon ends with the last user", func() error {
		if alive(pid) {
			return fmt.Errorf("process %d is alive", pid)
		}
		return nil
	})
	m.checkLog()
	nothingLeft(t, "SIGTERM while in use", m.dir)
}

// TestForeground: the daemon stays, logs to standard error, and ends with exit code 0.
func TestForeground(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("x"))
	dir, cache := place(t)
	cmd := w.command("mount", "s3://"+w.bucket, dir, "--cache-dir", cache, "--foreground")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	if !lines.Scan() || !strings.Contains(lines.Text(), "msg=mounted") {
		t.Errorf("first line of the log: %q", lines.Text())
	}
	if b, err := os.ReadFile(dir + "/f"); err != nil || string(b) != "x" {
		t.Errorf("%q %v", b, err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		if !strings.Contains(lines.Text(), "level=INFO") {
			t.Errorf("log: %s", lines.Text())
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	nothingLeft(t, "foreground", dir)
}

// TestBusyUmount: umount of a mount in use says so and changes nothing; --lazy takes it out
// of sight and lets the users finish.
func TestBusyUmount(t *testing.T) {
	w := newWorld(t)
	data := random(1, 9<<20)
	w.put("f", data)
	m := w.mount()
	f := mustOpen(t, m.path("f"))
	code, _, stderr := outcome(t, w.command("umount", m.dir), prompt)
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	oneLine(t, "busy", stderr, m.dir, "in use", "fuser")
	m.same("f", data)
	pid := m.status().WorkerPID
	if code, _, stderr := outcome(t, w.command("umount", "--lazy", m.dir), prompt); code != 0 || stderr != "" {
		t.Errorf("umount --lazy: %d %s", code, stderr)
	}
	m.up = false
	if mountsAt(t, m.dir) != 0 {
		t.Error("it is still in sight")
	}
	again := w.mountAt(m.dir) // at the same place, while the old one has its user
	dropCaches(t)
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read after umount --lazy: %v", err)
	}
	_ = f.Close()
	m.eventually("the daemon ends", func() error {
		if alive(pid) {
			return fmt.Errorf("process %d is alive", pid)
		}
		return nil
	})
	m.checkLog()
	again.same("f", data)
	if again.status().WorkerPID == pid {
		t.Error("status is that of the old daemon")
	}
	again.stop()
	nothingLeft(t, "lazy", m.dir)
}

// TestOtherUmount: umount(8), and one by somebody else, end the daemon too.
func TestOtherUmount(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("x"))
	m := w.mount()
	m.same("f", []byte("x"))
	pid := m.status().WorkerPID
	if out, err := exec.Command("umount", m.dir).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	m.up = false
	m.eventually("the daemon ends", func() error {
		if alive(pid) {
			return fmt.Errorf("process %d is alive", pid)
		}
		return nil
	})
	m.checkLog()
	nothingLeft(t, "umount(8)", m.dir)
}

// TestOddMountPoint: blanks, other scripts, symbolic links, relative paths, a slash at the end.
func TestOddMountPoint(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("x"))
	base := t.TempDir()
	dir := filepath.Join(base, "a b", "\u00e9\u4e16\\ \"'")
	mkdir(t, dir)
	link := filepath.Join(base, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{dir, link, dir + "/", "link", "./a b/../link/"} {
		cmd := func(args ...string) *exec.Cmd {
			c := w.command(args...)
			c.Dir = base
			return c
		}
		if code, _, stderr := outcome(t, cmd("mount", "s3://"+w.bucket, name, "--cache-dir", "cache"), prompt); code != 0 {
			t.Errorf("mount on %q: %s", name, stderr)
			continue
		}
		if b, err := os.ReadFile(dir + "/f"); err != nil || string(b) != "x" {
			t.Errorf("mounted on %q: %q %v", name, b, err)
		}
		if code, stdout, stderr := outcome(t, cmd("status", name), prompt); code != 0 || !strings.Contains(stdout, dir) {
			t.Errorf("status of %q: %s%s", name, stdout, stderr)
		}
		if code, _, stderr := outcome(t, cmd("umount", name), prompt); code != 0 {
			t.Errorf("umount of %q: %s", name, stderr)
			_ = syscall.Unmount(dir, syscall.MNT_DETACH)
		}
		nothingLeft(t, name, dir)
	}
}

// TestTwoAtOnce: of several mounts at the same place and time one comes about.
func TestTwoAtOnce(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("x"))
	for _, caches := range []string{"one cache", "a cache each"} {
		dir, cache := place(t)
		var wg sync.WaitGroup
		var mu sync.Mutex
		good := 0
		for i := range 5 {
			c := cache
			if caches != "one cache" {
				c = fmt.Sprint(cache, i)
			}
			wg.Go(func() {
				code, _, stderr := outcome(t, w.command("mount", "s3://"+w.bucket, dir, "--cache-dir", c), time.Minute)
				mu.Lock()
				defer mu.Unlock()
				if code == 0 {
					good++
				} else {
					oneLine(t, caches, stderr)
				}
			})
		}
		wg.Wait()
		if n := mountsAt(t, dir); good != 1 || n != 1 {
			t.Errorf("%s: %d mounts say that they came about, and there are %d", caches, good, n)
		}
		if b, err := os.ReadFile(dir + "/f"); err != nil || string(b) != "x" {
			t.Errorf("%s: %q %v", caches, b, err)
		}
		if code, _, stderr := outcome(t, w.command("umount", dir), prompt); code != 0 {
			t.Errorf("%s: %s", caches, stderr)
		}
		nothingLeft(t, caches, dir)
	}
}

// TestConfigFile: a mount by a configuration file alone.
func TestConfigFile(t *testing.T) {
	w := newWorld(t)
	w.put("p/f", []byte("x"))
	dir, cache := place(t)
	file := filepath.Join(t.TempDir(), "data.yaml")
	write(t, file, fmt.Sprintf(`# a mount
source: s3://%s/p
mountpoint: %s
cache-dir: [%s-0, %s-1]
cache-size: 100MiB
memory: 256MiB
endpoint-url: %s
umask: 027
uid: 1234
options: [noexec, noatime]
passthrough: off
`, w.bucket, dir, cache, cache, w.proxy.URL()))
	cmd := w.command("mount", "--config", file, "--memory=200MiB")
	cmd.Env = slices.DeleteFunc(cmd.Env, func(s string) bool { return strings.HasPrefix(s, "AWS_ENDPOINT_URL=") })
	if code, _, stderr := outcome(t, cmd, prompt); code != 0 {
		t.Fatal(stderr)
	}
	m := &mnt{t: t, w: w, dir: dir, cache: cache + "-0", log: cache + "-0/leatfs.log", up: true}
	t.Cleanup(m.stop)
	m.same("f", []byte("x"))
	st, err := os.Stat(dir + "/f")
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode() != 0o640 || st.Sys().(*syscall.Stat_t).Uid != 1234 {
		t.Errorf("%v %+v", st.Mode(), st.Sys())
	}
	s := m.status()
	if s.Memory.Budget != 200<<20 { // the command line wins
		t.Errorf("memory %d", s.Memory.Budget)
	}
	if len(s.Cache.Dirs) != 2 || s.Passthrough {
		t.Errorf("%+v", s)
	}
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); f[1] == dir {
			if opts := strings.Split(f[3], ","); !slices.Contains(opts, "noexec") || !slices.Contains(opts, "noatime") || !slices.Contains(opts, "nodev") {
				t.Errorf("mounted with %s", f[3])
			}
		}
	}
}

// TestStatus: what people and programs are shown.
func TestStatus(t *testing.T) {
	w := newWorld(t)
	w.put("f", random(1, 9<<20))
	m := w.mount()
	m.same("f", random(1, 9<<20))
	m.proven(1) // from then on opens are passed through
	m.same("f", random(1, 9<<20))
	m.quiet() // the kernel tells of a close after it
	out, err := w.command("status", m.dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	const number = `[0-9.]+`
	const size = number + `(B|[KMGT]iB)`
	for _, want := range []string{
		`mount     s3://` + w.bucket + ` on ` + m.dir + `$`,
		`daemon    process [0-9]+, version \S+, up [0-9ms]+`,
		`bucket    ok`,
		`requests  GET [0-9]+, HEAD [0-9]+, LIST [0-9]+; (9|[0-9]{2})[0-9.]*MiB in; 0 retried, [0-9]+ hedged`,
		`cache     ` + m.cache + `: ` + size + ` of 4GiB`,
		`checked   1 objects equal to the bucket's checksum, 0 without one, 0 mismatches`,
		`reads     by the kernel, once whole in the cache; 1 opens passed through, 1 served \(` + size + `\)`,
		`prefetch  ` + size + ` asked for, ` + size + ` used, ` + size + ` wasted`,
		`memory    ` + size + ` of ` + size + ` \(buffers ` + size + ` of ` + size + `\)`,
		`open      [0-9]+ files, 0 handles`,
	} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).Match(out) {
			t.Errorf("status has no line %q:\n%s", want, out)
		}
	}
	out, err = w.command("status", m.dir, "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"mountpoint", "source", "version", "worker_pid", "started", "read_only", "passthrough",
		"origin.state", "origin.last_success", "origin.consecutive_failures", "origin.requests.GET", "origin.bytes_in", "origin.retries", "origin.hedges",
		"cache.dirs", "cache.used_bytes", "cache.capacity_bytes", "cache.bytes_memory", "cache.bytes_disk", "cache.bytes_origin", "cache.bytes_uncached",
		"cache.proven", "cache.unverifiable", "cache.mismatches", "cache.evicted", "cache.write_errors",
		"memory.budget", "memory.counted", "memory.files", "memory.pool_size", "memory.pool_used", "memory.pool_held",
		"files.open", "files.handles", "files.lookups", "files.opens", "files.opens_passthrough", "files.opens_daemon", "files.reads", "files.lists",
		"files.failed_requests", "prefetch.asked", "prefetch.used", "prefetch.wasted"} {
		var v any = got
		for _, k := range strings.Split(path, ".") {
			m, _ := v.(map[string]any)
			v = m[k]
		}
		if v == nil {
			t.Errorf("status --json has no %s", path)
		}
	}
}

// TestMetrics: what Prometheus reads parses, and has what the documentation promises.
func TestMetrics(t *testing.T) {
	w := newWorld(t)
	w.put("f", random(1, 9<<20))
	addr := listen(t, nil)
	m := w.mount("--metrics-addr", addr)
	m.same("f", random(1, 9<<20))
	m.same("f", random(1, 9<<20))
	unix := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socketOf(m.dir))
	}}}
	defer unix.CloseIdleConnections()
	doc, err := os.ReadFile("../../docs/OPERATIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	promised := regexp.MustCompile("`(leatfs_[a-z_]+)[`{]").FindAllStringSubmatch(string(doc), -1)
	if len(promised) < 10 {
		t.Fatalf("the documentation names %d metrics; has its form changed?", len(promised))
	}
	for where, get := range map[string]func() (*http.Response, error){
		"socket": func() (*http.Response, error) { return unix.Get("http://leatfs/metrics") },
		"port":   func() (*http.Response, error) { return http.Get("http://" + addr + "/metrics") },
	} {
		resp, err := get()
		if err != nil {
			t.Fatal(err)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(resp.Body)
		if err != nil {
			t.Errorf("%s: %v", where, err)
		}
		_ = resp.Body.Close()
		for _, p := range promised {
			if families[p[1]] == nil {
				t.Errorf("%s: there is no %s, which docs/OPERATIONS.md names", where, p[1])
			}
		}
		for name, f := range families {
			if strings.HasPrefix(name, "leatfs_") && f.GetHelp() == "" {
				t.Errorf("%s has no help", name)
			}
		}
	}
}
