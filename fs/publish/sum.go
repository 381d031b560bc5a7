package publish

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
)

// readSize is how much of a file is read at once for its checksums.
const readSize = 8 * cache.BlockSize

// Stamp tells versions of a file apart as far as its attributes can: a store into a mapping that
// is dirty already moves none of them. Times are in nanoseconds since 1970.
type Stamp struct{ Size, MTime, CTime int64 }

// StampOf returns the stamp of an open file.
func StampOf(f *os.File) (Stamp, error) {
	c, err := f.SyscallConn()
	if err != nil {
		return Stamp{}, err
	}
	var st unix.Stat_t
	var serr error
	if err := c.Control(func(fd uintptr) { serr = unix.Fstat(int(fd), &st) }); err != nil {
		return Stamp{}, err
	}
	if serr != nil {
		return Stamp{}, &os.PathError{Op: "fstat", Path: f.Name(), Err: serr}
	}
	return Stamp{st.Size, st.Mtim.Nano(), st.Ctim.Nano()}, nil
}

// sumBlocks computes the CRC64NVME of bytes [off, off+n) of r, and of each cache.BlockSize of
// them, which it appends to blocks.
func (p *Publisher) sumBlocks(ctx context.Context, r io.ReaderAt, off, n int64, blocks []uint64) (uint64, []uint64, error) {
	return p.sumInto(ctx, r, off, n, blocks, nil)
}

// sumInto is sumBlocks; the same bytes go to h, if it is not nil.
func (p *Publisher) sumInto(ctx context.Context, r io.ReaderAt, off, n int64, blocks []uint64, h hash.Hash) (uint64, []uint64, error) {
	bp := p.bufs.Get().(*[]byte)
	defer p.bufs.Put(bp)
	var join cache.Join
	for n > 0 {
		if err := ctx.Err(); err != nil {
			return 0, blocks, err
		}
		buf := (*bp)[:min(n, readSize)]
		if m, err := r.ReadAt(buf, off); m < len(buf) {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return 0, blocks, err
		}
		if h != nil {
			_, _ = h.Write(buf) // never fails
		}
		off, n = off+int64(len(buf)), n-int64(len(buf))
		for len(buf) > 0 {
			b := buf[:min(len(buf), cache.BlockSize)]
			buf = buf[len(b):]
			sum := crc64nvme.Checksum(b)
			blocks = append(blocks, sum)
			join.Add(sum, int64(len(b)))
		}
	}
	return join.Sum(), blocks, nil
}

func crc64(sum uint64) objstore.Checksum {
	return objstore.Checksum{Algorithm: objstore.CRC64NVME, Value: sum}
}

// partsETag is the ETag that S3 gives to an object of these parts, "" where their ETags are no
// MD5s.
func partsETag(parts []objstore.Part) string {
	h := md5.New()
	for _, p := range parts {
		b, err := hex.DecodeString(p.ETag)
		if err != nil || len(b) != md5.Size {
			return ""
		}
		h.Write(b)
	}
	return fmt.Sprintf("%x-%d", h.Sum(nil), len(parts))
}

// contentETag is the ETag that S3 gives to content put at once.
func contentETag(src objstore.Source) (string, error) {
	h := md5.New()
	if _, err := io.Copy(h, io.NewSectionReader(src, 0, src.Size())); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
