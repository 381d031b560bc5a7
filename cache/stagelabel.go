package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"golang.org/x/sys/unix"
)

// stageXattr is where a staging file carries whose it is.
const stageXattr = "user.leatfs.stage"

// stageVersion is the first byte of the attribute.
const stageVersion = 1

// StageLabel says whose a staging file is. It stands in an extended attribute of the file, so
// that it is as durable as the file: what its fsync, or anybody's, forces to the disk.
type StageLabel struct {
	Origin      string // Store.String()
	Ino, Parent uint64
	Name        string
	Dir         string // key prefix of its directory when the label was written; for when the index is lost
	Base        string // ETag of the version at its key that it is to replace; "" if there is none
	Mode        uint32
	UID, GID    uint32
	Seq         uint64
	// Source is the version that those ranges still have that are holes in the file. The zero
	// Identity: there is none, and holes are zeros.
	Source  Identity
	Removed bool // it has no name any more
	// Token is of publications of it that may have been carried out, "" if there are none.
	Token string
	// Synced: all that the file held when its size and mtime (nanoseconds since 1970) were these was
	// forced to the disk. While it has them still, it is whole also after a power cut.
	Synced              bool
	SyncSize, SyncMTime int64
}

// The bits of the second byte.
const (
	stageRemoved   = 1 << iota
	stageSource    // there is a Source
	stageSameStore // and it is of the same origin
	stageSynced
	stageToken // there is a Token
)

// encode writes the label, with a checksum of its own at the end.
func (l *StageLabel) encode() ([]byte, error) {
	var flags byte
	if l.Removed {
		flags |= stageRemoved
	}
	if l.Source != (Identity{}) {
		flags |= stageSource
		if l.Source.Origin == l.Origin {
			flags |= stageSameStore
		}
	}
	if l.Synced {
		flags |= stageSynced
	}
	if l.Token != "" {
		flags |= stageToken
	}
	b := make([]byte, 0, 192)
	b = append(b, stageVersion, flags)
	for _, n := range []uint64{l.Ino, l.Parent, uint64(l.Mode), uint64(l.UID), uint64(l.GID), l.Seq} {
		b = binary.AppendUvarint(b, n)
	}
	text := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	for _, s := range []string{l.Origin, l.Name, l.Dir, l.Base} {
		text(s)
	}
	if flags&stageSource != 0 {
		b = binary.AppendUvarint(b, uint64(l.Source.Size))
		b = binary.AppendUvarint(b, l.Source.Inode)
		if flags&stageSameStore == 0 {
			text(l.Source.Origin)
		}
		text(l.Source.Key)
		text(l.Source.ETag)
		text(l.Source.VersionID)
	}
	if l.Synced {
		b = binary.AppendVarint(binary.AppendVarint(b, l.SyncSize), l.SyncMTime)
	}
	if l.Token != "" {
		text(l.Token)
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	if len(b) > maxLabel {
		return nil, fmt.Errorf("the label of the staging file of %q would have %d bytes, at most %d are possible: %w", l.Name, len(b), maxLabel, unix.ENAMETOOLONG)
	}
	return b, nil
}

func decodeStageLabel(b []byte) (l StageLabel, err error) {
	if len(b) < 6 || crc32.ChecksumIEEE(b[:len(b)-4]) != binary.LittleEndian.Uint32(b[len(b)-4:]) {
		return l, errLabel
	}
	if b[0] != stageVersion {
		return l, fmt.Errorf("the label has version %d, want %d; use the newer leatfs", b[0], stageVersion)
	}
	flags := b[1]
	r := labelReader{b: b[2 : len(b)-4]}
	small := func() uint32 {
		v := r.num()
		if v > 1<<32-1 {
			r.err = errLabel
		}
		return uint32(v)
	}
	l.Ino, l.Parent, l.Mode, l.UID, l.GID, l.Seq = r.num(), r.num(), small(), small(), small(), r.num()
	l.Origin, l.Name, l.Dir, l.Base = r.text(), r.text(), r.text(), r.text()
	l.Removed = flags&stageRemoved != 0
	if flags&stageSource != 0 {
		l.Source.Size, l.Source.Inode = int64(r.num()), r.num()
		l.Source.Origin = l.Origin
		if flags&stageSameStore == 0 {
			l.Source.Origin = r.text()
		}
		l.Source.Key, l.Source.ETag, l.Source.VersionID = r.text(), r.text(), r.text()
	}
	if flags&stageSynced != 0 {
		l.Synced, l.SyncSize, l.SyncMTime = true, r.signed(), r.signed()
	}
	if flags&stageToken != 0 {
		l.Token = r.text()
	}
	if r.err == nil && (len(r.b) > 0 || l.Source.Size < 0) {
		r.err = errLabel
	}
	if r.err != nil {
		return StageLabel{}, r.err
	}
	return l, nil
}

// readStageLabel reads the label of the staging file at path.
func readStageLabel(path string) (StageLabel, error) {
	buf := make([]byte, maxLabel)
	n, err := unix.Lgetxattr(path, stageXattr, buf)
	if err != nil {
		return StageLabel{}, fmt.Errorf("%s: no label: %w", path, err)
	}
	l, err := decodeStageLabel(buf[:n])
	if err != nil {
		return StageLabel{}, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

// dropXattr removes an attribute, which need not be there.
func dropXattr(path, name string) error {
	err := unix.Lremovexattr(path, name)
	if err != nil && !errors.Is(err, unix.ENODATA) {
		return fmt.Errorf("%s: removexattr %s: %w", path, name, err)
	}
	return nil
}
