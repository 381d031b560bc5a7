package meta

import (
	"encoding/binary"

	"github.com/leatfs/leatfs/cache"
)

// Keys of the database. The first byte names the table; numbers are big-endian, so that
// byte order is number order. Inode numbers take 5 bytes (40 bits).
const (
	keyDentry  = 'd' // parent ino, name     -> inode body (see inodecodec.go)
	keyInode   = 'i' // ino                  -> where the inode's body is, or the body
	keyListing = 'l' // ino                  -> Listing
	keyOrigin  = 'o' // origin id            -> root ino
	keyRemoved = 'g' // time removed, ino    -> nothing
	keyKept    = 'k' // ino, generation      -> the inode as it was under it, see generations.go
	keyAged    = 'e' // time kept, ino, gen. -> nothing
	keyResult  = 'a' // session, unique      -> Result, see results.go
	keyRecord  = 'r' // cache id             -> cache.Record
	keyIdent   = 'h' // identity hash        -> cache id
	keyExtent  = 'x' // cache id, number     -> cache.Extent
	keyUsage   = 'u' // cache id             -> cache.Usage
	keyVar     = 'v' // name                 -> value
	keyDoomed  = 'z' // cache id             -> nothing: its extents are still to be deleted
	keyMarks   = 'm' //                      -> copy of the marks, see marks.go
	keyName    = 'n' // ino, parent, name    -> nothing: the names of an inode that had several
	keyLocal   = 'c' // ino                  -> nothing: something below the directory is or was Local
	keyTimes   = 't' // ino                  -> times of a directory
	keyDirty   = 'y' // ino                  -> Dirty
	keyTomb    = 'w' // object key           -> Tomb
	keyAbort   = 'b' // object key, 0, upload-> nothing
	keyXattr   = 'q' // ino, name            -> value
	keyParts   = 'p' // object key           -> Parts
)

const (
	inoLen  = 5
	genLen  = 3
	timeLen = 8
)

func appendIno(b []byte, ino Ino) []byte {
	return append(b, byte(ino>>32), byte(ino>>24), byte(ino>>16), byte(ino>>8), byte(ino))
}

func getIno(b []byte) Ino {
	_ = b[inoLen-1]
	return Ino(b[0])<<32 | Ino(b[1])<<24 | Ino(b[2])<<16 | Ino(b[3])<<8 | Ino(b[4])
}

func dentryKey(parent Ino, name string) []byte {
	b := make([]byte, 0, 1+inoLen+len(name))
	return append(appendIno(append(b, keyDentry), parent), name...)
}

func inoKey(table byte, ino Ino) []byte {
	return appendIno(append(make([]byte, 0, 1+inoLen), table), ino)
}

// nameOf is the key of one name of an inode; with parent 0, what all of them begin with.
func nameOf(ino, parent Ino, name string) []byte {
	b := appendIno(append(make([]byte, 0, 1+2*inoLen+len(name)), keyName), ino)
	if parent == 0 {
		return b
	}
	return append(appendIno(b, parent), name...)
}

func xattrKey(ino Ino, name string) []byte {
	return append(appendIno(append(make([]byte, 0, 1+inoLen+len(name)), keyXattr), ino), name...)
}

func removedKey(at int64, ino Ino) []byte {
	b := append(make([]byte, 0, 1+timeLen+inoLen), keyRemoved)
	return appendIno(binary.BigEndian.AppendUint64(b, uint64(at)), ino)
}

func appendGen(b []byte, gen uint32) []byte {
	return append(b, byte(gen>>16), byte(gen>>8), byte(gen))
}

func getGen(b []byte) uint32 {
	_ = b[genLen-1]
	return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2])
}

func keptKey(ino Ino, gen uint32) []byte {
	return appendGen(appendIno(append(make([]byte, 0, 1+inoLen+genLen), keyKept), ino), gen)
}

func agedKey(at int64, ino Ino, gen uint32) []byte {
	b := append(make([]byte, 0, 1+timeLen+inoLen+genLen), keyAged)
	return appendGen(appendIno(binary.BigEndian.AppendUint64(b, uint64(at)), ino), gen)
}

func resultKey(req Request) []byte {
	b := binary.BigEndian.AppendUint64(append(make([]byte, 0, 1+8+8), keyResult), req.Session)
	return binary.BigEndian.AppendUint64(b, req.Unique)
}

func idKey(table byte, id cache.ID) []byte {
	return binary.BigEndian.AppendUint64(append(make([]byte, 0, 9), table), uint64(id))
}

func extentKey(id cache.ID, n uint32) []byte {
	b := binary.BigEndian.AppendUint64(append(make([]byte, 0, 13), keyExtent), uint64(id))
	return binary.BigEndian.AppendUint32(b, n)
}

func identKey(h [16]byte) []byte { return append([]byte{keyIdent}, h[:]...) }

func nameKey(table byte, name string) []byte {
	return append(append(make([]byte, 0, 1+len(name)), table), name...)
}

func be64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }
