package fs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// varOrigin is where the index says which origin, and prefix, it was used for last.
const varOrigin = "fs.origin"

// claim refuses an index and cache directories that hold what was written to another origin, or below another prefix, and
// is not there yet: what is to be deleted or aborted stands in the index by its key alone, and would be at this origin, and
// a power cut is made up for by one mount.
func (f *FS) claim() error {
	own := f.store.String() + "/" + f.root.Prefix
	last, err := f.db.Var(varOrigin)
	if err != nil && !errors.Is(err, cache.ErrNoRecord) {
		return err
	}
	if string(last) == own {
		return nil
	}
	files, deletions, err := f.others(last != nil)
	if err != nil {
		return err
	}
	if files+deletions > 0 {
		other := "another bucket or prefix"
		if last != nil {
			other = strings.TrimSuffix(string(last), "/")
		}
		return fmt.Errorf("the cache directory holds %d files and %d deletions of %s that are not there yet: mount that with it again until they are (\"leatfs sync\" tells what is left), or choose another with --cache-dir",
			files, deletions, other)
	}
	return f.db.Apply(cache.Batch{Vars: map[string][]byte{varOrigin: []byte(own)}, Needed: true})
}

// others counts what is not at other origins yet. known says that another one was used last: all deletions are its.
func (f *FS) others(known bool) (files, deletions int, err error) {
	var inner error
	indexed := make(map[cache.ID]bool)
	if err := f.db.WalkDirty(0, func(d meta.Dirty) bool {
		in, err := f.db.Inode(d.Ino)
		switch {
		case errors.Is(err, meta.ErrNotFound):
		case err != nil:
			inner = err
		default:
			indexed[in.Stage] = true
			if in.Flags&meta.Removed == 0 && !f.below(&in) {
				files++
			}
		}
		return inner == nil
	}); err != nil || inner != nil {
		return 0, 0, errors.Join(err, inner)
	}
	if err := f.db.WalkTombs("", "", func(t meta.Tomb) bool {
		if known && t.Done == 0 {
			deletions++
		}
		return true
	}); err != nil {
		return 0, 0, err
	}
	// What the index has lost the labels tell.
	err = f.cache.WalkStages(func(id cache.ID, l cache.StageLabel, err error) bool {
		if err == nil && !l.Removed && !indexed[id] && (l.Origin != f.store.String() || !strings.HasPrefix(l.Dir, f.root.Prefix)) {
			files++
		}
		return true
	})
	return files, deletions, err
}
