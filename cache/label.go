package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
)

// xattrName is where an object file carries what it is.
const xattrName = "user.leatfs.object"

// label is what stands in the extended attribute: enough to adopt a complete file into an
// index that has lost it. Sum and Checksum are meaningful when State.Complete.
type label struct {
	Identity Identity
	State    State
	Sum      uint64
	Checksum objstore.Checksum
}

// labelVersion is the first byte of the attribute.
const labelVersion = 1

// maxLabel bounds the attribute: ext4 keeps it in one block of 4 KiB. A key has at most 1,024
// bytes.
const maxLabel = 4000

// encode writes the label, with a checksum of its own at the end.
func (l label) encode() []byte {
	b := make([]byte, 0, 128)
	b = append(b, labelVersion, byte(l.State), byte(l.Checksum.Algorithm))
	b = binary.LittleEndian.AppendUint64(b, l.Sum)
	b = binary.LittleEndian.AppendUint64(b, l.Checksum.Value)
	b = binary.AppendUvarint(b, uint64(l.Identity.Size))
	b = binary.AppendUvarint(b, l.Identity.Inode)
	for _, s := range []string{l.Identity.Origin, l.Identity.Key, l.Identity.ETag, l.Identity.VersionID} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

var errLabel = errors.New("the label is damaged")

func decodeLabel(b []byte) (l label, err error) {
	if len(b) < 23 || crc32.ChecksumIEEE(b[:len(b)-4]) != binary.LittleEndian.Uint32(b[len(b)-4:]) {
		return l, errLabel
	}
	if b[0] != labelVersion {
		return l, fmt.Errorf("the label has version %d, want %d", b[0], labelVersion)
	}
	l.State, l.Checksum.Algorithm = State(b[1]), objstore.ChecksumAlgorithm(b[2])
	l.Sum = binary.LittleEndian.Uint64(b[3:])
	l.Checksum.Value = binary.LittleEndian.Uint64(b[11:])
	r := labelReader{b: b[19 : len(b)-4]}
	l.Identity.Size = int64(r.num())
	l.Identity.Inode = r.num()
	for _, s := range []*string{&l.Identity.Origin, &l.Identity.Key, &l.Identity.ETag, &l.Identity.VersionID} {
		*s = r.text()
	}
	if r.err == nil && (l.Identity.Size < 0 || l.State > Unverifiable || l.Checksum.Algorithm > objstore.CRC32) {
		r.err = errLabel
	}
	return l, r.err
}

// labelReader takes the fields out of a label, one after the other. Once err is set, what it
// returns is not meaningful.
type labelReader struct {
	b   []byte
	err error
}

func (r *labelReader) num() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.err = errLabel
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *labelReader) signed() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.err = errLabel
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *labelReader) text() (s string) {
	n := r.num()
	if n > uint64(len(r.b)) {
		r.err = errLabel
		return ""
	}
	s, r.b = string(r.b[:n]), r.b[n:]
	return s
}

// readLabel reads the label of the file at path.
func readLabel(path string) (label, error) {
	buf := make([]byte, maxLabel)
	n, err := unix.Getxattr(path, xattrName, buf)
	if err != nil {
		return label{}, fmt.Errorf("%s: no label: %w", path, err)
	}
	l, err := decodeLabel(buf[:n])
	if err != nil {
		return label{}, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}
