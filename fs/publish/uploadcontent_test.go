package publish

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/minio/crc64nvme"
	"pgregory.net/rapid"

	"github.com/leatfs/leatfs/objstore"
)

// sparse makes a file of size bytes that holds only the given ranges of data.
func sparse(t testing.TB, data []byte, ranges []Range) *os.File {
	t.Helper()
	f := file(t, nil)
	if err := f.Truncate(int64(len(data))); err != nil {
		t.Fatal(err)
	}
	for _, r := range ranges {
		writeAt(t, f, data[r.Off:r.Off+r.Len], r.Off)
	}
	return f
}

func over(o objstore.Object, local ...Range) *Overlay {
	return &Overlay{Key: o.Key, ETag: o.ETag, Size: o.Size, Local: func() ([]Range, error) { return local, nil }}
}

// TestOverlay: what the file does not hold comes from the object, by the store's own copying where
// it can.
func TestOverlay(t *testing.T) {
	for _, partCopy := range []bool{true, false} {
		for _, tc := range []struct {
			name        string
			base, size  int
			local       []Range
			want, fetch string // requests with and without CopyPart
		}{
			{"one part written", 5 * part, 5 * part, []Range{{part, part}},
				"CREATE MULTIPART, 4 COPY PART, 1 PUT PART, COMPLETE MULTIPART", "CREATE MULTIPART, 4 GET, 5 PUT PART, COMPLETE MULTIPART"},
			{"a few bytes", 5 * part, 5 * part, []Range{{2*part + 5, 3}},
				"CREATE MULTIPART, 4 COPY PART, 2 GET, 1 PUT PART, COMPLETE MULTIPART", "CREATE MULTIPART, 6 GET, 5 PUT PART, COMPLETE MULTIPART"},
			{"appended", 3 * part, 4*part + 9, []Range{{3 * part, part + 9}},
				"CREATE MULTIPART, 3 COPY PART, 2 PUT PART, COMPLETE MULTIPART", "CREATE MULTIPART, 3 GET, 5 PUT PART, COMPLETE MULTIPART"},
			{"with a hole behind", 2*part + 100, 4 * part, []Range{{3*part + 100, 50}},
				"CREATE MULTIPART, 2 COPY PART, 1 GET, 2 PUT PART, COMPLETE MULTIPART", "CREATE MULTIPART, 3 GET, 4 PUT PART, COMPLETE MULTIPART"},
			{"cut", 5 * part, 2*part + 10, nil,
				"CREATE MULTIPART, 3 COPY PART, COMPLETE MULTIPART", "CREATE MULTIPART, 3 GET, 3 PUT PART, COMPLETE MULTIPART"},
			{"small", 1000, 1200, []Range{{10, 10}, {1100, 50}, {5, 7}}, "2 GET, 1 PUT", "2 GET, 1 PUT"},
		} {
			t.Run(fmt.Sprint(tc.name, partCopy), func(t *testing.T) {
				w := newWorld(t, Options{}, func(c *objstore.Caps) { c.PartCopy = partCopy })
				base := random(30, tc.base)
				data := make([]byte, tc.size)
				copy(data, base)
				for i, r := range tc.local {
					copy(data[r.Off:], random(uint64(31+i), int(r.Len)))
				}
				o := w.mem.Set("base", base)
				out := w.publish(Job{Key: "k", File: sparse(t, data, tc.local), Overlay: over(o, tc.local...), IfNoneMatch: true})
				w.has("k", data)
				want := tc.want
				if !partCopy {
					want = tc.fetch
				}
				if got := w.tally(); got != want {
					t.Errorf("requests: %s, want %s", got, want)
				}
				if out.Blocks != nil || out.Summed && out.Sum != crc64nvme.Checksum(data) || !partCopy && !out.Summed {
					t.Errorf("%+v", out)
				}
			})
		}
	}
}

// tally is took without the order of requests that go in parallel.
func (w *world) tally() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := map[string]int{}
	for _, op := range w.ops {
		n[op]++
	}
	w.ops = nil
	var out []string
	for _, op := range []string{"CREATE MULTIPART", "LIST PARTS", "HEAD", "COPY PART", "GET", "PUT PART", "PUT", "COMPLETE MULTIPART", "COPY", "ABORT MULTIPART"} {
		switch one := op == "CREATE MULTIPART" || op == "COMPLETE MULTIPART"; {
		case n[op] == 1 && one:
			out = append(out, op)
		case n[op] > 0:
			out = append(out, fmt.Sprint(n[op], " ", op))
		}
	}
	return strings.Join(out, ", ")
}

// TestOverlayGone: an object that is not the one meant any more is a SourceChanged, and nothing lands.
func TestOverlayGone(t *testing.T) {
	for _, partCopy := range []bool{true, false} {
		for _, size := range []int{100, 3 * part} {
			w := newWorld(t, Options{}, func(c *objstore.Caps) { c.PartCopy = partCopy })
			data := random(35, size)
			o := w.mem.Set("base", data)
			j := Job{Key: "k", File: sparse(t, data, nil), Overlay: over(o), Token: "t"}
			now := w.mem.Set("base", []byte("another"))
			_, err := w.p.Publish(t.Context(), j)
			var c *SourceChanged
			if !errors.As(err, &c) || c.Key != "base" || c.ETag != o.ETag || c.Have.ETag != now.ETag {
				t.Errorf("replaced: got %v", err)
			}
			if err := w.mem.Delete(t.Context(), "base", objstore.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err = w.p.Publish(t.Context(), j); !errors.As(err, &c) || c.Have.Key != "" {
				t.Errorf("gone: got %v", err)
			}
			if _, err := w.mem.Head(t.Context(), "k", objstore.HeadOptions{}); !objstore.Is(err, objstore.NotFound) {
				t.Errorf("it is there: %v", err)
			}
		}
	}
}

// TestOverlayModel: any ranges, sizes and offsets give the bytes that a plain overlay gives.
func TestOverlayModel(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		base := random(1, rapid.IntRange(0, 300).Draw(t, "base"))
		data := make([]byte, rapid.IntRange(0, 300).Draw(t, "size"))
		copy(data, base)
		held := make([]byte, len(data))
		for i := range held {
			held[i] = 0xee // must not be seen
		}
		var local []Range
		for i := range rapid.IntRange(0, 5).Draw(t, "ranges") {
			off := rapid.IntRange(0, len(data)).Draw(t, "off")
			r := Range{int64(off), int64(rapid.IntRange(0, len(data)-off).Draw(t, "len"))}
			copy(data[r.Off:], random(uint64(i+2), int(r.Len)))
			local = append(local, r)
		}
		for _, r := range local {
			copy(held[r.Off:r.Off+r.Len], data[r.Off:r.Off+r.Len])
		}
		c := &content{file: bytes.NewReader(held), size: int64(len(data)), over: &Overlay{Size: int64(len(base))}, local: normal(local)}
		lo := rapid.IntRange(0, len(data)).Draw(t, "lo")
		n := rapid.IntRange(0, len(data)-lo).Draw(t, "n")
		v := &view{c: c, off: int64(lo), n: int64(n), pieces: c.pieces(int64(lo), int64(n))}
		f, err := scratch(dir)
		if err != nil {
			t.Fatal(err)
		}
		v.scratch = f
		defer v.close()
		for _, p := range v.pieces {
			if p.place == inObject {
				if _, err := f.WriteAt(base[p.Off:p.Off+p.Len], p.Off-v.off); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 3 {
			at := rapid.IntRange(0, n).Draw(t, "at")
			got := make([]byte, rapid.IntRange(0, n-at).Draw(t, "read"))
			if m, err := v.ReadAt(got, int64(at)); err != nil || m != len(got) || !bytes.Equal(got, data[lo+at:lo+at+m]) {
				t.Fatalf("ReadAt(%d, %d): %d, %v", len(got), at, m, err)
			}
		}
	})
}
