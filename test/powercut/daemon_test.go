package powercut

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leatfs/leatfs/test/fault"
	"github.com/leatfs/leatfs/test/powercut/record"
	"github.com/leatfs/leatfs/test/s3test"
)

// binaries is where leatfs is, once build has built it.
var (
	binaries string
	build    sync.Once
)

// machine is where leatfs runs: a bucket on a real server behind a proxy, and a disk.
type machine struct {
	t      *testing.T
	d      *Disk
	server *s3test.Server
	proxy  *fault.Proxy
	bucket string
	binary string
	mnt    string
	args   []string // of mount, besides
}

func newMachine(t *testing.T, fs FS) *machine {
	t.Helper()
	return newMachineSize(t, fs, 4<<30)
}

// newMachineSize is newMachine with a disk of size bytes.
func newMachineSize(t *testing.T, fs FS, size int64) *machine {
	t.Helper()
	m := &machine{t: t, d: New(t, Options{FS: fs, Size: size}), binary: filepath.Join(binaries, "leatfs"), mnt: filepath.Join(t.TempDir(), "mnt")}
	build.Do(func() {
		if out, err := exec.Command("go", "build", "-o", m.binary, "github.com/leatfs/leatfs/cmd/leatfs").CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
	})
	if err := os.Mkdir(m.mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	m.server = s3test.StartOptionsTB(t, s3test.Options{Kind: s3test.Versitygw, Dir: t.TempDir()})
	var err error
	if m.proxy, err = fault.Start(m.server.Endpoint, fault.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	m.bucket = m.server.BucketTB(t)
	return m
}

// daemon is leatfs, running as after one boot of the machine.
type daemon struct {
	cmd *exec.Cmd
	log *bytes.Buffer
	// Dir is the mount, seen from outside its mounts.
	Dir string
}

// start starts leatfs with its cache below dir, and waits until it serves.
func (m *machine) start(dir string, boot int) (*daemon, error) {
	x := &daemon{log: &bytes.Buffer{}}
	x.cmd = exec.Command(m.binary, "mount", "s3://"+m.bucket, m.mnt, "--foreground", "--cache-dir", filepath.Join(dir, "cache"), "--cache-size", "1GiB")
	x.cmd.Args = append(x.cmd.Args, m.args...)
	env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "AWS_") })
	x.cmd.Env = append(append(env, m.server.Env()...), "AWS_ENDPOINT_URL="+m.proxy.URL(), "AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null")
	x.cmd.Stdout, x.cmd.Stderr = x.log, x.log
	x.cmd.WaitDelay = 10 * time.Second
	m.d.Boot(x.cmd, boot)
	if err := x.cmd.Start(); err != nil {
		return nil, err
	}
	x.Dir = filepath.Join("/proc", strconv.Itoa(x.cmd.Process.Pid), "root", m.mnt)
	err := eventually(time.Minute, func() error {
		if !alive(x.cmd.Process.Pid) {
			return errors.New("it has ended")
		}
		var st syscall.Statfs_t
		if err := syscall.Statfs(x.Dir, &st); err != nil {
			return err
		}
		if st.Type != 0x65735546 { // FUSE
			return errors.New("not mounted")
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("leatfs does not serve: %w", err), x.kill())
	}
	return x, nil
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(b), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}

// kill ends leatfs with all its processes.
func (x *daemon) kill() error {
	all := []int{x.cmd.Process.Pid}
	for i := 0; i < len(all); i++ {
		// Each thread has its own children.
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i]))
		if err != nil {
			return err
		}
		for _, l := range lists {
			b, err := os.ReadFile(l)
			if err != nil {
				continue // it ended
			}
			for _, s := range strings.Fields(string(b)) {
				if pid, err := strconv.Atoi(s); err == nil {
					all = append(all, pid)
				}
			}
		}
	}
	if len(all) < 2 && alive(all[0]) {
		return errors.New("leatfs has no worker that could be killed")
	}
	for _, pid := range all { // the keeper first, which would start another worker
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	if err := x.cmd.Wait(); errors.Is(err, exec.ErrWaitDelay) {
		return errors.New("a process of leatfs was not killed")
	}
	return eventually(time.Minute, func() error {
		for _, pid := range all {
			if alive(pid) {
				return fmt.Errorf("process %d is alive", pid)
			}
		}
		return nil
	})
}

func eventually(limit time.Duration, f func() error) error {
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		err := f()
		if err == nil || time.Since(begun) > limit {
			return err
		}
	}
}

// work writes and renames files through the mount and says what was promised:
//
//	begun NAME I     from now on something may be at NAME
//	synced NAME I    content(I) is at NAME
//	moving NAME TO I what is at NAME may be at TO from now on
//
// With dirs it syncs the directory of each file too, else of some.
func (m *machine) work(dir string, dirs bool) error {
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		return err
	}
	if err := syncDir(dir); err != nil {
		return err
	}
	for i := range 10 {
		name := fmt.Sprintf("f-%d", i)
		if i%3 == 1 {
			name = "sub/" + name
		}
		m.d.Ack("begun %s %d", name, i)
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		_, err = f.Write(content(i))
		if err = errors.Join(err, f.Sync()); err == nil && (dirs || i%2 == 1) {
			err = syncDir(filepath.Dir(f.Name()))
		}
		if err != nil {
			return errors.Join(err, f.Close())
		}
		m.d.Ack("synced %s %d", name, i)
		if err := f.Close(); err != nil {
			return err
		}
		if i%2 == 0 {
			continue
		}
		to := fmt.Sprintf("g-%d", i)
		m.d.Ack("moving %s %s %d", name, to, i)
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(dir, to)); err != nil {
			return err
		}
		if err := errors.Join(syncDir(filepath.Dir(f.Name())), syncDir(dir)); err != nil {
			return err
		}
		m.d.Ack("synced %s %d", to, i)
	}
	return nil
}

// wanted is what was promised: for each content that was synced the names of which one has it.
func wanted(acked []string) map[int][]string {
	out := map[int][]string{}
	for _, line := range acked {
		w := strings.Fields(line)
		i, _ := strconv.Atoi(w[len(w)-1]) // as work wrote it
		switch w[0] {
		case "synced":
			out[i] = []string{w[1]}
		case "moving":
			out[i] = append(out[i], w[2])
		}
	}
	return out
}

// check starts leatfs on what a cut left and looks for what was promised, first in the mount, then in the bucket.
func (m *machine) check(a *After) (err error) {
	want := wanted(a.Acked)
	if err := m.emptyBucket(); err != nil {
		return err
	}
	x, err := m.start(a.Dir, 2)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, x.kill())
		if err != nil {
			err = fmt.Errorf("%w\nleatfs said:\n%s", err, x.log)
		}
	}()
	var errs []error
	for i, names := range want {
		if err := one(names, i, func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(x.Dir, name)) }); err != nil {
			errs = append(errs, fmt.Errorf("in the mount: %w", err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return eventually(time.Minute, func() error {
		for i, names := range want {
			if err := one(names, i, m.get); err != nil {
				return fmt.Errorf("in the bucket after a minute: %w", err)
			}
		}
		return nil
	})
}

// one looks for content(i) under one of the names.
func one(names []string, i int, read func(name string) ([]byte, error)) error {
	var errs []error
	for _, name := range names {
		b, err := read(name)
		if err == nil && bytes.Equal(b, content(i)) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("%d bytes, want %d others", len(b), len(content(i)))
		}
		errs = append(errs, fmt.Errorf("%s: %w", name, err))
	}
	return errors.Join(errs...)
}

func (m *machine) get(key string) ([]byte, error) {
	out, err := m.server.Client().GetObject(context.Background(), &awss3.GetObjectInput{Bucket: &m.bucket, Key: &key})
	if err != nil {
		return nil, err
	}
	defer out.Body.Close()
	return io.ReadAll(out.Body)
}

// emptyBucket makes the bucket what it was at the time of all cuts.
func (m *machine) emptyBucket() error {
	ctx := context.Background()
	out, err := m.server.Client().ListObjectsV2(ctx, &awss3.ListObjectsV2Input{Bucket: &m.bucket})
	if err != nil {
		return err
	}
	for _, o := range out.Contents {
		if _, err := m.server.Client().DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: &m.bucket, Key: o.Key}); err != nil {
			return err
		}
	}
	return nil
}

// Files that were synced through a mount, with their directories, are there after a cut and a new start, and are
// published then. The bucket takes nothing while they are written, so that it is the same at each moment.
func TestDaemonPowerCut(t *testing.T) {
	Both(t, func(t *testing.T, fs FS) { daemonPowerCut(t, fs, true) })
}

// The same of files that were synced and their directories not.
func TestDaemonPowerCutFsyncOnly(t *testing.T) {
	Both(t, func(t *testing.T, fs FS) { daemonPowerCut(t, fs, false) })
}

func daemonPowerCut(t *testing.T, fs FS, dirs bool) {
	m := newMachine(t, fs)
	away := m.proxy.Add(fault.Rule{Match: func(r fault.Request) bool { return r.Method != "GET" && r.Method != "HEAD" }, Do: fault.ServiceUnavailable()})
	x, err := m.start(m.d.Dir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	err = m.work(x.Dir, dirs)
	if err = errors.Join(err, x.kill()); err != nil {
		t.Fatalf("%v\nleatfs said:\n%s", err, x.log)
	}
	away.Remove()
	first := m.d.AtAcks("begun")[0].At
	cuts := slices.DeleteFunc(m.d.Cuts(Number(t, 4, 40), 6), func(c record.Cut) bool { return c.At < first })
	synced := m.d.AtAcks("synced f-") // those made in the root
	if dirs {
		synced = synced[len(synced)-1:]
	}
	m.d.Check(append(cuts, synced...), m.check)
}
