package fs

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// maxKey is how long a key may be on S3, in bytes.
const maxKey = 1024

// The permission bits, and those of them that have a meaning here.
const (
	permBits  = 0o7777
	setUID    = 0o4000
	setGID    = 0o2000
	groupExec = 0o010
	anyExec   = 0o111
)

// newName tells why a name cannot be made in a directory, nil if it can.
func (f *FS) newName(dir *meta.Inode, name string, isDir bool) error {
	key := len(dir.Prefix) + len(name)
	if isDir {
		key++
	}
	switch {
	case len(name) > MaxName || key > maxKey:
		return ErrNameTooLong
	case !ValidName(name):
		return ErrInvalid
	case !utf8.ValidString(name):
		return &PathError{Op: "create", Path: f.path(dir.Ino, name), Err: ErrNotUTF8}
	}
	return nil
}

// owned gives a new inode its owner and mode: the caller's, and the group of a directory that has
// the set-group-ID bit.
func (f *FS) owned(dir *meta.Inode, in *meta.Inode, mode uint32, who Caller) {
	in.Mode, in.UID, in.GID = mode&permBits, who.UID, who.GID
	in.Flags |= meta.Owned | meta.Local
	if mode, _, gid := f.owner(dir); mode&setGID != 0 {
		in.GID = gid
		if in.Kind == meta.KindDir {
			in.Mode |= setGID
		}
	}
}

// Create makes a file in a directory and opens it with the flags of open(2). One that is there
// already is opened, or with O_EXCL is ErrExist. mode holds the permission bits, the umask taken
// off.
func (f *FS) Create(ctx context.Context, parent NodeID, name string, flags int, mode uint32, who Caller) (Entry, Opened, error) {
	if noWait(ctx) {
		return Entry{}, Opened{}, ErrWouldWait
	}
	if f.opt.ReadOnly {
		return Entry{}, Opened{}, ErrReadOnly
	}
	var in meta.Inode
	made, ok, err := f.carriedOut(ctx, opCreate)
	if err != nil {
		return Entry{}, Opened{}, err
	}
	if ok {
		in, err = f.db.Inode(made.Ino)
	} else {
		in, err = f.create(ctx, parent, name, flags, mode, who, 0, opCreate)
	}
	if err != nil {
		return Entry{}, Opened{}, err
	}
	if in.Kind != meta.KindFile {
		if in.Kind == meta.KindDir {
			return Entry{}, Opened{}, ErrIsDir
		}
		return Entry{}, Opened{}, ErrStale // the kernel looks it up, and opens what it is
	}
	o, err := f.Open(ctx, f.nodeOf(&in), flags&^(os.O_CREATE|os.O_EXCL))
	if err != nil {
		return Entry{}, Opened{}, err
	}
	e, err := f.entry(&in)
	e.AttrValid = max(e.AttrValid, justMade)
	return e, o, err
}

// justMade is how long the attributes in the answer to CREATE are believed: the kernel wants them once
// more right after, to see whether the file may be opened. What is written through the kernel makes it
// ask again.
const justMade = 10 * time.Millisecond

// create makes a file, or finds it. Of one that is made the staging file is labelled before the
// index knows it.
func (f *FS) create(ctx context.Context, parent NodeID, name string, flags int, mode uint32, who Caller, rdev, op uint32) (in meta.Inode, err error) {
	dir, err := f.dir(parent)
	if err != nil {
		return in, err
	}
	if err := f.newName(&dir, name, false); err != nil {
		return in, err
	}
	have, err := f.lookup(ctx, &dir, name)
	switch {
	case err == nil && flags&os.O_EXCL != 0:
		return have, ErrExist
	case err == nil:
		return have, nil
	case !errors.Is(err, ErrNotExist):
		return have, err
	}
	want := meta.Inode{Kind: meta.KindFile, Name: name, Rdev: rdev, CTime: f.now()}
	f.owned(&dir, &want, mode, who)
	switch mode & syscall.S_IFMT {
	case syscall.S_IFREG, 0:
	case syscall.S_IFIFO:
		want.Kind = meta.KindFIFO
	case syscall.S_IFSOCK:
		want.Kind = meta.KindSocket
	case syscall.S_IFCHR:
		want.Kind = meta.KindChar
	case syscall.S_IFBLK:
		want.Kind = meta.KindBlock
	default:
		return in, ErrInvalid
	}
	if want.Kind != meta.KindFile {
		want.MTime, want.ATime = want.CTime, want.CTime
		return f.insert(ctx, &dir, &want, op)
	}
	defer f.publisher.making()()
	id, file, err := f.cache.NewStage(f.label(&dir, &want))
	if err != nil {
		return in, &PathError{Op: "create", Path: f.path(dir.Ino, name), Err: err}
	}
	closeFile(file)
	want.Stage = id
	in, err = f.insert(ctx, &dir, &want, op)
	if err != nil || in.Stage != id {
		f.removeStage(id)
	}
	if errors.Is(err, ErrExist) && flags&os.O_EXCL == 0 {
		err = nil // made meanwhile by another
	}
	return in, err
}

// insert adds an inode that is to be published, if it is of a kind that can be.
func (f *FS) insert(ctx context.Context, dir, want *meta.Inode, op uint32) (in meta.Inode, err error) {
	now := f.now()
	err = f.change(ctx, op, func(tx *meta.Tx) error {
		var err error
		in, err = tx.Insert(dir.Ino, *want)
		if errors.Is(err, meta.ErrExist) {
			return ErrExist
		}
		if errors.Is(err, meta.ErrNotFound) {
			return ErrNotExist
		}
		if err != nil {
			return err
		}
		tx.Result(&in)
		if published(in.Kind) {
			d := meta.Dirty{Ino: in.Ino, Since: now}
			if in.Kind != meta.KindFile {
				d.Seq = f.db.NextSeq() // complete as it is
			}
			if err := tx.SetDirty(&d); err != nil {
				return err
			}
		}
		if in.Kind == meta.KindDir {
			if err := tx.SetDirTimes(in.Ino, now, now); err != nil {
				return err
			}
			// Nobody else can have put anything there that this mount has seen.
			if err := tx.SetListing(in.Ino, meta.Listing{Complete: now}); err != nil {
				return err
			}
		}
		return tx.Touch(dir.Ino, now)
	})
	if err == nil {
		f.negatives.forget(negKey(dir.Ino, want.Name))
	}
	return in, err
}

// published tells whether inodes of a kind have objects.
func published(k meta.Kind) bool {
	return k == meta.KindFile || k == meta.KindDir || k == meta.KindSymlink
}

func (f *FS) removeStage(id cache.ID) {
	if id == 0 {
		return
	}
	if err := f.cache.RemoveStage(id); err != nil {
		f.log.Error("a staging file that nobody needs could not be removed; the next start tries again", "file", id, "err", err)
	}
}

// Mknod makes a file that is not opened, or with a type in mode (S_IFMT) a FIFO, a socket or a
// device, which live in the index alone.
func (f *FS) Mknod(ctx context.Context, parent NodeID, name string, mode, rdev uint32, who Caller) (Entry, error) {
	return f.make(ctx, opMknod, func() (meta.Inode, error) {
		in, err := f.create(ctx, parent, name, os.O_EXCL, mode, who, rdev, opMknod)
		if err == nil && in.Kind == meta.KindFile {
			f.completeSoon(in.Ino)
		}
		return in, err
	})
}

// make answers a request that makes something: what a process before this one made for it, or what
// work makes now.
func (f *FS) make(ctx context.Context, op uint32, work func() (meta.Inode, error)) (Entry, error) {
	if noWait(ctx) {
		return Entry{}, ErrWouldWait
	}
	if f.opt.ReadOnly {
		return Entry{}, ErrReadOnly
	}
	made, ok, err := f.carriedOut(ctx, op)
	if err != nil {
		return Entry{}, err
	}
	var in meta.Inode
	if ok {
		in, err = f.db.Inode(made.Ino)
	} else {
		in, err = work()
	}
	if err != nil {
		return Entry{}, err
	}
	return f.entry(&in)
}

// Mkdir makes a directory.
func (f *FS) Mkdir(ctx context.Context, parent NodeID, name string, mode uint32, who Caller) (Entry, error) {
	return f.make(ctx, opMkdir, func() (in meta.Inode, err error) {
		in, err = f.makeNew(ctx, parent, meta.Inode{Kind: meta.KindDir, Name: name}, mode, who, opMkdir)
		if err == nil {
			f.labelDir(&in)
			f.enqueue(in.Ino)
		}
		return in, err
	})
}

// Symlink makes a symbolic link.
func (f *FS) Symlink(ctx context.Context, parent NodeID, name, target string, who Caller) (Entry, error) {
	return f.make(ctx, opSymlink, func() (in meta.Inode, err error) {
		if target == "" {
			return in, ErrNotExist
		}
		if len(target) >= syscall.PathMax {
			return in, ErrNameTooLong
		}
		in, err = f.makeNew(ctx, parent, meta.Inode{Kind: meta.KindSymlink, Name: name, Target: target}, 0o777, who, opSymlink)
		if err == nil {
			f.enqueue(in.Ino)
		}
		return in, err
	})
}

// makeNew makes what must not be there yet and has no content of its own.
func (f *FS) makeNew(ctx context.Context, parent NodeID, want meta.Inode, mode uint32, who Caller, op uint32) (in meta.Inode, err error) {
	dir, err := f.dir(parent)
	if err != nil {
		return in, err
	}
	if err := f.newName(&dir, want.Name, want.Kind == meta.KindDir); err != nil {
		return in, err
	}
	if in, err = f.lookup(ctx, &dir, want.Name); err == nil {
		return in, ErrExist
	} else if !errors.Is(err, ErrNotExist) {
		return in, err
	}
	want.CTime = f.now()
	if want.Kind == meta.KindSymlink {
		want.MTime, want.ATime = want.CTime, want.CTime
	}
	f.owned(&dir, &want, mode, who)
	return f.insert(ctx, &dir, &want, op)
}

// Readlink returns the target of a symbolic link.
func (f *FS) Readlink(_ context.Context, node NodeID) (string, error) {
	in, err := f.inode(node)
	if err == nil && in.Kind != meta.KindSymlink {
		err = ErrInvalid
	}
	return in.Target, err
}

// Link gives a file one more name.
func (f *FS) Link(ctx context.Context, node, parent NodeID, name string) (Entry, error) {
	return f.make(ctx, opLink, func() (in meta.Inode, err error) {
		dir, err := f.dir(parent)
		if err != nil {
			return in, err
		}
		if err := f.newName(&dir, name, false); err != nil {
			return in, err
		}
		if _, err = f.lookup(ctx, &dir, name); err == nil {
			return in, ErrExist
		} else if !errors.Is(err, ErrNotExist) {
			return in, err
		}
		now := f.now()
		var fx effects
		err = f.change(ctx, opLink, func(tx *meta.Tx) error {
			var err error
			if in, err = tx.Inode(f.ino(node)); err != nil {
				return err
			}
			switch {
			case in.Kind == meta.KindDir:
				return ErrNotAllowed
			case in.Flags&meta.Removed != 0:
				return ErrNotExist
			case in.Links >= maxLinks:
				return ErrTooManyLinks
			}
			if in, err = tx.Link(in.Ino, dir.Ino, name); err != nil {
				if errors.Is(err, meta.ErrExist) {
					return ErrExist
				}
				return err
			}
			if in, err = tx.Inode(in.Ino); err != nil {
				return err
			}
			fx.reset()
			in.CTime = now
			if published(in.Kind) {
				if err := f.touchNames(tx, &in, &fx); err != nil {
					return err
				}
			}
			if err := tx.Update(&in); err != nil {
				return err
			}
			tx.Result(&in)
			return tx.Touch(dir.Ino, now)
		})
		if err == nil {
			f.negatives.forget(negKey(dir.Ino, name))
			f.after(&fx)
		}
		return in, err
	})
}

// maxLinks is how many further names a file may have.
const maxLinks = 65000 - 1
