package systemd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leatfs/leatfs/test/s3test"
)

// The service of the tests and what its configuration says.
const (
	unit       = "leatfs@data.service"
	mountpoint = "/mnt/data"
)

// world is a bucket with files on a real server, which machines reach as the test does.
type world struct {
	t      *testing.T
	server *s3test.Server
	bucket string
	files  map[string][]byte
}

// newWorld makes a bucket with files of several sizes in some directories.
func newWorld(t *testing.T) *world {
	t.Helper()
	s := s3test.StartTB(t, s3test.Versitygw)
	w := &world{t: t, server: s, bucket: s.BucketTB(t), files: make(map[string][]byte)}
	rnd := rand.NewChaCha8([32]byte{4})
	for i, size := range []int{0, 1, 4096, 5000, 1 << 20, 3<<20 + 17, 12 << 20} {
		for d := range 3 {
			data := make([]byte, size)
			_, _ = rnd.Read(data) // never fails
			w.put(fmt.Sprintf("d%d/file%d", d, i), data)
		}
	}
	return w
}

func (w *world) put(key string, data []byte) {
	w.t.Helper()
	_, err := w.server.Client().PutObject(w.t.Context(), &awss3.PutObjectInput{
		Bucket: &w.bucket, Key: &key, Body: bytes.NewReader(data)})
	if err != nil {
		w.t.Fatalf("put %q: %v", key, err)
	}
	w.files[key] = data
}

// big is the largest file.
const big = "d1/file6"

// install is what "make install" and an operator put into a machine: the program, the unit, a
// mount point, the configuration and the keys. dropIn are lines for the unit's [Service].
func (w *world) install(root string, dropIn ...string) {
	w.t.Helper()
	out, err := exec.Command("make", "-s", "-C", "../..", "install", "DESTDIR="+root, "BIN="+leatfs).CombinedOutput()
	if err != nil {
		w.t.Fatalf("make install: %v\n%s", err, out)
	}
	if err := os.MkdirAll(filepath.Join(root, mountpoint), 0o755); err != nil {
		w.t.Fatal(err)
	}
	w.write(root, "etc/leatfs/data.yaml", w.config(), "source: s3://"+w.bucket, "mountpoint: "+mountpoint, "allow-other: true")
	w.write(root, "etc/leatfs/data.env", w.server.Env()[:2]...)
	if len(dropIn) > 0 {
		w.write(root, "etc/systemd/system/leatfs@.service.d/test.conf", append([]string{"[Service]"}, dropIn...)...)
	}
}

// config are the lines of a configuration file that tell where the server is.
func (w *world) config() string {
	return "endpoint-url: " + w.server.Endpoint + "\nregion: " + w.server.Region
}

// enable has a service started at boot, as "systemctl enable" does.
func (w *world) enable(root string) {
	w.t.Helper()
	wants := filepath.Join(root, "etc/systemd/system/multi-user.target.wants")
	if err := os.MkdirAll(wants, 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Symlink("/usr/lib/systemd/system/leatfs@.service", filepath.Join(wants, unit)); err != nil {
		w.t.Fatal(err)
	}
}

// write writes lines to a file below root, readable by root only.
func (w *world) write(root, name string, lines ...string) {
	w.t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// service boots a machine with the program installed and the service started.
func (w *world) service(dropIn ...string) *machine {
	w.t.Helper()
	m := boot(w.t, func(root string) { w.install(root, dropIn...) })
	m.must("systemctl", "start", unit)
	return m
}

// check reads every file under a mount point of the machine and compares it.
func (w *world) check(m *machine, mountpoint string) {
	w.t.Helper()
	for name, want := range w.files {
		got, err := os.ReadFile(m.path(filepath.Join(mountpoint, name)))
		if err != nil {
			w.t.Errorf("read %s: %v", name, err)
		} else if !bytes.Equal(got, want) {
			w.t.Errorf("%s: wrong bytes: got %d, want %d", name, len(got), len(want))
		}
	}
}

// status is what "leatfs status" tells, as far as the tests look at it.
type status struct {
	WorkerPID   int  `json:"worker_pid"`
	Passthrough bool `json:"passthrough"`
	Files       struct {
		Open      int   `json:"open"`
		OpensPass int64 `json:"opens_passthrough"`
	} `json:"files"`
}

func (m *machine) status(mountpoint string) status {
	m.t.Helper()
	return m.statusOf(m.must("leatfs", "status", "--json", mountpoint))
}

func (m *machine) statusOf(out string) status {
	m.t.Helper()
	var s status
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		m.t.Fatalf("status: %v\n%s", err, out)
	}
	return s
}

// mainPID is the process that systemd watches: the keeper.
func (m *machine) mainPID() int {
	m.t.Helper()
	pid, err := strconv.Atoi(m.property(unit, "MainPID"))
	if err != nil || pid == 0 {
		m.t.Fatalf("the service has no main process: %d, %v", pid, err)
	}
	return pid
}

// processes lists the processes of the program, by their command lines.
func (m *machine) processes() string {
	out, _ := m.run("pgrep", "-a", "-f", "leatfs") // fails when there are none
	return out
}

// notServed checks that a mount is gone, and every process of the program.
func (m *machine) notServed(mountpoint string) {
	m.t.Helper()
	if l := m.mountLine(mountpoint); l != "" {
		m.t.Errorf("%s is still mounted: %s", mountpoint, l)
	}
	if out := m.processes(); out != "" {
		m.t.Errorf("processes are left:\n%s", out)
	}
}

// nothingLeft checks that a mount and all that served it are gone, without a trace.
func (m *machine) nothingLeft(mountpoint string) {
	m.t.Helper()
	m.notServed(mountpoint)
	entries, err := os.ReadDir(m.path("/run/leatfs"))
	if err != nil && !os.IsNotExist(err) {
		m.t.Error(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".lock") {
			m.t.Errorf("/run/leatfs/%s is left", e.Name())
		}
	}
}
