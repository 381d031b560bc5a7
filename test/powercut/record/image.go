package record

import (
	"fmt"
	"sort"
	"sync"
)

// Image is a disk after a cut. It reads from the log, and keeps in memory what is written to it, so
// that making one costs as much as there were unflushed writes and no more. All methods may be
// called in parallel.
type Image struct {
	log     *Log
	durable int               // events before it are on the disk
	chosen  map[int64]version // units that hold something later

	mu      sync.RWMutex
	written map[int64][]byte // units written since; nil: zeros
}

// At is the disk after a cut of the power that came after the first n events: all that was written
// before the last flush among them, and what choose says of the rest.
func (l *Log) At(n int, choose Choose) (*Image, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if n < 0 || n > len(l.events) {
		return nil, fmt.Errorf("a cut after %d events: there are %d", n, len(l.events))
	}
	im := &Image{log: l, chosen: map[int64]version{}, written: map[int64][]byte{}}
	if i := sort.SearchInts(l.flushes, n); i > 0 {
		im.durable = l.flushes[i-1]
	}
	var pending []Pending
	for i := im.durable; i < n; i++ {
		if e := l.events[i]; e.Kind == Write || e.Kind == Zero {
			pending = append(pending, Pending{Event: i, N: len(pending), Units: int(e.Len / l.unit)})
		}
	}
	for _, p := range pending {
		p.Of = len(pending)
		first := l.events[p.Event].Off / l.unit
		for i := range p.Units {
			unit := first + int64(i)
			if choose(p, i) {
				// Not the latest before n: of a unit written twice the second may be lost.
				im.chosen[unit] = version{event: p.Event, at: l.find(unit, p.Event+1)}
			}
		}
	}
	return im, nil
}

// Cut is the disk after a cut.
func (l *Log) Cut(c Cut) (*Image, error) {
	choose, err := c.Choose()
	if err != nil {
		return nil, err
	}
	return l.At(c.At, choose)
}

// Size is the disk's size in bytes.
func (im *Image) Size() int64 { return im.log.size }

// Read reads the image. off and the length are multiples of the unit, as in Write and Zero.
func (im *Image) Read(p []byte, off int64) error {
	im.log.mu.RLock()
	err := im.log.read(p, off, im.durable, func(unit int64) (version, bool) {
		v, ok := im.chosen[unit]
		return v, ok
	})
	im.log.mu.RUnlock()
	if err != nil {
		return err
	}
	im.mu.RLock()
	defer im.mu.RUnlock()
	if len(im.written) == 0 {
		return nil
	}
	u := im.log.unit
	for i := int64(0); i < int64(len(p)); i += u {
		if b, ok := im.written[(off+i)/u]; ok {
			clear(p[i : i+u])
			copy(p[i:i+u], b)
		}
	}
	return nil
}

// Write changes the image, and nothing else.
func (im *Image) Write(p []byte, off int64) error {
	if err := im.check(off, int64(len(p))); err != nil {
		return err
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	u := im.log.unit
	for i := int64(0); i < int64(len(p)); i += u {
		unit := (off + i) / u
		b := im.written[unit]
		if b == nil {
			b = make([]byte, u)
			im.written[unit] = b
		}
		copy(b, p[i:i+u])
	}
	return nil
}

// Zero sets bytes of the image to zero.
func (im *Image) Zero(off, n int64) error {
	if err := im.check(off, n); err != nil {
		return err
	}
	im.log.mu.RLock()
	defer im.log.mu.RUnlock()
	im.mu.Lock()
	defer im.mu.Unlock()
	for unit := off / im.log.unit; unit < (off+n)/im.log.unit; unit++ {
		_, chosen := im.chosen[unit]
		_, written := im.written[unit]
		if chosen || written || im.log.find(unit, im.durable) >= 0 {
			im.written[unit] = nil
		}
	}
	return nil
}

// Flush does nothing: an image has no cuts of its own.
func (im *Image) Flush() {}

func (im *Image) check(off, n int64) error {
	if off < 0 || n < 0 || off%im.log.unit != 0 || n%im.log.unit != 0 || off+n > im.log.size {
		return fmt.Errorf("%d bytes at %d do not fit a disk of %d in units of %d", n, off, im.log.size, im.log.unit)
	}
	return nil
}
