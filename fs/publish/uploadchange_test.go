package publish

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// TestChangedDuring: a write at any moment before the commit is in what lands, and only the parts that
// it touched are sent again.
func TestChangedDuring(t *testing.T) {
	for _, tc := range []struct {
		name, op string
		at, size int
		want     string
	}{
		{"create", "CREATE MULTIPART", 1, 4 * part, "CREATE MULTIPART, PUT PART x4, COMPLETE MULTIPART"},
		{"last part", "PUT PART", 4, 4 * part, "CREATE MULTIPART, PUT PART x5, COMPLETE MULTIPART"},
		{"order", "", 0, 4 * part, "CREATE MULTIPART, PUT PART x5, COMPLETE MULTIPART"},
		{"order of a small one", "", 0, 100, "PUT"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, Options{Parallel: 1})
			data := random(20, tc.size)
			f := file(t, data)
			alter := func() { // the first bytes, after the clock's tick
				time.Sleep(20 * time.Millisecond)
				copy(data, "changed")
				writeAt(t, f, data[:7], 0)
			}
			w.hook = func(op objstore.Op, n int) (fate, func()) {
				if op.Name == tc.op && n == tc.at {
					return pass, alter
				}
				return pass, nil
			}
			j := Job{Key: "k", File: f, IfNoneMatch: true}
			if tc.op == "" {
				j.Order = func(context.Context) error { alter(); return nil }
			}
			out := w.publish(j)
			w.wantTook(tc.want)
			w.has("k", data)
			sums(t, out, data)
			if st, err := StampOf(f); err != nil || st != out.Stamp {
				t.Errorf("stamp %+v, %+v, %v", st, out.Stamp, err)
			}
		})
	}
}

// TestSizeChanges: a file that grows or shrinks meanwhile lands with the size that it has at last.
func TestSizeChanges(t *testing.T) {
	for _, to := range []int{0, 10, part, 3*part - 1, 3*part + 1, 6 * part} {
		w := newWorld(t, Options{}, func(c *objstore.Caps) { c.MaxParts = 5 })
		data := random(21, 6*part)
		f := file(t, data[:3*part])
		w.hook = func(op objstore.Op, n int) (fate, func()) {
			if op.Name == "PUT PART" && n == 1 {
				return pass, func() {
					if err := f.Truncate(int64(to)); err != nil {
						t.Error(err)
					}
					if to > 3*part {
						writeAt(t, f, data[3*part:to], 3*part)
					}
				}
			}
			return pass, nil
		}
		var ups []Upload
		out := w.publish(Job{Key: "k", File: f, Size: 3 * part, Began: func(u Upload) error { ups = append(ups, u); return nil }})
		w.has("k", data[:to])
		sums(t, out, data[:to])
		for _, u := range ups {
			if _, err := w.mem.ListParts(t.Context(), u.Key, u.ID); !objstore.Is(err, objstore.NotFound) {
				t.Errorf("to %d: upload %+v is left: %v", to, u, err)
			}
		}
	}
}

// TestChangesAlways: a file that is written to all the time is ErrChanged, and never lands as a mixture.
func TestChangesAlways(t *testing.T) {
	for _, size := range []int{100, 3 * part} {
		w := newWorld(t, Options{})
		f := file(t, random(22, size))
		n := byte(0)
		alter := func() {
			n++
			time.Sleep(20 * time.Millisecond)
			writeAt(t, f, []byte{n}, 1)
		}
		w.hook = func(op objstore.Op, _ int) (fate, func()) {
			if op.Name == "PUT PART" {
				return pass, alter
			}
			return spoil, alter // the PUT of what has changed
		}
		_, err := w.p.Publish(t.Context(), Job{Key: "k", File: f})
		if !errors.Is(err, ErrChanged) {
			t.Errorf("size %d: got %v", size, err)
		}
		if _, err := w.mem.Head(t.Context(), "k", objstore.HeadOptions{}); !objstore.Is(err, objstore.NotFound) {
			t.Errorf("size %d: it is there: %v", size, err)
		}
	}
}

// TestMapped: stores into a mapping need not move the times of a file; the store refuses what is not
// what was read before.
func TestMapped(t *testing.T) {
	for _, size := range []int{100, 3 * part} {
		w := newWorld(t, Options{Parallel: 1})
		data := random(23, size)
		j := Job{Key: "k", Data: data, Token: "t"} // Data has no times at all
		w.p.opt.Multipart = part
		w.hook = func(op objstore.Op, n int) (fate, func()) {
			if n == 1 && (op.Name == "PUT" || op.Name == "PUT PART") {
				copy(data, "changed") // between the reading and the sending
			}
			return pass, nil
		}
		out := w.publish(j)
		w.has("k", data)
		sums(t, out, data)
	}
}

// TestMappedAlways: what changes at every sending, and moves no times, is ErrChanged, not corruption.
func TestMappedAlways(t *testing.T) {
	for _, size := range []int{100, 3 * part} {
		w := newWorld(t, Options{Parallel: 1})
		data := random(24, size)
		w.hook = func(op objstore.Op, _ int) (fate, func()) {
			data[0]++
			return pass, nil
		}
		if _, err := w.p.Publish(t.Context(), Job{Key: "k", Data: data, Token: "t"}); !errors.Is(err, ErrChanged) {
			t.Errorf("size %d: got %v", size, err)
		}
	}
}

// TestNoChecksums: a store that cannot compare is given a file that changed during its PUT once more.
func TestNoChecksums(t *testing.T) {
	w := newWorld(t, Options{}, func(c *objstore.Caps) { c.Checksums = false })
	data := random(25, 1000)
	f := file(t, data)
	w.hook = func(op objstore.Op, n int) (fate, func()) {
		if op.Name == "PUT" && n == 1 {
			return pass, func() {
				time.Sleep(20 * time.Millisecond)
				copy(data, "changed")
				writeAt(t, f, data[:7], 0)
			}
		}
		return pass, nil
	}
	w.publish(Job{Key: "k", File: f, IfNoneMatch: true})
	w.wantTook("PUT x2")
	w.has("k", data)
}
