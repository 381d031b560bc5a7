package record

import (
	"bytes"
	"fmt"
	"os"
	"sort"
	"sync"
)

// Kind says what an Event is.
type Kind uint8

// The kinds of event.
const (
	// Write: Len bytes at Off were written.
	Write Kind = iota + 1
	// Zero: Len bytes at Off were discarded, or set to zero.
	Zero
	// Flush: all that was answered before is on the disk for good.
	Flush
	// Mark: Text was said at this moment; nothing changed on the disk.
	Mark
)

func (k Kind) String() string {
	switch k {
	case Write:
		return "write"
	case Zero:
		return "zero"
	case Flush:
		return "flush"
	case Mark:
		return "mark"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Event is one thing that happened to the disk. Off and Len are bytes.
type Event struct {
	Kind     Kind
	Off, Len int64
	Text     string
}

// Log is all that happened to one disk, which begins as zeros. All methods may be called in
// parallel; each happens at one moment, between two others.
type Log struct {
	size int64 // of the disk, bytes
	unit int64 // what the disk writes whole or not at all, bytes

	mu      sync.RWMutex
	events  []Event
	flushes []int               // indices of the flushes in events
	units   map[int64][]version // by number, oldest first
	data    *os.File            // what was written, one write behind the other
	end     int64               // of data
	failed  error               // the first thing that went wrong, for good
}

// version is what one write left in one unit.
type version struct {
	event int
	at    int64 // in Log.data; -1: zeros
}

// NewLog begins a log for a disk of size bytes whose unit, what it writes whole or not at all, is
// 512 or 4096 bytes. What is written to the disk is kept in a file without a name in dir.
func NewLog(dir string, size, unit int64) (*Log, error) {
	if unit != 512 && unit != 4096 || size <= 0 || size%4096 != 0 {
		return nil, fmt.Errorf("a disk of %d bytes in units of %d: the size must be a multiple of 4096, the unit 512 or 4096", size, unit)
	}
	f, err := os.CreateTemp(dir, "written-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return &Log{size: size, unit: unit, units: map[int64][]version{}, data: f}, nil
}

// Size is the disk's size in bytes.
func (l *Log) Size() int64 { return l.size }

// Position is how many events there are.
func (l *Log) Position() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.events)
}

// Events returns the events from index from on.
func (l *Log) Events(from int) []Event {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return append([]Event(nil), l.events[min(max(from, 0), len(l.events)):]...)
}

// Err is what first went wrong with the recording; the log is of no use then.
func (l *Log) Err() error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.failed
}

// Bytes is how much was written in all, without zeros.
func (l *Log) Bytes() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.end
}

// Write is a write to the disk. off and the length must be multiples of the unit.
func (l *Log) Write(p []byte, off int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.check(off, int64(len(p))); err != nil {
		return err
	}
	at := int64(-1)
	if !zeros(p) {
		if _, err := l.data.WriteAt(p, l.end); err != nil {
			return l.fail(err)
		}
		at = l.end
		l.end += int64(len(p))
	}
	for n := int64(0); n < int64(len(p)); n += l.unit {
		v := version{event: len(l.events), at: -1}
		if at >= 0 && !zeros(p[n:n+l.unit]) {
			v.at = at + n
		}
		l.put((off+n)/l.unit, v)
	}
	l.events = append(l.events, Event{Kind: Write, Off: off, Len: int64(len(p))})
	return nil
}

// Zero is a discard, or a writing of zeros.
func (l *Log) Zero(off, n int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.check(off, n); err != nil {
		return err
	}
	for u := off / l.unit; u < (off+n)/l.unit; u++ {
		l.put(u, version{event: len(l.events), at: -1})
	}
	l.events = append(l.events, Event{Kind: Zero, Off: off, Len: n})
	return nil
}

// put adds a version; zeros on what has never been anything else are left out.
func (l *Log) put(unit int64, v version) {
	if vs := l.units[unit]; v.at >= 0 || len(vs) > 0 {
		l.units[unit] = append(vs, v)
	}
}

// Flush is a flush of the disk's cache.
func (l *Log) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushes = append(l.flushes, len(l.events))
	l.events = append(l.events, Event{Kind: Flush})
}

// Mark notes what is so from this moment on.
func (l *Log) Mark(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, Event{Kind: Mark, Text: text})
}

// Read reads the disk as it is now.
func (l *Log) Read(p []byte, off int64) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.read(p, off, len(l.events), nil)
}

// Close lets go of what was written.
func (l *Log) Close() error { return l.data.Close() }

// check refuses what a disk with this unit is never asked, for good: the log has a hole then.
func (l *Log) check(off, n int64) error {
	if off < 0 || n < 0 || off%l.unit != 0 || n%l.unit != 0 || off+n > l.size {
		return l.fail(fmt.Errorf("%d bytes at %d do not fit a disk of %d in units of %d", n, off, l.size, l.unit))
	}
	return nil
}

func (l *Log) fail(err error) error {
	if l.failed == nil {
		l.failed = err
	}
	return err
}

// read reads the disk as it was after the first n events; over says what a unit holds instead,
// for those that it knows. off and len(p) are multiples of the unit. Caller has mu.
func (l *Log) read(p []byte, off int64, n int, over func(unit int64) (version, bool)) error {
	if off < 0 || off%l.unit != 0 || int64(len(p))%l.unit != 0 || off+int64(len(p)) > l.size {
		return fmt.Errorf("read of %d bytes at %d of a disk of %d in units of %d", len(p), off, l.size, l.unit)
	}
	// Units that lie behind each other in the data are read together.
	run, runAt := p[:0], int64(-1)
	flush := func() error {
		if len(run) == 0 {
			return nil
		}
		if runAt < 0 {
			clear(run)
			return nil
		}
		_, err := l.data.ReadAt(run, runAt)
		return err
	}
	for i := int64(0); i < int64(len(p)); i += l.unit {
		at := l.find((off+i)/l.unit, n)
		if over != nil {
			if v, ok := over((off + i) / l.unit); ok {
				at = v.at
			}
		}
		if len(run) > 0 && (at < 0 && runAt < 0 || runAt >= 0 && at == runAt+int64(len(run))) {
			run = run[:len(run)+int(l.unit)]
			continue
		}
		if err := flush(); err != nil {
			return err
		}
		run, runAt = p[i:i+l.unit], at
	}
	return flush()
}

// find is where a unit's content after the first n events lies; -1: zeros.
func (l *Log) find(unit int64, n int) int64 {
	vs := l.units[unit]
	if i := sort.Search(len(vs), func(i int) bool { return vs[i].event >= n }); i > 0 {
		return vs[i-1].at
	}
	return -1
}

func zeros(p []byte) bool {
	var z [4096]byte
	for len(p) > len(z) {
		if !bytes.Equal(p[:len(z)], z[:]) {
			return false
		}
		p = p[len(z):]
	}
	return bytes.Equal(p, z[:len(p)])
}
