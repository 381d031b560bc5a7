package meta

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/fb"
	"github.com/dgraph-io/badger/v4/pb"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// Badger trusts its files: a truncated or garbled table ends the process, from a goroutine
// that nobody can recover. So they are looked at before it opens them.

// formatVersion is stored in badger's manifest, where it also keeps other programs and
// older versions of this one from opening the index.
const formatVersion = 1

// badgerVersion is the version of badger's own files that this program's badger writes.
const badgerVersion = 8

const manifestFile = "MANIFEST"

// checkFormat returns ErrNewer for a database of a newer format. dir may be missing.
func checkFormat(dir string) error {
	f, err := os.Open(filepath.Join(dir, manifestFile))
	if err != nil {
		return nil // missing: see verify
	}
	defer f.Close()
	var b [8]byte
	if n, _ := f.ReadAt(b[:], 0); n < len(b) || string(b[:4]) != "Bdgr" {
		return nil
	}
	if v := y.BytesToU16(b[4:6]); v > formatVersion && v < 256 {
		return fmt.Errorf("%w (version %d, this program knows %d)", ErrNewer, v, formatVersion)
	}
	if v := y.BytesToU16(b[6:8]); v > badgerVersion && v < 256 {
		return fmt.Errorf("%w (database version %d, this program knows %d)", ErrNewer, v, badgerVersion)
	}
	return nil
}

// verify tells what is wrong with the database in dir; nil for one that is new. It looks at
// the manifest and at the parts of tables that opening reads; with blocks, at every byte.
// newest is the newest version of a key in the tables.
func verify(dir string, blocks bool) (newest uint64, err error) {
	if cause, err := os.ReadFile(filepath.Join(dir, damagedFile)); err == nil {
		return 0, fmt.Errorf("found damaged before: %s", strings.TrimSpace(string(cause)))
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	files := false
	for _, n := range names {
		files = files || strings.HasSuffix(n.Name(), ".sst") || strings.HasSuffix(n.Name(), ".mem")
	}
	f, err := os.Open(filepath.Join(dir, manifestFile))
	if errors.Is(err, os.ErrNotExist) && !files {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	m, _, err := badger.ReplayManifestFile(f, formatVersion, badger.Options{})
	if err != nil {
		return 0, fmt.Errorf("manifest: %w", err)
	}
	for id := range m.Tables {
		v, err := verifyTable(table.NewFilename(id, dir), blocks)
		if err != nil {
			return 0, fmt.Errorf("table %d: %w", id, err)
		}
		newest = max(newest, v)
	}
	return newest, nil
}

// passing tells whether err is about this process or the system, not about the files.
func passing(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EACCES, unix.EPERM, unix.EINTR, unix.ENOSPC, unix.EDQUOT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// verifyTable checks the index and the last block of a table, or all blocks. It reads the
// file in the ordinary way, not mapped: badger may truncate it meanwhile. newest is the newest
// version of a key in it.
func verifyTable(path string, blocks bool) (newest uint64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if fi.Size() > 1<<31 {
		return 0, fmt.Errorf("size %d", fi.Size())
	}
	defer func() {
		// The index is read by code that trusts it once its checksum is right.
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	// From the end: length of the checksum, checksum, length of the index, index.
	at, piece, err := pieceBefore(f, fi.Size())
	if err != nil {
		return 0, err
	}
	sum := new(pb.Checksum)
	if err := proto.Unmarshal(piece, sum); err != nil {
		return 0, err
	}
	end, index, err := pieceBefore(f, at)
	if err != nil {
		return 0, err
	}
	if err := y.VerifyChecksum(index, sum); err != nil {
		return 0, fmt.Errorf("index: %w", err)
	}
	ti := fb.GetRootAsTableIndex(index, 0)
	n := ti.OffsetsLength()
	if n == 0 {
		return 0, errors.New("no blocks")
	}
	first := n - 1
	if blocks {
		first = 0
	}
	buf := make([]byte, 1<<20)
	var have []byte // of the file, from haveAt on
	var haveAt int64
	for i := first; i < n; i++ {
		var bo fb.BlockOffset
		if !ti.Offsets(&bo, i) || int64(bo.Offset())+int64(bo.Len()) > end {
			return 0, fmt.Errorf("block %d: misplaced", i)
		}
		off, size := int64(bo.Offset()), int64(bo.Len())
		if size > int64(len(buf)) {
			buf = make([]byte, size)
		}
		if off < haveAt || off+size > haveAt+int64(len(have)) {
			have, haveAt = buf[:min(int64(len(buf)), end-off)], off
			if _, err := f.ReadAt(have, off); err != nil {
				return 0, err
			}
		}
		if err := verifyBlock(have[off-haveAt:][:size]); err != nil {
			return 0, fmt.Errorf("block %d: %w", i, err)
		}
	}
	return ti.MaxVersion(), nil
}

func verifyBlock(b []byte) error {
	b, piece, err := cut(b)
	if err != nil {
		return err
	}
	sum := new(pb.Checksum)
	if err := proto.Unmarshal(piece, sum); err != nil {
		return err
	}
	return y.VerifyChecksum(b, sum)
}

// pieceBefore reads a piece and its length from the end of a file's first size bytes, and
// returns where it began.
func pieceBefore(f *os.File, size int64) (at int64, piece []byte, err error) {
	var b [4]byte
	if size < 4 {
		return 0, nil, errMalformed
	}
	if _, err := f.ReadAt(b[:], size-4); err != nil {
		return 0, nil, err
	}
	n := int64(y.BytesToU32(b[:]))
	if at = size - 4 - n; at < 0 {
		return 0, nil, errMalformed
	}
	piece = make([]byte, n)
	_, err = f.ReadAt(piece, at)
	return at, piece, err
}

// cut takes a length-suffixed piece off the end.
func cut(b []byte) (rest, piece []byte, err error) {
	if len(b) < 4 {
		return nil, nil, errMalformed
	}
	n := uint64(y.BytesToU32(b[len(b)-4:]))
	b = b[:len(b)-4]
	if n > uint64(len(b)) {
		return nil, nil, errMalformed
	}
	at := len(b) - int(n)
	return b[:at], b[at:], nil
}
