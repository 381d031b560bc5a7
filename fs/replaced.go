package fs

import (
	"sync"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
)

// foreign counts objects that were published here and that somebody else has replaced or removed
// since. That may be meant: the log and the counters say it, and nothing else comes of it.
type foreign struct {
	mu       sync.Mutex
	replaced int64     // by mu
	removed  int64     // by mu
	last     string    // the path of the last one; by mu
	told     time.Time // when the log said it last; by mu
	untold   int       // since then; by mu
}

// foreignTell is how often the log says it at most: a whole bucket may be replaced at once.
const foreignTell = time.Second

// Foreign is what somebody else did to objects that were published here, as far as a lookup or a
// listing has noticed it, since this process began.
type Foreign struct {
	Replaced, Removed int64
	Last              string // path of the last one, "" when there is none
}

// Foreign may be called at any time.
func (f *FS) Foreign() Foreign {
	f.foreign.mu.Lock()
	defer f.foreign.mu.Unlock()
	return Foreign{Replaced: f.foreign.replaced, Removed: f.foreign.removed, Last: f.foreign.last}
}

// notice looks whether a version that the index no longer has under a name was published here: old
// is what it had, etag what the origin has now, gone that it has nothing. The caller knows that it
// was not changed here.
func (f *FS) notice(old *meta.Inode, etag string, gone bool) {
	const ours = meta.Ours | meta.Local
	if old.Flags&ours != meta.Ours || old.Kind == meta.KindDir || old.Object.ETag == "" || !gone && etag == old.Object.ETag {
		return
	}
	name := f.path(old.Parent, old.Name)
	n := &f.foreign
	n.mu.Lock()
	if gone {
		n.removed++
	} else {
		n.replaced++
	}
	n.last = name
	untold := n.untold
	tell := time.Since(n.told) >= foreignTell
	if tell {
		n.told, n.untold = time.Now(), 0
	} else {
		n.untold++
	}
	n.mu.Unlock()
	switch {
	case !tell:
	case gone:
		f.log.Warn("an object that was published here has been deleted by somebody else", "path", name, "published", old.Object.ETag, "others", untold)
	default:
		f.log.Warn("an object that was published here has been replaced by somebody else", "path", name, "published", old.Object.ETag, "now", etag, "others", untold)
	}
}
