package meta

import (
	"encoding/binary"
	"math/bits"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
)

// encodeRecord encodes all of r but its ID, which is the key.
func encodeRecord(r *cache.Record) []byte {
	i := &r.Identity
	b := make([]byte, 0, 64+len(i.Origin)+len(i.Key))
	b = append(b, codecVersion)
	var pinned byte
	if r.Pinned {
		pinned = 1
	}
	form, sum, parts := etagForm(i.ETag)
	b = append(b, byte(r.State), pinned, byte(r.Checksum.Algorithm), byte(form))
	b = binary.AppendUvarint(b, uint64(r.Dir))
	b = binary.AppendUvarint(b, i.Inode)
	b = binary.AppendVarint(b, i.Size)
	b = appendETag(b, form, i.ETag, &sum, parts)
	b = appendString(b, i.VersionID)
	if r.Checksum.Algorithm != objstore.ChecksumNone {
		b = binary.BigEndian.AppendUint64(b, r.Checksum.Value)
	}
	if r.State.Complete() {
		b = binary.BigEndian.AppendUint64(b, r.Sum)
	}
	b = binary.AppendUvarint(b, r.Epoch)
	b = appendString(b, i.Origin)
	return append(b, i.Key...)
}

func decodeRecord(id cache.ID, v []byte) (cache.Record, error) {
	d := decoder{b: v}
	d.version()
	r := cache.Record{ID: id, State: cache.State(d.byte())}
	pinned, algorithm, form := d.byte(), d.byte(), d.byte()
	if r.State > cache.Unverifiable || pinned > 1 || algorithm > byte(objstore.CRC32) || form > etagParts {
		d.fail()
	}
	r.Pinned = pinned == 1
	r.Checksum.Algorithm = objstore.ChecksumAlgorithm(algorithm)
	i := &r.Identity
	r.Dir = uint32(d.uintMax(1<<32 - 1))
	i.Inode = d.uint()
	i.Size = d.int()
	i.ETag = d.etag(uint64(form))
	i.VersionID = d.string()
	if r.Checksum.Algorithm != objstore.ChecksumNone {
		r.Checksum.Value = d.uint64()
	}
	if r.State.Complete() {
		r.Sum = d.uint64()
	}
	r.Epoch = d.uint()
	i.Origin = d.string()
	i.Key = d.rest()
	if err := d.done(); err != nil {
		return cache.Record{}, err
	}
	return r, nil
}

// How the bitmap of an extent is written.
const (
	extentFull = iota // all blocks present
	extentBits        // the bitmap follows, as many words as the blocks need
)

// encodeExtent encodes the CRCs of the blocks that are present only.
func encodeExtent(e *cache.Extent) []byte {
	n := len(e.CRC)
	words := (n + 63) / 64
	present := 0
	for _, w := range e.Present {
		present += bits.OnesCount64(w)
	}
	b := make([]byte, 0, 4+8*(words+present))
	b = binary.AppendUvarint(append(b, codecVersion), uint64(n))
	if present == n {
		b = append(b, extentFull)
	} else {
		b = append(b, extentBits)
		for _, w := range e.Present[:words] {
			b = binary.BigEndian.AppendUint64(b, w)
		}
	}
	for i, crc := range e.CRC {
		if e.Present[i/64]>>(i%64)&1 != 0 {
			b = binary.BigEndian.AppendUint64(b, crc)
		}
	}
	return b
}

func decodeExtent(v []byte) (cache.Extent, error) {
	var e cache.Extent
	d := decoder{b: v}
	d.version()
	n := int(d.uintMax(cache.ExtentBlocks))
	switch d.byte() {
	case extentFull:
		for i := range n {
			e.Present[i/64] |= 1 << (i % 64)
		}
	case extentBits:
		for w := range (n + 63) / 64 {
			e.Present[w] = d.uint64()
		}
		if n%64 != 0 && e.Present[n/64]>>(n%64) != 0 {
			d.fail()
		}
	default:
		d.fail()
	}
	if d.err != nil {
		return cache.Extent{}, d.err
	}
	e.CRC = make([]uint64, n)
	for i := range n {
		if e.Present[i/64]>>(i%64)&1 != 0 {
			e.CRC[i] = d.uint64()
		}
	}
	if err := d.done(); err != nil {
		return cache.Extent{}, err
	}
	return e, nil
}

// validExtent tells whether e can be encoded: no block beyond len(CRC) is present.
func validExtent(e *cache.Extent) bool {
	n := len(e.CRC)
	if n > cache.ExtentBlocks {
		return false
	}
	for w := n / 64; w < len(e.Present); w++ {
		word := e.Present[w]
		if w == n/64 {
			word >>= n % 64
		}
		if word != 0 {
			return false
		}
	}
	return true
}

func encodeUsage(u *cache.Usage) []byte {
	b := append(make([]byte, 0, 32), codecVersion)
	b = binary.AppendUvarint(b, uint64(u.Dir))
	b = binary.AppendVarint(b, u.Bytes)
	b = binary.AppendUvarint(b, u.Admitted)
	b = binary.AppendUvarint(b, u.LastUse)
	return binary.AppendUvarint(b, uint64(u.Hits))
}

func decodeUsage(id cache.ID, v []byte) (cache.Usage, error) {
	d := decoder{b: v}
	d.version()
	u := cache.Usage{ID: id, Dir: uint32(d.uintMax(1<<32 - 1)), Bytes: d.int(),
		Admitted: d.uint(), LastUse: d.uint(), Hits: uint32(d.uintMax(1<<32 - 1))}
	if err := d.done(); err != nil {
		return cache.Usage{}, err
	}
	return u, nil
}
