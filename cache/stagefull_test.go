package cache_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
)

// smallDisk mounts an ext4 of the given MiB and returns where.
func smallDisk(t *testing.T, mib int64) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, mib<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", "-m", "1", image).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		t.Skipf("no loop mounts here: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// logLines keeps what was logged.
type logLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logLines) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), s)
}

// flood is a process that writes to a file until it cannot, some 100 MB/s, as one does that has
// it open by passthrough. It says how much it wrote.
func flood(path string) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	p, n := bytes.Repeat([]byte("leat"), 64<<10), 0
	for {
		k, err := f.Write(p)
		n += k
		if errors.Is(err, unix.ENOSPC) {
			fmt.Println(n)
			os.Exit(0)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		time.Sleep(2500 * time.Microsecond)
	}
}

// TestStageFullDisk: somebody writes past us to a staging file until the disk is full. Data of the
// cache gives way first, then the ballast; then he gets ENOSPC, and nothing staged is lost.
func TestStageFullDisk(t *testing.T) {
	if path := os.Getenv("LEATFS_TEST_FLOOD"); path != "" {
		flood(path)
	}
	disk := smallDisk(t, 400)
	const ballast, clean = 32 << 20, 200 << 20
	var log logLines
	e := newEnv(t, 0, 64, func(c *cache.Config) {
		c.Dirs = []cache.DirConfig{{Path: filepath.Join(disk, "cache"), Size: 240 << 20}}
		c.Ballast = ballast
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	defer e.close() // before the disk goes
	e.dir = filepath.Join(disk, "cache")
	eventually(t, "the ballast made", func() bool { return e.Stats().Dirs[0].Ballast == ballast })
	var idents []cache.Identity
	var datas [][]byte
	for i := range clean >> 21 {
		data, ident := e.store.put(keyOf(i), 2<<20)
		o := e.fetched(ident)
		o.Release()
		idents, datas = append(idents, ident), append(datas, data)
	}
	if got := e.diskUse(e.dir); got < clean {
		t.Fatalf("%d bytes of clean data, want %d", got, clean)
	}
	kept := bytes.Repeat([]byte("kept"), 1<<20)
	other := e.stage("kept", kept)
	id := e.stage("flooded", nil)
	before := e.Stats().Evicted
	cmd := exec.Command(os.Args[0], "-test.run=^TestStageFullDisk$")
	cmd.Env = append(os.Environ(), "LEATFS_TEST_FLOOD="+filepath.Join(e.dir, "staging", formatID(id)))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the writer: %v: %s", err, out)
	}
	var wrote int64
	if _, err := fmt.Sscan(string(out), &wrote); err != nil {
		t.Fatalf("the writer said %q", out)
	}
	s := e.Stats()
	if s.Evicted == before {
		t.Error("nothing was evicted")
	}
	if left := e.diskUse(e.dir); left > 0 {
		t.Errorf("ENOSPC after %d bytes, with %d bytes of clean data left", wrote, left)
	}
	if b := s.Dirs[0].Ballast; b > 0 {
		t.Errorf("ENOSPC with %d bytes of ballast left", b)
	}
	eventually(t, "known to be full", func() bool { return e.Stats().Dirs[0].Full })
	if _, _, err := e.NewStage(label("more")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("NewStage on a full disk: %v", err)
	}
	if err := e.StageSpace(other, 1<<20); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("StageSpace on a full disk: %v", err)
	}
	if n := log.count("is full of data that is not in the bucket"); n != 1 {
		t.Errorf("said %d times that the disk is full, want once", n)
	}
	e.wantStage(other, kept)
	if st, err := e.StatStage(id); err != nil || st.Size != wrote {
		t.Errorf("the flooded file has %d bytes (%v), want %d", st.Size, err, wrote)
	}
	if err := e.RelabelStage(other, label("renamed")); err != nil {
		t.Errorf("a rename on a full disk: %v", err)
	}
	for i := range 3 { // reads go on
		o := e.object(idents[i])
		e.wantRead(o, datas[i], 0, idents[i].Size)
		o.Release()
	}
	e.restart(true)
	e.wantStage(other, kept)
	if err := e.RemoveStage(id); err != nil {
		t.Fatal(err)
	}
	eventually(t, "room again", func() bool { d := e.Stats().Dirs[0]; return !d.Full && d.Ballast == ballast })
	e.stage("more", []byte("more"))
	o := e.fetched(idents[0])
	o.Release()
}

func TestBallast(t *testing.T) {
	e := newEnv(t, 256<<20, 64, func(c *cache.Config) { c.Ballast = 5 << 20 })
	onDisk := func() int64 {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(e.dir, "staging", "ballast"), &st); err != nil {
			return 0
		}
		return st.Blocks * 512
	}
	for _, want := range []int64{5 << 20, 5 << 20, 9 << 20, 1 << 20} {
		e.close()
		e.cfg.Ballast = want
		e.open()
		eventually(t, fmt.Sprint(want), func() bool { return onDisk() >= want && onDisk() < want+64<<10 && e.Stats().Dirs[0].Ballast == want })
	}
	e.close()
	e.cfg.Ballast = 0 // none, since the reserve is none
	e.open()
	eventually(t, "none", func() bool { return onDisk() == 0 && e.Stats().Dirs[0].Ballast == 0 })
	if err := e.WalkStages(func(id cache.ID, _ cache.StageLabel, _ error) bool { t.Errorf("%x", id); return true }); err != nil {
		t.Error(err)
	}
}

// TestIndexOnAFullDisk: an index that takes nothing but what makes room, or is needed, is enough to
// evict objects, to write to them, and to publish what was written.
func TestIndexOnAFullDisk(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	data, ident := e.store.put("a", 3<<20)
	more, other := e.store.put("b", 9<<20)
	o := e.object(ident)
	if err := o.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := e.object(other)
	defer p.Release()
	e.index.Full(errTest)
	e.wantRead(p, more, 0, 1<<20) // of which nothing can be noted
	id, err := e.TakeStage(o, 0, label("a"))
	if err != nil {
		t.Fatalf("an object becomes a staging file: %v", err)
	}
	o.Release()
	f, err := e.OpenStage(id, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, len(data))
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
		t.Error("the staging file is not the object", err)
	}
	e.index.Full(nil)
}
