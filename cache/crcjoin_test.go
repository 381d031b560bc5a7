package cache

import (
	"testing"

	"github.com/leatfs/leatfs/objstore"
)

func TestJoin(t *testing.T) {
	var j Join
	if j.Sum() != sumOf(objstore.CRC64NVME, nil) {
		t.Errorf("of nothing: %x", j.Sum())
	}
	data := make([]byte, 2*BlockSize+3)
	for i := range data {
		data[i] = byte(i * i >> 7)
	}
	for _, n := range []int{BlockSize, 0, 1, BlockSize, 2} {
		j.Add(sumOf(objstore.CRC64NVME, data[:n]), int64(n))
		data = append(data[n:], data[:n]...)
	}
	if got, want := j.Sum(), sumOf(objstore.CRC64NVME, data); got != want {
		t.Errorf("joined %x, want %x", got, want)
	}
}
