package meta

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dgraph-io/badger/v4"
)

// A merge goes through the names of a page and the names of the index side by side, both in
// byte order of names. That is not the order of the page's range: a directory's sort key has
// a "/" at the end. Two sorts of names stand apart and are looked up one by one, before the
// sweep; there are few:
//
//   - Directories of the index whose sort key is in the range though their name is not above
//     From: these are From itself and those of its beginnings that "/" sorts behind.
//   - Names of the page outside (From, To] by name.
//
// A merge is done in steps, each one transaction under the directory's lock. Between steps
// the lock is free and the caller is told of the changes.

// What one step may do: far less than a transaction holds (1.2 MB), and little enough that
// who waits for the directory's lock does not notice.
const (
	stepWrites = 2048      // keys
	stepBytes  = 384 << 10 // of keys and values
	stepReads  = 8192      // names
)

// listed is one name of a page: an object, a directory, or both.
type listed struct {
	name string
	obj  *ListedObject
	dir  bool
}

// Merge makes the index agree with one page of a listing of directory dir: new names are
// added, those with another ETag or size get the new version (File 0, Gen one higher; what they
// were is kept for InodeAt), those
// with another time only that, and names of the range that the page has not are removed.
// Unchanged names are not written. Local inodes and those checked after p.Began are not
// altered. A directory hides an object of its name (flag Shadows).
//
// Merge may run in parallel with everything else, also on the same directory. It is not one
// transaction: when it fails or the process dies, part of the page is merged, each name
// wholly or not at all. ErrNotFound when dir is not there or was removed, ErrMoved when it was renamed.
func (db *DB) Merge(dir Ino, p Page) (MergeResult, error) {
	m := merger{db: db, dir: dir, page: &p}
	if err := m.prepare(); err != nil {
		return MergeResult{}, err
	}
	for done := false; !done; {
		var err error
		if done, err = m.step(); err != nil {
			return m.res, err
		}
		m.report()
	}
	return m.res, nil
}

// merger is a merge under way. Used by one goroutine.
type merger struct {
	db   *DB
	dir  Ino
	page *Page

	apart   []listed // to be looked up one by one; the obj and dir of index names are unset
	names   []listed // of the page, inside (From, To] by name, in order
	current Inode    // the directory, in the step under way

	after string // the sweep has done names up to this one

	// alone: the step under way, or the next, runs beside no transaction of Do.
	alone  bool
	buried bool // the directory's keys are all under a tomb, in the step under way

	res     MergeResult
	changes []Change // of the step under way

	// The transaction of the step under way.
	tx, read      *badger.Txn
	writes, bytes int
	now           int64
}

func (m *merger) prepare() error {
	p := m.page
	all := make([]listed, 0, len(p.Objects)+len(p.Dirs))
	for i := range p.Objects {
		all = append(all, listed{name: p.Objects[i].Name, obj: &p.Objects[i]})
	}
	for _, d := range p.Dirs {
		all = append(all, listed{name: d, dir: true})
	}
	byName := func(a, b listed) int { return cmp.Compare(a.name, b.name) }
	slices.SortStableFunc(all, byName) // nearly sorted
	m.names = all[:0]
	for _, l := range all {
		if err := checkName(l.name); err != nil {
			return err
		}
		if n := len(m.names); n > 0 && m.names[n-1].name == l.name {
			last := &m.names[n-1]
			if last.dir == l.dir {
				return fmt.Errorf("%w: name %q twice in a page", ErrInvalid, l.name)
			}
			last.dir, last.obj = true, cmp.Or(last.obj, l.obj)
			continue
		}
		m.names = append(m.names, l)
	}
	if p.To != "" && p.To < p.From {
		return fmt.Errorf("%w: page from %q to %q", ErrInvalid, p.From, p.To)
	}
	low, _ := slices.BinarySearchFunc(m.names, p.From, func(l listed, s string) int {
		if l.name <= s {
			return -1
		}
		return 1
	})
	if p.From == "" {
		low = 0
	}
	high := len(m.names)
	if p.To != "" {
		high, _ = slices.BinarySearchFunc(m.names, p.To, func(l listed, s string) int {
			if l.name <= s {
				return -1
			}
			return 1
		})
		high = max(high, low)
	}
	m.apart = append(m.apart, m.names[:low]...)
	m.apart = append(m.apart, m.names[high:]...)
	m.names = m.names[low:high]
	m.after = p.From
	for i := 1; i <= len(p.From) && i <= MaxName; i++ {
		name := p.From[:i]
		if m.coversDir(name) && !slices.ContainsFunc(m.apart, func(l listed) bool { return l.name == name }) {
			m.apart = append(m.apart, listed{name: name})
		}
	}
	return nil
}

func (m *merger) covers(sortKey string) bool {
	return sortKey > m.page.From && (m.page.To == "" || sortKey <= m.page.To)
}

func (m *merger) coversDir(name string) bool {
	// Without making the string name + "/".
	from, to := m.page.From, m.page.To
	return compareDir(name, from) > 0 && (to == "" || compareDir(name, to) <= 0)
}

// compareDir compares name + "/" with key.
func compareDir(name, key string) int {
	rest, ok := strings.CutPrefix(key, name)
	if !ok {
		// They differ within name, or key is a beginning of it.
		return strings.Compare(name, key)
	}
	return strings.Compare("/", rest)
}

// report tells the caller of the step's changes, or keeps them for it.
func (m *merger) report() {
	for i := range m.changes {
		c := &m.changes[i]
		switch {
		case m.page.OnChange != nil:
			m.page.OnChange(*c)
		case c.New.Ino == 0:
			m.res.Removed = append(m.res.Removed, c.Old)
		case c.Old.Ino != 0:
			m.res.Changed = append(m.res.Changed, *c)
		}
	}
	clear(m.changes)
	m.changes = m.changes[:0]
}

// step does one transaction's worth.
func (m *merger) step() (done bool, err error) {
	db := m.db
	if err := db.enter(); err != nil {
		return false, err
	}
	defer db.life.RUnlock()
	if m.alone {
		db.prune.Lock()
		defer db.prune.Unlock()
	}
	mu := db.dirLock(m.dir)
	mu.Lock()
	defer mu.Unlock()
	before, alone := m.res, m.alone
	defer func() {
		if alone {
			m.alone = false
		}
	}()
	m.now = time.Now().UnixNano()
	m.writes, m.bytes = 0, 0
	err = db.view(func(read *badger.Txn) error {
		if m.current, err = readDir(read, m.dir); err != nil {
			return err
		}
		if p := m.page.Prefix; p != "" && p != m.current.Prefix {
			return &callerError{ErrMoved}
		}
		// Reads and writes are two transactions: an iterator of one that writes notes every
		// key it sees. The lock keeps what is read true.
		m.tx = db.b.NewTransaction(true)
		defer m.tx.Discard()
		m.read = read
		if m.buried, err = m.tombAbove(); err != nil {
			return err
		}
		if done, err = m.sweep(read); err == errAlone {
			m.alone, err = true, nil
		}
		if err != nil || m.writes == 0 {
			return err
		}
		if !db.space.allow() {
			return &callerError{ErrNoSpace}
		}
		db.writes.Add(1)
		defer db.snaps.committed()
		return m.tx.Commit()
	})
	m.tx, m.read = nil, nil
	if err != nil {
		m.res = before
		m.changes = m.changes[:0]
		var c *callerError
		if errors.As(err, &c) {
			err = c.error
		}
	}
	return done, err
}

// full tells whether the step has done enough.
func (m *merger) full(reads int) bool {
	return m.writes >= stepWrites || m.bytes >= stepBytes || reads >= stepReads
}

func (m *merger) sweep(read *badger.Txn) (done bool, err error) {
	reads := 0
	for len(m.apart) > 0 {
		if m.full(reads) {
			return false, nil
		}
		l := m.apart[0]
		var old Inode
		switch err := readEntry(read, m.dir, l.name, &old); {
		case err == nil:
			if err := m.decide(&old, l); err != nil {
				return false, err
			}
		case !errors.Is(err, ErrNotFound):
			return false, err
		default:
			if err := m.decide(nil, l); err != nil {
				return false, err
			}
		}
		reads++
		m.apart = m.apart[1:]
	}

	prefix := inoKey(keyDentry, m.dir)
	it := read.NewIterator(badger.IteratorOptions{Prefix: prefix})
	defer it.Close()
	to := []byte(m.page.To)
	for it.Seek(seekAfter(prefix, m.after)); ; {
		var name []byte
		if it.Valid() {
			name = it.Item().Key()[len(prefix):]
			if len(to) > 0 && bytes.Compare(name, to) > 0 {
				name = nil
			}
		}
		// New names before the index's next one.
		for len(m.names) > 0 && (name == nil || m.names[0].name < string(name)) {
			if m.full(reads) {
				return false, nil
			}
			if err := m.decide(nil, m.names[0]); err != nil {
				return false, err
			}
			m.after, m.names = m.names[0].name, m.names[1:]
			reads++
		}
		if name == nil {
			return true, nil
		}
		if m.full(reads) {
			return false, nil
		}
		old, err := readItem(it.Item(), m.dir, len(prefix))
		if err != nil {
			return false, err
		}
		var l listed
		rest := m.names
		if len(rest) > 0 && rest[0].name == old.Name {
			l, rest = rest[0], rest[1:]
		}
		at := old.Name
		if err := m.decide(&old, l); err != nil {
			return false, err
		}
		m.after, m.names = at, rest
		reads++
		it.Next()
	}
}

func (m *merger) newFile(o *ListedObject) *Inode {
	in := &Inode{Kind: KindFile, Parent: m.dir, Name: o.Name,
		Object: Object{Size: o.Size, ETag: o.ETag, MTime: o.MTime}}
	if o.Archived {
		in.Flags |= Archived
	}
	return in
}

func (m *merger) newDir(name string, shadows bool) *Inode {
	in := &Inode{Kind: KindDir, Parent: m.dir, Name: name, Prefix: m.current.Prefix + name + "/"}
	if shadows {
		in.Flags |= Shadows
	}
	return in
}

func (m *merger) insert(in *Inode) (err error) {
	if in.Ino, err = m.db.marks.newIno(); err != nil {
		return &callerError{err}
	}
	m.wrote(2, 64+2*len(in.Name)+len(in.Prefix))
	return putNew(m.tx, in)
}

func (m *merger) add(in *Inode) error {
	m.res.Added++
	if m.page.OnChange != nil {
		defer func() { m.changes = append(m.changes, Change{New: *in}) }()
	}
	return m.insert(in)
}

// alter rewrites an inode if it differs; listed says that the page has its name.
func (m *merger) alter(old, in *Inode, listed bool) error {
	if *in == *old {
		if listed {
			m.res.Unchanged++
		}
		return nil
	}
	m.res.Altered++
	m.changes = append(m.changes, Change{Old: *old, New: *in})
	if in.Gen != old.Gen {
		m.wrote(2, 128+len(old.Name)+len(old.Object.Key))
		if err := putKept(m.tx, old, m.now); err != nil {
			return err
		}
	}
	v := appendBody(make([]byte, 0, 64), in)
	m.wrote(1, len(in.Name)+len(v))
	return m.tx.Set(dentryKey(m.dir, in.Name), v)
}

func (m *merger) remove(old *Inode, ref bool) error {
	if ref && !m.alone {
		return errAlone
	}
	m.res.Gone++
	m.wrote(4, 128+2*len(old.Name)+len(old.Prefix))
	was := *old
	if err := m.unlink(&was, ref, false); err != nil {
		return err
	}
	m.changes = append(m.changes, Change{Old: was})
	return nil
}

// replace gives a name to another inode.
func (m *merger) replace(old, in *Inode, ref bool) error {
	if ref && !m.alone {
		return errAlone
	}
	m.res.Altered++
	m.wrote(3, 128+2*len(old.Name)+len(old.Prefix))
	was := *old
	if err := m.unlink(&was, ref, true); err != nil {
		return err
	}
	err := m.insert(in)
	m.changes = append(m.changes, Change{Old: was, New: *in})
	return err
}

// unlink takes a name away from an inode, which then is as it is told to the caller.
func (m *merger) unlink(old *Inode, ref, keepDentry bool) error {
	if !ref {
		return putRemoved(m.tx, old, m.now, keepDentry)
	}
	parent, name := old.Parent, old.Name
	*old = Inode{Ino: old.Ino, Parent: parent, Name: name}
	err := unlink(m.tx, old, m.now, keepDentry)
	old.Parent, old.Name = parent, name
	return err
}

func (m *merger) wrote(keys, bytes int) {
	m.writes += keys
	m.bytes += bytes + 16*keys
}
