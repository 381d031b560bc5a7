// Package meta is the index: inodes, dentries, listings and, for package cache, the
// records of object files, in one badger database that survives restarts.
//
// It decides nothing about origins or time: package fs does. It holds what fs tells it and
// answers from it, atomically.
package meta

import (
	"errors"
	"strconv"

	"github.com/leatfs/leatfs/cache"
)

// Ino is an inode number. Numbers are never reused within an index, and a rebuilt index
// starts above all numbers that the old one gave out. RootIno of an origin is allocated like
// any other; the mount maps FUSE's root to it. Numbers fit in 40 bits.
type Ino uint64

// MaxIno is the largest inode number; 40 bits, so that a generation fits beside it in a
// FUSE node id.
const MaxIno Ino = 1<<40 - 1

// Kind is the type of an inode.
type Kind uint8

// The kinds of inode.
const (
	KindFile Kind = iota + 1
	KindDir
	KindSymlink
	// What is only here, and never published: always Local.
	KindFIFO
	KindSocket
	KindChar
	KindBlock

	lastKind = KindBlock
)

func (k Kind) String() string {
	switch k {
	case KindFile:
		return "file"
	case KindDir:
		return "directory"
	case KindSymlink:
		return "symlink"
	case KindFIFO:
		return "FIFO"
	case KindSocket:
		return "socket"
	case KindChar:
		return "character device"
	case KindBlock:
		return "block device"
	}
	return "kind " + strconv.Itoa(int(k))
}

// Flags of an inode.
type Flags uint32

// The flags.
const (
	// Marker: the directory has an object of its own ("dir/").
	Marker Flags = 1 << iota
	// Archived: the object must be restored before it can be read.
	Archived
	// Local: the inode has changes that the origin has not; a listing must not alter it.
	Local
	// Shadows: a directory that hides an object of the same name.
	Shadows
	// Removed: the inode has no name any more. Its record stays until Purge, for
	// those who still hold its number. Set and kept by this package alone.
	Removed
	// Owned: Mode, UID and GID are set, also where they are 0.
	Owned
	// Ours: the object was published through this index.
	Ours
	// Overlay: the holes of the staging file are as in Object, and zeros beyond its end.
	Overlay
	// Told: mode and times are what the metadata of Object tells, and so is the kind.
	Told
)

// Object is the version of an object that a file inode stands for.
type Object struct {
	// Key is the object's key when it is not simply the parent's Prefix + Name; else "".
	Key       string
	Size      int64
	ETag      string
	VersionID string
	MTime     int64 // nanoseconds since 1970
	// File is the object file in the cache, as last known; 0 when none. A hint: the cache
	// may have dropped it.
	File cache.ID
}

// Inode is one file or directory. Parent and Name are its name; of several (Links is not 0),
// they are the primary one, or the one it was looked up by.
type Inode struct {
	Ino    Ino
	Kind   Kind
	Flags  Flags
	Parent Ino
	Name   string
	// Gen counts the versions and the switches of way of serving; with Ino it makes the FUSE
	// node id. 24 bits. What the inode was under an earlier one is kept, see InodeAt.
	Gen uint32
	// Mode holds permission bits. It, UID and GID are valid where Flags has Owned; else
	// the mount's defaults apply.
	Mode     uint32
	UID, GID uint32
	// Links counts the names beside Parent and Name. Kept by this package alone.
	Links uint32
	// Rdev is the number of a device.
	Rdev uint32
	// MTime, CTime and ATime are local times in nanoseconds since 1970, 0 where not set. Those
	// of directories are apart, see DirTimes.
	MTime, CTime, ATime int64
	// Stage is the staging file that holds the content; 0: none, Object is the content.
	Stage cache.ID
	// Checked is when the origin last confirmed this inode itself (by HEAD), in nanoseconds
	// since 1970; a listing of the parent confirms it too, see Listing.
	Checked int64
	Object  Object // files
	Target  string // symlinks
	// Directories:
	Prefix string // key prefix of its entries, ends in "/" or is ""
}

// Listing is what is known of a directory as a whole. It is stored apart from the inode.
type Listing struct {
	// Complete is when the last listing that ran to its end was begun, in nanoseconds since
	// 1970; 0 when none did. Every name of the directory was confirmed then.
	Complete int64
	// Entries is how many names it found.
	Entries int64
	// Hidden is how many keys of the prefix have no name here (empty or over-long components,
	// "." and "..", NUL).
	Hidden int64
}

// Dirent is one name in a directory.
type Dirent struct {
	Name string
	Ino  Ino
	Kind Kind
}

// The errors of this package.
var (
	// ErrNotFound: no such inode or name.
	ErrNotFound = errors.New("meta: not found")
	// ErrExist: the name is taken.
	ErrExist = errors.New("meta: name exists")
	// ErrInvalid: an argument that no caller should pass. Nothing was changed.
	ErrInvalid = errors.New("meta: invalid argument")
	// ErrNoSpace: the file system that holds the index is too full to write to it safely.
	// Reads go on; writes work again when there is room. See space.go.
	ErrNoSpace = errors.New("meta: no space left for the index")
	// ErrTooBig: what does not fit in one transaction. Nothing was changed.
	ErrTooBig = errors.New("meta: too big for one transaction")
	// ErrMoved: the directory has another prefix by now.
	ErrMoved = errors.New("meta: the directory was renamed")
	// ErrClosed: the index was closed.
	ErrClosed = errors.New("meta: the index is closed")
	// ErrDamaged: what the index holds cannot be read. The next Open starts a fresh one.
	ErrDamaged = errors.New("meta: the index is damaged")
	// ErrInUse: another process has the index open.
	ErrInUse = errors.New("meta: the index is in use")
	// ErrNewer: the index was written by a newer version of this program.
	ErrNewer = errors.New("meta: the index has a newer format")
)
