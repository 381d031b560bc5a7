package fs

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// found is a staging file that was there after a power cut.
type found struct {
	id    cache.ID
	label cache.StageLabel
}

// afterCut makes the index agree with the staging files: each is under the name that its label says,
// and published if all of it was forced to the disk. Others, which may be torn, are kept and not
// published. It may be run again when it was interrupted.
func (f *FS) afterCut(dirty []left) error {
	dirs := make(map[uint64]cache.StageLabel)
	if err := f.cache.WalkDirLabels(func(l cache.StageLabel) bool {
		if f.mine(&l) {
			dirs[l.Ino] = l
		}
		return true
	}); err != nil {
		return err
	}
	var files []found
	if err := f.cache.WalkStages(func(id cache.ID, l cache.StageLabel, err error) bool {
		if err == nil && f.mine(&l) {
			files = append(files, found{id, l})
		}
		return true
	}); err != nil {
		return err
	}
	// Of two that have one name the younger label is right; it comes last.
	slices.SortFunc(files, func(a, b found) int { return cmp.Compare(a.label.Seq, b.label.Seq) })
	by := make(map[cache.ID]*left)
	for i := range dirty {
		if s := dirty[i].in.Stage; s != 0 {
			by[s] = &dirty[i]
		}
	}
	here := make(map[cache.ID]bool)
	for i := range files {
		here[files[i].id] = true
		if err := f.reclaimStage(&files[i], by[files[i].id], dirs); err != nil {
			return err
		}
	}
	for i := range dirty {
		if in := &dirty[i].in; in.Stage != 0 && !here[in.Stage] {
			if err := f.lostStage(in); err != nil {
				return err
			}
		}
	}
	return nil
}

// mine tells whether a label is of this mount.
func (f *FS) mine(l *cache.StageLabel) bool {
	return l.Origin == f.store.String() && strings.HasPrefix(l.Dir, f.root.Prefix)
}

// reclaimStage puts a staging file under the name of its label.
func (f *FS) reclaimStage(s *found, known *left, dirs map[uint64]cache.StageLabel) error {
	st, err := f.cache.StatStage(s.id)
	if err != nil {
		return err
	}
	if s.label.Removed {
		if known == nil {
			f.removeStage(s.id)
		}
		return nil // else it goes with its inode
	}
	dir, err := f.labelledDir(s.label.Parent, s.label.Dir, dirs, 0)
	if err != nil {
		return err
	}
	whole := synced(&s.label, st.Size, st.Mtim.Nano())
	err = f.db.Do(func(tx *meta.Tx) error {
		d, err := tx.Inode(dir)
		if err != nil {
			return err
		}
		in, err := f.placeStage(tx, s, known, &d)
		if err != nil {
			return err
		}
		rec, err := tx.Dirty(in.Ino)
		if err := absent(err); err != nil {
			return err
		}
		rec.Ino = in.Ino
		if rec.Since == 0 {
			rec.Since = f.now()
		}
		if rec.Held, rec.Seq = !whole, 0; whole {
			rec.Seq = f.db.NextSeq()
		}
		return tx.SetDirty(&rec)
	})
	if err != nil {
		return err
	}
	if !whole {
		f.log.Warn("a file had not been forced to the disk when the machine stopped, and may be torn: it is kept and not published; look at it, then \"leatfs retry\" publishes it and \"leatfs discard\" gives it up",
			"path", f.path(dir, s.label.Name), "bytes", st.Size)
	}
	return nil
}

// placeStage makes the index say that a staging file is the content of its name, and returns the
// inode.
func (f *FS) placeStage(tx *meta.Tx, s *found, known *left, dir *meta.Inode) (in meta.Inode, err error) {
	var fx effects // all of it is found again by takeUp
	have, err := tx.Lookup(dir.Ino, s.label.Name)
	if err != nil && !errors.Is(err, meta.ErrNotFound) {
		return in, err
	}
	there := err == nil
	if known != nil {
		now, err := tx.Inode(known.in.Ino)
		if err != nil {
			return in, err
		}
		if now.Flags&meta.Removed == 0 && now.Stage == s.id {
			if there && have.Ino == now.Ino {
				return now, nil
			}
			if there {
				if err := f.aside(tx, dir, &have, &fx); err != nil {
					return in, err
				}
			}
			return tx.Move(now.Parent, now.Name, dir.Ino, s.label.Name)
		}
	}
	over := s.label.Source != cache.Identity{}
	if there && have.Kind == meta.KindFile && have.Stage == 0 {
		have.Stage = s.id
		have.Flags |= meta.Local
		if over {
			have.Flags |= meta.Overlay
			have.Object = sourceOf(&s.label, dir)
		}
		return have, tx.Update(&have)
	}
	if there && have.Stage == s.id {
		return have, nil
	}
	if there {
		if err := f.aside(tx, dir, &have, &fx); err != nil {
			return in, err
		}
	}
	want := meta.Inode{Kind: meta.KindFile, Name: s.label.Name, Stage: s.id, Flags: meta.Local | meta.Owned,
		Mode: s.label.Mode & permBits, UID: s.label.UID, GID: s.label.GID, CTime: f.now()}
	want.Object.ETag = s.label.Base // what it is to replace
	if over {
		want.Flags |= meta.Overlay
		want.Object = sourceOf(&s.label, dir)
	}
	return tx.Insert(dir.Ino, want)
}

// sourceOf is the object that an overlay lies over.
func sourceOf(l *cache.StageLabel, dir *meta.Inode) meta.Object {
	o := meta.Object{Key: l.Source.Key, ETag: l.Source.ETag, VersionID: l.Source.VersionID, Size: l.Source.Size}
	if o.Key == dir.Prefix+l.Name {
		o.Key = ""
	}
	return o
}

// aside gives what has a name that a staging file is to have another: what was replaced just before
// the power cut, or a name used twice since the index was lost.
func (f *FS) aside(tx *meta.Tx, dir, have *meta.Inode, fx *effects) error {
	was := *have
	name := have.Name[:min(len(have.Name), MaxName-32)] + ".replaced-" + f.opt.Now().UTC().Format("20060102T150405")
	if have.Stage == 0 && have.Kind == meta.KindFile {
		return f.removeIn(tx, dir, have, have.Name, fx)
	}
	in, err := tx.Move(dir.Ino, have.Name, dir.Ino, name)
	if err != nil {
		return err
	}
	if err := f.moveAll(tx, &in, &was, dir.Prefix+was.Name, dir.Prefix+name, fx); err != nil {
		return err
	}
	return tx.Update(&in)
}

// labelledDir finds, or makes, the directory with a number that a label names: by the label of the
// directory itself if it has one, else as the index says, else by the path that was noted.
func (f *FS) labelledDir(ino uint64, path string, dirs map[uint64]cache.StageLabel, depth int) (meta.Ino, error) {
	if l, ok := dirs[ino]; ok && depth < 256 && !l.Removed {
		up, err := f.labelledDir(l.Parent, l.Dir, dirs, depth+1)
		if err != nil {
			return 0, err
		}
		return f.dirNamed(up, l.Name, &l, meta.Ino(ino))
	}
	if in, err := f.db.Inode(meta.Ino(ino)); err == nil && in.Kind == meta.KindDir && in.Flags&meta.Removed == 0 && f.below(&in) &&
		(in.Prefix == path || !f.db.Rebuilt()) {
		return in.Ino, nil
	}
	at := f.root.Ino
	for _, name := range strings.Split(strings.Trim(strings.TrimPrefix(path, f.root.Prefix), "/"), "/") {
		if name == "" {
			continue
		}
		var err error
		if at, err = f.dirNamed(at, name, nil, 0); err != nil {
			return 0, err
		}
	}
	return at, nil
}

// dirNamed finds the directory of a name, moves the one with the number ino there, or makes one.
func (f *FS) dirNamed(up meta.Ino, name string, l *cache.StageLabel, ino meta.Ino) (at meta.Ino, err error) {
	err = f.db.Do(func(tx *meta.Tx) error {
		have, err := tx.Lookup(up, name)
		if err == nil && have.Kind == meta.KindDir {
			at = have.Ino
			return nil
		}
		if err != nil && !errors.Is(err, meta.ErrNotFound) {
			return err
		}
		d, derr := tx.Inode(up)
		if derr != nil {
			return derr
		}
		var fx effects
		if err == nil {
			if err := f.aside(tx, &d, &have, &fx); err != nil {
				return err
			}
		}
		if ino != 0 {
			was, err := tx.Inode(ino)
			if err == nil && was.Kind == meta.KindDir && was.Flags&meta.Removed == 0 {
				in, err := tx.Move(was.Parent, was.Name, up, name)
				if err != nil {
					return err
				}
				if err := f.moveAll(tx, &in, &was, strings.TrimSuffix(was.Prefix, "/"), d.Prefix+name, &fx); err != nil {
					return err
				}
				at = in.Ino
				return tx.Update(&in)
			}
		}
		want := meta.Inode{Kind: meta.KindDir, Name: name, Flags: meta.Local, CTime: f.now()}
		if l != nil {
			want.Flags |= meta.Owned
			want.Mode, want.UID, want.GID = l.Mode&permBits, l.UID, l.GID
		}
		in, err := tx.Insert(up, want)
		if err != nil {
			return err
		}
		at = in.Ino
		return tx.SetDirty(&meta.Dirty{Ino: at, Since: f.now(), Seq: f.db.NextSeq()})
	})
	return at, err
}

// lostStage: the index knows a staging file that is not there. It was published or removed just before
// the power cut, or made and never forced to the disk: then the name stands for what the origin has.
func (f *FS) lostStage(in *meta.Inode) error {
	return f.db.Do(func(tx *meta.Tx) error {
		now, err := tx.Inode(in.Ino)
		if err != nil || now.Stage != in.Stage {
			return absent(err)
		}
		now.Stage = 0
		if now.Flags&meta.Removed != 0 {
			if err := tx.Update(&now); err != nil {
				return err
			}
			return absent(tx.ClearDirty(in.Ino, false))
		}
		if err := absent(tx.ClearDirty(in.Ino, false)); err != nil {
			return err
		}
		if now.Object.ETag == "" || now.Object.Key != "" {
			if err := tx.Update(&now); err != nil {
				return err
			}
			_, err := tx.Remove(now.Parent, now.Name)
			return err
		}
		now.Flags &^= meta.Local
		now.Checked = 0
		if err := tx.Update(&now); err != nil {
			return err
		}
		l, err := tx.Listing(now.Parent)
		if err != nil {
			return err
		}
		l.Complete = 0
		return tx.SetListing(now.Parent, l)
	})
}
