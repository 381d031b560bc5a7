package meta

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// TestCloseLog: what is noted is what a process finds that comes after one that was killed at any moment.
func TestCloseLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "closes")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		l, err := openCloses(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { l.close() }()
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		// What must be there, what of that is being made complete, and what may be there still since it was forgotten only in
		// one of the logs.
		want, taken, may := map[Ino]bool{}, map[Ino]bool{}, map[Ino]bool{}
		turned := false
		ino := rapid.Map(rapid.IntRange(1, 6), func(i int) Ino { return Ino(i) })
		t.Repeat(map[string]func(*rapid.T){
			"closed": func(t *rapid.T) {
				i := ino.Draw(t, "ino")
				must(l.Closed(i, func() bool { return true }))
				want[i] = true
				delete(taken, i)
			},
			"not the last": func(t *rapid.T) { must(l.Closed(ino.Draw(t, "ino"), func() bool { return false })) },
			"opened": func(t *rapid.T) {
				i := ino.Draw(t, "ino")
				must(l.Opened(i))
				for _, m := range []map[Ino]bool{want, taken, may} {
					delete(m, i)
				}
			},
			"again": func(t *rapid.T) {
				i := ino.Draw(t, "ino")
				must(l.Again(i))
				if taken[i] { // else it is not certain that it was there
					delete(taken, i)
				}
			},
			"turn": func(t *rapid.T) {
				if turned {
					t.Skip("one at a time")
				}
				l.Turn()
				taken, turned = maps.Clone(want), true
			},
			"done": func(*rapid.T) {
				must(l.Done())
				for i := range taken {
					delete(want, i)
					may[i] = true
				}
				taken, turned = map[Ino]bool{}, false
			},
			"reset": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "seldom") > 0 {
					t.Skip()
				}
				must(l.Reset())
				clear(want)
				clear(taken)
				clear(may)
			},
			"killed": func(*rapid.T) {
				next, err := openCloses(dir)
				must(err)
				l.close()
				l = next
				taken, turned = map[Ino]bool{}, false // the next process has all of it to make complete
			},
			"": func(t *rapid.T) {
				got, err := l.Left()
				must(err)
				found := map[Ino]bool{}
				for _, i := range got {
					found[i] = true
					if !want[i] && !may[i] {
						t.Errorf("%d is there", i)
					}
				}
				for i := range want {
					if !found[i] {
						t.Errorf("%d is missing", i)
					}
				}
			},
		})
	})
}

// TestCloseLogOrder: what is left comes in the order of the closes, through both logs.
func TestCloseLogOrder(t *testing.T) {
	dir := t.TempDir()
	l, err := openCloses(dir)
	if err != nil {
		t.Fatal(err)
	}
	closed := func(inos ...Ino) {
		for _, i := range inos {
			if err := l.Closed(i, func() bool { return true }); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := func(want ...Ino) {
		t.Helper()
		got, err := l.Left()
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%v, %v; want %v", got, err, want)
		}
		if err := l.close(); err != nil {
			t.Fatal(err)
		}
		if l, err = openCloses(dir); err != nil {
			t.Fatal(err)
		}
		if got, err := l.Left(); err != nil || !slices.Equal(got, want) {
			t.Fatalf("after a restart: %v, %v; want %v", got, err, want)
		}
	}
	closed(9, 3, 7)
	want(9, 3, 7)
	l.Turn()
	closed(2, 8)
	if err := l.Opened(3); err != nil {
		t.Fatal(err)
	}
	closed(3)
	want(9, 7, 2, 8, 3)
	// A long one is cut, and does not come back.
	for i := Ino(100); i < 100+maxCloseLog/closeRecord+10; i++ {
		closed(i)
	}
	for range 2 {
		l.Turn()
		if err := l.Done(); err != nil {
			t.Fatal(err)
		}
	}
	closed(5)
	want(5)
	for _, name := range []string{"closes-0", "closes-1"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Size() > closeRecord*20 {
			t.Errorf("%s: %v, %v", name, st.Size(), err)
		}
	}
}

// TestCloseLogRoom: on a disk that is full some files can be noted still, also after a log was cut.
func TestCloseLogRoom(t *testing.T) {
	dir := t.TempDir()
	l, err := openCloses(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { l.close() }()
	room := func(when string) {
		t.Helper()
		for i := range l.logs {
			var st unix.Stat_t
			if err := unix.Fstat(int(l.logs[i].f.Fd()), &st); err != nil || st.Blocks*512 < closeRoom || st.Size > maxCloseLog {
				t.Errorf("%s: log %d has %d bytes of the disk, and is %d long: %v", when, i, st.Blocks*512, st.Size, err)
			}
		}
	}
	room("new")
	for i := Ino(1); i < 10+maxCloseLog/closeRecord; i++ {
		if err := l.Closed(i, func() bool { return true }); err != nil {
			t.Fatal(err)
		}
	}
	l.Turn()
	if err := l.Done(); err != nil {
		t.Fatal(err)
	}
	room("cut")
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	if l, err = openCloses(dir); err != nil {
		t.Fatal(err)
	}
	room("opened again")
}
