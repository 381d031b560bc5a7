package mount

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leatfs/leatfs/test/fault"
)

// TestBadBucket: what can be wrong with the bucket when a mount is asked for.
func TestBadBucket(t *testing.T) {
	w := newWorld(t)
	dir, cache := place(t)
	silent := listen(t, func(c net.Conn) { time.Sleep(time.Minute) })
	notS3 := listen(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
	})
	closed := listen(t, nil)
	noKeys := []string{"AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=", "AWS_EC2_METADATA_DISABLED=true"}
	for _, c := range []struct {
		name   string
		rule   fault.Action
		source string
		args   []string
		env    []string
		says   []string
	}{
		{name: "no such bucket", source: "s3://no-such-bucket", says: []string{"no-such-bucket", "no bucket", "check its name", w.proxy.URL()}},
		{name: "unknown key", env: []string{"AWS_ACCESS_KEY_ID=AKIANOBODY"}, says: []string{w.bucket, "bad credentials", "check the access key"}},
		{name: "wrong secret", env: []string{"AWS_SECRET_ACCESS_KEY=wrong"}, says: []string{w.bucket, "bad credentials", "check the access key"}},
		{name: "no credentials", env: noKeys, says: []string{"no credentials were found", "AWS_ACCESS_KEY_ID", "--no-sign-request"}},
		{name: "not public", args: []string{"--no-sign-request"}, env: noKeys, says: []string{w.bucket, "not public"}},
		{name: "no such profile", args: []string{"--profile=nobody"}, says: []string{"nobody", "AWS configuration"}},
		{name: "expired token", rule: fault.ExpiredToken(), says: []string{w.bucket, "expired", "renew"}},
		{name: "access denied", rule: fault.AccessDenied(), says: []string{w.bucket, "access denied", "s3:ListBucket"}},
		{name: "clock skew", rule: fault.ClockSkew(), says: []string{w.bucket, "clock", "timedatectl"}},
		{name: "nobody listens", args: []string{"--endpoint-url=http://" + closed}, says: []string{closed, "cannot be reached", "check the endpoint"}},
		{name: "no such host", args: []string{"--endpoint-url=http://nosuchhost.invalid"}, says: []string{"nosuchhost.invalid", "resolve", "check the endpoint"}},
		{name: "silent", args: []string{"--endpoint-url=http://" + silent, "--origin-timeout=1s"}, says: []string{silent, "within 1s", "check the endpoint"}},
		{name: "not S3", args: []string{"--endpoint-url=http://" + notS3, "--origin-timeout=2s"}, says: []string{"not S3", "check the endpoint"}},
		{name: "throttled for long", rule: fault.SlowDown(0), args: []string{"--origin-timeout=1s"}, says: []string{w.bucket, "throttled", "within 1s"}},
		{name: "resets for long", rule: fault.Reset(), args: []string{"--origin-timeout=2s"}, says: []string{w.proxy.URL(), "cannot be reached"}},
		{name: "no such directory", source: "file:///no/such/directory", says: []string{"/no/such/directory"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.rule != nil {
				defer w.proxy.Add(fault.Rule{Do: c.rule}).Remove()
			}
			source := c.source
			if source == "" {
				source = "s3://" + w.bucket
			}
			args := append([]string{source, dir, "--cache-dir", cache}, c.args...)
			refusal{args: args, env: c.env, dir: dir, code: 1, says: c.says, gone: []string{cache}}.check(t, w)
		})
	}
}

// listen accepts connections on a port until the end of the test and hands them to serve;
// with no serve the port is closed at once. It returns the address. Nobody else on this machine gets it meanwhile: it
// is of a loopback address of this process's own, and connections come from others.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	pid := os.Getpid()
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 64+pid>>16&63, pid>>8&255, pid&255))
	if err != nil {
		t.Fatal(err)
	}
	if serve == nil {
		_ = l.Close()
		return l.Addr().String()
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the test at the latest; the peer has a deadline
				defer c.Close()
				serve(c)
			}()
		}
	}()
	return l.Addr().String()
}

// TestMountSurvivesAThrottle: many nodes mount at the same time, and some are told to wait.
func TestMountSurvivesAThrottle(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("x"))
	r := w.proxy.Add(fault.Rule{Count: 3, Do: fault.SlowDown(0)})
	m := w.mount()
	m.same("f", []byte("x"))
	if r.Fired() != 3 {
		t.Errorf("throttled %d times", r.Fired())
	}
}

// TestBadMountPoint: what can be wrong with the place.
func TestBadMountPoint(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("x"))
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	cache := at("cache")
	mkdir(t, at("full"))
	write(t, at("full/file"), "x")
	write(t, at("file"), "x")
	m := w.mount()
	for _, c := range []struct {
		name, dir string
		says      []string
	}{
		{"missing", at("missing"), []string{at("missing"), "does not exist", "mkdir -p"}},
		{"not empty", at("full"), []string{at("full"), "not empty", "file", "-o nonempty"}},
		{"a file", at("file"), []string{at("file"), "not a directory"}},
		{"under a file", at("file/x"), []string{at("file/x"), "not a directory"}},
		{"busy", m.dir, []string{m.dir, "busy", "mounted there already"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := refusal{args: []string{"s3://" + w.bucket, c.dir, "--cache-dir", cache}, dir: c.dir, code: 1, says: c.says, gone: []string{cache}}
			if c.name == "busy" {
				r.dir = "" // a mount is there and stays
			}
			r.check(t, w)
		})
	}
	m.same("f", []byte("x")) // the busy one was not disturbed

	mkdir(t, at("dead"))
	dead := w.mountAt(at("dead"))
	dead.killOnly()
	// What status says to do with a dead one is right.
	code, _, stderr := outcome(t, w.command("status", at("dead")), prompt)
	if code != 1 {
		t.Errorf("status of a dead mount: exit code %d", code)
	}
	oneLine(t, "status", stderr, at("dead"), "leatfs umount "+at("dead"))
	if code, _, stderr := outcome(t, w.command("umount", at("dead")), prompt); code != 0 {
		t.Errorf("umount of a dead mount: %d %s", code, stderr)
	}
	nothingLeft(t, "after umount", at("dead"))
	dead.start()
	dead.same("f", []byte("x"))
	dead.stop()

	// -o nonempty means it.
	over := w.mountAt(at("full"), "-o", "nonempty")
	over.same("f", []byte("x"))
	over.stop()
	if _, err := os.Stat(at("full/file")); err != nil {
		t.Error(err)
	}
}

// TestBadCacheDir: what can be wrong with the directory for the cache.
func TestBadCacheDir(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("x"))
	dir, _ := place(t)
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	m := w.mount()

	shm, err := os.MkdirTemp("/dev/shm", "leatfs-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(shm) })
	readOnly := ext4(t, 32<<20, "ro")
	full := ext4(t, 100<<20, "rw")
	mkdir(t, filepath.Join(full, "there"))
	fill(t, full, 1<<20)
	write(t, at("file"), "x")
	mkdir(t, at("newer"))
	write(t, at("newer/leatfs-cache.json"), `{"format":99,"uuid":"00112233445566778899aabbccddeeff","number":0}`)
	mkdir(t, at("damaged"))
	write(t, at("damaged/leatfs-cache.json"), "{")
	mkdir(t, at("good"))
	if err := os.Symlink(dir, at("link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		dirs  []string
		args  []string
		code  int
		says  []string
		gone  []string
		empty []string
	}{
		{name: "no parent", dirs: []string{at("no/cache")}, code: 1, says: []string{at("no/cache"), "no " + at("no"), "create"}, gone: []string{at("no")}},
		{name: "full", dirs: []string{full + "/c"}, code: 1, says: []string{full + "/c", "free"}, gone: []string{full + "/c"}},
		{name: "full and there", dirs: []string{full + "/there"}, code: 1, says: []string{full + "/there", "free"}, empty: []string{full + "/there"}},
		{name: "read-only", dirs: []string{readOnly + "/c"}, code: 1, says: []string{readOnly + "/c", "read-only", "--cache-dir"}, gone: []string{readOnly + "/c"}},
		{name: "tmpfs", dirs: []string{shm}, code: 1, says: []string{shm, "tmpfs", "--cache-dir"}, empty: []string{shm}},
		{name: "new on tmpfs", dirs: []string{shm + "/c"}, code: 1, says: []string{shm + "/c", "tmpfs", "--cache-dir"}, empty: []string{shm}},
		{name: "second on tmpfs", dirs: []string{at("first"), shm}, code: 1, says: []string{shm, "tmpfs"}, gone: []string{at("first")}, empty: []string{shm}},
		{name: "used", dirs: []string{m.cache}, code: 1, says: []string{m.cache, "used by another mount", fmt.Sprint(m.status().WorkerPID), "--cache-dir"}},
		{name: "newer", dirs: []string{at("newer")}, code: 1, says: []string{at("newer"), "format 99", "newer", "--cache-dir"}, gone: []string{at("newer/index"), at("newer/lock"), at("newer/leatfs.log")}},
		{name: "damaged", dirs: []string{at("damaged")}, code: 1, says: []string{at("damaged"), "damaged", "delete"}},
		{name: "a file", dirs: []string{at("file")}, code: 1, says: []string{at("file"), "not a directory", "--cache-dir"}},
		{name: "under a file", dirs: []string{at("file/c")}, code: 1, says: []string{at("file"), "not a directory", "--cache-dir"}},
		{name: "under the mount point", dirs: []string{dir + "/c"}, code: 2, says: []string{dir + "/c", "under the mount point"}, empty: []string{dir}},
		{name: "under it by a link", dirs: []string{at("link/c")}, code: 2, says: []string{at("link/c"), "under the mount point"}, empty: []string{dir}},
		{name: "twice", dirs: []string{at("good"), at("good")}, code: 2, says: []string{at("good"), "one another"}, empty: []string{at("good")}},
		{name: "in one another", dirs: []string{at("good"), at("good/c")}, code: 2, says: []string{at("good/c"), "one another"}, empty: []string{at("good")}},
		{name: "log in the mount", dirs: []string{at("good")}, args: []string{"--log-file", dir + "/log"}, code: 2, says: []string{"log file", dir + "/log", "--log-file"}, empty: []string{dir, at("good")}},
		{name: "metrics port taken", dirs: []string{at("good")}, args: []string{"--metrics-addr", w.proxy.Addr()}, code: 1, says: []string{"--metrics-addr", w.proxy.Addr()}, empty: []string{at("good")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"s3://" + w.bucket, dir}, c.args...)
			for _, d := range c.dirs {
				args = append(args, "--cache-dir", d)
			}
			refusal{args: args, dir: dir, code: c.code, says: c.says, gone: c.gone, empty: c.empty}.check(t, w)
		})
	}
	m.same("f", []byte("x"))
	t.Run("log cannot be written", func(t *testing.T) {
		r := refusal{args: []string{"s3://" + w.bucket, dir, "--cache-dir", at("new"), "--log-file", "/no/such/log"},
			dir: dir, code: 1, says: []string{"/no/such/log", "--log-file"}, gone: []string{at("new")}}
		r.run(t, "background", w.command(append([]string{"mount"}, r.args...)...))
	})
	t.Run("missing is made", func(t *testing.T) {
		m := w.mount("--cache-dir", at("new"))
		m.same("f", []byte("x"))
		if st, err := os.Stat(at("new")); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%v %v", st, err)
		}
	})
	t.Run("file origin", func(t *testing.T) {
		mkdir(t, at("src/mnt"))
		for says, args := range map[string][]string{
			"mount point " + at("src/mnt"):       {"file://" + at("src"), at("src/mnt"), "--cache-dir", at("cache3")},
			"cache directory " + at("src/cache"): {"file://" + at("src"), dir, "--cache-dir", at("src/cache")},
		} {
			refusal{args: args, dir: dir, code: 2, says: []string{says, "lies in " + at("src")}, gone: []string{at("src/cache"), at("cache3")}}.check(t, w)
		}
	})
}

// TestUsage: what is wrong on the command line or in the configuration file exits with 2.
func TestUsage(t *testing.T) {
	w := newWorld(t)
	dir, cache := place(t)
	base := t.TempDir()
	src := "s3://" + w.bucket
	config := func(text string) []string {
		p := filepath.Join(t.TempDir(), "leatfs.yaml")
		write(t, p, text)
		return []string{src, dir, "--config", p}
	}
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"unknown flag":      {[]string{src, dir, "--colour"}, []string{"--colour"}},
		"bad size":          {[]string{src, dir, "--cache-size=big"}, []string{"--cache-size", "big", "512MiB"}},
		"negative size":     {[]string{src, dir, "--cache-size=-1"}, []string{"--cache-size", "512MiB"}},
		"small cache":       {[]string{src, dir, "--cache-size=1MiB"}, []string{"--cache-size", "at least"}},
		"small memory":      {[]string{src, dir, "--memory=1MiB"}, []string{"--memory", "at least 160MiB"}},
		"bad duration":      {[]string{src, dir, "--ttl=5"}, []string{"--ttl", "unit"}},
		"negative duration": {[]string{src, dir, "--ttl=-5s"}, []string{"--ttl", "negative"}},
		"zero timeout":      {[]string{src, dir, "--origin-timeout=0s"}, []string{"--origin-timeout", "at least"}},
		"bad umask":         {[]string{src, dir, "--umask=9"}, []string{"--umask", "octal"}},
		"long umask":        {[]string{src, dir, "--umask=022x"}, []string{"--umask", "octal"}},
		"bad uid":           {[]string{src, dir, "--uid=root"}, []string{"--uid", "root"}},
		"passthrough":       {[]string{src, dir, "--passthrough=yes"}, []string{"--passthrough", "auto or off"}},
		"path style":        {[]string{src, dir, "--path-style=yes"}, []string{"--path-style", "auto, on or off"}},
		"log level":         {[]string{src, dir, "--log-level=loud"}, []string{"--log-level", "debug"}},
		"requests":          {[]string{src, dir, "--max-requests=0"}, []string{"--max-requests", "from 1"}},
		"lists":             {[]string{src, dir, "--list-parallel=-1"}, []string{"--list-parallel", "from 1"}},
		"endpoint":          {[]string{src, dir, "--endpoint-url=localhost:9000"}, []string{"--endpoint-url", "localhost:9000", "http://"}},
		"-o unknown":        {[]string{src, dir, "-o", "noexec,colour"}, []string{"colour"}},
		"-o suid":           {[]string{src, dir, "-o", "suid"}, []string{"suid"}},
		"no mount point":    {[]string{src}, []string{"leatfs mount s3://"}},
		"three arguments":   {[]string{src, dir, "x"}, []string{"arg"}},
		"no scheme":         {[]string{w.bucket, dir}, []string{w.bucket, "s3://BUCKET"}},
		"other scheme":      {[]string{"ftp://x", dir}, []string{"ftp", "s3"}},
		"no bucket":         {[]string{"s3://", dir}, []string{"bucket"}},
		"config key":        {config("colour: red\n"), []string{"leatfs.yaml, line 1", "colour", "leatfs mount --help"}},
		"config YAML":       {config("memory: [1GiB\nttl: 1s"), []string{"leatfs.yaml"}},
		"config list":       {config("- a\n- b\n"), []string{"leatfs.yaml", "memory: 1GiB"}},
		"config value":      {config("ttl: 5s\nmemory: big\n"), []string{"leatfs.yaml, line 2", "memory", "big"}},
		"config twice":      {config("ttl: 5s\nttl: 6s\n"), []string{"leatfs.yaml", "ttl"}},
		"config no value":   {config("region:\n"), []string{"leatfs.yaml", "region", "no value"}},
		"config map":        {config("region: {a: b}\n"), []string{"leatfs.yaml", "region", "must be"}},
		"config many":       {config("region: [a, b]\n"), []string{"leatfs.yaml", "region", "list"}},
		"config in config":  {config("config: x\n"), []string{"leatfs.yaml", "config"}},
		"config documents":  {config("ttl: 5s\n---\nttl: 6s\n"), []string{"leatfs.yaml", "documents"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := append(c.args, "--cache-dir", cache)
			refusal{args: args, dir: dir, code: 2, says: c.says, gone: []string{cache}}.check(t, w)
		})
	}
	t.Run("config missing", func(t *testing.T) {
		p := filepath.Join(base, "missing.yaml")
		refusal{args: []string{"--config", p}, dir: dir, code: 1, says: []string{p, "no such file"}}.check(t, w)
	})
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"mont"}, 2, "mont"},
		{[]string{"statu"}, 2, "statu"},
		{[]string{"umount"}, 2, "arg"},
		{[]string{"umount", dir, dir}, 2, "arg"},
		{[]string{"umount", dir}, 1, "nothing is mounted"},
		{[]string{"umount", base + "/no/such"}, 1, base + "/no/such"},
		{[]string{"umount", "/proc"}, 1, "a proc is mounted there"},
		{[]string{"status", dir}, 1, "no leatfs is mounted there"},
		{[]string{"status", dir, dir}, 2, "arg"},
		{[]string{"version", "x"}, 2, "leatfs version"},
	} {
		code, stdout, stderr := outcome(t, w.command(c.args...), prompt)
		if code != c.code || stdout != "" {
			t.Errorf("%v: exit code %d, want %d; %q", c.args, code, c.code, stdout)
		}
		oneLine(t, strings.Join(c.args, " "), stderr, c.says)
	}
}

// TestNoFuse: without the device there is no mount, and the error says what to do.
func TestNoFuse(t *testing.T) {
	w := newWorld(t)
	dir, cache := place(t)
	r := refusal{args: []string{"s3://" + w.bucket, dir, "--cache-dir", cache}, dir: dir, code: 1,
		says: []string{"/dev/fuse", "modprobe fuse"}, gone: []string{cache}}
	// In a mount namespace of its own, with something else in the device's place.
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c",
		`mount --bind /dev/null /dev/fuse && mount -o remount,bind,nodev /dev/fuse && exec "$0" mount "$@"`, leatfs}, r.args...)...)
	cmd.Env = w.env()
	r.run(t, "background", cmd)
}

// TestInterruptedMount: Ctrl-C while the bucket does not answer ends the command and the
// daemon that it has started.
func TestInterruptedMount(t *testing.T) {
	w := newWorld(t)
	dir, cache := place(t)
	w.proxy.Add(fault.Rule{Do: fault.Stall(-1, 0)})
	cmd := w.command("mount", "s3://"+w.bucket, dir, "--cache-dir", cache)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for len(w.proxy.Requests()) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	began := time.Now()
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the command says that it has mounted")
	}
	if d := time.Since(began); d > prompt {
		t.Errorf("it took %v", d)
	}
	oneLine(t, "interrupted", stderr.String(), "told to stop")
	nothingLeft(t, "interrupted", dir)
	if _, err := os.Stat(cache); !os.IsNotExist(err) {
		t.Errorf("the cache directory is there: %v", err)
	}
}
