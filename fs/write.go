package fs

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// staging returns the node with an open staging file, by its node id.
func (f *FS) staging(ctx context.Context, node NodeID) (*openNode, error) {
	if noWait(ctx) {
		return nil, ErrWouldWait
	}
	o, err := f.revive(ctx, node)
	if err != nil {
		return nil, err
	}
	if o == nil || o.stage == 0 {
		return nil, ErrBadHandle
	}
	return o, nil
}

// Write writes to a node that the daemon serves. All is written, or an error tells why not; the
// file may then have some of it.
func (f *FS) Write(ctx context.Context, node NodeID, fh uint64, off int64, data []byte, killSUIDGID bool) error {
	o, err := f.staging(ctx, node)
	if err != nil {
		return err
	}
	file, done, err := f.stageFile(o)
	if err != nil {
		return err
	}
	if err = f.cache.StageSpace(o.stage, int64(len(data))); err == nil {
		if o.overlaid() {
			err = f.onBase(ctx, o, func() (*cache.Object, error) { return f.writeOverlay(ctx, o, file, data, off) })
		} else {
			_, err = file.WriteAt(data, off)
		}
	}
	done()
	f.stats.writes.Add(1)
	f.stats.writeBytes.Add(int64(len(data)))
	if err != nil {
		return &PathError{Op: "write", Path: f.PathOf(node), Err: err}
	}
	if killSUIDGID {
		return f.killSUIDGID(node)
	}
	return nil
}

// killSUIDGID takes the set-user-ID bit, and of an executable the set-group-ID bit, away.
func (f *FS) killSUIDGID(node NodeID) error {
	in, err := f.inode(node)
	if err != nil || in.Mode&(setUID|setGID) == 0 {
		return err
	}
	_, err = f.db.Update(in.Ino, func(in *meta.Inode) error {
		in.Mode = withoutSUIDGID(in.Mode)
		return nil
	})
	return err
}

func withoutSUIDGID(mode uint32) uint32 {
	mode &^= setUID
	if mode&groupExec != 0 {
		mode &^= setGID
	}
	return mode
}

// readStaged reads of a staging file.
func (f *FS) readStaged(ctx context.Context, o *openNode, off, n int64) (*cache.Data, error) {
	b := make([]byte, n)
	var got int
	// Who is the only one to open the node may wait until nobody uses the file. So it is given back before onBase waits for him.
	read := func(how func(file *os.File) error) error {
		file, done, err := f.stageToRead(o)
		if err != nil {
			return err
		}
		defer done()
		return how(file)
	}
	var err error
	if o.overlaid() {
		err = f.onBase(ctx, o, func() (*cache.Object, error) {
			var base *cache.Object
			err := read(func(file *os.File) (err error) {
				o.overMu.RLock()
				defer o.overMu.RUnlock()
				base = o.obj
				got, err = f.readOverlay(ctx, o, file, b, off)
				return err
			})
			return base, err
		})
	} else {
		err = read(func(file *os.File) (err error) {
			got, err = readAt(file, b, off)
			return err
		})
	}
	if err != nil {
		return nil, &PathError{Op: "read", Path: f.PathOf(o.node), Err: err}
	}
	return &cache.Data{Vecs: [][]byte{b[:got]}}, nil
}

// readAt reads up to len(b) bytes; fewer only at the end of the file.
func readAt(file *os.File, b []byte, off int64) (n int, err error) {
	for n < len(b) {
		m, err := unix.Pread(int(file.Fd()), b[n:], off+int64(n))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return n, err
		}
		if m == 0 {
			break
		}
		n += m
	}
	return n, nil
}

// Flush is a close(2) of one descriptor of an open file. A process that was forked closes, too, so
// it says nothing of whether the file is complete; where the policy says so, what is there is
// published before it is answered. Of what is written with O_SYNC the content is on the disk by then, and the
// label comes to say so.
func (f *FS) Flush(ctx context.Context, node NodeID, fh uint64) error {
	o := f.open.get(node)
	if o != nil && o.restored {
		var err error
		if o, err = f.revive(ctx, node); err != nil {
			return err
		}
	}
	if o == nil || o.stage == 0 {
		return nil
	}
	remote := f.policy(node).CloseRemote
	if noWait(ctx) && (remote || o.syncs.Load()) {
		return ErrWouldWait
	}
	if o.syncs.Load() {
		if err := f.fsync(node); err != nil {
			return err
		}
	}
	if remote {
		return f.publishNow(ctx, node)
	}
	return nil
}

// Fsync makes what was written durable: on this node's disk, or, where the policy of the path says
// so, at the origin.
func (f *FS) Fsync(ctx context.Context, node NodeID, fh uint64, dataOnly bool) error {
	if noWait(ctx) {
		return ErrWouldWait
	}
	if err := f.fsync(node); err != nil {
		return err
	}
	if f.policy(node).FsyncRemote {
		return f.publishNow(ctx, node)
	}
	return nil
}

// fsync makes what was written durable on this node's disk.
func (f *FS) fsync(node NodeID) error {
	in, err := f.inode(node)
	if err != nil || in.Stage == 0 || in.Gen != node.Gen() {
		return err
	}
	f.completeClosed() // what was closed before is published before: also after a power cut, by the labels' numbers
	if err := f.syncStage(&in); err != nil {
		if _, gone := f.unstaged(&in, err); gone {
			return nil // the origin has it
		}
		return &PathError{Op: "fsync", Path: f.path(in.Parent, in.Name), Err: err}
	}
	return nil
}

// Fsyncdir makes the names of a directory durable.
func (f *FS) Fsyncdir(ctx context.Context, node NodeID) error {
	if noWait(ctx) {
		return ErrWouldWait
	}
	return errors.Join(f.cache.SyncStaging(), f.db.Sync())
}

// Fallocate is fallocate(2); mode holds its flags.
func (f *FS) Fallocate(ctx context.Context, node NodeID, fh uint64, off, n int64, mode uint32) error {
	o, err := f.staging(ctx, node)
	if err != nil {
		return err
	}
	file, done, err := f.stageFile(o)
	if err != nil {
		return err
	}
	defer done()
	if o.overlaid() && mode&^unix.FALLOC_FL_KEEP_SIZE != 0 {
		if err := f.materialise(ctx, o); err != nil {
			return &PathError{Op: "fallocate", Path: f.PathOf(node), Err: err}
		}
	}
	for {
		err = unix.Fallocate(int(file.Fd()), mode, off, n)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return &PathError{Op: "fallocate", Path: f.PathOf(node), Err: err}
	}
	return nil
}

// Seek is lseek(2) with SEEK_DATA or SEEK_HOLE. What is not in a staging file has no holes.
func (f *FS) Seek(ctx context.Context, node NodeID, fh uint64, off int64, whence int) (int64, error) {
	if whence != unix.SEEK_DATA && whence != unix.SEEK_HOLE || off < 0 {
		return 0, ErrInvalid
	}
	a, _, err := f.Getattr(ctx, node)
	if err != nil {
		return 0, err
	}
	if off >= a.Size {
		return 0, ErrNoData
	}
	in, err := f.inode(node)
	if err != nil {
		return 0, err
	}
	if in.Stage == 0 || in.Gen != node.Gen() || in.Flags&meta.Overlay != 0 {
		if whence == unix.SEEK_HOLE {
			return a.Size, nil
		}
		return off, nil
	}
	file, err := f.cache.OpenStage(in.Stage, os.O_RDONLY)
	if err != nil {
		if _, gone := f.unstaged(&in, err); gone {
			return f.Seek(ctx, node, fh, off, whence)
		}
		return 0, err
	}
	defer closeFile(file)
	at, err := unix.Seek(int(file.Fd()), off, whence)
	if errors.Is(err, unix.ENXIO) {
		return 0, ErrNoData
	}
	return at, err
}

// maxCopyRange bounds one CopyRange, in bytes, so that it ends in time.
const maxCopyRange = 64 << 20

// CopyRange is copy_file_range(2) between two open files; fewer bytes than asked for may be copied.
func (f *FS) CopyRange(ctx context.Context, from NodeID, fromFH uint64, fromOff int64, to NodeID, toFH uint64, toOff, n int64) (int64, error) {
	dst, err := f.staging(ctx, to)
	if err != nil {
		return 0, err
	}
	src, err := f.revive(ctx, from)
	if err != nil {
		return 0, err
	}
	if src == nil || src.stage == 0 || src.overlaid() || dst.overlaid() {
		return 0, ErrUnsupported // the caller reads and writes
	}
	w, done, err := f.stageFile(dst)
	if err != nil {
		return 0, err
	}
	defer done()
	r, rdone, err := f.stageToRead(src)
	if errors.Is(err, cache.ErrNoStage) {
		return 0, ErrUnsupported // it has just been published
	}
	if err != nil {
		return 0, err
	}
	defer rdone()
	got, err := unix.CopyFileRange(int(r.Fd()), &fromOff, int(w.Fd()), &toOff, int(min(n, maxCopyRange)), 0)
	return int64(got), err
}
