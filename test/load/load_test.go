package load

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// TestCheck: what comes from elsewhere in the file, or from another file, is found.
func TestCheck(t *testing.T) {
	const size = 3*noiseLen + 12345
	b := Content("a", size)
	if int64(len(b)) != size {
		t.Fatalf("%d bytes", len(b))
	}
	for _, off := range []int64{0, 1, 4096, noiseLen - 1, noiseLen, 2*noiseLen + 77} {
		if err := Check("a", off, b[off:]); err != nil {
			t.Error(err)
		}
		if off > 0 && Check("a", off, b[off-1:]) == nil || Check("a", off, b[off+4096:]) == nil {
			t.Errorf("bytes of another offset pass at %d", off)
		}
	}
	var wrong *WrongBytes
	if err := Check("b", 0, b[:100]); !errors.As(err, &wrong) || wrong.Zero {
		t.Errorf("another file: %v", err)
	}
	copy(b[8192:12288], make([]byte, 4096))
	if err := Check("a", 0, b[:12288]); !errors.As(err, &wrong) || wrong.Offset != 8192 || !wrong.Zero {
		t.Errorf("a hole: %v", err)
	}
	for i, f := range (Data{Large: 2, LargeSize: 5, Dirs: 3, PerDir: 4}).Files() {
		if f.Size <= 0 || f.Key == "" {
			t.Errorf("file %d: %+v", i, f)
		}
	}
}

func TestQuantile(t *testing.T) {
	var r Report
	for i := range 1000 {
		r.Counts[bucket(time.Duration(i+1)*time.Millisecond)]++
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond, 1: time.Second} {
		if got := r.Quantile(q); got < want || got > want*5/4 {
			t.Errorf("quantile %v: %v, want about %v", q, got, want)
		}
	}
	now := time.Now()
	r.Slow = []Op{{Start: now.UnixNano(), Took: time.Second}, {Start: now.UnixNano(), Took: 3 * time.Second}}
	s := r.Stalls([]Kill{{At: now.Add(2 * time.Second), Answer: time.Second}, {At: now.Add(time.Minute), Answer: time.Second}})
	if s[0] != 0 || s[1] != 3*time.Second {
		t.Errorf("stalls %v", s)
	}
}

// TestProcesses: all kinds run on a plain directory, and find what is wrong there.
func TestProcesses(t *testing.T) {
	dir := t.TempDir()
	data := Data{Large: 2, LargeSize: 3 << 20, Hot: 2, HotSize: 1 << 20, Dirs: 2, PerDir: 20}
	for _, f := range data.Files() {
		p := filepath.Join(dir, f.Key)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, Content(f.Key, f.Size), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pass := func() []*Report {
		ps, err := StartAll(dir, data, Kinds, 1)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		rs, err := ps.Stop()
		if err != nil {
			t.Fatal(err)
		}
		return rs
	}
	for _, r := range pass() {
		if r.Ops == 0 || r.Errors+r.Wrong != 0 {
			t.Errorf("%s: %d operations, %d errors, %d wrong: %v", r.Kind, r.Ops, r.Errors, r.Wrong, r.First)
		}
	}
	for _, f := range data.Files() {
		p := filepath.Join(dir, f.Key)
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(f.Key, "small/0000") {
			err = os.Remove(p)
		} else {
			err = os.WriteFile(p, append(bytes.Repeat([]byte{0}, len(b)/2), b[len(b)/2:]...), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range pass() {
		if r.Errors+r.Wrong == 0 {
			t.Error(fmt.Errorf("%s finds nothing wrong", r.Kind))
		}
	}
}
