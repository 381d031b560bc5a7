package cache

import "github.com/leatfs/leatfs/objstore"

// Join computes the CRC64NVME of a whole from those of its pieces, added in order. It is
// quick for pieces of BlockSize. The zero Join is the CRC of nothing. Not for parallel use.
type Join struct{ c *combiner }

// Add appends a piece of n bytes whose CRC64NVME is sum.
func (j *Join) Add(sum uint64, n int64) {
	if j.c == nil {
		j.c = newCombiner(objstore.CRC64NVME)
	}
	j.c.add(sum, n)
}

// Sum is the CRC64NVME of what was added so far.
func (j *Join) Sum() uint64 {
	if j.c == nil {
		return 0
	}
	return j.c.sum
}
