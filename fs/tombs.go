package fs

import (
	"github.com/leatfs/leatfs/fs/meta"
)

// graves are the tombs at and below a key: what the origin still shows and is not to be seen.
type graves map[string]meta.Tomb

// tombs reads those of a key and of all that begin with it. It costs nothing while there are none.
func (f *FS) tombs(key string) (graves, error) {
	if f.db.TombCount() == 0 {
		return nil, nil
	}
	g := make(graves)
	err := f.db.WalkTombs(key, key+"\xff", func(t meta.Tomb) bool {
		g[t.Key] = t
		return true
	})
	return g, err
}

// hides tells whether an object is one that is to be deleted, or was since began. Another version
// than the one meant is somebody else's, and shown.
func (g graves) hides(key, etag string, began int64) bool {
	t, ok := g[key]
	// With a token, the ETag of what may still land there is not known.
	return ok && (t.Done == 0 || t.Done >= began) && (t.ETag == "" || t.Token != "" || t.ETag == etag)
}

// hidesDir tells the same of a key that ends in "/": whether all below it is to go.
func (g graves) hidesDir(key string, began int64) bool {
	t, ok := g[key]
	return ok && t.Prefix && (t.Done == 0 || t.Done >= began)
}
