package fs

import (
	"sync"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// Programs that copy files set the times last, when the upload has begun already (shutil.copy2, tar). By its
// time a staging file shows whether it is still what was read for the upload; so times that are set while nobody can
// write are noted, and the file is not sent again for their sake.

// retimed knows which times of staging files were set. Safe for parallel use; what it forgets costs an upload.
type retimed struct {
	mu sync.Mutex
	m  map[cache.ID][]retime // oldest first; by mu
}

type retime struct{ from, to int64 } // mtimes in nanoseconds since 1970

const (
	maxRetimes = 16   // of a file
	maxRetimed = 4096 // files
)

func (r *retimed) add(id cache.ID, from, to int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m == nil || len(r.m) >= maxRetimed {
		r.m = make(map[cache.ID][]retime)
	}
	all := append(r.m[id], retime{from, to})
	r.m[id] = all[max(0, len(all)-maxRetimes):]
}

// since returns the time that a file has which had mtime once, and which nobody wrote to since.
func (r *retimed) since(id cache.ID, mtime int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.m[id] {
		if t.from == mtime {
			mtime = t.to
		}
	}
	return mtime
}

func (r *retimed) forget(id cache.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.m, id)
}

// retime sets the times of a staging file by set. The caller is the only one to open the inode's node.
func (f *FS) retime(in *meta.Inode, set func() error) error {
	quiet := false
	if f.open.writers(in.Ino) == 0 {
		if o := f.open.peek(f.nodeOf(in)); o != nil {
			o.closeStage()
		}
		writers, _, err := f.cache.StageBusy(in.Stage)
		quiet = err == nil && !writers
	}
	before, err := f.cache.StatStage(in.Stage)
	if err != nil {
		return err
	}
	if err := set(); err != nil || !quiet {
		return err
	}
	after, err := f.cache.StatStage(in.Stage)
	if err == nil && after.Size == before.Size {
		f.retimed.add(in.Stage, before.Mtim.Nano(), after.Mtim.Nano())
	}
	return err
}
