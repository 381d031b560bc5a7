package fs

import (
	"github.com/leatfs/leatfs/fs/meta"
)

// lostStage: the index knows a staging file that is not there. It was published or removed just before
// the power cut, or made and never forced to the disk: then the name stands for what the origin has.
func (f *FS) lostStage(in *meta.Inode) error {
	return f.db.Do(func(tx *meta.Tx) error {
		now, err := tx.Inode(in.Ino)
		if err != nil || now.Stage != in.Stage {
			return absent(err)
		}
		now.Stage = 0
		now.Flags &^= meta.Overlay
		if err := absent(tx.ClearDirty(in.Ino, false)); err != nil {
			return err
		}
		switch {
		case now.Flags&meta.Removed != 0:
			return tx.Update(&now)
		case now.Object.ETag == "":
			if err := tx.Update(&now); err != nil {
				return err
			}
			return f.lostName(tx, &now)
		case now.Object.Key != "" || now.Links > 0:
			// Renamed, and its object is still where it was.
			if err := tx.Update(&now); err != nil {
				return err
			}
			return tx.SetDirty(&meta.Dirty{Ino: in.Ino, Since: f.now(), Seq: f.db.NextSeq()})
		}
		now.Flags &^= meta.Local
		now.Checked = 0
		if err := tx.Update(&now); err != nil {
			return err
		}
		if err := f.lostKey(tx, now.Parent, now.Name); err != nil {
			return err
		}
		return f.unlist(tx, now.Parent)
	})
}

// lostName takes the names of a file without content away. Whether the origin has something under them it is
// asked.
func (f *FS) lostName(tx *meta.Tx, in *meta.Inode) error {
	for {
		if err := f.lostKey(tx, in.Parent, in.Name); err != nil {
			return err
		}
		left, err := tx.Remove(in.Parent, in.Name)
		if err != nil {
			return err
		}
		if err := f.unlist(tx, in.Parent); err != nil || left.Flags&meta.Removed != 0 {
			return err
		}
		in = &left
	}
}

// lostKey has what the origin has under a name stay there: it is what was to be overwritten, and stays until that is, or what
// has overwritten it already. Only what is still to be copied from there goes then.
func (f *FS) lostKey(tx *meta.Tx, dir meta.Ino, name string) error {
	d, err := tx.Inode(dir)
	if err != nil {
		return absent(err)
	}
	t, err := tx.Tomb(d.Prefix + name)
	if err != nil || t.Done != 0 || t.Needed != 0 {
		return absent(err)
	}
	return tx.ClearTomb(t.Key)
}
