package s3

import (
	"encoding/base64"
	"encoding/binary"
	"io"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/minio/crc64nvme"

	"github.com/leatfs/leatfs/objstore"
)

// sums are the checksum headers of an answer or the fields of a request.
type sums struct {
	crc64, crc32c, crc32 *string
}

// decode returns the strongest full-object checksum. One of type COMPOSITE, or marked as
// such by a number of parts ("-3"), says nothing of the whole.
func (s sums) decode(typ types.ChecksumType) objstore.Checksum {
	if typ == types.ChecksumTypeComposite {
		return objstore.Checksum{}
	}
	if v, ok := decodeSum(s.crc64, 8); ok {
		return objstore.Checksum{Algorithm: objstore.CRC64NVME, Value: v}
	}
	if v, ok := decodeSum(s.crc32c, 4); ok {
		return objstore.Checksum{Algorithm: objstore.CRC32C, Value: v}
	}
	if v, ok := decodeSum(s.crc32, 4); ok {
		return objstore.Checksum{Algorithm: objstore.CRC32, Value: v}
	}
	return objstore.Checksum{}
}

func decodeSum(s *string, size int) (uint64, bool) {
	if s == nil || strings.Contains(*s, "-") {
		return 0, false
	}
	b, err := base64.StdEncoding.DecodeString(*s)
	if err != nil || len(b) != size {
		return 0, false
	}
	if size == 4 {
		return uint64(binary.BigEndian.Uint32(b)), true
	}
	return binary.BigEndian.Uint64(b), true
}

// encode puts a checksum into the field of its algorithm.
func encode(c objstore.Checksum) (s sums) {
	var b []byte
	switch c.Algorithm {
	case objstore.CRC64NVME:
		b = binary.BigEndian.AppendUint64(nil, c.Value)
	case objstore.CRC32C, objstore.CRC32:
		b = binary.BigEndian.AppendUint32(nil, uint32(c.Value))
	default:
		return s
	}
	v := base64.StdEncoding.EncodeToString(b)
	switch c.Algorithm {
	case objstore.CRC64NVME:
		s.crc64 = &v
	case objstore.CRC32C:
		s.crc32c = &v
	case objstore.CRC32:
		s.crc32 = &v
	}
	return s
}

// algorithmName is the algorithm as S3 calls it.
func algorithmName(a objstore.ChecksumAlgorithm) types.ChecksumAlgorithm {
	switch a {
	case objstore.CRC64NVME:
		return types.ChecksumAlgorithmCrc64nvme
	case objstore.CRC32C:
		return types.ChecksumAlgorithmCrc32c
	case objstore.CRC32:
		return types.ChecksumAlgorithmCrc32
	}
	return ""
}

// sumSource computes the CRC64NVME of a source by reading it once.
func sumSource(src objstore.Source) (objstore.Checksum, error) {
	h := crc64nvme.New()
	buf := make([]byte, int(min(max(src.Size(), 1), 256<<10)))
	n, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{io.NewSectionReader(src, 0, src.Size())}, buf)
	if err == nil && n != src.Size() {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return objstore.Checksum{}, err
	}
	return objstore.Checksum{Algorithm: objstore.CRC64NVME, Value: h.Sum64()}, nil
}
