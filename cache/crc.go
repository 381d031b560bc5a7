package cache

import (
	"hash/crc32"
	"math/bits"

	"github.com/minio/crc64nvme"

	"github.com/leatfs/leatfs/objstore"
)

// field is the arithmetic of one CRC: polynomials over GF(2) modulo the CRC's own,
// reflected, so that the highest bit of the width is the coefficient of x^0.
type field struct {
	poly uint64
	one  uint64 // x^0
}

// The fields of the three checksums that combine.
func fieldOf(a objstore.ChecksumAlgorithm) field {
	switch a {
	case objstore.CRC64NVME:
		return field{0x9a6c9329ac4bc9b5, 1 << 63}
	case objstore.CRC32C:
		return field{crc32.Castagnoli, 1 << 31}
	case objstore.CRC32:
		return field{crc32.IEEE, 1 << 31}
	}
	panic("cache: checksum " + a.String() + " does not combine")
}

// mul returns a·b.
func (f field) mul(a, b uint64) uint64 {
	var p uint64
	for m := f.one; a != 0; m >>= 1 {
		if a&m != 0 {
			p ^= b
			a &^= m
		}
		if b&1 != 0 {
			b = b>>1 ^ f.poly
		} else {
			b >>= 1
		}
	}
	return p
}

// pow returns x^(8n): multiplying a CRC by it is appending n zero bytes to what it covers.
func (f field) pow(n int64) uint64 {
	p, sq := f.one, f.one>>8 // x^0, x^8
	for i, k := 0, bits.Len64(uint64(n)); i < k; i++ {
		if n>>i&1 != 0 {
			p = f.mul(p, sq)
		}
		sq = f.mul(sq, sq)
	}
	return p
}

// combiner computes the CRC of a whole from those of its blocks, in order.
type combiner struct {
	f     field
	block uint64 // pow(BlockSize)
	sum   uint64
}

func newCombiner(a objstore.ChecksumAlgorithm) *combiner {
	f := fieldOf(a)
	return &combiner{f: f, block: f.pow(BlockSize)}
}

// add appends n bytes with the given CRC.
func (c *combiner) add(sum uint64, n int64) {
	shift := c.block
	if n != BlockSize {
		shift = c.f.pow(n)
	}
	c.sum = c.f.mul(shift, c.sum) ^ sum
}

// tableOf returns the table of a 32-bit checksum; crc32 makes each only once.
func tableOf(a objstore.ChecksumAlgorithm) *crc32.Table {
	if a == objstore.CRC32C {
		return crc32.MakeTable(crc32.Castagnoli)
	}
	return crc32.IEEETable
}

// sumOf computes the checksum of data.
func sumOf(a objstore.ChecksumAlgorithm, data []byte) uint64 {
	if a == objstore.CRC64NVME {
		return crc64nvme.Checksum(data)
	}
	return uint64(crc32.Checksum(data, tableOf(a)))
}

// is32 tells whether a is one of the 32-bit checksums, which blocks carry beside their CRC64.
func is32(a objstore.ChecksumAlgorithm) bool { return a == objstore.CRC32C || a == objstore.CRC32 }
