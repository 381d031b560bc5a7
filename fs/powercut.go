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
	size  int64
	disk  uint64   // where it is
	dir   meta.Ino // of its name
	whole bool     // all of it was forced to the disk
	known *left    // as the index knows it; nil: not at all
}

// powercut is one reconciliation of the index with the labels.
type powercut struct {
	f     *FS
	dirs  map[uint64]*cache.StageLabel // by the number on the label
	at    map[uint64]meta.Ino          // directories that were found, by the number on labels
	busy  map[uint64]bool              // being looked for
	files []found
	by    map[cache.ID]*left
	stamp string // in names that are given for want of a better one
}

// afterCut makes the index agree with the staging files: each is under the name that its label says,
// and published if all of it was forced to the disk. Others, which may be torn, are kept and not
// published. It may be run again when it was interrupted.
func (f *FS) afterCut(dirty []left) error {
	p := powercut{f: f, dirs: make(map[uint64]*cache.StageLabel), at: make(map[uint64]meta.Ino), busy: make(map[uint64]bool),
		by: make(map[cache.ID]*left), stamp: f.opt.Now().UTC().Format("20060102T150405")}
	for i := range dirty {
		if s := dirty[i].in.Stage; s != 0 {
			p.by[s] = &dirty[i]
		}
	}
	if err := p.readLabels(); err != nil {
		return err
	}
	here := make(map[cache.ID]bool)
	for i := range p.files {
		here[p.files[i].id] = true
	}
	for i := range dirty {
		if in := &dirty[i].in; in.Stage != 0 && !here[in.Stage] {
			if err := f.lostStage(in); err != nil {
				return err
			}
		}
	}
	for num, l := range p.dirs {
		switch d, err := f.db.Inode(meta.Ino(num)); {
		case errors.Is(err, meta.ErrNotFound) && l.Base == "":
			// The origin does not have it, nor does the index.
		case err != nil || d.Flags&meta.Removed != 0 || d.Kind != meta.KindDir:
			continue // made when something is in it
		}
		if _, err := p.dir(num, ""); err != nil {
			return err
		}
	}
	if err := p.placeAll(); err != nil {
		return err
	}
	return p.dropLabels()
}

// readLabels reads the labels of this mount, and sees to it that no number on them is given out again.
func (p *powercut) readLabels() error {
	f := p.f
	var ino, seq uint64
	var id cache.ID
	saw := func(l *cache.StageLabel) bool {
		ino, seq = max(ino, l.Ino, l.Parent), max(seq, l.Seq)
		return l.Origin == f.store.String() && strings.HasPrefix(l.Dir, f.root.Prefix)
	}
	if err := f.cache.WalkDirLabels(func(l cache.StageLabel) bool {
		if saw(&l) && !l.Removed {
			p.dirs[l.Ino] = &l
		}
		return true
	}); err != nil {
		return err
	}
	var inner error
	if err := f.cache.WalkStages(func(at cache.ID, l cache.StageLabel, err error) bool {
		id = max(id, at)
		if known := p.by[at]; err != nil && known != nil {
			// Only the index says whose it is, and nothing says that it is whole.
			f.log.Error("a staging file has lost its label: it is what the index says", "file", at, "err", err)
			l = cache.StageLabel{Parent: uint64(known.in.Parent), Name: known.in.Name, Seq: known.d.Seq}
		} else if err != nil || !saw(&l) {
			return true
		}
		st, err := f.cache.StatStage(at)
		if inner = err; err != nil {
			return false
		}
		p.files = append(p.files, found{id: at, label: l, size: st.Size, disk: st.Dev,
			whole: synced(&l, st.Size, st.Mtim.Nano()), known: p.by[at]})
		return true
	}); err != nil || inner != nil {
		return errors.Join(err, inner)
	}
	f.db.RaiseSeq(seq)
	return f.db.RaiseMarks(meta.Ino(min(ino, uint64(meta.MaxIno)-1)), id)
}

// placeAll gives the staging files their names. Of several that have the same the others were
// replaced by the youngest.
func (p *powercut) placeAll() error {
	type name struct {
		dir  meta.Ino
		name string
	}
	groups := make(map[name][]*found)
	for i := range p.files {
		s := &p.files[i]
		if gone, err := p.removed(s); err != nil {
			return err
		} else if gone {
			continue
		}
		var err error
		if s.dir, err = p.dir(s.label.Parent, s.label.Dir); err != nil {
			return err
		}
		at := name{s.dir, s.label.Name}
		groups[at] = append(groups[at], s)
	}
	var winners []*found
	var losers [][2]*found
	for _, g := range groups {
		slices.SortFunc(g, func(a, b *found) int { return cmp.Compare(b.label.Seq, a.label.Seq) })
		best := g[0]
		if i := slices.IndexFunc(g, func(s *found) bool { return s.whole }); i > 0 {
			best = g[i] // the younger ones never were on the disk
		}
		winners = append(winners, best)
		for _, s := range g {
			if s != best {
				losers = append(losers, [2]*found{s, best})
			}
		}
	}
	for _, l := range losers {
		if err := p.beaten(l[0], l[1]); err != nil {
			return err
		}
	}
	// In the order in which they got their names.
	slices.SortFunc(winners, func(a, b *found) int { return cmp.Compare(a.label.Seq, b.label.Seq) })
	for _, s := range winners {
		if err := p.reclaim(s, s.label.Name); err != nil {
			return err
		}
	}
	return nil
}

// removed tells whether a staging file has no name any more.
func (p *powercut) removed(s *found) (bool, error) {
	if s.known != nil && s.known.in.Flags&meta.Removed != 0 {
		return true, nil // nothing gets its name back; it goes with its inode
	}
	if !s.label.Removed {
		return false, nil
	}
	if s.known == nil {
		p.f.removeStage(s.id)
		return true, nil
	}
	in := &s.known.in
	dir, err := p.f.db.Inode(in.Parent)
	if err != nil {
		return true, absent(err)
	}
	if in.Links > 0 {
		return false, nil
	}
	return true, p.f.db.Do(func(tx *meta.Tx) error {
		var fx effects // all of it is found again by takeUp
		return absent(p.f.removeIn(tx, &dir, in, in.Name, &fx))
	})
}

// beaten deals with a staging file whose name is that of another.
func (p *powercut) beaten(s, by *found) error {
	f := p.f
	if s.known != nil && (s.known.in.Parent != s.dir || s.known.in.Name != s.label.Name) {
		// Its label is older than what the index says.
		return p.reclaimAt(s, s.known.in.Parent, s.known.in.Name)
	}
	if s.label.Seq > by.label.Seq || s.disk != by.disk {
		// It is not whole, or its label may be older than it looks: what is on different disks becomes
		// durable in any order.
		return p.reclaim(s, p.otherName(s.label.Name, uint64(s.id)))
	}
	if s.known == nil {
		f.removeStage(s.id)
		return nil
	}
	dir, err := f.db.Inode(s.dir)
	if err != nil {
		return err
	}
	return f.db.Do(func(tx *meta.Tx) error {
		var fx effects
		return absent(f.removeIn(tx, &dir, &s.known.in, s.label.Name, &fx))
	})
}

// otherName is a name for what cannot have its own.
func (p *powercut) otherName(name string, number uint64) string {
	suffix := ".replaced-" + p.stamp + "-" + cut(number)
	return name[:min(len(name), MaxName-len(suffix))] + suffix
}

func (p *powercut) reclaim(s *found, name string) error { return p.reclaimAt(s, s.dir, name) }

// reclaimAt puts a staging file under a name, and notes whether it is to be published.
func (p *powercut) reclaimAt(s *found, dir meta.Ino, name string) error {
	f := p.f
	var in meta.Inode
	err := f.db.Do(func(tx *meta.Tx) error {
		d, err := tx.Inode(dir)
		if err != nil {
			return err
		}
		if in, err = p.place(tx, s, &d, name); err != nil {
			return err
		}
		rec, err := tx.Dirty(in.Ino)
		if err := absent(err); err != nil {
			return err
		}
		rec.Ino = in.Ino
		rec.Token = besides(rec.Token, s.label.Token)
		if rec.Since == 0 {
			rec.Since = f.now()
		}
		rec.Held, rec.Seq, rec.Early, rec.Error = !s.whole, 0, false, heldTorn
		if s.whole {
			rec.Seq, rec.Error = f.db.NextSeq(), ""
		}
		return tx.SetDirty(&rec)
	})
	if err != nil {
		return &PathError{Op: "take up", Path: f.path(dir, name), Err: err}
	}
	f.mendLabel(&in)
	if !s.whole {
		f.log.Warn("a file was not known to be wholly on the disk when the machine stopped, and may be torn: it is kept and not published; look at it, then \"leatfs retry\" publishes it and \"leatfs discard\" gives it up",
			"path", f.path(dir, name), "bytes", s.size)
	}
	return nil
}

// place makes the index say that a staging file is the content of a name, and returns the inode.
func (p *powercut) place(tx *meta.Tx, s *found, dir *meta.Inode, name string) (in meta.Inode, err error) {
	have, err := tx.Lookup(dir.Ino, name)
	if err != nil && !errors.Is(err, meta.ErrNotFound) {
		return in, err
	}
	there := err == nil
	var now meta.Inode
	known := false
	if s.known != nil {
		if now, err = tx.Inode(s.known.in.Ino); err != nil {
			return in, err
		}
		known = now.Flags&meta.Removed == 0 && now.Stage == s.id
	}
	switch {
	case there && have.Stage == s.id:
		return have, nil
	case there && !known && have.Kind == meta.KindFile && have.Stage == 0:
		p.f.labelled(&have, dir, s)
		return have, tx.Update(&have)
	case there:
		if err := p.aside(tx, dir, &have); err != nil {
			return in, err
		}
	}
	if known {
		return p.move(tx, &now, dir, name)
	}
	want := meta.Inode{Kind: meta.KindFile, Name: name, CTime: p.f.now()}
	want.Object.ETag = s.label.Base // what it is to replace
	if name != s.label.Name {
		want.Object.ETag = ""
	}
	p.f.labelled(&want, dir, s)
	return tx.Insert(dir.Ino, want)
}

// labelled makes an inode what the label of a staging file says.
func (f *FS) labelled(in, dir *meta.Inode, s *found) {
	in.Stage = s.id
	in.Flags |= meta.Local
	if l := &s.label; l.Mode&labelOwned != 0 {
		in.Flags |= meta.Owned
		in.Mode, in.UID, in.GID = l.Mode&permBits, l.UID, l.GID
	}
	if s.label.Source != (cache.Identity{}) {
		in.Flags |= meta.Overlay
		in.Object = sourceOf(&s.label, dir)
	}
}

// sourceOf is the object that an overlay lies over.
func sourceOf(l *cache.StageLabel, dir *meta.Inode) meta.Object {
	o := meta.Object{Key: l.Source.Key, ETag: l.Source.ETag, VersionID: l.Source.VersionID, Size: l.Source.Size}
	if o.Key == dir.Prefix+l.Name {
		o.Key = ""
	}
	return o
}

// move gives an inode the name that its label says.
func (p *powercut) move(tx *meta.Tx, was, dir *meta.Inode, name string) (in meta.Inode, err error) {
	from, err := tx.Inode(was.Parent)
	if err != nil {
		return in, err
	}
	if in, err = tx.Move(was.Parent, was.Name, dir.Ino, name); err != nil {
		return in, err
	}
	var fx effects // all of it is found again by takeUp
	if err := p.f.moveAll(tx, &in, was, from.Prefix+was.Name, dir.Prefix+name, &fx); err != nil {
		return in, err
	}
	return in, tx.Update(&in)
}

// aside makes room for what has a name by its label. What has it in the index was replaced just
// before the power cut, or is called otherwise by a label of its own.
func (p *powercut) aside(tx *meta.Tx, dir, have *meta.Inode) error {
	if have.Kind == meta.KindDir || have.Stage != 0 && have.Links == 0 {
		_, err := p.move(tx, have, dir, p.otherName(have.Name, uint64(have.Ino)))
		return err
	}
	var fx effects
	return p.f.removeIn(tx, dir, have, have.Name, &fx)
}
