package record

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// The disk of any cut is what a disk is that was told to keep just these writes.
func TestAt(t *testing.T) {
	const size = 64 * 4096
	for _, unit := range []int64{512, 4096} {
		for seed := range uint64(6) {
			t.Run(fmt.Sprintf("%d/%d", unit, seed), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, uint64(unit)))
				l, err := NewLog(t.TempDir(), size, unit)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				var contents [][]byte // by event
				now := make([]byte, size)
				for range 200 {
					n := (1 + r.Int64N(8)) * unit
					off := r.Int64N((size-n)/unit+1) * unit
					var p []byte
					switch r.IntN(6) {
					case 0:
						l.Flush()
					case 1:
						p = make([]byte, n)
						if err := l.Zero(off, n); err != nil {
							t.Fatal(err)
						}
					default:
						p = bytes.Repeat([]byte{byte(r.IntN(3))}, int(n)) // zeros too
						copy(p, fmt.Sprint(len(contents)))
						if err := l.Write(p, off); err != nil {
							t.Fatal(err)
						}
					}
					contents = append(contents, p)
					copy(now[off:], p)
				}
				got := make([]byte, size)
				if err := l.Read(got, 0); err != nil || !bytes.Equal(got, now) {
					t.Fatalf("the disk as it is now is wrong, %v", err)
				}
				events := l.Events(0)
				for i := range 40 {
					c := Cut{At: r.IntN(len(events) + 1), How: []How{None, All, Prefix, Subset, Torn}[i%5], Seed: r.Uint64()}
					want, some := model(t, c, events, contents, size, unit)
					im, err := l.Cut(c)
					if err != nil {
						t.Fatal(err)
					}
					for range 10 {
						n := (1 + r.Int64N(16)) * unit
						off := r.Int64N((size-n)/unit+1) * unit
						got := make([]byte, n)
						if err := im.Read(got, off); err != nil || !bytes.Equal(got, want[off:off+n]) {
							t.Fatalf("%v: %d bytes at %d are wrong, %v (kept of the pending: %v)", c, n, off, err, some)
						}
						// What is written to it is there, and there alone.
						p := bytes.Repeat([]byte{byte(i)}, int(n))
						if i%2 == 0 {
							clear(p)
							err = im.Zero(off, n)
						} else {
							err = im.Write(p, off)
						}
						if err != nil {
							t.Fatal(err)
						}
						copy(want[off:], p)
					}
					got := make([]byte, size)
					if err := im.Read(got, 0); err != nil || !bytes.Equal(got, want) {
						t.Fatalf("%v: after writes to it the image is wrong, %v", c, err)
					}
				}
				if err := l.Read(got, 0); err != nil || !bytes.Equal(got, now) {
					t.Fatalf("writes to an image changed the disk, %v", err)
				}
			})
		}
	}
}

// model makes the disk of a cut by doing each write again.
func model(t *testing.T, c Cut, events []Event, contents [][]byte, size, unit int64) (disk []byte, some int) {
	t.Helper()
	choose, err := c.Choose()
	if err != nil {
		t.Fatal(err)
	}
	disk = make([]byte, size)
	last := 0
	for i, e := range events[:c.At] {
		if e.Kind == Flush {
			last = i
		}
	}
	var pending []int
	for i, e := range events[:c.At] {
		switch {
		case e.Kind == Flush:
		case i < last:
			copy(disk[e.Off:], contents[i])
		default:
			pending = append(pending, i)
		}
	}
	for n, i := range pending {
		e := events[i]
		for u := range int(e.Len / unit) {
			if choose(Pending{Event: i, N: n, Of: len(pending), Units: int(e.Len / unit)}, u) {
				some++
				copy(disk[e.Off+int64(u)*unit:][:unit], contents[i][int64(u)*unit:])
			}
		}
	}
	return disk, some
}

// Each way to lose writes does what its name says.
func TestChoose(t *testing.T) {
	const writes, units = 40, 16
	kept := func(c Cut) (out []int) { // units by write
		choose, err := c.Choose()
		if err != nil {
			t.Fatal(err)
		}
		for n := range writes {
			k := 0
			for u := range units {
				if choose(Pending{Event: 100 + n, N: n, Of: writes, Units: units}, u) {
					k++
				}
			}
			out = append(out, k)
		}
		return out
	}
	whole := func(k int) bool { return k == 0 || k == units }
	var torn, absent, present int
	prefixes := map[int]bool{}
	for seed := range uint64(200) {
		if ks := kept(Cut{How: None, Seed: seed}); slices.Max(ks) != 0 {
			t.Fatal("none kept something")
		}
		if ks := kept(Cut{How: All, Seed: seed}); slices.Min(ks) != units {
			t.Fatal("all lost something")
		}
		ks := kept(Cut{How: Prefix, Seed: seed})
		n := slices.Index(ks, 0)
		if n < 0 {
			n = writes
		}
		prefixes[n] = true
		for i, k := range ks {
			if k != map[bool]int{true: units}[i < n] {
				t.Fatalf("seed %d: not a prefix: %v", seed, ks)
			}
		}
		ks = kept(Cut{How: Subset, Seed: seed})
		for _, k := range ks {
			if !whole(k) {
				t.Fatalf("seed %d: a subset with a torn write: %v", seed, ks)
			}
			if k == 0 {
				absent++
			} else {
				present++
			}
		}
		for _, k := range kept(Cut{How: Torn, Seed: seed}) {
			if !whole(k) {
				torn++
			}
		}
		if !slices.Equal(kept(Cut{How: Torn, Seed: seed}), kept(Cut{How: Torn, Seed: seed})) {
			t.Fatal("the same cut twice is not the same")
		}
	}
	if len(prefixes) < writes*3/4 || !prefixes[0] || !prefixes[writes] {
		t.Errorf("the prefixes have only these lengths: %v", prefixes)
	}
	if n := 200 * writes; torn < n/10 || absent < n/4 || present < n/4 {
		t.Errorf("of %d writes %d torn; %d absent and %d present", n, torn, absent, present)
	}
	if _, err := (Cut{How: "somehow"}).Choose(); err == nil {
		t.Error("a way that is none was taken")
	}
}

// A disk is never asked for parts of its unit; a log of that would be wrong, and says so.
func TestUnaligned(t *testing.T) {
	l, err := NewLog(t.TempDir(), 1<<20, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if l.Write(make([]byte, 512), 0) == nil || l.Err() == nil {
		t.Error("a write of half a unit was taken")
	}
	if err := l.Write(make([]byte, 4096), 1<<20); err == nil {
		t.Error("a write behind the end was taken")
	}
}
