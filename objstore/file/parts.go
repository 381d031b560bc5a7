package file

import (
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
)

// partsReader reads the parts of an upload one after the other and holds each against its
// checksum.
type partsReader struct {
	dir   int // the upload's directory
	key   string
	parts []objstore.Part // still to be read
	f     *os.File        // the first of parts, open; nil before
	crc   hash.Hash64
}

func (r *partsReader) Read(p []byte) (int, error) {
	for len(r.parts) > 0 {
		part := r.parts[0]
		if r.f == nil {
			fd, err := unix.Openat(r.dir, partName(part.Number, part.Checksum.Value), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
			if err != nil {
				return 0, err
			}
			r.f, r.crc = os.NewFile(uintptr(fd), "part"), crc64nvme.New()
		}
		n, err := r.f.Read(p)
		r.crc.Write(p[:n])
		if n > 0 {
			return n, nil
		}
		if err != io.EOF {
			return 0, err
		}
		if r.crc.Sum64() != part.Checksum.Value {
			return 0, &objstore.Error{Op: opComplete, Key: r.key, Kind: objstore.Corrupt,
				Err: fmt.Errorf("part %d is not what was uploaded", part.Number)}
		}
		r.close()
		r.parts = r.parts[1:]
	}
	return 0, io.EOF
}

func (r *partsReader) close() {
	if r.f != nil {
		r.f.Close()
		r.f = nil
	}
}
