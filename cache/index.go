package cache

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"github.com/leatfs/leatfs/objstore"
)

// BlockSize is the unit of residency, of checksums and of memory: 128 KiB. It is the
// kernel's default readahead and the smallest request at which a 20 ms, 90 MB/s link is
// not slowed by asking for more than was wanted.
const BlockSize = 128 << 10

// ExtentBlocks is how many blocks one Extent covers: 128 MiB of object.
const ExtentBlocks = 1024

// ID names an object file on disk, for ever: it is never given out twice in one cache.
// The zero ID names nothing.
type ID uint64

// Identity is what the bytes of an object file are: one version of one object of one
// origin. It is written into the file's extended attributes, so that a lost index can be
// rebuilt from the files.
type Identity struct {
	Origin    string // Store.String()
	Key       string
	ETag      string
	VersionID string // "" where the bucket keeps none, or it is not known
	Size      int64  // bytes
	Inode     uint64 // the inode number it was shown as; not part of Hash
}

// Hash is the identity's key in the index. Two versions with equal origin, key, ETag and
// size are the same bytes, whatever their VersionID or inode.
func (i Identity) Hash() (h [16]byte) {
	d := sha256.New()
	for _, s := range []string{i.Origin, i.Key, i.ETag} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		d.Write(n[:])
		d.Write([]byte(s))
	}
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(i.Size))
	d.Write(n[:])
	copy(h[:], d.Sum(nil))
	return h
}

// State is how much of an object file can be believed.
type State uint8

// The states of an object file.
const (
	// Partial: the blocks set in its extents are resident.
	Partial State = iota
	// Proven: every block is resident and the whole equals the checksum the origin holds.
	Proven
	// Unverifiable: every block is resident and the origin has nothing to compare with.
	Unverifiable
)

// Complete tells whether every block is resident, so that the kernel may read the file.
func (s State) Complete() bool { return s != Partial }

// Record is what the index keeps of an object file.
type Record struct {
	ID       ID
	Dir      uint32 // number of the cache directory that holds the file
	Identity Identity
	State    State
	Pinned   bool
	Checksum objstore.Checksum // what the origin holds; zero when none or not known yet
	Sum      uint64            // CRC64NVME of the whole, when State.Complete
	Epoch    uint64            // sync epoch in which the file was completed (see Epochs)
}

// Extent is the residency of up to ExtentBlocks consecutive blocks, with their CRC64NVME.
// The CRC of a block that is not resident is not meaningful.
type Extent struct {
	Present [ExtentBlocks / 64]uint64
	CRC     []uint64 // len = number of blocks of the extent
}

// Usage is what eviction needs to know of an object file; kept apart from Record because it
// changes at every use. Clock is the cache's own clock: bytes admitted since it was made.
type Usage struct {
	ID       ID
	Dir      uint32
	Bytes    int64  // allocated on disk
	Admitted uint64 // clock when the file was made
	LastUse  uint64 // clock at the last use
	Hits     uint32 // uses after the one that brought it in
}

// Batch is a set of changes that the index applies atomically. For one ID, Delete wins.
type Batch struct {
	Records []Record
	Extents []ExtentKey
	Usages  []Usage
	// Delete removes record, identity, extents and usage.
	Delete []ID
	// Vars are small named values of the cache (clock, bytes per directory, epochs).
	Vars map[string][]byte
	// Needed: also where the index takes little more because its disk is full. It is
	// about what is being published, or opens the cache. Deleting is needed always.
	Needed bool
}

// ExtentKey places an Extent: it covers blocks [N*ExtentBlocks, (N+1)*ExtentBlocks).
type ExtentKey struct {
	ID     ID
	N      uint32
	Extent Extent
}

// ErrNoRecord: the index does not know the ID, extent or variable asked for.
var ErrNoRecord = errors.New("cache: no such record in the index")

// Index is where the cache keeps what it knows over restarts. fs/meta implements it on
// badger. All methods may be called in parallel. What Apply wrote survives the death of the
// process; after a power loss the newest changes may be missing (the cache is
// prepared for that), but a Batch is never half there.
type Index interface {
	// NewID returns an ID never returned before, also over crashes.
	NewID() (ID, error)
	Record(id ID) (Record, error)
	// Find returns the record of the file with this identity (by Identity.Hash).
	Find(ident Identity) (Record, error)
	// Extent returns ErrNoRecord where nothing of the extent was ever recorded.
	Extent(id ID, n uint32) (Extent, error)
	Usage(id ID) (Usage, error)
	Var(name string) ([]byte, error)
	Apply(b Batch) error
	// SampleUsage returns up to n usages starting at a random place of the index, in ID order,
	// wrapping around. pick in [0,1) is the place. Fewer than n means there are no more.
	SampleUsage(pick float64, n int) ([]Usage, error)
	// WalkRecords calls fn for each record with an ID greater than after, in order, until fn
	// returns false. fn may call the index.
	WalkRecords(after ID, fn func(Record) bool) error
}
