package fs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/publish"
)

// A large object that is not here is changed without being fetched: its staging file is an overlay, as
// large as the object and full of holes. What is written is in the file, in whole blocks of the disk's
// file system; a hole is what the object has there. So the file itself says what was changed, also
// after a power cut. The daemon serves it: the kernel would read a hole as zeros. At the end the
// unchanged ranges are copied by the origin.

// overlayBlock is the unit in bytes in which the file has data or holes: not smaller than the
// blocks of ext4 and xfs.
const overlayBlock = 4096

// stageOverlay gives an inode an overlay of its object as staging file.
func (f *FS) stageOverlay(in *meta.Inode, o *openNode) (meta.Inode, error) {
	dir, err := f.db.Inode(in.Parent)
	if err != nil {
		return *in, err
	}
	l := f.label(&dir, in)
	if l.Source, err = f.identity(in); err != nil {
		return *in, err
	}
	id, file, err := f.cache.NewStage(l)
	if err != nil {
		return *in, &PathError{Op: "open", Path: f.path(in.Parent, in.Name), Err: err}
	}
	err = errors.Join(file.Truncate(in.Object.Size), file.Close())
	if err == nil {
		err = f.keepTimes(in, id)
	}
	var now meta.Inode
	if err == nil {
		now, err = f.staged(in, id, meta.Overlay, false)
	}
	if err != nil {
		f.removeStage(id)
		return *in, err
	}
	if o != nil && o.handles > 0 {
		o.use.Lock()
		defer o.use.Unlock()
		n := &openNode{node: o.node, inode: now, stage: id, obj: o.obj, noPass: true, over: true}
		if f.open.replace(o, n) {
			o.moved, o.obj = true, nil
		}
	}
	return now, nil
}

// extents are the ranges of a file that are not holes.
func extents(file *os.File, off, end int64) (all []publish.Range, err error) {
	for off < end {
		data, err := unix.Seek(int(file.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && data >= end {
			break
		}
		if err != nil {
			return nil, err
		}
		hole, err := unix.Seek(int(file.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		hole = min(hole, end)
		all = append(all, publish.Range{Off: data, Len: hole - data})
		off = hole
	}
	return all, nil
}

// readOverlay reads up to len(b) bytes at off; fewer only at the end of the file. The caller holds
// o.overMu.
func (f *FS) readOverlay(ctx context.Context, o *openNode, file *os.File, b []byte, off int64) (int, error) {
	switch {
	case !o.overlaid():
		return readAt(file, b, off) // since a moment
	case o.obj == nil:
		return 0, fmt.Errorf("it is published: %w", cache.ErrNoStage)
	}
	st, err := file.Stat()
	if err != nil {
		return 0, err
	}
	b = b[:max(0, min(int64(len(b)), st.Size()-off))]
	end := off + int64(len(b))
	local, err := extents(file, off, end)
	if err != nil {
		return 0, err
	}
	at := off
	for _, r := range append(local, publish.Range{Off: end}) {
		if err := f.readBase(ctx, o, b[at-off:r.Off-off], at); err != nil {
			return 0, err
		}
		if _, err := readAt(file, b[r.Off-off:r.Off-off+r.Len], r.Off); err != nil {
			return 0, err
		}
		at = r.Off + r.Len
	}
	return len(b), nil
}

// readBase fills b with what the object has at off, and zeros beyond its end.
func (f *FS) readBase(ctx context.Context, o *openNode, b []byte, off int64) error {
	size := o.inode.Object.Size
	for len(b) > 0 {
		if off >= size {
			clear(b)
			return nil
		}
		d, err := o.obj.Read(ctx, off, min(int64(len(b)), size-off))
		if err != nil {
			return err
		}
		n := copy(b, d.AppendTo(nil))
		d.Release()
		if n == 0 {
			return unix.EIO
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// writeOverlay writes to an overlay: blocks that are written in part, and are holes still, get the
// rest of what the object has there first. base is that object.
func (f *FS) writeOverlay(ctx context.Context, o *openNode, file *os.File, data []byte, off int64) (base *cache.Object, err error) {
	o.overMu.Lock()
	defer o.overMu.Unlock()
	end := off + int64(len(data))
	for _, at := range []int64{off, end} {
		if o.overlaid() && at%overlayBlock != 0 && at-at%overlayBlock < o.inode.Object.Size {
			if err := f.fillBlock(ctx, o, file, at-at%overlayBlock); err != nil {
				return o.obj, err
			}
		}
	}
	_, err = file.WriteAt(data, off)
	return o.obj, err
}

// fillBlock makes sure that a block is not a hole.
func (f *FS) fillBlock(ctx context.Context, o *openNode, file *os.File, at int64) error {
	st, err := file.Stat()
	if err != nil {
		return err
	}
	have, err := extents(file, at, at+1)
	if err != nil || len(have) > 0 || at >= st.Size() {
		return err
	}
	b := make([]byte, min(overlayBlock, st.Size()-at))
	if err := f.readBase(ctx, o, b, at); err != nil {
		return err
	}
	_, err = file.WriteAt(b, at)
	return err
}

// materialise fetches all that an overlay does not hold: from then on it is a staging file like any
// other. The caller is the only one to open the node.
func (f *FS) materialise(ctx context.Context, o *openNode) error {
	file, done, err := f.stageFile(o)
	if err != nil {
		return err
	}
	defer done()
	o.overMu.Lock()
	defer o.overMu.Unlock()
	if !o.overlaid() {
		return nil
	}
	st, err := file.Stat()
	if err != nil {
		return err
	}
	end := min(st.Size(), o.inode.Object.Size)
	local, err := extents(file, 0, end)
	if err != nil {
		return err
	}
	at := int64(0)
	b := make([]byte, 1<<20)
	for _, r := range append(local, publish.Range{Off: end}) {
		for at < r.Off {
			part := b[:min(int64(len(b)), r.Off-at)]
			if err := f.readBase(ctx, o, part, at); err != nil {
				return err
			}
			if err := f.cache.StageSpace(o.stage, int64(len(part))); err != nil {
				return err
			}
			if _, err := file.WriteAt(part, at); err != nil {
				return err
			}
			at += int64(len(part))
		}
		at = r.Off + r.Len
	}
	if at > 0 {
		// For who looks at its times it is as it was.
		if err := setTimes(file, st.Sys().(*syscall.Stat_t)); err != nil {
			return err
		}
	}
	if err := file.Sync(); err != nil {
		return err
	}
	return f.noOverlay(o)
}

// noOverlay notes that a staging file has all of its content. By overMu.
func (f *FS) noOverlay(o *openNode) error {
	in, err := f.db.Update(o.node.Ino(), func(in *meta.Inode) error {
		in.Flags &^= meta.Overlay
		return nil
	})
	if err != nil {
		return err
	}
	o.whole.Store(true)
	return f.relabelAs(&in, true, func(*cache.StageLabel) {})
}

// overlaid tells whether the holes of a node's staging file are not zeros.
func (o *openNode) overlaid() bool { return o.over && !o.whole.Load() }

// overlay is what publish is to know of the base of an overlay.
func (f *FS) overlay(w *work, file *os.File) *publish.Overlay {
	return &publish.Overlay{Key: objectKey(&w.in, w.key), ETag: w.in.Object.ETag, VersionID: w.in.Object.VersionID, Size: w.in.Object.Size,
		Local: func() ([]publish.Range, error) {
			st, err := file.Stat()
			if err != nil {
				return nil, err
			}
			return extents(file, 0, st.Size())
		}}
}
