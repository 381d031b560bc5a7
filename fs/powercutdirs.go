package fs

import (
	"errors"
	"strconv"
	"strings"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// cut is a number as it is in names.
func cut(n uint64) string { return strconv.FormatUint(n, 36) }

// dir finds, or makes, the directory with a number that a label names: by the label of the
// directory itself if it has one, else as the index says, else by the path that was noted.
func (p *powercut) dir(num uint64, path string) (meta.Ino, error) {
	f := p.f
	if at, ok := p.at[num]; ok {
		return at, nil
	}
	own, alive := p.alive(num)
	if alive && own.Ino == f.root.Ino {
		if path == "" || path == own.Prefix {
			return own.Ino, nil
		}
		alive = false // the number is from another index
	}
	if l := p.dirs[num]; l != nil && !p.busy[num] {
		p.busy[num] = true
		defer delete(p.busy, num)
		if alive && !p.follows(&own) {
			p.at[num] = own.Ino
			f.labelDir(&own)
			return own.Ino, nil
		}
		up, err := p.dir(l.Parent, l.Dir)
		if err != nil {
			return 0, err
		}
		if at, ok := p.at[num]; ok {
			return at, nil // it lies below what it was moved out of
		}
		at, err := p.placeDir(up, l, num)
		if err == nil {
			p.at[num] = at
		}
		return at, err
	}
	if alive && (own.Prefix == path || !f.db.Rebuilt()) {
		return own.Ino, nil
	}
	return p.dirAt(path)
}

// alive returns the directory with a number, if it has a name in this mount.
func (p *powercut) alive(num uint64) (meta.Inode, bool) {
	in, err := p.f.db.Inode(meta.Ino(num))
	return in, err == nil && in.Kind == meta.KindDir && in.Flags&meta.Removed == 0 && p.f.below(&in)
}

// follows tells whether a directory may be moved because its label says so. One of which the index
// does not know all that is in it would be torn apart; it stays whole under its old name.
func (p *powercut) follows(in *meta.Inode) bool {
	if in.Flags&meta.Local != 0 && in.Flags&meta.Marker == 0 {
		return true
	}
	l, err := p.f.db.Listing(in.Ino)
	return err == nil && in.Flags&meta.Owned != 0 && l.Complete > 0
}

// dirAt finds, or makes, the directory of a path.
func (p *powercut) dirAt(path string) (meta.Ino, error) {
	at := p.f.root.Ino
	for _, name := range strings.Split(strings.Trim(strings.TrimPrefix(path, p.f.root.Prefix), "/"), "/") {
		if name == "" {
			continue
		}
		var err error
		if at, err = p.placeDir(at, &cache.StageLabel{Name: name}, 0); err != nil {
			return 0, err
		}
	}
	return at, nil
}

// placeDir finds the directory of a name, moves the one with the number num there, or makes one.
func (p *powercut) placeDir(up meta.Ino, l *cache.StageLabel, num uint64) (at meta.Ino, err error) {
	f := p.f
	own, alive := p.alive(num)
	alive = alive && own.Ino != f.root.Ino
	if have, err := f.db.Lookup(up, l.Name); err == nil && have.Kind == meta.KindDir && (!alive || have.Ino != own.Ino) {
		// What has the name may have another by its own label.
		if h := p.dirs[uint64(have.Ino)]; h != nil && !p.busy[uint64(have.Ino)] && (h.Name != l.Name || h.Parent != l.Parent) {
			if _, err := p.dir(uint64(have.Ino), have.Prefix); err != nil {
				return 0, err
			}
		}
	}
	err = f.db.Do(func(tx *meta.Tx) error {
		d, err := tx.Inode(up)
		if err != nil {
			return err
		}
		have, err := tx.Lookup(up, l.Name)
		if err != nil && !errors.Is(err, meta.ErrNotFound) {
			return err
		}
		if err == nil {
			if have.Kind == meta.KindDir && (!alive || have.Ino == own.Ino) {
				at = have.Ino
				return nil
			}
			if err := p.makeRoom(tx, &d, &have); err != nil {
				return err
			}
		}
		if alive {
			at = own.Ino
			_, err := p.move(tx, &own, &d, l.Name)
			return err
		}
		want := meta.Inode{Kind: meta.KindDir, Name: l.Name, Flags: meta.Local, CTime: f.now()}
		if l.Mode&labelOwned != 0 {
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
	if alive && (errors.Is(err, meta.ErrInvalid) || errors.Is(err, meta.ErrTooBig)) {
		f.log.Warn("a directory cannot have the name that its label says; it keeps the one before", "path", f.path(own.Parent, own.Name), "label", l.Dir+l.Name, "err", err)
		return own.Ino, nil
	}
	return at, err
}

// dropLabels removes the labels of directories that have another number now, and so another label: at the next power cut
// they would bring back what may have been removed by then. What is in them has labels that name the new number.
func (p *powercut) dropLabels() error {
	for num, at := range p.at {
		if uint64(at) == num {
			continue
		}
		in, err := p.f.db.Inode(at)
		if err != nil {
			return err
		}
		if at != p.f.root.Ino {
			p.f.labelDir(&in)
		}
		if err := p.f.cache.RemoveDirLabel(num); err != nil {
			return err
		}
	}
	return nil
}

// makeRoom takes away, or aside, what has a name that a directory has by its label.
func (p *powercut) makeRoom(tx *meta.Tx, d, have *meta.Inode) error {
	if have.Kind == meta.KindDir {
		some, err := tx.HasEntries(have.Ino)
		if err != nil {
			return err
		}
		if !some && !p.busy[uint64(have.Ino)] {
			var fx effects
			return p.f.removeIn(tx, d, have, have.Name, &fx)
		}
	}
	return p.aside(tx, d, have)
}
