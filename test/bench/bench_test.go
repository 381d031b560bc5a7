package main

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRandomBlocks(t *testing.T) {
	got, err := randomBlocks(10<<12, 1<<12, 10, 1)
	if err != nil {
		t.Fatal(err)
	}
	again, err := randomBlocks(10<<12, 1<<12, 10, 1)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, again) {
		t.Error("the same seed gave another order")
	}
	if slices.IsSorted(got) {
		t.Error("the order is not random")
	}
	slices.Sort(got)
	for i, off := range got {
		if off != int64(i)<<12 {
			t.Errorf("block %d: offset %d", i, off)
		}
	}
	if more, err := randomBlocks(10<<12, 1<<12, 25, 1); err != nil || len(more) != 25 {
		t.Errorf("more than there are: %d, %v", len(more), err)
	}
	if _, err := randomBlocks(100, 4096, 1, 1); err == nil {
		t.Error("a file smaller than a block: no error")
	}
}

// The content of an object must not depend on how it is read: the SDK reads it twice.
func TestContent(t *testing.T) {
	w := &world{cfg: &config{scale: 1}, noise: []byte("0123456789")}
	whole, err := io.ReadAll(w.content(3, 57))
	if err != nil || len(whole) != 57 {
		t.Fatalf("%d bytes, %v", len(whole), err)
	}
	var parts bytes.Buffer
	if _, err := io.CopyBuffer(struct{ io.Writer }{&parts}, struct{ io.Reader }{w.content(3, 57)}, make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(whole, parts.Bytes()) {
		t.Errorf("read whole: %q, in parts: %q", whole, parts.Bytes())
	}
}

func TestSets(t *testing.T) {
	w := &world{cfg: &config{scale: 1}}
	for name, want := range map[string]int{"seq": 1, "shards": shards, "images": imageCount, "names": nameCount} {
		keys, sizes := w.set(name)
		if len(keys) != want || len(sizes) != want {
			t.Errorf("%s: %d keys, %d sizes, want %d", name, len(keys), len(sizes), want)
		}
		for _, k := range keys {
			if !strings.HasPrefix(k, name+"/") {
				t.Fatalf("%s: key %q", name, k)
			}
		}
	}
}

func TestTable(t *testing.T) {
	rows := []Row{
		{Name: "a", Title: "more is better", Unit: mbPerSec, Goal: goal{AtLeast: 0.9}},
		{Name: "b", Title: "less is better", Unit: seconds, Goal: goal{AtMost: 0.5}},
		{Name: "c", Title: "no limit", Unit: seconds, Goal: goal{AtMost: 1}},
		{Name: "d", Title: "broken", Error: "no such\nbucket", Goal: goal{AtLeast: 0.9}},
	}
	rows[0].Ours.add(sample{Seconds: 2, Bytes: 1e9, CPU: 1, Daemon: 0.5}, mbPerSec)
	rows[0].Ours.add(sample{Seconds: 1, Bytes: 1e9, CPU: 0.75, Daemon: 0.25}, mbPerSec)
	rows[0].Limit.add(sample{Seconds: 0.9, Bytes: 1e9, CPU: 0.5}, mbPerSec)
	rows[1].Ours.add(sample{Seconds: 0.2}, seconds)
	rows[1].Ours.add(sample{Seconds: 0.1}, seconds)
	rows[1].Limit.add(sample{Seconds: 0.15}, seconds)
	rows[2].Ours.add(sample{Seconds: 0.3}, seconds)
	for i := range rows[:3] {
		rows[i].judge()
	}
	rep := &Report{Version: "leatfs v1", Works: rows, Scale: 1, Memory: 513 << 20, Complaints: []string{"level=WARN x"}}
	var b strings.Builder
	if err := rep.table(&b); err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(b.String(), "--:|--:|\n")
	want := `| more is better | 1000 MB/s | 1111 MB/s | 0.90 | ≥ 0.90 | yes | 0.75 (0.25) | 0.50 |
| less is better | 0.100 s | 0.150 s | 0.67 | ≤ 0.50 | no |  |  |
| no limit | 0.300 s |  |  | ≤ 1.00 | yes |  |  |
| broken | failed: no such bucket | | | ≥ 0.90 | no | | |
| memory, RssAnon + RssShmem, at most | 513 MiB | | | ≤ 512 MiB | no | | |

The daemons' logs held 1 warnings:
    level=WARN x
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if err := rep.failed(); err == nil || !strings.Contains(err.Error(), "d") {
		t.Errorf("a work that failed: %v", err)
	}
	if rep.Works[3].Error = ""; !errors.Is(rep.failed(), nil) {
		t.Error("a missed goal is an error")
	}
}
