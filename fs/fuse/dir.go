package fuse

import (
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/leatfs/leatfs/fs"
)

func (r *raw) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	h, err := r.fs.Opendir(ctx, fs.NodeID(in.NodeId))
	if err != nil {
		return r.status("opendir", err)
	}
	r.dirMu.Lock()
	r.nextDir++
	out.Fh = r.nextDir
	r.dirs[out.Fh] = h
	r.dirMu.Unlock()
	return fuse.OK
}

// dirHandle finds an open directory; one that an earlier process opened is opened
// anew, since a directory handle holds nothing that the index does not.
func (r *raw) dirHandle(ctx *requestContext, in *fuse.ReadIn) (*fs.DirHandle, error) {
	r.dirMu.Lock()
	h := r.dirs[in.Fh]
	r.dirMu.Unlock()
	if h != nil {
		return h, nil
	}
	h, err := r.fs.Opendir(ctx, fs.NodeID(in.NodeId))
	if err != nil {
		return nil, err
	}
	r.dirMu.Lock()
	r.dirs[in.Fh] = h
	r.dirMu.Unlock()
	return h, nil
}

func (r *raw) readdir(cancel <-chan struct{}, in *fuse.ReadIn, add func(*fs.DirEntry) bool) fuse.Status {
	ctx := r.context(cancel, &in.InHeader)
	defer ctx.finish()
	h, err := r.dirHandle(ctx, in)
	if err == nil {
		err = h.Readdir(ctx, in.Offset, add)
	}
	return r.status("readdir", err)
}

func dirent(e *fs.DirEntry) fuse.DirEntry {
	d := fuse.DirEntry{Name: e.Name, Ino: e.Entry.Attr.Ino, Mode: modeOf(e.Entry.Attr.Kind), Off: e.Cookie}
	if e.Entry.Attr.Kind == 0 {
		d.Mode = 0 // DT_UNKNOWN: who wants to know asks for the attributes
	}
	return d
}

func (r *raw) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return r.readdir(cancel, in, func(e *fs.DirEntry) bool { return out.AddDirEntry(dirent(e)) })
}

func (r *raw) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return r.readdir(cancel, in, func(e *fs.DirEntry) bool {
		eo := out.AddDirLookupEntry(dirent(e))
		if eo == nil {
			return false
		}
		// A zero node id says "a name only": "." and "..", and what would not stay valid until
		// it is used.
		if e.Entry.Node != 0 && e.Entry.Valid > 0 {
			fillEntry(eo, &e.Entry)
		}
		return true
	})
}

func (r *raw) ReleaseDir(in *fuse.ReleaseIn) { r.releaseDir(in.Fh) }

func (r *raw) releaseDir(fh uint64) {
	r.dirMu.Lock()
	delete(r.dirs, fh)
	r.dirMu.Unlock()
}
