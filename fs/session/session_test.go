package session

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// childEnv makes the test binary work on a session it is given as descriptor 3, until it is killed.
const childEnv = "LEATFS_SESSION_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	os.Exit(m.Run())
}

func create(t *testing.T) *Session {
	t.Helper()
	s, err := Create()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// next is the session as the process after this one finds it.
func next(t *testing.T, s *Session) *Session {
	t.Helper()
	n, err := Attach(dup(t, s.File()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func dup(t *testing.T, f *os.File) *os.File {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "session")
}

func TestRecordsFit(t *testing.T) {
	for name, c := range map[string][2]uintptr{
		"handle":  {unsafe.Sizeof(handleRecord{}), handleSize},
		"backing": {unsafe.Sizeof(backingRecord{}), backingSize},
		"request": {unsafe.Sizeof(requestRecord{}), requestSize},
	} {
		if c[0] != c[1] {
			t.Errorf("a %s takes %d bytes, not %d", name, c[0], c[1])
		}
	}
	if n := unsafe.Sizeof(header{}); n > infoAt {
		t.Errorf("the header takes %d bytes", n)
	}
}

func TestInfo(t *testing.T) {
	s := create(t)
	defer s.Close()
	want := Info{Source: "s3://b/p", Mountpoint: "/mnt/ü", InitIn: []byte{1, 0, 2}, InitOut: []byte{3}, Origin: []byte(`{"a":1}`)}
	if _, err := s.Info(); !errors.Is(err, ErrFormat) {
		t.Errorf("before it was set: %v", err)
	}
	if err := s.SetInfo(want); err != nil {
		t.Fatal(err)
	}
	n := next(t, s)
	got, err := n.Info()
	if err != nil || got.Source != want.Source || got.Mountpoint != want.Mountpoint || !bytes.Equal(got.InitIn, want.InitIn) ||
		!bytes.Equal(got.InitOut, want.InitOut) || string(got.Origin) != string(want.Origin) {
		t.Errorf("got %+v %v", got, err)
	}
	if n.ID() != s.ID() || n.Epoch() != 2 || s.Epoch() != 1 {
		t.Errorf("id %x %x, epochs %d %d", s.ID(), n.ID(), s.Epoch(), n.Epoch())
	}
	if err := s.SetInfo(Info{Source: string(make([]byte, 100<<10))}); err == nil {
		t.Error("a description that does not fit is taken")
	}
}

// TestForeign: memory that is none, is cut off, or is of another format is refused in one line,
// and not changed.
func TestForeign(t *testing.T) {
	memfd := func(b []byte) *os.File {
		fd, err := unix.MemfdCreate("foreign", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "foreign")
		if _, err := f.Write(b); err != nil {
			t.Fatal(err)
		}
		return f
	}
	s := create(t)
	defer s.Close()
	whole := append([]byte(nil), s.mem[:headerSize]...)
	newer := append([]byte(nil), whole...)
	newer[8]++
	for name, b := range map[string][]byte{"empty": nil, "short": whole[:100], "cut off": whole, "newer": newer, "garbage": bytes.Repeat([]byte("x"), headerSize)} {
		if err := Check(memfd(b)); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Attach(memfd(b)); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: attach: %v", name, err)
		}
	}
	// Nobody can cut it off under those who have it mapped.
	if err := s.File().Truncate(4096); !errors.Is(err, unix.EPERM) {
		t.Errorf("truncate: %v", err)
	}
}

// TestHandles compares handles with a map, over processes that come and go.
func TestHandles(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := create(t)
		model := make(map[uint64][2]uint64) // by handle: node, unique
		ever := make(map[uint64]bool)
		made := make(map[uint64]uint32)
		unique := uint64(0)
		rt.Repeat(map[string]func(*rapid.T){
			"open": func(rt *rapid.T) {
				unique += 2
				node := rapid.Uint64Range(1, 5).Draw(rt, "node")
				fh, err := s.NewHandle(node, unique, int32(node), uint32(unique>>1&1))
				if err != nil {
					rt.Fatal(err)
				}
				if ever[fh] {
					rt.Fatalf("handle %#x for the second time", fh)
				}
				ever[fh] = true
				if !s.Made(fh) {
					rt.Fatalf("handle %#x was not made by this process", fh)
				}
				model[fh], made[fh] = [2]uint64{node, unique}, s.Epoch()
				if got, n, ok := s.HandleOf(unique); !ok || got != fh || n != node {
					rt.Fatalf("handle of request %d: %#x of %d, %v", unique, got, n, ok)
				}
			},
			"release": func(rt *rapid.T) {
				fh := rapid.Uint64().Draw(rt, "garbage")
				for h := range ever {
					if rapid.Bool().Draw(rt, "this") {
						fh = h
						break
					}
				}
				want, ok := model[fh]
				delete(model, fh)
				if node, got := s.FreeHandle(fh); got != ok || node != want[0] {
					rt.Fatalf("release %#x: %d %v, want %v %v", fh, node, got, want[0], ok)
				}
			},
			"restart": func(rt *rapid.T) {
				n, err := Attach(dup(t, s.File()))
				if err != nil {
					rt.Fatal(err)
				}
				if err := s.Close(); err != nil {
					rt.Fatal(err)
				}
				s = n
			},
			"": func(rt *rapid.T) {
				n := 0
				s.Handles(func(h Handle) {
					n++
					if model[h.FH] != [2]uint64{h.Node, h.Unique} || h.Backing != int32(h.Node) ||
						h.Flags != uint32(h.Unique>>1&1) || s.Made(h.FH) != (made[h.FH] == s.Epoch()) {
						rt.Fatalf("found %+v, want %v", h, model[h.FH])
					}
				})
				if n != len(model) {
					rt.Fatalf("%d handles, want %d", n, len(model))
				}
			},
		})
		if err := s.Close(); err != nil {
			rt.Fatal(err)
		}
	})
}

// TestRequests: what was begun and not ended is found, and deaths are counted where they belong.
func TestRequests(t *testing.T) {
	s := create(t)
	defer s.Close()
	begin := func(s *Session, unique uint64, content []byte) Request {
		r, err := s.Begin(unique, unique*10, 1, content)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	s.End(Request{}) // none
	a, b := begin(s, 2, []byte("hello")), begin(s, 4, bytes.Repeat([]byte("x"), largeSize+1))
	begin(s, 6, nil)
	s.End(b)
	if age, node, _ := s.Oldest(); age <= 0 || node != 20 && node != 60 {
		t.Errorf("oldest: %v of %d", age, node)
	}
	if a.Deaths() != 0 {
		t.Errorf("%d deaths", a.Deaths())
	}
	find := func(us []Unfinished) map[uint64]Unfinished {
		m := make(map[uint64]Unfinished)
		for _, u := range us {
			m[u.Unique] = u
		}
		return m
	}
	n := next(t, s)
	us := find(n.Unfinished(true))
	if len(us) != 2 || string(us[2].Content) != "hello" || us[2].Node != 20 || us[6].Content != nil || us[2].Deaths() != 1 || us[6].Deaths() != 1 {
		t.Fatalf("unfinished: %+v", us)
	}
	us[2].Run() // the other waits for its turn
	begin(n, 8, nil)
	n2 := next(t, n)
	us = find(n2.Unfinished(true))
	if len(us) != 3 || us[2].Deaths() != 2 || us[6].Deaths() != 1 || us[8].Deaths() != 1 {
		t.Fatalf("the second time: %d, %d %d %d deaths", len(us), us[2].Deaths(), us[6].Deaths(), us[8].Deaths())
	}
	for _, u := range us {
		u.Run()
	}
	n3 := next(t, n2)
	us = find(n3.Unfinished(false)) // killed from outside
	if us[2].Deaths() != 2 || us[6].Deaths() != 1 {
		t.Errorf("killed from outside: %d %d deaths", us[2].Deaths(), us[6].Deaths())
	}
	for _, u := range us {
		n3.End(u.Request)
	}
	if len(next(t, n3).Unfinished(true)) != 0 {
		t.Error("ended requests are found")
	}
}

func TestTooManyRequests(t *testing.T) {
	s := create(t)
	defer s.Close()
	var all []Request
	for i := range maxRequests {
		r, err := s.Begin(uint64(i+1), 1, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	if _, err := s.Begin(1<<40, 1, 1, nil); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	s.End(all[7])
	if _, err := s.Begin(1<<40, 1, 1, nil); err != nil {
		t.Error(err)
	}
}

// TestBackings: what the kernel was given is found, and what it may have been given.
func TestBackings(t *testing.T) {
	s := create(t)
	defer s.Close()
	id := int32(0)
	register := func() (int32, error) { id++; return id, nil }
	var bs []Backing
	for i := range 5 {
		b, err := s.NewBacking(uint64(100+i), uint64(200+i), register)
		if err != nil || b.ID != id {
			t.Fatal(b, err)
		}
		bs = append(bs, b)
	}
	if _, err := s.NewBacking(1, 1, func() (int32, error) { return 0, unix.EPERM }); !errors.Is(err, unix.EPERM) {
		t.Error(err)
	}
	s.FreeBacking(bs[1].Ref)
	n := next(t, s)
	got := make(map[uint64]Backing)
	n.Backings(func(b Backing) { got[b.Node] = b })
	if len(got) != 4 || got[103] != bs[3] {
		t.Errorf("found %v", got)
	}
	n.Saw(7)
	n.Saw(5)
	if ino, file := next(t, n).Largest(); ino != 7 || file != 204 {
		t.Errorf("largest: inode %d, file %d", ino, file)
	}
	ids := n.Unrecorded()
	if len(ids) != lostMax || ids[0] != 6 {
		t.Errorf("may have been given: %v", ids)
	}
}

// child opens, closes and records for as long as it lives, and keeps in descriptor 4, a shared
// page, how far it is: the number of the operation before, and again after it.
func child() {
	s, err := Attach(os.NewFile(3, "session"))
	if err != nil {
		panic(err)
	}
	page, err := unix.Mmap(4, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	begun, done := (*uint64)(unsafe.Pointer(&page[0])), (*uint64)(unsafe.Pointer(&page[8]))
	handles := make(map[uint64]uint64) // by unique
	s.Handles(func(h Handle) { handles[h.Unique] = h.FH })
	for op := *done + 1; ; op++ {
		*begun = op
		// Operation n opens, or closes what operation n-8 has opened.
		if op%2 == 1 {
			if handles[op], err = s.NewHandle(op+1000, op, 0, 0); err != nil {
				panic(err)
			}
		} else if op > 8 {
			s.FreeHandle(handles[op-7])
			delete(handles, op-7)
		}
		*done = op
	}
}

// TestKilled: a process that is killed at any moment leaves the handles of all operations it has
// done, and that of the last one whole or not at all.
func TestKilled(t *testing.T) {
	s := create(t)
	defer s.Close()
	fd, err := unix.MemfdCreate("page", 0)
	if err != nil {
		t.Fatal(err)
	}
	pageFile := os.NewFile(uintptr(fd), "page")
	if err := pageFile.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	page, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer pageFile.Close()
	begun, done := (*uint64)(unsafe.Pointer(&page[0])), (*uint64)(unsafe.Pointer(&page[8]))
	for round := range 30 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), childEnv+"="+strconv.Itoa(round))
		cmd.ExtraFiles = []*os.File{s.File(), pageFile}
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		before := *done
		for *done < before+20 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(round) * 100 * time.Microsecond)
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("it ended by itself")
		}
		found := make(map[uint64]uint64)
		s.Handles(func(h Handle) {
			if h.Node != h.Unique+1000 {
				t.Fatalf("found %+v", h)
			}
			found[h.Unique] = h.FH
		})
		last := *done
		for op := uint64(1); op <= last; op += 2 {
			closed := op+7 <= last && op+7 > 8
			if _, ok := found[op]; ok == closed && op+7 != *begun {
				t.Fatalf("round %d: after operation %d (begun %d) the handle of %d: open %v", round, last, *begun, op, ok)
			}
			delete(found, op)
		}
		delete(found, *begun)
		if len(found) != 0 {
			t.Fatalf("handles nobody opened: %v", found)
		}
		// As the next process would: what was under way is done again.
		if *begun != *done && *begun%2 == 1 {
			if fh, _, ok := s.HandleOf(*begun); ok {
				s.FreeHandle(fh)
			}
		}
	}
}
