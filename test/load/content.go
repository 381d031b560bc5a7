package load

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
)

// Every byte of a file is a function of the file's key and the byte's offset: a window into a
// fixed block of noise that is read round and round. The block's length is prime, so that bytes
// that come from another page of the same file, or from the same page of another, are never right.
const noiseLen = 1048583

// noise is made once for a process, twice as long as it needs to be, so that a window of noiseLen
// is a slice.
var noise = sync.OnceValue(func() []byte {
	b := make([]byte, noiseLen)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(b) // never fails
	return append(b, b...)
})

// start is where in the noise a file begins.
func start(key string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // never fails
	return int64(h.Sum64() % noiseLen)
}

// Content returns the bytes of a file of the given size.
func Content(key string, size int64) []byte {
	b := make([]byte, 0, size)
	for at := start(key); int64(len(b)) < size; at = (at + noiseLen) % noiseLen {
		b = append(b, noise()[at:at+min(noiseLen, size-int64(len(b)))]...)
	}
	return b
}

// Check compares what was read at an offset with what is there; nil when it is that.
func Check(key string, off int64, got []byte) error {
	base := start(key)
	for done := int64(0); done < int64(len(got)); {
		at := (base + off + done) % noiseLen
		n := min(noiseLen, int64(len(got))-done)
		want := noise()[at : at+n]
		if piece := got[done : done+n]; !bytes.Equal(piece, want) {
			for i := range piece {
				if piece[i] != want[i] {
					return &WrongBytes{Key: key, Offset: off + done + int64(i), Zero: allZero(piece[i:])}
				}
			}
		}
		done += n
	}
	return nil
}

func allZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

// WrongBytes: a read returned what is not in the file.
type WrongBytes struct {
	Key    string
	Offset int64 // of the first wrong byte
	Zero   bool  // from there on everything is zero
}

func (e *WrongBytes) Error() string {
	how := "WRONG BYTES"
	if e.Zero {
		how += " (zeros)"
	}
	return fmt.Sprintf("%s: %s from offset %d", e.Key, how, e.Offset)
}
