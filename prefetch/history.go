package prefetch

import "slices"

// Streams is how many streams one handle has at most. Sixteen covers the workers of a
// DataLoader that share one file descriptor.
const Streams = 16

const (
	// shortRun: a run below it says that the handle's reader fetches records, not the file.
	shortRun = 8 << 20
	// notes is how many ended runs a handle remembers, and enough how many of them there must
	// be before they count.
	notes  = 8
	enough = 3
	// forget is how many bytes used and wasted are weighed before the older ones fade.
	forget = 256 << 20
)

// History is what one open handle has seen. The zero History has seen nothing. Not for
// parallel use.
type History struct {
	streams []*Stream // the least recently used first
	runs    []int64   // of streams that their reader left, the oldest first

	used, wasted int64 // bytes prefetched for the handle, fading
}

// Place finds or makes the stream that a read of [off, off+n) by process pid belongs
// to.
// evicted, when not nil, is the stream that had to go for it. The caller then calls
// Observe of the stream.
func (h *History) Place(pid uint32, off, n int64) (s, evicted *Stream) {
	i := h.find(pid, off, n)
	if i < 0 {
		h.left(pid)
		if len(h.streams) == Streams {
			evicted = h.streams[0]
			h.streams = slices.Delete(h.streams, 0, 1)
		}
		s = &Stream{need: h.need()}
	} else {
		s = h.streams[i]
		h.streams = slices.Delete(h.streams, i, i+1)
	}
	s.pid = pid
	h.streams = append(h.streams, s)
	return s, evicted
}

// find is the index of the stream that a read at off belongs to, -1 for none: the nearest
// that it joins, of equally near ones that of the same process; else the process's own
// that has asked for the place ahead. Another process's does not count then: two readers of a
// file at different places are two streams.
func (h *History) find(pid uint32, off, n int64) int {
	best, bestDistance := -1, int64(0)
	for i, s := range h.streams {
		d, ok := s.joins(off, n)
		if !ok {
			continue
		}
		if best < 0 || d < bestDistance || d == bestDistance && s.pid == pid {
			best, bestDistance = i, d
		}
	}
	if best >= 0 {
		return best
	}
	for i, s := range h.streams {
		if s.pid == pid && s.holds(off) {
			return i
		}
	}
	return -1
}

// left notes the run of the stream that pid used last: it now reads somewhere else.
func (h *History) left(pid uint32) {
	for _, s := range slices.Backward(h.streams) {
		if s.pid != pid {
			continue
		}
		if len(h.runs) == notes {
			h.runs = slices.Delete(h.runs, 0, 1)
		}
		h.runs = append(h.runs, s.run)
		return
	}
}

// need is how far a new stream must read before it may prefetch: several times as far as the
// runs before it, where most of those were short. A reader of records of 700 KiB at random
// places makes runs of several READs; only a run much longer than its records is news.
// 0 means that the handle has shown no such habit.
func (h *History) need() int64 {
	var short, longest int64
	for _, r := range h.runs {
		if r < shortRun {
			short++
			longest = max(longest, r)
		}
	}
	if short < enough || short*4 < int64(len(h.runs))*3 {
		return 0
	}
	return min(4*longest, shortRun)
}

// account takes note of prefetched bytes that were read, and of some that never will be.
func (h *History) account(used, wasted int64) {
	h.used += used
	h.wasted += wasted
	if h.used+h.wasted > forget {
		h.used /= 2
		h.wasted /= 2
	}
}

// ramp is Ramp where the handle's prefetch was used, down to a quarter of a byte for each byte
// read where it was not.
func (h *History) ramp() float64 {
	switch sum := h.used + h.wasted; {
	case sum < First || h.wasted*4 <= sum:
		return Ramp
	case h.wasted*2 <= sum:
		return 1
	}
	return 0.25
}

// drop forgets a stream.
func (h *History) drop(s *Stream) {
	if i := slices.Index(h.streams, s); i >= 0 {
		h.streams = slices.Delete(h.streams, i, i+1)
	}
}
