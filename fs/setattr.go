package fs

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/fs/meta"
)

// Setattr changes attributes. fh is an open handle of the node, 0 when none was named.
//
// Owner, mode and times are kept in the index, and go to the origin with the next content: an
// object is not written again for their sake.
func (f *FS) Setattr(ctx context.Context, node NodeID, fh uint64, set SetAttr) (Attr, time.Duration, error) {
	if noWait(ctx) {
		return Attr{}, 0, ErrWouldWait
	}
	if f.opt.ReadOnly {
		return Attr{}, 0, ErrReadOnly
	}
	in, err := f.current(ctx, node)
	if err != nil {
		return Attr{}, 0, err
	}
	if set.Size != nil {
		if err := f.resize(ctx, node, &in, *set.Size); err != nil {
			return Attr{}, 0, err
		}
		if in, err = f.inode(node); err != nil { // it may have a staging file by now
			return Attr{}, 0, err
		}
	}
	if in.Stage != 0 {
		// It may not be published between the change of the index and that of the file.
		end, err := f.open.begin(ctx, node)
		if err != nil {
			return Attr{}, 0, err
		}
		defer end(nil)
	}
	if in, err = f.setAttr(ctx, in.Ino, &set); err != nil {
		return Attr{}, 0, err
	}
	if in.Stage != 0 && (set.MTime != nil || set.ATime != nil) {
		if err := f.keepSynced(&in, func() error { return f.retime(&in, func() error { return f.setStageTimes(&in, &set) }) }); err != nil {
			return Attr{}, 0, err
		}
	}
	f.relabel(&in)
	e, err := f.entry(&in)
	return e.Attr, e.AttrValid, err
}

// current returns the inode of a node whose attributes are to be changed. One that has lost its
// name here has them still.
func (f *FS) current(ctx context.Context, node NodeID) (meta.Inode, error) {
	in, err := f.inode(node)
	if err != nil || in.Flags&meta.Local != 0 || f.open.get(node) != nil {
		return in, err
	}
	return f.fresh(ctx, node)
}

// setAttr changes what the index knows.
func (f *FS) setAttr(ctx context.Context, ino meta.Ino, set *SetAttr) (in meta.Inode, err error) {
	now := f.now()
	if set.CTime != nil {
		now = *set.CTime
	}
	err = f.change(ctx, opSetattr, func(tx *meta.Tx) error {
		var err error
		if in, err = tx.Inode(ino); err != nil {
			return err
		}
		tx.Result(&in)
		if set.Mode != nil || set.UID != nil || set.GID != nil {
			in.Mode, in.UID, in.GID = f.owner(&in)
			in.Flags |= meta.Owned
		}
		if set.Mode != nil {
			in.Mode = *set.Mode & permBits
		}
		if set.UID != nil {
			in.UID = *set.UID
		}
		if set.GID != nil {
			in.GID = *set.GID
		}
		if set.KillSUIDGID && set.Mode == nil {
			in.Mode = withoutSUIDGID(in.Mode)
		}
		if set.ATime != nil {
			in.ATime = *set.ATime
		}
		if set.MTime != nil {
			in.MTime = *set.MTime
		}
		in.CTime = now
		if in.Kind == meta.KindDir {
			m, _, err := tx.DirTimes(ino)
			if err != nil {
				return err
			}
			if set.MTime != nil {
				m = *set.MTime
			}
			if m == 0 {
				m = f.began
			}
			if err := tx.SetDirTimes(ino, m, now); err != nil {
				return err
			}
			in.MTime = 0
		}
		return tx.Update(&in)
	})
	if errors.Is(err, meta.ErrNotFound) {
		err = ErrStale
	}
	return in, err
}

// setStageTimes gives the staging file the times, where reading and writing change them.
func (f *FS) setStageTimes(in *meta.Inode, set *SetAttr) error {
	file, err := f.cache.OpenStage(in.Stage, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer closeFile(file)
	spec := func(at *int64) unix.Timespec {
		if at == nil {
			return unix.Timespec{Nsec: unix.UTIME_OMIT}
		}
		return unix.NsecToTimespec(*at)
	}
	times := [2]unix.Timespec{spec(set.ATime), spec(set.MTime)}
	return futimens(file, &times)
}

// resize sets the size of a file, also of one that nobody has open.
func (f *FS) resize(ctx context.Context, node NodeID, in *meta.Inode, size int64) error {
	switch {
	case in.Kind == meta.KindDir:
		return ErrIsDir
	case in.Kind != meta.KindFile || size < 0:
		return ErrInvalid
	case in.Gen != node.Gen():
		return ErrStale
	}
	end, err := f.open.begin(ctx, node)
	if err != nil {
		return err
	}
	err = f.resizeNow(ctx, node, size)
	end(err)
	return err
}

func (f *FS) resizeNow(ctx context.Context, node NodeID, size int64) error {
	in, err := f.inode(node)
	if err != nil || in.Stage == 0 && size == in.Object.Size {
		return err
	}
	was, err := f.db.Dirty(in.Ino)
	if err := absent(err); err != nil {
		return err
	}
	err = f.setSize(ctx, node, in, size)
	if err != nil && was.Held { // and still nobody knows whether it is whole
		if herr := f.holdAgain(&was); herr != nil {
			err = errors.Join(err, herr)
		}
	}
	if f.open.writers(in.Ino) == 0 {
		f.completeSoon(in.Ino) // it is not complete any more also when that failed
	}
	return err
}

// holdAgain holds a file as it was held.
func (f *FS) holdAgain(was *meta.Dirty) error {
	return f.db.Do(func(tx *meta.Tx) error {
		d, err := tx.Dirty(was.Ino)
		if err != nil {
			return absent(err)
		}
		d.Seq, d.Early, d.Held, d.Error = 0, false, true, was.Error
		return tx.SetDirty(&d)
	})
}

// setSize is resizeNow without what comes after it.
func (f *FS) setSize(ctx context.Context, node NodeID, in meta.Inode, size int64) (err error) {
	if in.Stage == 0 {
		if in, err = f.stage(ctx, node, &in, size == 0); err != nil {
			return err
		}
	} else {
		f.unqueue(in.Ino)
		if err := f.reopened(&in); err != nil {
			return err
		}
	}
	o := f.open.peek(node)
	if o == nil || o.stage != in.Stage {
		o = &openNode{node: node, inode: in, stage: in.Stage}
		if err := f.attachBase(ctx, o); err != nil {
			return err
		}
		defer f.open.letGo(o)
	}
	if err := f.truncate(ctx, o, size); err != nil {
		return &PathError{Op: "truncate", Path: f.path(in.Parent, in.Name), Err: err}
	}
	return nil
}

// setTimes gives an open file the times that it had.
func setTimes(file *os.File, was *syscall.Stat_t) error {
	times := [2]unix.Timespec{{Sec: was.Atim.Sec, Nsec: was.Atim.Nsec}, {Sec: was.Mtim.Sec, Nsec: was.Mtim.Nsec}}
	return futimens(file, &times)
}

// futimens is futimens(3).
func futimens(file *os.File, times *[2]unix.Timespec) error {
	if _, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, file.Fd(), 0, uintptr(unsafe.Pointer(times)), 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
