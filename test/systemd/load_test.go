package systemd

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// load are readers of the mount that go on while something is done to the service. What they
// see is what an application would: no error, and the right bytes.
type load struct {
	w    *world
	root string // the mount, as the test sees it
	wg   sync.WaitGroup
	stop chan struct{} // closed by end
	ops  atomic.Int64

	mu    sync.Mutex // guards what follows
	errs  []error
	stall time.Duration // the longest step
}

// startLoad starts readers: some open and read whole files and list directories, one keeps a
// file open.
func startLoad(w *world, m *machine) *load {
	w.t.Helper()
	l := &load{w: w, root: m.path(mountpoint), stop: make(chan struct{})}
	held, err := os.Open(filepath.Join(l.root, big))
	if err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for name := range w.files {
		names = append(names, name)
	}
	slices.Sort(names)
	for i := range 3 {
		l.wg.Go(func() {
			for n := i * 5; l.step(func() error { return l.whole(names[n%len(names)]) }); n++ {
			}
		})
	}
	l.wg.Go(func() {
		for l.step(l.list) {
		}
	})
	l.wg.Go(func() {
		defer held.Close()
		want := w.files[big]
		for off := int64(0); l.step(func() error { return at(held, want, off) }); off = (off + 1<<20 + 4096) % int64(len(want)) {
		}
	})
	return l
}

// step does one thing, unless the end has come.
func (l *load) step(f func() error) bool {
	select {
	case <-l.stop:
		return false
	default:
	}
	start := time.Now()
	err := f()
	took := time.Since(start)
	l.ops.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stall = max(l.stall, took)
	if err != nil {
		// The time is as in the journal.
		l.errs = append(l.errs, fmt.Errorf("%s: %w", time.Now().UTC().Format("15:04:05.000000"), err))
	}
	return len(l.errs) < 10
}

// whole opens and reads a file.
func (l *load) whole(name string) error {
	got, err := os.ReadFile(filepath.Join(l.root, name))
	if err != nil {
		return err
	}
	if !bytes.Equal(got, l.w.files[name]) {
		return fmt.Errorf("%s: wrong bytes", name)
	}
	return nil
}

// list lists and stats a directory.
func (l *load) list() error {
	es, err := os.ReadDir(filepath.Join(l.root, "d2"))
	if err != nil {
		return err
	}
	if len(es) != len(l.w.files)/3 {
		return fmt.Errorf("d2 has %d names, want %d", len(es), len(l.w.files)/3)
	}
	for _, e := range es {
		if _, err := e.Info(); err != nil {
			return err
		}
	}
	return nil
}

// at reads a piece of an open file.
func at(f *os.File, want []byte, off int64) error {
	want = want[off:min(off+64<<10, int64(len(want)))]
	got := make([]byte, len(want))
	if _, err := f.ReadAt(got, off); err != nil && err != io.EOF {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s at %d: wrong bytes", f.Name(), off)
	}
	return nil
}

// goesOn waits until the readers have done some more.
func (l *load) goesOn(m *machine) {
	l.w.t.Helper()
	n := l.ops.Load() + 50
	m.eventually("the readers go on", func() bool { return l.ops.Load() > n })
}

// end stops the readers and reports what they saw.
func (l *load) end() {
	l.w.t.Helper()
	close(l.stop)
	done := make(chan struct{})
	go func() { l.wg.Wait(); close(done) }() // ends with the readers: at the latest when the machine is killed
	select {
	case <-done:
	case <-time.After(commandTime):
		l.w.t.Errorf("readers hang for %v", commandTime)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, err := range l.errs {
		l.w.t.Errorf("a reader saw: %v", err)
	}
	l.w.t.Logf("%d steps of readers, the longest %v", l.ops.Load(), l.stall.Round(time.Millisecond))
}
