package fs

import "github.com/leatfs/leatfs/fs/meta"

// NodeID is how the kernel names a node: an inode number in the low 40 bits and a
// generation above. A node id stands for one version of one inode served in one way, so
// what the kernel caches under it never goes stale; when the version or the way of serving
// changes, the inode gets a new generation and with it a new node id, while st_ino stays.
type NodeID uint64

// RootNode is the node id of the mount's root, fixed by the FUSE protocol.
const RootNode NodeID = 1

const (
	inoBits = 40
	genMask = 1<<24 - 1
)

// Node makes the node id of an inode's generation.
func Node(ino meta.Ino, gen uint32) NodeID {
	return NodeID(gen&genMask)<<inoBits | NodeID(ino)
}

// Ino is the inode number; not meaningful for RootNode.
func (n NodeID) Ino() meta.Ino { return meta.Ino(n) & meta.MaxIno }

// Gen is the generation, 0 to 2^24-1.
func (n NodeID) Gen() uint32 { return uint32(n >> inoBits) }
