package meta

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
)

// Every value begins with a version byte. A version that this program does not know is
// ErrNewer; anything else that cannot be decoded is errMalformed. Decoders read any bytes
// without panic and accept no trailing ones.
const codecVersion = 1

var errMalformed = errors.New("malformed record")

// decoder takes a value apart. After the first error all reads return zero values.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail() {
	if d.err == nil {
		d.err = errMalformed
	}
	d.b = nil
}

func (d *decoder) version() { d.versionTo(codecVersion) }

// versionTo reads a version from 1 to most.
func (d *decoder) versionTo(most byte) byte {
	v := d.byte()
	switch {
	case d.err != nil:
	case v > most:
		d.err = fmt.Errorf("%w: record version %d, this program knows %d", ErrNewer, v, most)
		d.b = nil
	case v == 0:
		d.fail()
	}
	return v
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail()
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// uintMax reads a number of at most most.
func (d *decoder) uintMax(most uint64) uint64 {
	v := d.uint()
	if v > most {
		d.fail()
		return 0
	}
	return v
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// bytes returns n bytes of the value itself, nil on error.
func (d *decoder) bytes(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.fail()
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) uint64() uint64 {
	if b := d.bytes(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) string() string {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.fail()
		return ""
	}
	return string(d.bytes(int(n)))
}

// rest returns what is left as a string.
func (d *decoder) rest() string {
	s := string(d.b)
	d.b = nil
	return s
}

// done returns the error, also when bytes are left over.
func (d *decoder) done() error {
	if d.err == nil && len(d.b) != 0 {
		d.err = errMalformed
	}
	return d.err
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// How an ETag is written. S3's are 32 hex digits, with "-N" after a multipart upload.
const (
	etagNone  = iota
	etagRaw   // length, bytes
	etagHex   // 16 bytes
	etagParts // 16 bytes, N
)

// maxETagParts bounds N, so that it fits any int; S3's own limit is 10,000.
const maxETagParts = 1<<31 - 1

// etagForm tells how s is written; sum and parts are set for the packed forms. Only what
// unpacks to exactly s is packed.
func etagForm(s string) (form uint64, sum [16]byte, parts uint64) {
	if s == "" {
		return etagNone, sum, 0
	}
	if len(s) < 32 {
		return etagRaw, sum, 0
	}
	for i := range 16 {
		hi, lo := nibble(s[2*i]), nibble(s[2*i+1])
		if hi > 15 || lo > 15 {
			return etagRaw, sum, 0
		}
		sum[i] = hi<<4 | lo
	}
	if len(s) == 32 {
		return etagHex, sum, 0
	}
	tail := s[33:]
	if s[32] != '-' || tail == "" || len(tail) > 10 || tail[0] == '0' {
		return etagRaw, sum, 0
	}
	for _, c := range []byte(tail) {
		if c < '0' || c > '9' {
			return etagRaw, sum, 0
		}
		parts = parts*10 + uint64(c-'0')
	}
	if parts > maxETagParts {
		return etagRaw, sum, 0
	}
	return etagParts, sum, parts
}

// nibble is the value of a lower-case hex digit, or 255.
func nibble(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	}
	return 255
}

func appendETag(b []byte, form uint64, s string, sum *[16]byte, parts uint64) []byte {
	switch form {
	case etagRaw:
		return appendString(b, s)
	case etagHex:
		return append(b, sum[:]...)
	case etagParts:
		return binary.AppendUvarint(append(b, sum[:]...), parts)
	}
	return b
}

func (d *decoder) etag(form uint64) string {
	switch form {
	case etagRaw:
		return d.string()
	case etagHex, etagParts:
		sum := d.bytes(16)
		if sum == nil {
			return ""
		}
		var s [44]byte
		out := hex.AppendEncode(s[:0], sum)
		if form == etagParts {
			out = append(out, '-')
			out = strconv.AppendUint(out, d.uintMax(maxETagParts), 10)
		}
		return string(out)
	}
	return ""
}
