package prefetch

import "time"

// The constants of the decision. Sizes are bytes.
const (
	// Block is what asks are aligned to: cache.BlockSize.
	Block = 128 << 10
	// First is the window of a stream that has just begun: two GETs of MinChunk, so that
	// a reader of a small header wastes little.
	First = 2 << 20
	// Ramp is how many bytes more are asked for with each byte that was read. With 4, a
	// reader at link speed has a full window after about three round trips.
	Ramp = 4
	// MinChunk and MaxChunk bound a single ask, where the window is large enough. At 20 ms
	// and 90 MB/s a GET of 1 MiB already uses a third of its connection's time to move data, one of
	// 8 MiB five sixths.
	MinChunk = 1 << 20
	MaxChunk = 8 << 20
	// Parallel is about how many GETs should be in flight over all streams.
	Parallel = 32

	// slack is how far behind the furthest byte a read may begin and still belong to a stream:
	// reordered READs, and readers that step back.
	slack = 4 << 20
	// earlyGap and gap are how far after it a read may begin, before and after the stream
	// began to prefetch. The first (or the read's own length, where larger: a READ of the same size may
	// have been overtaken) is small so that random reads do not look alike by chance.
	earlyGap = 256 << 10
	gap      = 2 << 20
	// evidence is how many reads must have gone further before a stream may prefetch.
	evidence = 3
	// sparse: a stream that reads less than 1/sparse of what it passes is left alone.
	sparse = 4
	// densityOver is the distance over which that is judged.
	densityOver = 16 << 20
	// ratePeriod is the least time over which a reader's speed is measured, and ahead the time that
	// the window reaches ahead at that speed.
	ratePeriod = 50 * time.Millisecond
	ahead      = time.Second
)

// Limits is what the engine allows a stream at one read.
type Limits struct {
	// Max is the largest window, bytes. 0 asks for nothing.
	Max int64
	// Streams is how many streams share the link, this one included.
	Streams int
	// Ramp replaces the constant where the handle's prefetch was not used; 0 is the constant.
	Ramp float64
}

// Stream is one place in a file at which somebody reads forward. The zero Stream has read
// nothing. Not for parallel use.
type Stream struct {
	pid    uint32
	high   int64 // the furthest byte read, exclusive
	run    int64 // bytes read in order
	reads  int   // reads that went further
	need   int64 // bytes that must be read in order before the first ask
	eager  bool  // began at offset 0
	asked  int64 // all from high to here was asked for; 0 before the first ask
	window int64 // the window at the last read, for people

	// How much of what it passed the stream read, lately.
	seen, span int64

	// The speed of the reader: bytes since mark, and the last measurement in bytes/s.
	mark  time.Duration
	moved int64
	rate  float64
	rated bool
}

// sequential tells whether the stream has shown that it reads forward.
func (s *Stream) sequential() bool {
	if s.eager {
		return true
	}
	return s.reads >= evidence && s.run >= s.need
}

// joins tells whether a read of n bytes at off continues the stream, and how far it is
// from where it was expected.
func (s *Stream) joins(off, n int64) (distance int64, ok bool) {
	d := off - s.high
	switch {
	case d < -slack:
		return 0, false
	case d < 0:
		return -d, true
	case s.asked > 0 && d <= gap, d <= max(earlyGap, n):
		return d, true
	}
	return 0, false
}

// holds tells whether off lies in what the stream has asked for ahead of its reader.
func (s *Stream) holds(off int64) bool { return off >= s.high && off < s.asked }

// Observe takes note of a read of [off, off+n) of a file of size bytes at the time now, and
// returns what to ask for. The ranges are disjoint, in order, within the file, aligned to
// Block but for the file's end, and were not asked for by this stream before.
func (s *Stream) Observe(off, n, size int64, now time.Duration, lim Limits) []Range {
	end := min(off+n, size)
	if off == 0 && s.need == 0 {
		s.eager = true // also when the READs before it overtook it
	}
	if s.reads == 0 || end > s.high {
		s.advance(off, end, now)
	}
	if !s.sequential() || s.seen*sparse < s.span {
		return nil
	}
	return s.extend(size, lim)
}

// advance moves the stream forward to end.
func (s *Stream) advance(off, end int64, now time.Duration) {
	if s.reads == 0 {
		s.high, s.mark = off, now
	}
	fresh := end - max(off, s.high)
	s.seen += fresh
	s.span += end - s.high
	if s.span > densityOver {
		s.seen /= 2
		s.span /= 2
	}
	s.run += fresh
	s.reads++
	s.high = end

	s.moved += fresh
	if dt := now - s.mark; dt >= ratePeriod {
		r := float64(s.moved) / dt.Seconds()
		if s.rated && r < s.rate {
			r = (r + s.rate) / 2
		}
		s.rate, s.rated = r, true
		s.mark, s.moved = now, 0
	}
}

// extend returns the asks that fill the window.
func (s *Stream) extend(size int64, lim Limits) (asks []Range) {
	s.window = s.wish(lim)
	from := max(s.asked, alignUp(s.high, Block))
	to := s.high + s.window
	chunk := chunkSize(s.window, lim.Streams)
	if to >= size {
		to = size
	} else {
		// Whole chunks only: many small ranges to top up the window cost a request each.
		to -= to % chunk
	}
	for from < to {
		end := min(from-from%chunk+chunk, to)
		asks = append(asks, Range{from, end - from})
		from = end
		s.asked = from
	}
	return asks
}

// wish is the window that the stream may have now.
func (s *Stream) wish(lim Limits) int64 {
	ramp := lim.Ramp
	if ramp == 0 {
		ramp = Ramp
	}
	w := First + int64(ramp*float64(s.run))
	if s.rated {
		w = min(w, max(First, int64(s.rate*ahead.Seconds())))
	}
	return min(w, lim.Max)
}

// retract takes back the asks from off on: they were refused.
func (s *Stream) retract(off int64) {
	s.asked = min(s.asked, max(off, s.high))
}

// chunkSize is the size of one ask, a power of two: 1/Parallel of the windows of all streams
// together, but at most a quarter of this window, so that its first bytes do not wait for
// its last. Small windows have larger parts, MinChunk where that is half of them or less.
func chunkSize(window int64, streams int) int64 {
	want := min(window*int64(max(streams, 1))/Parallel, MaxChunk, window/4)
	least := min(MinChunk, window/2)
	c := int64(Block)
	for c < want || c*2 <= least {
		c *= 2
	}
	return c
}

func alignUp(n, to int64) int64 { return (n + to - 1) / to * to }
