package fs

import (
	"errors"
	"hash/maphash"
	"slices"

	"github.com/leatfs/leatfs/fs/meta"
)

// nameSet remembers which names a listing has found, 8 bytes each, for stores that list in no
// order: there a page proves nothing about the names between its own. Two names of one hash
// (one chance in 10^7 among a million) let a removed one stay until the next listing.
type nameSet struct {
	seed   maphash.Seed
	hashes []uint64
}

func (s *nameSet) add(p *meta.Page) {
	if s.hashes == nil {
		s.seed = maphash.MakeSeed()
	}
	for i := range p.Objects {
		s.hashes = append(s.hashes, maphash.String(s.seed, p.Objects[i].Name))
	}
	for _, d := range p.Dirs {
		s.hashes = append(s.hashes, maphash.String(s.seed, d))
	}
}

// sweep removes the names of dir that a listing in no order, begun at began, did not find.
func (f *FS) sweep(dir *meta.Inode, seen *nameSet, began int64) error {
	slices.Sort(seen.hashes)
	after := ""
	for {
		var gone []string
		n := 0
		err := f.db.Readdir(dir.Ino, after, readdirBatch, func(in meta.Inode) bool {
			n++
			after = in.Name
			found := false
			if len(seen.hashes) > 0 {
				_, found = slices.BinarySearch(seen.hashes, maphash.String(seen.seed, in.Name))
			}
			if !found {
				gone = append(gone, in.Name)
			}
			return true
		})
		if err != nil || n == 0 {
			return err
		}
		for _, name := range gone {
			if _, _, err := f.gone(dir.Ino, name, began); err != nil && !errors.Is(err, meta.ErrNotFound) {
				return err
			}
		}
	}
}
