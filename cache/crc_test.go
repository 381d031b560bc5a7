package cache

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/leatfs/leatfs/objstore"
)

func TestCombineEqualsDirect(t *testing.T) {
	for _, a := range []objstore.ChecksumAlgorithm{objstore.CRC64NVME, objstore.CRC32C, objstore.CRC32} {
		t.Run(a.String(), rapid.MakeCheck(func(t *rapid.T) {
			data := rapid.SliceOfN(rapid.Byte(), 0, 5000).Draw(t, "data")
			c := newCombiner(a)
			for rest := data; len(rest) > 0; {
				n := rapid.IntRange(1, len(rest)).Draw(t, "n")
				c.add(sumOf(a, rest[:n]), int64(n))
				rest = rest[n:]
			}
			if got, want := c.sum, sumOf(a, data); got != want {
				t.Fatalf("combined %x, want %x", got, want)
			}
		}))
	}
}

func TestCombineBlocks(t *testing.T) {
	data := make([]byte, 5*BlockSize+777)
	for i := range data {
		data[i] = byte(i * i >> 7)
	}
	for _, a := range []objstore.ChecksumAlgorithm{objstore.CRC64NVME, objstore.CRC32C, objstore.CRC32} {
		c := newCombiner(a)
		for off := 0; off < len(data); off += BlockSize {
			b := data[off:min(off+BlockSize, len(data))]
			c.add(sumOf(a, b), int64(len(b)))
		}
		if got, want := c.sum, sumOf(a, data); got != want {
			t.Errorf("%v: combined %x, want %x", a, got, want)
		}
	}
}
