package file

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
)

// An upload is a directory .leatfs-tmp/mp-ID: "upload" says what for, and each part is a
// file part-NUMBER-CRC64NVME. They are read once more when the upload is completed, and
// each must still be what its name says. Uploads outlive the process; only
// AbortMultipart and CompleteMultipart remove them.

const (
	opCreate   = "CREATE UPLOAD"
	opPart     = "PUT PART"
	opCopyPart = "COPY PART"
	opParts    = "LIST PARTS"
	opComplete = "COMPLETE UPLOAD"
	opAbort    = "ABORT UPLOAD"
)

// upload is the content of the file "upload".
type upload struct {
	Key         string            `json:"key"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	ContentType string            `json:"type,omitempty"`
}

// CreateMultipart implements objstore.Store.
func (s *Store) CreateMultipart(ctx context.Context, key string, opt objstore.PutOptions) (string, error) {
	if err := s.checkPut(ctx, opCreate, key, opt); err != nil {
		return "", err
	}
	id := rand.Text()
	b, err := json.Marshal(upload{key, opt.Metadata, opt.ContentType})
	if err != nil {
		return "", wrap(opCreate, key, err)
	}
	err = func() error {
		tmp, err := s.openTmp()
		if err != nil {
			return err
		}
		defer unix.Close(tmp)
		if err := unix.Mkdirat(tmp, "mp-"+id, 0o777); err != nil {
			return err
		}
		dir, err := s.openUpload(id)
		if err != nil {
			return err
		}
		t, err := createTmp(dir)
		if err != nil {
			return err
		}
		defer t.drop()
		if _, err := t.Write(b); err != nil {
			return err
		}
		if err := t.Sync(); err != nil {
			return err
		}
		if err := unix.Renameat(dir, t.name, dir, "upload"); err != nil {
			return err
		}
		t.name = ""
		if err := unix.Fsync(dir); err != nil {
			return err
		}
		return unix.Fsync(tmp)
	}()
	if err != nil {
		return "", wrap(opCreate, key, err)
	}
	return id, nil
}

// openUpload opens an upload's directory.
func (s *Store) openUpload(id string) (int, error) {
	if len(id) != 26 || strings.Trim(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "" {
		return -1, unix.ENOENT
	}
	return s.openDir(tmpDir+"/mp-"+id+"/", unix.O_RDONLY)
}

// readUpload says what an upload is for; it is an error if not for key.
func readUpload(dir int, key string) (upload, error) {
	var u upload
	fd, err := unix.Openat(dir, "upload", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return u, err
	}
	f := os.NewFile(uintptr(fd), "upload")
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return u, err
	}
	if err := json.Unmarshal(b, &u); err != nil || u.Key != key {
		return u, unix.ENOENT
	}
	return u, nil
}

// PutPart implements objstore.Store. The part is durable when it returns.
func (s *Store) PutPart(ctx context.Context, key, uploadID string, number int, src objstore.Source, sum objstore.Checksum) (objstore.Part, error) {
	return s.putPart(ctx, opPart, key, uploadID, number, io.NewSectionReader(src, 0, src.Size()), src.Size(), sum)
}

// CopyPart implements objstore.Store.
func (s *Store) CopyPart(ctx context.Context, key, uploadID string, number int, srcKey string, off, n int64, opt objstore.CopyOptions) (objstore.Part, error) {
	f, err := s.openObject(ctx, opCopyPart, srcKey, opt.SourceIfMatch, opt.SourceVersionID)
	if err != nil {
		return objstore.Part{}, err
	}
	b := &body{ctx: ctx, s: s, f: f.File, st: f.st, key: srcKey, off: off, left: n}
	defer b.Close()
	if off < 0 || n <= 0 || off > f.st.Size-n {
		return objstore.Part{}, &objstore.Error{Op: opCopyPart, Key: srcKey, Kind: objstore.InvalidRange,
			Err: fmt.Errorf("offset %d, length %d, size %d", off, n, f.st.Size)}
	}
	return s.putPart(ctx, opCopyPart, key, uploadID, number, b, n, objstore.Checksum{})
}

func (s *Store) putPart(ctx context.Context, op, key, id string, number int, r io.Reader, size int64, sum objstore.Checksum) (objstore.Part, error) {
	if number < 1 || number > maxParts {
		return objstore.Part{}, &objstore.Error{Op: op, Key: key, Kind: objstore.BadRequest,
			Err: fmt.Errorf("part number %d is not in 1 to %d", number, maxParts)}
	}
	if err := canceled(ctx, op, key); err != nil {
		return objstore.Part{}, err
	}
	dir, err := s.openUpload(id)
	if err != nil {
		return objstore.Part{}, wrap(op, key, err)
	}
	if _, err := readUpload(dir, key); err != nil {
		unix.Close(dir)
		return objstore.Part{}, wrap(op, key, err)
	}
	t, err := createTmp(dir)
	if err != nil {
		return objstore.Part{}, wrap(op, key, err)
	}
	defer t.drop()
	if err := t.fill(ctx, op, key, r, size, sum); err != nil {
		return objstore.Part{}, wrap(op, key, err)
	}
	if err := t.Sync(); err != nil {
		return objstore.Part{}, wrap(op, key, err)
	}
	name := partName(number, t.crc)
	// Whoever renames last wins; who lost is removed by who won, or stands beside and
	// is told apart by its ETag.
	if err := unix.Renameat(dir, t.name, dir, name); err != nil {
		return objstore.Part{}, wrap(op, key, err)
	}
	t.name = ""
	files, err := partFiles(dir)
	if err != nil {
		return objstore.Part{}, wrap(op, key, err)
	}
	for _, f := range files {
		if f.number == number && f.name != name {
			_ = unix.Unlinkat(dir, f.name, 0)
		}
	}
	if err := unix.Fsync(dir); err != nil {
		return objstore.Part{}, wrap(op, key, err)
	}
	return partFile{name, number, t.crc}.part(size), nil
}

// partFile is a part on disk.
type partFile struct {
	name   string
	number int
	crc    uint64
}

func partName(number int, crc uint64) string { return fmt.Sprintf("part-%05d-%016x", number, crc) }

func (p partFile) part(size int64) objstore.Part {
	return objstore.Part{Number: p.number, Size: size, ETag: fmt.Sprintf("%016x-%x", p.crc, size),
		Checksum: objstore.Checksum{Algorithm: objstore.CRC64NVME, Value: p.crc}}
}

// partFiles lists an upload's parts, by number.
func partFiles(dir int) ([]partFile, error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	d := os.NewFile(uintptr(fd), "upload")
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var out []partFile
	for _, n := range names {
		p := partFile{name: n}
		if _, err := fmt.Sscanf(n, "part-%05d-%016x", &p.number, &p.crc); err == nil && n == partName(p.number, p.crc) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b partFile) int { return a.number - b.number })
	return out, nil
}

// ListParts implements objstore.Store.
func (s *Store) ListParts(ctx context.Context, key, uploadID string) ([]objstore.Part, error) {
	if err := canceled(ctx, opParts, key); err != nil {
		return nil, err
	}
	dir, err := s.openUpload(uploadID)
	if err != nil {
		return nil, wrap(opParts, key, err)
	}
	defer unix.Close(dir)
	if _, err := readUpload(dir, key); err != nil {
		return nil, wrap(opParts, key, err)
	}
	files, err := partFiles(dir)
	if err != nil {
		return nil, wrap(opParts, key, err)
	}
	var parts []objstore.Part
	for _, f := range files {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, f.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			continue // replaced at this moment
		}
		parts = append(parts, f.part(st.Size))
	}
	return parts, nil
}

// CompleteMultipart implements objstore.Store.
func (s *Store) CompleteMultipart(ctx context.Context, key, uploadID string, parts []objstore.Part, opt objstore.PutOptions) (objstore.Object, error) {
	if err := s.checkPut(ctx, opComplete, key, opt); err != nil {
		return objstore.Object{}, err
	}
	dir, err := s.openUpload(uploadID)
	if err != nil {
		return objstore.Object{}, wrap(opComplete, key, err)
	}
	defer unix.Close(dir)
	u, err := readUpload(dir, key)
	if err != nil {
		return objstore.Object{}, wrap(opComplete, key, err)
	}
	r := &partsReader{dir: dir, key: key}
	defer r.close()
	var size int64
	have, err := s.ListParts(ctx, key, uploadID)
	if err != nil {
		return objstore.Object{}, err
	}
	for i, p := range parts {
		j := slices.IndexFunc(have, func(h objstore.Part) bool { return h.Number == p.Number && h.ETag == p.ETag })
		if j < 0 || i > 0 && p.Number <= parts[i-1].Number {
			return objstore.Object{}, &objstore.Error{Op: opComplete, Key: key, Kind: objstore.BadRequest,
				Err: fmt.Errorf("the upload has no part %d with ETag %q at this place", p.Number, p.ETag)}
		}
		r.parts = append(r.parts, have[j])
		size += have[j].Size
	}
	if len(parts) == 0 {
		return objstore.Object{}, &objstore.Error{Op: opComplete, Key: key, Kind: objstore.BadRequest, Hint: "an upload has at least one part"}
	}
	put := objstore.PutOptions{IfNoneMatch: opt.IfNoneMatch, Checksum: opt.Checksum, Metadata: u.Metadata, ContentType: u.ContentType}
	o, err := s.store(ctx, opComplete, key, r, size, put)
	if err != nil {
		return objstore.Object{}, err
	}
	_ = s.removeUpload(dir, uploadID) // it is done; what stays takes room only
	return o, nil
}

// AbortMultipart implements objstore.Store.
func (s *Store) AbortMultipart(ctx context.Context, key, uploadID string) error {
	if err := canceled(ctx, opAbort, key); err != nil {
		return err
	}
	dir, err := s.openUpload(uploadID)
	if err != nil {
		return ignoreMissing(wrap(opAbort, key, err))
	}
	defer unix.Close(dir)
	if _, err := readUpload(dir, key); err != nil && !errors.Is(err, unix.ENOENT) {
		return wrap(opAbort, key, err)
	}
	return ignoreMissing(wrap(opAbort, key, s.removeUpload(dir, uploadID)))
}

// removeUpload removes an upload's directory; "upload" goes first, so that half an upload
// is none.
func (s *Store) removeUpload(dir int, id string) error {
	if err := unix.Unlinkat(dir, "upload", 0); err != nil && err != unix.ENOENT {
		return err
	}
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(fd), "upload")
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := unix.Unlinkat(dir, n, 0); err != nil && err != unix.ENOENT {
			return err
		}
	}
	tmp, err := s.openTmp()
	if err != nil {
		return err
	}
	defer unix.Close(tmp)
	return unix.Unlinkat(tmp, "mp-"+id, unix.AT_REMOVEDIR)
}
