package fuse

import (
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/leatfs/leatfs/fs"
)

// Extended attributes. Those of the namespaces "user." and "trusted." are kept. Of others the
// answer is that there cannot be any: ls -l asks for the SELinux label and the ACL, and given
// that answer asks for no other file of the mount. The one that the kernel itself asks for is
// merely absent. ENOSYS is never answered: the kernel would ask for none any more.

const capability = "security.capability"

// kept tells whether an attribute's namespace is kept. An empty name behind it is no name.
func kept(attr string) bool {
	for _, ns := range []string{"user.", "trusted."} {
		if name, ok := strings.CutPrefix(attr, ns); ok {
			return name != ""
		}
	}
	return false
}

// foreign is the answer for an attribute that is not kept.
func foreign(attr string) fuse.Status {
	if attr == capability {
		return fuse.ENODATA
	}
	return fuse.Status(syscall.EOPNOTSUPP)
}

func (r *raw) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, attr string, dest []byte) (uint32, fuse.Status) {
	if !kept(attr) {
		return 0, foreign(attr)
	}
	ctx := r.context(cancel, h)
	defer ctx.finish()
	value, err := r.fs.Getxattr(ctx, fs.NodeID(h.NodeId), attr)
	if err != nil {
		return 0, r.status("getxattr", err)
	}
	return fit(dest, string(value))
}

func (r *raw) ListXAttr(cancel <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	ctx := r.context(cancel, h)
	defer ctx.finish()
	names, err := r.fs.Listxattr(ctx, fs.NodeID(h.NodeId))
	if err != nil {
		return 0, r.status("listxattr", err)
	}
	var list strings.Builder
	for _, n := range names {
		list.WriteString(n)
		list.WriteByte(0)
	}
	return fit(dest, list.String())
}

// fit copies what was asked for to dest. An empty dest asks how large it must be; one that is too
// small is ERANGE.
func fit(dest []byte, value string) (uint32, fuse.Status) {
	if len(dest) > 0 && len(dest) < len(value) {
		return 0, fuse.ERANGE
	}
	copy(dest, value)
	return uint32(len(value)), fuse.OK
}

func (r *raw) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, attr string, data []byte) fuse.Status {
	if !kept(attr) {
		return fuse.Status(syscall.EOPNOTSUPP)
	}
	if uint64(len(data)) < uint64(in.Size) {
		return fuse.EIO
	}
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	return r.status("setxattr", r.fs.Setxattr(ctx, fs.NodeID(in.NodeId), attr, data[:in.Size], int(in.Flags)))
}

func (r *raw) RemoveXAttr(cancel <-chan struct{}, h *fuse.InHeader, attr string) fuse.Status {
	if !kept(attr) {
		return foreign(attr)
	}
	ctx := r.context(cancel, h)
	defer ctx.finish()
	return r.status("removexattr", r.fs.Removexattr(ctx, fs.NodeID(h.NodeId), attr))
}
