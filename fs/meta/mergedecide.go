package meta

// decide settles one name: old is the entry that the index has, nil for nothing; l what the page has,
// neither object nor directory for nothing.
func (m *merger) decide(old *Inode, l listed) error {
	if old == nil {
		if err := m.bury(&l); err != nil {
			return err
		}
		switch {
		case l.dir:
			return m.add(m.newDir(l.name, l.obj != nil))
		case l.obj != nil:
			return m.add(m.newFile(l.obj))
		}
		return nil
	}
	ref := isRef(old)
	if err := resolve(m.read, old); err != nil {
		return err
	}
	complete := !m.page.Partial
	objGone := l.obj == nil && complete && m.covers(old.Name)
	dirGone := !l.dir && complete && m.coversDir(old.Name)
	if old.Flags&Local != 0 || old.Stage != 0 || old.Checked > m.page.Began {
		m.res.Kept++
		return nil
	}
	if old.Kind == KindDir {
		return m.decideDir(old, l, objGone, dirGone)
	}
	if l.dir {
		now := listed{name: old.Name, dir: true}
		if err := m.bury(&now); err != nil {
			return err
		}
		l.dir = now.dir
	}
	switch {
	case l.dir:
		// Where the page does not say that the object is gone, it may be hidden from now on.
		return m.replace(old, m.newDir(old.Name, !objGone), ref)
	case objGone:
		return m.remove(old, ref)
	case l.obj == nil:
		return nil // not in the range
	}
	o := l.obj
	same := o.Size == old.Object.Size && o.ETag == old.Object.ETag &&
		(o.ETag != "" || o.MTime == old.Object.MTime)
	if old.Kind != KindFile && o.ETag != "" && o.ETag == old.Object.ETag {
		same = true // a symlink, whatever its object holds
	}
	switch {
	case !same && (old.Kind != KindFile || ref):
		// Other names keep what they had.
		return m.replace(old, m.newFile(o), ref)
	case ref:
		m.res.Unchanged++
		return nil
	}
	in := *old
	in.Object.MTime = o.MTime
	in.Flags &^= Archived
	if o.Archived {
		in.Flags |= Archived
	}
	if !same {
		in.Gen = (in.Gen + 1) & maxGen
		in.Object = Object{Key: old.Object.Key, Size: o.Size, ETag: o.ETag, MTime: o.MTime}
		in.Flags &^= Ours | Told
		in.MTime, in.CTime = 0, 0 // they were of what was there before
	}
	return m.alter(old, &in, true)
}

// decideDir is decide for a directory of the index.
func (m *merger) decideDir(old *Inode, l listed, objGone, dirGone bool) error {
	if dirGone {
		if !m.alone {
			return errAlone
		}
		local, err := localBelow(m.read, old.Ino)
		if err != nil {
			return err
		}
		if local {
			m.res.Kept++
			dirGone = false
		}
	}
	if dirGone && l.obj != nil {
		now := listed{name: old.Name, obj: l.obj}
		if err := m.bury(&now); err != nil {
			return err
		}
		l.obj = now.obj
	}
	switch {
	case dirGone && l.obj != nil:
		return m.replace(old, m.newFile(l.obj), false)
	case dirGone:
		if old.Flags&Shadows != 0 && !objGone {
			m.res.Unshadowed = true
		}
		return m.remove(old, false)
	}
	in := *old
	if l.obj != nil {
		in.Flags |= Shadows
	} else if objGone {
		in.Flags &^= Shadows
	}
	return m.alter(old, &in, l.dir || l.obj != nil)
}
