package mount

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leatfs/leatfs/test/fault"
)

// retried are the warnings of an origin that fails in tests.
func retried() []string {
	return []string{"origin request failed for good", "request failed", "could not be verified", "does not match", "listing"}
}

// TestFaultyOrigin: whatever goes wrong for a while is tried again, and what is read is right.
func TestFaultyOrigin(t *testing.T) {
	w := newWorld(t)
	small, large := random(1, 300<<10), random(2, 5<<20+123)
	for i, c := range []struct {
		name string
		rule fault.Rule
	}{
		{"503 storm", fault.Rule{Probability: 0.4, Do: fault.SlowDown(0)}},
		{"503 with a wait", fault.Rule{Count: 2, Do: fault.SlowDown(time.Second)}},
		{"429", fault.Rule{Count: 4, Do: fault.TooManyRequests(0)}},
		{"500", fault.Rule{Every: 2, Count: 5, Do: fault.InternalError()}},
		{"reset", fault.Rule{Every: 2, Count: 5, Do: fault.Reset()}},
		{"reset in the body", fault.Rule{Class: "GET", Every: 2, Count: 5, Do: fault.ResetAfter(70_000)}},
		{"cut short", fault.Rule{Class: "GET", Every: 2, Count: 5, Do: fault.Truncate(100_000)}},
		{"silent", fault.Rule{Count: 2, Do: fault.Stall(-1, 0)}},
		{"silent in the body", fault.Rule{Class: "GET", Count: 2, Do: fault.Stall(50_000, 0)}},
		{"wrong ETag", fault.Rule{Class: "GET", Count: 1, Do: fault.ETag("0123456789abcdef0123456789abcdef")}},
		{"answer lost", fault.Rule{Count: 3, Do: fault.Lose()}},
		{"expired", fault.Rule{Class: "GET", Count: 2, Do: fault.ExpiredToken()}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := fmt.Sprintf("d%02d", i)
			w.put(dir+"/small", small)
			w.put(dir+"/large", large)
			timeout := "6s"
			if c.rule.Probability > 0 { // time for all tries: chance may refuse one request many times in a row
				timeout = "30s"
			}
			m := w.mount("--origin-timeout=" + timeout)
			m.expect = retried()
			r := w.proxy.Add(c.rule)
			defer r.Remove()
			if got := m.names(dir); !slices.Equal(got, []string{"large", "small"}) {
				t.Errorf("names %q", got)
			}
			m.same(dir+"/small", small)
			m.same(dir+"/large", large)
			if r.Fired() == 0 {
				t.Error("no harm was done; the test shows nothing")
			}
			if s := m.status(); s.Files.Failed != 0 {
				t.Errorf("%d requests failed", s.Files.Failed)
			}
			r.Remove()
			m.same(dir+"/large", large)
		})
	}
}

// within runs f, which must end within d.
func within(t *testing.T, d time.Duration, what string, f func()) {
	t.Helper()
	began := time.Now()
	f()
	if took := time.Since(began); took > d {
		t.Errorf("%s took %v, more than %v", what, took.Round(time.Millisecond), d)
	}
}

// TestOriginAway: while the origin is down, or silent, or refuses everything, applications
// get EIO in time, and never ENOENT; what is in the cache goes on; and when it is back, all
// is well.
func TestOriginAway(t *testing.T) {
	w := newWorld(t)
	data := random(1, 3<<20)
	for _, k := range []string{"d/cached", "d/small", "e/f", "g/h"} {
		w.put(k, data)
	}
	w.put("d/small", data[:1000])
	const timeout, slack = 3 * time.Second, 6 * time.Second // the slack is the machine's
	for _, c := range []struct {
		name string
		do   func() (undo func())
	}{
		{"down", func() func() {
			if err := w.proxy.SetDown(true); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := w.proxy.SetDown(false); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"silent", func() func() { return w.proxy.Add(fault.Rule{Do: fault.Stall(-1, 0)}).Remove }},
		{"throttling", func() func() { return w.proxy.Add(fault.Rule{Do: fault.SlowDown(0)}).Remove }},
		{"failing", func() func() { return w.proxy.Add(fault.Rule{Do: fault.InternalError()}).Remove }},
		{"credentials expired", func() func() { return w.proxy.Add(fault.Rule{Do: fault.ExpiredToken()}).Remove }},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := w.mount("--origin-timeout="+timeout.String(), "--ttl=1h")
			m.expect = retried()
			m.names(".")
			m.names("d")
			m.same("d/cached", data)
			m.proven(1)
			undo := c.do()
			for what, try := range map[string]func() error{
				"read":            func() error { _, err := os.ReadFile(m.path("d/small")); return err },
				"list":            func() error { _, err := os.ReadDir(m.path("e")); return err },
				"stat of unknown": func() error { _, err := os.Stat(m.path("g/nothing")); return err },
			} {
				within(t, timeout+slack, what, func() { wantErrno(t, what, try(), syscall.EIO) })
			}
			within(t, timeout, "read from the cache", func() { m.same("d/cached", data) })
			s := m.status()
			if s.Origin.State == "ok" || s.Origin.Error == "" || s.Files.Failed < 3 {
				t.Errorf("status: origin %+v, %d failed", s.Origin, s.Files.Failed)
			}
			undo()
			within(t, 15*time.Second, "recovery", func() {
				m.same("d/small", data[:1000])
				m.same("e/f", data)
				if got := m.names("g"); !slices.Equal(got, []string{"h"}) {
					t.Errorf("names %q", got)
				}
				_, err := os.Stat(m.path("g/nothing"))
				wantErrno(t, "stat of a missing name", err, syscall.ENOENT)
			})
			// What was asked before may fail after the recovery: the next that is asked is answered.
			m.eventually("status says that the origin is back", func() error {
				if out, err := w.command("verify", "--deep", m.path("d/small")).CombinedOutput(); err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				if s := m.status(); s.Origin.State == "down" || s.Origin.Failures != 0 {
					return fmt.Errorf("origin %+v", s.Origin)
				}
				return nil
			})
		})
	}
}

// TestStormOfReaders: many readers meet a silent origin; each of them gets its error in time,
// and does not wait until all the others have got theirs. The kernel asks a second time for a
// page whose readahead failed, and has 64 such requests under way at most: hence three times.
func TestStormOfReaders(t *testing.T) {
	w := newWorld(t)
	const readers = 100
	data := random(1, 3<<20)
	for i := range readers {
		w.put(fmt.Sprintf("d/%03d", i), data)
	}
	const timeout = 2 * time.Second
	m := w.mount("--origin-timeout=" + timeout.String())
	m.expect = retried()
	m.names("d")
	r := w.proxy.Add(fault.Rule{Class: "GET", Do: fault.Stall(-1, 0)})
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() {
			within(t, 3*timeout+2*time.Second, "a read", func() {
				_, err := os.ReadFile(m.path(fmt.Sprintf("d/%03d", i)))
				wantErrno(t, "read", err, syscall.EIO)
			})
		})
	}
	wg.Wait()
	r.Remove()
	for i := range readers {
		m.same(fmt.Sprintf("d/%03d", i), data)
	}
}

// TestListingBreaksOff: half of a directory is not a directory.
func TestListingBreaksOff(t *testing.T) {
	w := newWorld(t)
	const n = 2500
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			for i := k; i < n; i += 8 {
				w.put(fmt.Sprintf("d/%05d", i), []byte("x"))
			}
		})
	}
	wg.Wait()
	m := w.mount("--origin-timeout=2s", "--ttl=0s", "--stale-if-error=-1s")
	m.expect = retried()
	r := w.proxy.Add(fault.Rule{Class: "LIST", Key: "d", After: 1, Do: fault.InternalError()})
	within(t, 20*time.Second, "listing", func() {
		got, err := os.ReadDir(m.path("d"))
		wantErrno(t, fmt.Sprintf("listing that broke off (%d names)", len(got)), err, syscall.EIO)
	})
	if r.Fired() == 0 {
		t.Error("no LIST failed; the test shows nothing")
	}
	r.Remove()
	if got := m.names("d"); len(got) != n {
		t.Errorf("%d names, want %d", len(got), n)
	}
	// Nor does a failed listing make a name vanish that was there.
	r = w.proxy.Add(fault.Rule{Class: "LIST", Do: fault.InternalError()})
	_, err := os.ReadDir(m.path("d"))
	wantErrno(t, "listing", err, syscall.EIO)
	r.Remove()
	if got := m.names("d"); len(got) != n {
		t.Errorf("%d names after a failed listing, want %d", len(got), n)
	}
}

// TestKilledReader: an application that waits for a dead origin ends at once by SIGKILL.
func TestKilledReader(t *testing.T) {
	w := newWorld(t)
	w.put("d/small", random(1, 1000))
	w.put("d/large", random(1, 9<<20))
	m := w.mount("--origin-timeout=20s")
	m.expect = retried()
	m.names("d")
	r := w.proxy.Add(fault.Rule{Do: fault.Stall(-1, 0)})
	for _, args := range [][]string{{"cat", m.path("d/small")}, {"cat", m.path("d/large")}, {"ls", m.path("nothing")},
		{"python3", "-c", "import mmap,sys; f=open(sys.argv[1]); m=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ); m[5000000]", m.path("d/large")}} {
		mark := w.mark()
		cmd := exec.Command(args[0], args[1:]...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		m.eventually("the origin is asked", func() error {
			if w.mark() == mark {
				return errors.New("no request")
			}
			return nil
		})
		within(t, 10*time.Second, fmt.Sprint("killing ", args[0]), func() { // half of what the origin is given
			if err := cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait() // says that it was killed
		})
	}
	r.Remove()
	w.proxy.CutAll()
	m.same("d/large", random(1, 9<<20))
}

// TestProven: what is whole in the cache was compared with the checksum in the bucket.
func TestProven(t *testing.T) {
	w := newWorld(t)
	w.put("small", random(1, 100_000))
	w.put("large", random(2, 20<<20))
	m := w.mount()
	m.same("small", random(1, 100_000))
	m.same("large", random(2, 20<<20))
	m.eventually("both are proven", func() error {
		if s := m.status(); s.Cache.Proven != 2 || s.Cache.Unverifiable != 0 || s.Cache.Mismatches != 0 {
			return fmt.Errorf("%+v", s.Cache)
		}
		return nil
	})
}

// TestUnverifiable: an object without a checksum is served, and counted.
func TestUnverifiable(t *testing.T) {
	w := newWorld(t)
	data := random(2, 20<<20)
	w.put("large", data)
	for _, class := range []string{"GET", "HEAD"} {
		w.proxy.Add(fault.Rule{Class: class, Key: "large", Do: fault.Header("X-Amz-Checksum-Crc64nvme", "")})
	}
	m := w.mount()
	m.same("large", data)
	m.eventually("it is counted", func() error {
		if s := m.status(); s.Cache.Proven != 0 || s.Cache.Unverifiable != 1 || s.Cache.Mismatches != 0 {
			return fmt.Errorf("%+v", s.Cache)
		}
		return nil
	})
	m.same("large", data)
}

// TestCorruptOnce: bytes that were damaged on the way are found when the object is whole,
// and fetched again; from then on nobody sees them, neither from the kernel's page cache nor
// from the cache file.
func TestCorruptOnce(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		small, large := random(1, 300_000), random(2, 9<<20)
		w.put("small", small)
		w.put("large", large)
		m := w.mount(flag)
		m.expect = []string{"checksum", "match"}
		m.names(".")

		// A small object is whole before its first byte is given out.
		r := w.proxy.Add(fault.Rule{Class: "GET", Key: "small", Count: 1, Do: fault.Corrupt(150_000)})
		m.same("small", small)
		if r.Fired() != 1 {
			t.Errorf("corrupted %d times", r.Fired())
		}
		r.Remove()
		if s := m.status(); s.Cache.Mismatches != 1 {
			t.Errorf("%d mismatches counted", s.Cache.Mismatches)
		}

		// Of a large one, blocks are given out as they come.
		w.proxy.Add(fault.Rule{Class: "GET", Key: "large", Count: 1, Do: fault.Corrupt(1000)})
		if _, err := os.ReadFile(m.path("large")); err != nil {
			t.Log(err) // no promise
		}
		m.eventually("the mismatch is found", func() error {
			if s := m.status(); s.Cache.Mismatches != 2 {
				return fmt.Errorf("%d mismatches", s.Cache.Mismatches)
			}
			return nil
		})
		for range 3 {
			m.same("large", large)
		}
		dropCaches(t)
		m.same("large", large)
		m.proven(2)
	})
}

// TestCorruptOrigin: an object that never matches its own checksum is not served.
func TestCorruptOrigin(t *testing.T) {
	w := newWorld(t)
	small, large := random(1, 300_000), random(2, 9<<20)
	w.put("small", small)
	w.put("large", large)
	m := w.mount()
	m.expect = []string{"checksum", "match", "corrupt"}
	m.names(".")
	w.proxy.Add(fault.Rule{Class: "GET", Do: fault.Corrupt(1000)})
	_, err := os.ReadFile(m.path("small"))
	wantErrno(t, "read of a corrupt object", err, syscall.EIO)
	m.eventually("the large one is refused too", func() error {
		if got, err := os.ReadFile(m.path("large")); !errors.Is(err, syscall.EIO) {
			return fmt.Errorf("%v (%v)", err, bytes.Equal(got, large))
		}
		return nil
	})
	if s := m.status(); s.Files.Pass != 0 || s.Cache.Proven != 0 || s.Cache.Mismatches < 2 {
		t.Errorf("%+v %+v", s.Files, s.Cache)
	}
}

// TestCorruptBlockOnDisk: a byte that changed on the disk is found by the daemon, and the
// block is fetched again.
func TestCorruptBlockOnDisk(t *testing.T) {
	w := newWorld(t)
	small, large := random(1, 300_000), random(2, 9<<20)
	w.put("small", small)
	w.put("large", large)
	m := w.mount("--passthrough=off")
	m.expect = []string{"is not what was written", "fetched again"}
	m.same("small", small)
	m.same("large", large)
	m.stop() // all is on the disk
	n := 0
	for _, f := range objects(t, m.cache) {
		flip(t, f, 200_000)
		n++
	}
	if n != 2 {
		t.Fatalf("%d object files", n)
	}
	m.start()
	mark := w.mark()
	m.same("small", small)
	m.same("large", large)
	if s := m.status(); s.Cache.Mismatches != 2 {
		t.Errorf("%d mismatches counted", s.Cache.Mismatches)
	}
	if w.requests("GET", mark) == 0 {
		t.Error("nothing was fetched again")
	}
	dropCaches(t)
	m.same("small", small)
	m.same("large", large)
}

// objects are the object files of a cache directory.
func objects(t *testing.T, cache string) (out []string) {
	t.Helper()
	dirs, err := os.ReadDir(cache + "/objects")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		files, err := os.ReadDir(cache + "/objects/" + d.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			out = append(out, cache+"/objects/"+d.Name()+"/"+f.Name())
		}
	}
	return out
}

// flip inverts a bit of a file's byte.
func flip(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 4
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// TestCacheDiskFull: reads go on when the disk has no room, right and uncached; and when
// there is room again, it is used.
func TestCacheDiskFull(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		disk := ext4(t, 320<<20, "rw")
		kept := random(1, 5<<20)
		w.put("kept", kept)
		for i := range 4 {
			w.put(fmt.Sprintf("later/%d", i), random(uint64(10+i), 7<<20))
			w.put(fmt.Sprintf("small/%d", i), random(uint64(20+i), 200_000))
		}
		later := func(m *mnt) {
			t.Helper()
			for i := range 4 {
				m.same(fmt.Sprintf("later/%d", i), random(uint64(10+i), 7<<20))
				m.same(fmt.Sprintf("small/%d", i), random(uint64(20+i), 200_000))
			}
		}
		m := w.mount("--cache-dir", disk+"/c", flag)
		m.expect = []string{"space", "full", "room", "cannot be written", "uncached"}
		m.same("kept", kept)
		for _, d := range []string{".", "later", "small"} {
			m.names(d)
		}
		filler := fill(t, disk, 1<<20)
		later(m)
		fill(t, disk, 1<<20) // also what was given free since
		s := m.status()
		if s.Cache.BytesUncached == 0 {
			t.Errorf("nothing was uncached; the test shows nothing: %+v", s.Cache)
		}
		if !s.Cache.Dirs[0].Uncached {
			t.Errorf("status does not say that the disk is full: %+v", s.Cache.Dirs)
		}
		later(m)
		m.same("kept", kept)
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		m.eventually("what is read is kept again", func() error {
			dropCaches(t)
			later(m)
			mark := w.mark()
			dropCaches(t)
			later(m)
			if n, used := w.requests("GET", mark), m.status().Cache.UsedBytes; n > 0 || used < 28<<20+800_000 {
				return fmt.Errorf("%d GETs for what was just read, %d bytes are used", n, used)
			}
			return nil
		})
		m.stop()
		mark := w.mark()
		m.start()
		later(m)
		if n := w.requests("GET", mark); n != 0 {
			t.Errorf("%d GETs after a restart", n)
		}
	})
}

// TestNewNamesOnAFullDisk: the index cannot take names that it never saw while its disk is
// full. That is ENOSPC, and over as soon as there is room.
func TestNewNamesOnAFullDisk(t *testing.T) {
	w := newWorld(t)
	disk := ext4(t, 320<<20, "rw")
	w.put("d/f", random(1, 100_000))
	m := w.mount("--cache-dir", disk+"/c")
	m.expect = []string{"space", "full", "room", "cannot be written", "uncached"}
	filler := fill(t, disk, 1<<20)
	_, err := os.ReadFile(m.path("d/f"))
	wantErrno(t, "a new name on a full disk", err, syscall.ENOSPC)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	m.eventually("the name is there once there is room", func() error { _, err := os.Stat(m.path("d/f")); return err })
	m.same("d/f", random(1, 100_000))
	if got := m.names("d"); !slices.Equal(got, []string{"f"}) {
		t.Errorf("names %q", got)
	}
}

// TestLargerThanTheCache: an object that the cache cannot hold is read from end to end.
func TestLargerThanTheCache(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		data := random(1, 60<<20)
		w.put("large", data)
		w.put("other", data[:20<<20])
		disk := ext4(t, 200<<20, "rw")
		m := w.mount("--cache-dir", disk+"/c", "--cache-size=16MiB", flag)
		for range 2 {
			m.same("large", data)
			m.same("other", data[:20<<20])
			dropCaches(t)
		}
		if s := m.status(); s.Cache.UsedBytes > 16<<20 {
			t.Errorf("%d bytes are used", s.Cache.UsedBytes)
		}
		// Two readers at different places do not lock each other out.
		a, b := mustOpen(t, m.path("large")), mustOpen(t, m.path("large"))
		var wg sync.WaitGroup
		for i, f := range []*os.File{a, b} {
			wg.Go(func() {
				off := int64(i) * 30 << 20
				got, err := io.ReadAll(io.NewSectionReader(f, off, 30<<20))
				if err != nil || !bytes.Equal(got, data[off:off+30<<20]) {
					t.Errorf("reader %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		_, _ = a.Close(), b.Close()
	})
}

// TestCacheDirLost: a cache directory that goes away under the mount, as with a disk that dies,
// does not keep the mount from ending.
func TestCacheDirLost(t *testing.T) {
	w := newWorld(t)
	data := random(1, 9<<20)
	w.put("d/cached", data)
	w.put("d/other", data)
	m := w.mount()
	m.same("d/cached", data)
	m.names("d")
	if err := os.RemoveAll(m.cache); err != nil {
		t.Fatal(err)
	}
	m.same("d/cached", data)
	m.same("d/other", data)
	pid := m.status().WorkerPID
	m.up = false // its log is full of complaints
	within(t, 40*time.Second, "umount", func() {
		if code, _, stderr := outcome(t, w.command("umount", m.dir), 60*time.Second); code != 0 {
			t.Errorf("umount: %s", stderr)
		}
	})
	if alive(pid) {
		t.Error("the daemon is still there")
	}
	nothingLeft(t, "lost cache directory", m.dir)
}

// TestTwoDisks: a cache over two disks uses both.
func TestTwoDisks(t *testing.T) {
	w := newWorld(t)
	one, two := ext4(t, 200<<20, "rw"), ext4(t, 200<<20, "rw")
	m := w.mount("--cache-dir", one+"/c", "--cache-dir", two+"/c", "--cache-size=60MiB")
	const n, size = 20, 4 << 20
	for i := range n {
		w.put(fmt.Sprintf("d/%02d", i), random(uint64(i), size))
	}
	all := func() {
		t.Helper()
		for i := range n {
			m.same(fmt.Sprintf("d/%02d", i), random(uint64(i), size))
		}
	}
	all()
	for _, d := range m.status().Cache.Dirs {
		if d.Used < 10<<20 {
			t.Errorf("%s holds %d bytes", d.Path, d.Used)
		}
	}
	m.stop()
	mark := w.mark()
	m.start()
	all()
	if n := w.requests("GET", mark); n != 0 {
		t.Errorf("%d GETs after a restart", n)
	}
	m.stop()
	// Without its second disk it is half a cache, not a broken one.
	m.args = []string{"--cache-dir", one + "/c", "--cache-size=60MiB"}
	m.start()
	all()
	m.stop()
	if text := m.logText(); strings.Contains(text, "panic") {
		t.Error(text)
	}
}
