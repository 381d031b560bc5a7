package cache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
)

// Moved says that the origin has copied a version: to is the same bytes under another key. Who has the
// object open goes on with it, and asks the origin for what is not here by the new identity; the file
// on the disk becomes that of the new one. Nothing is fetched anew.
//
// From this call on Object finds the same object under both identities. When the caller's own
// change stands (or did not come about), it calls commit(true) (or false), once: with true the bytes are asked for by
// to from then on, and from is forgotten as soon as the index knows. Should the process be killed in between, the file
// stays that of the old identity and is evicted in time.
//
// The caller sees to it that the object's file is not made a staging file meanwhile.
func (c *Cache) Moved(from, to Identity) (commit func(ok bool), err error) {
	if from.Size != to.Size || from.Origin != to.Origin {
		return nil, fmt.Errorf("object %q of %d bytes cannot have become %q of %d", from.Key, from.Size, to.Key, to.Size)
	}
	o, err := c.Object(objstore.WithPriority(context.Background(), objstore.Background), from, nil)
	if err != nil {
		return nil, err
	}
	hash := to.Hash()
	c.mu.Lock()
	other, known := c.active[hash]
	if !known {
		c.active[hash] = o
	}
	c.mu.Unlock()
	// Somebody may be reading an object that has been replaced since, of the same bytes under the same
	// key: that one keeps its place, and this one only learns where to ask.
	taken := known && other != o
	return func(ok bool) {
		if ok {
			c.rename(o, to, hash, taken)
		} else if !known {
			c.mu.Lock()
			if c.active[hash] == o {
				delete(c.active, hash)
			}
			c.mu.Unlock()
		}
		o.Release()
	}, nil
}

// rename makes to the identity of o. taken: another object has its place in the table.
func (c *Cache) rename(o *Object, to Identity, hash [16]byte, taken bool) {
	c.mu.Lock()
	o.mu.Lock()
	o.was = append(o.was, o.src)
	o.src, o.version, o.gone = to, to.VersionID, nil
	var l label
	path := ""
	if !taken {
		o.as = to
		if o.hash != hash {
			o.aliases = append(o.aliases, o.hash)
			o.hash = hash
		}
		o.recordDirty = o.recordDirty || o.id != 0
		c.ledger.mark(o) // also when there is nothing to write: see forgetAliases
		if o.id != 0 && o.state.Complete() && o.unsaid == nil {
			// One that is not complete yet gets its label when it is.
			l, path = label{Identity: o.as, State: o.state, Sum: o.sum, Checksum: o.checksum}, o.dir.filePath(o.id)
		}
	}
	o.mu.Unlock()
	c.mu.Unlock()
	if path == "" {
		return
	}
	if err := unix.Lsetxattr(path, xattrName, l.encode(), 0); err != nil && !errors.Is(err, unix.ENOENT) {
		c.log.Warn("an object file keeps the label of the key that it had before; if the index is lost, it is fetched again",
			"key", to.Key, "err", &os.PathError{Op: "setxattr", Path: path, Err: err})
	}
}

// forgetAliases takes the former identities of o out of the table, once the index has the present one.
// Until then a record that is found by a former one must lead to the object. c.mu and o.mu are held.
func (o *Object) forgetAliases() {
	if o.dirty || o.flushing {
		return
	}
	for _, h := range o.aliases {
		if h != o.hash && o.c.active[h] == o {
			delete(o.c.active, h)
		}
	}
	o.aliases = nil
}

// identities are all under which the object was given to somebody, the present one last; o.mu is held.
func (o *Object) identities() []Identity { return append(slices.Clone(o.was), o.src) }

// elsewhere tells whether the origin has the object somewhere else than at i by now.
func (o *Object) elsewhere(i Identity) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.src.Key != i.Key || o.src.ETag != i.ETag
}

// Retain adds a reference, for one more Release. The caller knows of one that is not released meanwhile.
func (o *Object) Retain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refs++
}
