package mount

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// plain is the program without the race detector, which multiplies its memory.
func plain(t *testing.T) string {
	t.Helper()
	b := filepath.Join(t.TempDir(), "leatfs")
	if err := build(b); err != nil {
		t.Fatal(err)
	}
	return b
}

// watchMemory looks at the RssAnon and RssShmem of a process until stop, which returns the
// most that they were together, in bytes.
func watchMemory(pid int) (stop func() int64) {
	done, result := make(chan struct{}), make(chan int64)
	go func() {
		peak := int64(0)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil {
				sum := int64(0)
				for line := range strings.Lines(string(b)) {
					var kb int64
					if strings.HasPrefix(line, "RssAnon:") || strings.HasPrefix(line, "RssShmem:") {
						_, _ = fmt.Sscan(strings.Fields(line)[1], &kb)
						sum += kb << 10
					}
				}
				peak = max(peak, sum)
			}
			select {
			case <-tick.C:
			case <-done:
				result <- peak
				return
			}
		}
	}()
	return func() int64 { close(done); return <-result }
}

// TestMemory: with the least budget, many parallel readers of cold data neither exceed it nor
// stand still.
func TestMemory(t *testing.T) {
	w := newWorld(t)
	w.binary = plain(t)
	const readers, large, smalls = 16, 24 << 20, 40
	one := random(1, large)
	for k := range readers {
		w.put(fmt.Sprintf("%02d/large", k), one)
		for i := range smalls {
			w.put(fmt.Sprintf("%02d/%03d", k, i), one[i*1000:i*1000+300_000])
		}
	}
	modes(t, func(t *testing.T, flag string) {
		w := *w
		w.t = t
		m := w.mount("--memory=160MiB", flag)
		stop := watchMemory(m.status().WorkerPID)
		began := time.Now()
		var wg sync.WaitGroup
		for k := range readers {
			wg.Go(func() {
				dir := fmt.Sprintf("%02d/", k)
				for i := range smalls {
					m.same(fmt.Sprintf("%s%03d", dir, i), one[i*1000:i*1000+300_000])
				}
				slowest := time.Duration(0)
				f, err := os.Open(m.path(dir + "large"))
				if err != nil {
					t.Error(err)
					return
				}
				defer f.Close()
				buf := make([]byte, 1<<20)
				for off := int64(0); off < large; off += 1 << 20 {
					at := time.Now()
					if _, err := f.ReadAt(buf, off); err != nil || !bytes.Equal(buf, one[off:off+1<<20]) {
						t.Errorf("%slarge at %d: %v", dir, off, err)
						return
					}
					slowest = max(slowest, time.Since(at))
				}
				if slowest > 30*time.Second {
					t.Errorf("%slarge: a read of 1 MiB took %v", dir, slowest)
				}
			})
		}
		wg.Wait()
		took := time.Since(began)
		peak := stop()
		t.Logf("%d MiB in %v, at most %d MiB of memory", readers*(large+smalls*300_000)>>20, took.Round(time.Millisecond), peak>>20)
		if peak > 160<<20 {
			t.Errorf("%d MiB of memory with --memory=160MiB", peak>>20)
		}
	})
}

// TestLargeDirectory: 100,000 names, within the least budget, and the first of them at once.
func TestLargeDirectory(t *testing.T) {
	const n = 100_000
	src := t.TempDir()
	mkdir(t, src+"/d")
	for i := range n {
		f, err := os.Create(fmt.Sprintf("%s/d/%06d.jpg", src, i))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t)
	w.source, w.binary = "file://"+src, plain(t)
	m := w.mount("--memory=160MiB")
	stop := watchMemory(m.status().WorkerPID)
	began := time.Now()
	d, err := os.Open(m.path("d"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	names, err := d.Readdirnames(1)
	if err != nil {
		t.Fatal(err)
	}
	first := time.Since(began)
	rest, err := d.Readdirnames(-1)
	if err != nil {
		t.Fatal(err)
	}
	all := time.Since(began)
	names = append(names, rest...)
	if len(names) != n {
		t.Fatalf("%d names", len(names))
	}
	for i, x := range names {
		if x != fmt.Sprintf("%06d.jpg", i) {
			t.Fatalf("name %d is %q", i, x)
		}
	}
	began = time.Now()
	long, err := os.ReadDir(m.path("d"))
	if err != nil || len(long) != n {
		t.Fatalf("%d entries, %v", len(long), err)
	}
	for _, e := range long[:1000] {
		if _, err := e.Info(); err != nil {
			t.Fatal(err)
		}
	}
	peak := stop()
	t.Logf("first name after %v, all after %v, again %v; %d MiB of memory", first, all, time.Since(began), peak>>20)
	if first > all/4 {
		t.Errorf("the first name came after %v of %v", first, all)
	}
	if peak > 160<<20 {
		t.Errorf("%d MiB of memory with --memory=160MiB", peak>>20)
	}
	if f, err := os.Open(m.path("d/099999.jpg")); err != nil {
		t.Error(err)
	} else if b, err := io.ReadAll(f); err != nil || len(b) != 0 {
		t.Errorf("%d bytes, %v", len(b), err)
	} else {
		_ = f.Close()
	}
}
