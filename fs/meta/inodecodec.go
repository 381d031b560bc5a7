package meta

import (
	"encoding/binary"
	"fmt"

	"github.com/leatfs/leatfs/cache"
)

// The body of an inode is stored once: under the dentry of its primary name, so that a
// lookup is one read and a directory is read in one sweep; or, for an inode without a name
// (the root of an origin, a removed one) and for one that has or had several, under the inode's
// own key. Else the inode's own key holds only the place: parent and name. The dentries of an inode that has
// or had several names are references: version, 0, ino.
//
// Body: version, kind, ino, mask, then the fields that the mask names, in its order.
const (
	maskFlags = 1 << iota
	maskGen
	maskMode // mode, uid, gid
	maskChecked
	maskSize
	maskETag // two bits: etagRaw and so on
	_
	maskVersionID
	maskMTimeSec // seconds
	maskMTime    // nanoseconds
	maskKey
	maskFile
	maskTarget
	maskPrefix
	maskAll1      = 1<<iota - 1 // all that version 1 had
	maskLinks     = 1 << (iota - 1)
	maskRdev      = 1 << (iota - 1)
	maskMTimeHere = 1 << (iota - 1)
	maskCTime     = 1 << (iota - 1)
	maskATime     = 1 << (iota - 1)
	maskStage     = 1 << (iota - 1)
	maskAll       = 1<<(iota-1) - 1

	etagShift = 5
)

// bodyVersion is the version of bodies, and of what holds references to them. Version 1 had
// no fields after Prefix, and no flag Owned: a Mode that was not 0 said so.
const bodyVersion = 2

const maxGen = 1<<24 - 1

// appendBody encodes all of in but Parent and Name.
func appendBody(b []byte, in *Inode) []byte {
	var mask uint64
	set := func(on bool, bit uint64) {
		if on {
			mask |= bit
		}
	}
	o := &in.Object
	set(in.Flags != 0, maskFlags)
	set(in.Gen != 0, maskGen)
	set(in.Mode != 0 || in.UID != 0 || in.GID != 0, maskMode)
	set(in.Checked != 0, maskChecked)
	set(o.Size != 0, maskSize)
	form, sum, parts := etagForm(o.ETag)
	mask |= form << etagShift
	set(o.VersionID != "", maskVersionID)
	const second = 1e9
	if o.MTime != 0 {
		if o.MTime%second == 0 {
			mask |= maskMTimeSec
		} else {
			mask |= maskMTime
		}
	}
	set(o.Key != "", maskKey)
	set(o.File != 0, maskFile)
	set(in.Target != "", maskTarget)
	set(in.Prefix != "", maskPrefix)
	set(in.Links != 0, maskLinks)
	set(in.Rdev != 0, maskRdev)
	set(in.MTime != 0, maskMTimeHere)
	set(in.CTime != 0, maskCTime)
	set(in.ATime != 0, maskATime)
	set(in.Stage != 0, maskStage)

	b = append(b, bodyVersion, byte(in.Kind))
	b = binary.AppendUvarint(b, uint64(in.Ino))
	b = binary.AppendUvarint(b, mask)
	if mask&maskFlags != 0 {
		b = binary.AppendUvarint(b, uint64(in.Flags))
	}
	if mask&maskGen != 0 {
		b = binary.AppendUvarint(b, uint64(in.Gen))
	}
	if mask&maskMode != 0 {
		b = binary.AppendUvarint(b, uint64(in.Mode))
		b = binary.AppendUvarint(b, uint64(in.UID))
		b = binary.AppendUvarint(b, uint64(in.GID))
	}
	if mask&maskChecked != 0 {
		b = binary.AppendVarint(b, in.Checked)
	}
	if mask&maskSize != 0 {
		b = binary.AppendVarint(b, o.Size)
	}
	b = appendETag(b, form, o.ETag, &sum, parts)
	if mask&maskVersionID != 0 {
		b = appendString(b, o.VersionID)
	}
	if mask&maskMTimeSec != 0 {
		b = binary.AppendVarint(b, o.MTime/second)
	}
	if mask&maskMTime != 0 {
		b = binary.AppendVarint(b, o.MTime)
	}
	if mask&maskKey != 0 {
		b = appendString(b, o.Key)
	}
	if mask&maskFile != 0 {
		b = binary.AppendUvarint(b, uint64(o.File))
	}
	if mask&maskTarget != 0 {
		b = appendString(b, in.Target)
	}
	if mask&maskPrefix != 0 {
		b = appendString(b, in.Prefix)
	}
	if mask&maskLinks != 0 {
		b = binary.AppendUvarint(b, uint64(in.Links))
	}
	if mask&maskRdev != 0 {
		b = binary.AppendUvarint(b, uint64(in.Rdev))
	}
	if mask&maskMTimeHere != 0 {
		b = binary.AppendVarint(b, in.MTime)
	}
	if mask&maskCTime != 0 {
		b = binary.AppendVarint(b, in.CTime)
	}
	if mask&maskATime != 0 {
		b = binary.AppendVarint(b, in.ATime)
	}
	if mask&maskStage != 0 {
		b = binary.AppendUvarint(b, uint64(in.Stage))
	}
	return b
}

// body decodes what appendBody wrote into in, whose Parent and Name it leaves alone.
func (d *decoder) body(in *Inode) {
	version := d.versionTo(bodyVersion)
	in.Kind = Kind(d.byte())
	d.bodyOf(version, in)
}

func (d *decoder) bodyOf(version byte, in *Inode) {
	most, all := lastKind, uint64(maskAll)
	if version == 1 {
		most, all = KindSymlink, maskAll1
	}
	in.Ino = Ino(d.uintMax(uint64(MaxIno)))
	mask := d.uint()
	if d.err == nil && (in.Kind < KindFile || in.Kind > most || in.Ino == 0 || mask > all) {
		d.fail()
	}
	if d.err != nil {
		return
	}
	o := &in.Object
	if mask&maskFlags != 0 {
		in.Flags = Flags(d.uintMax(1<<32 - 1))
	}
	if mask&maskGen != 0 {
		in.Gen = uint32(d.uintMax(maxGen))
	}
	if mask&maskMode != 0 {
		in.Mode = uint32(d.uintMax(1<<32 - 1))
		in.UID = uint32(d.uintMax(1<<32 - 1))
		in.GID = uint32(d.uintMax(1<<32 - 1))
		if version == 1 && in.Mode != 0 {
			in.Flags |= Owned
		}
	}
	if mask&maskChecked != 0 {
		in.Checked = d.int()
	}
	if mask&maskSize != 0 {
		o.Size = d.int()
	}
	o.ETag = d.etag(mask >> etagShift & 3)
	if mask&maskVersionID != 0 {
		o.VersionID = d.string()
	}
	if mask&maskMTimeSec != 0 {
		const second = 1e9
		s := d.int()
		if o.MTime = s * second; o.MTime/second != s {
			d.fail()
		}
	}
	if mask&maskMTime != 0 {
		o.MTime = d.int()
	}
	if mask&maskKey != 0 {
		o.Key = d.string()
	}
	if mask&maskFile != 0 {
		o.File = cache.ID(d.uint())
	}
	if mask&maskTarget != 0 {
		in.Target = d.string()
	}
	if mask&maskPrefix != 0 {
		in.Prefix = d.string()
	}
	if mask&maskLinks != 0 {
		in.Links = uint32(d.uintMax(1<<32 - 1))
	}
	if mask&maskRdev != 0 {
		in.Rdev = uint32(d.uintMax(1<<32 - 1))
	}
	if mask&maskMTimeHere != 0 {
		in.MTime = d.int()
	}
	if mask&maskCTime != 0 {
		in.CTime = d.int()
	}
	if mask&maskATime != 0 {
		in.ATime = d.int()
	}
	if mask&maskStage != 0 {
		in.Stage = cache.ID(d.uint())
	}
}

// encodeRef is the dentry of an inode whose body is under its own key.
func encodeRef(ino Ino) []byte {
	return binary.AppendUvarint([]byte{bodyVersion, 0}, uint64(ino))
}

// isRef tells whether what decodeDentry read was a reference: then only Ino, Parent and Name are set.
func isRef(in *Inode) bool { return in.Kind == 0 }

// decodeDentry decodes the value of a dentry, a body or a reference, into in and sets
// Parent and Name.
func decodeDentry(v []byte, parent Ino, name string, in *Inode) error {
	d := decoder{b: v}
	*in = Inode{Parent: parent, Name: name}
	version := d.versionTo(bodyVersion)
	if in.Kind = Kind(d.byte()); in.Kind != 0 {
		d.bodyOf(version, in)
	} else if in.Ino = Ino(d.uintMax(uint64(MaxIno))); in.Ino == 0 || version < 2 {
		d.fail()
	}
	if err := d.done(); err != nil {
		return fmt.Errorf("entry %q of inode %d: %w", name, parent, err)
	}
	return nil
}

// place is what the inode's own key says: where the body is, or the body.
type place struct {
	parent Ino // of the dentry with the body
	name   string
	at     *Inode // the body, when it is here
	since  int64  // when it was removed
}

const (
	placeDentry = iota
	placeHere
)

func encodePlace(parent Ino, name string) []byte {
	b := append(make([]byte, 0, 2+inoLen+1+len(name)), codecVersion, placeDentry)
	b = binary.AppendUvarint(b, uint64(parent))
	return append(b, name...)
}

// encodeHere is the inode's own value when it has no name; since is 0 for a root.
func encodeHere(in *Inode, since int64) []byte {
	b := append(make([]byte, 0, 96+len(in.Name)), codecVersion, placeHere)
	b = binary.AppendVarint(b, since)
	b = binary.AppendUvarint(b, uint64(in.Parent))
	b = appendString(b, in.Name)
	return appendBody(b, in)
}

func decodePlace(v []byte) (p place, err error) {
	d := decoder{b: v}
	d.version()
	switch tag := d.byte(); {
	case d.err != nil:
	case tag == placeDentry:
		p.parent = Ino(d.uintMax(uint64(MaxIno)))
		p.name = d.rest()
	case tag == placeHere:
		in := new(Inode)
		p.since = d.int()
		in.Parent = Ino(d.uintMax(uint64(MaxIno)))
		in.Name = d.string()
		d.body(in)
		p.at = in
	default:
		d.fail()
	}
	return p, d.done()
}

func encodeListing(l Listing) []byte {
	b := []byte{codecVersion}
	b = binary.AppendVarint(b, l.Complete)
	b = binary.AppendVarint(b, l.Entries)
	return binary.AppendVarint(b, l.Hidden)
}

func decodeListing(v []byte) (l Listing, err error) {
	d := decoder{b: v}
	d.version()
	l.Complete, l.Entries, l.Hidden = d.int(), d.int(), d.int()
	return l, d.done()
}

func encodeOrigin(root Ino) []byte {
	return binary.AppendUvarint([]byte{codecVersion}, uint64(root))
}
