// Package prefetch decides what to fetch before it is asked for.
//
// It has two halves. The pure half looks at reads and answers ranges, with no clock, lock or
// I/O of its own: Stream is one place in a file at which somebody reads forward, History is
// the set of such places under one open handle. Their behaviour is pinned by the traces in
// testdata. The other half, Engine, keeps a History for each handle, shares one Budget
// between all streams, calls Target.Prefetch, and counts what was used and what was wasted.
//
// # What counts as reading forward
//
// A read belongs to a stream when it begins a little before (slack) or a little after (gap)
// the furthest byte that the stream has read: the kernel's readahead sends several READs at
// once, which arrive reordered, and readers of archives step back and skip. A stream may
// prefetch after three reads that each went further, or with the first read when that is
// at offset 0. Anything else starts a new stream; a handle has at most Streams of them, the
// least recently used one goes. So random reads never prefetch: each starts a stream that
// no second read joins. Large random reads, which reach the daemon as several consecutive
// READs, are told from sequential ones by the lengths of the runs before them (see
// History.need).
//
// # How far
//
// The window is First bytes plus Ramp bytes for each byte read, no more than Rate·1 s, no more
// than the engine's limit. It is asked for in chunks on a grid, so that two readers
// of one file ask for the same ranges, of a size that keeps about Parallel GETs in flight over
// all streams: small while a window is small, so that many connections carry even the first
// windows, large when the link is full anyway.
//
// # Room for more
//
// Decisions that look beyond one handle (the next shard by stride, the samples of a directory
// not yet read this epoch) and by format (safetensors, Parquet, index files) belong in
// this package, each a pure type of its own beside History that the Engine consults, under the
// same Budget: see Advisor. Nothing here ever acts on stat or readdir alone.
package prefetch

import "github.com/leatfs/leatfs/objstore"

// Range is the bytes [Off, Off+Len) of a file.
type Range struct {
	Off, Len int64
}

// End is the offset after the last byte.
func (r Range) End() int64 { return r.Off + r.Len }

// Target is an object whose bytes can be fetched ahead. *cache.Object is one.
type Target interface {
	// Prefetch starts to fetch what is absent of [off, off+n), with priority p, and returns
	// without waiting for it. started is how many bytes it began to fetch: 0 when all are there
	// or on their way, Refused when there is no room for any now, so that the same
	// range should be asked for again at a later read. It may be called in parallel.
	Prefetch(off, n int64, p objstore.Priority) (started int64)
}

// Refused is Target.Prefetch's answer when it has no room. Any negative value means the same.
const Refused = -1

// Advisor is the place for decisions that look beyond one handle. An Advisor is told of
// what applications do with whole files and says which files, or ranges of them, will be
// wanted next, most urgent first; the engine would fetch those with the part of Budget that
// streams leave free. It is pure, like History: no I/O, no clock of its own. There is none yet.
type Advisor interface {
	// Opened and Closed are told of handles opened for reading, never of stat or readdir.
	// dir and name identify the file; read is how many of its bytes the handle read.
	Opened(dir uint64, name string, pid uint32) []Advice
	Closed(dir uint64, name string, pid uint32, read int64) []Advice
}

// Advice is a wish of an Advisor: ranges of a file, none for the whole of it.
type Advice struct {
	Dir    uint64
	Name   string
	Ranges []Range
}
