package fs

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/publish"
)

// LedgerState is what holds up something that the origin has not yet.
type LedgerState string

// The states. What a deletion waits for is told by its queue's state, as that of a file.
const (
	LedgerOpen      LedgerState = "open"      // somebody can write to it
	LedgerWaiting   LedgerState = "waiting"   // complete; for its turn
	LedgerUploading LedgerState = "uploading" // under way
	LedgerFailing   LedgerState = "failing"   // failed at its last try; will be tried again
	LedgerHeld      LedgerState = "held"      // may not be whole, its Error says why; not published until somebody says so
)

// ledgerOrder is the order in which entries are shown: what somebody should look at first.
var ledgerOrder = []LedgerState{LedgerFailing, LedgerHeld, LedgerOpen, LedgerUploading, LedgerWaiting}

// LedgerEntry is one thing that the origin has not yet.
type LedgerEntry struct {
	Path   string      `json:"path"` // below the mount, with a leading "/"; of a deletion, where the object was
	Kind   string      `json:"kind"` // file, directory, symlink; or delete
	State  LedgerState `json:"state"`
	Bytes  int64       `json:"bytes"`           // to be sent; 0 of a renamed file, which the origin copies
	Since  time.Time   `json:"since,omitzero"`  // when it became so; zero of a deletion
	Tries  uint32      `json:"tries"`           // that failed, in a row
	Next   time.Time   `json:"next,omitzero"`   // when it is tried again, zero when it does not wait for a time
	Error  string      `json:"error,omitempty"` // of the last try, or why it is held
	delete bool        // a deletion
	order  uint64      // of completion
}

// Ledger is what the origin has not yet of what was written here. Files are files, directories and
// symlinks.
type Ledger struct {
	Open      int `json:"open"`
	Waiting   int `json:"waiting"`
	Uploading int `json:"uploading"`
	Failing   int `json:"failing"`
	Held      int `json:"held"`
	// Deletes are objects that are still to be deleted, DeletesFailing those of them that could not be.
	Deletes        int   `json:"deletes"`
	DeletesFailing int   `json:"deletes_failing"`
	Bytes          int64 `json:"bytes"` // of all files
	// Unlinked files are still open, or were until a moment ago; their UnlinkedBytes go with the last close.
	Unlinked      int       `json:"unlinked"`
	UnlinkedBytes int64     `json:"unlinked_bytes"`
	Conflicts     int64     `json:"conflicts"`       // since the mount began
	Oldest        time.Time `json:"oldest,omitzero"` // since when the oldest file waits; zero when none does
	At            time.Time `json:"at"`              // when this was looked at
	// Entries are the first of all, those first that somebody should look at.
	Entries []LedgerEntry `json:"entries"`
}

// Files is how many files, directories and symlinks are not at the origin.
func (l *Ledger) Files() int { return l.Open + l.Waiting + l.Uploading + l.Failing + l.Held }

// Total is Files and deletions.
func (l *Ledger) Total() int { return l.Files() + l.Deletes }

// FirstError is the error of the first entry that has one.
func (l *Ledger) FirstError() string {
	for i := range l.Entries {
		if e := l.Entries[i].Error; e != "" {
			return e
		}
	}
	return ""
}

// ledgerMemo keeps the last Ledger. A ledger of 100,000 files takes a second to walk; who asks often is
// answered from here, so that asking costs a fiftieth of a core at most. While there is little the index is
// looked at each time, however long the last walk took: on a busy machine most of that was waiting, and who asks after
// a sync wants to see what came of it.
type ledgerMemo struct {
	mu   sync.Mutex
	last Ledger
	cost time.Duration // of making last
	max  int           // that last was made with
}

const (
	ledgerShare = 50  // how much more time passes between two walks than one takes
	ledgerShort = 200 // fewer entries than this are looked at each time
)

// Ledger tells what the origin has not yet, with at most max entries. A large one is looked at from time
// to time only, as its At says. The error is that of the index.
func (f *FS) Ledger(max int) (Ledger, error) {
	m := &f.ledger
	m.mu.Lock()
	defer m.mu.Unlock()
	many := f.db.DirtyCount()+f.db.TombCount() >= ledgerShort
	if many && m.cost > 0 && m.max >= max && time.Since(m.last.At) < m.cost*ledgerShare {
		l := m.last
		l.Entries = l.Entries[:min(len(l.Entries), max)]
		l.Conflicts = f.conflicts()
		return l, nil
	}
	began := time.Now()
	l, err := f.ledgerNow(max, nil)
	if err == nil {
		m.last, m.cost, m.max = l, time.Since(began), max
		if m.cost < 2*time.Millisecond {
			m.cost = 0 // always anew
		}
	}
	return l, err
}

func (f *FS) conflicts() int64 {
	p := &f.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conflict
}

// ledgerNow walks the index. Where wanted is given, only entries for which it says so are counted; it
// gets them without their path.
func (f *FS) ledgerNow(max int, wanted func(*LedgerEntry) bool) (Ledger, error) {
	l := Ledger{At: time.Now(), Conflicts: f.conflicts()}
	if f.db.DirtyCount()+f.db.TombCount() == 0 {
		return l, nil
	}
	w := ledgerWalk{f: f, l: &l, max: max, wanted: wanted, queue: make(map[uint64]publish.ItemState), rows: make(map[LedgerState][]ledgerRow)}
	for _, s := range f.publisher.queue.Snapshot() {
		w.queue[s.ID] = s
	}
	var err error
	walked := f.db.WalkDirty(0, func(d meta.Dirty) bool {
		err = w.dirty(&d)
		return err == nil
	})
	if err = errors.Join(walked, err); err != nil {
		return l, err
	}
	if err := f.db.WalkTombs("", "", func(t meta.Tomb) bool {
		w.tomb(&t)
		return true
	}); err != nil {
		return l, err
	}
	w.finish()
	return l, nil
}

// ledgerWalk is a walk through the index.
type ledgerWalk struct {
	f      *FS
	l      *Ledger
	max    int
	wanted func(*LedgerEntry) bool
	queue  map[uint64]publish.ItemState
	rows   map[LedgerState][]ledgerRow // at most max of each
}

// ledgerRow is an entry whose path is not looked up yet.
type ledgerRow struct {
	LedgerEntry
	dir  meta.Ino
	name string // or key
}

func (w *ledgerWalk) dirty(d *meta.Dirty) error {
	f := w.f
	in, err := f.db.Inode(d.Ino)
	if errors.Is(err, meta.ErrNotFound) {
		return nil // since a moment
	}
	if err != nil {
		return err
	}
	var bytes int64
	if in.Stage != 0 {
		if st, err := f.cache.StatStage(in.Stage); err == nil {
			bytes = st.Size
		}
	}
	if in.Flags&meta.Removed != 0 {
		if in.Stage != 0 && w.wanted == nil {
			w.l.Unlinked++
			w.l.UnlinkedBytes += bytes
		}
		return nil
	}
	q, queued := w.queue[uint64(d.Ino)]
	e := LedgerEntry{Kind: in.Kind.String(), State: f.ledgerState(d, &q, queued), Bytes: bytes, Since: time.Unix(0, d.Since),
		Tries: d.Tries, Error: d.Error, order: d.Seq}
	if queued && !d.Held {
		e.Tries, e.Error, e.Next = q.Tries, q.Error, q.Next
	}
	if w.wanted != nil && !w.wanted(&e) {
		return nil
	}
	w.l.Bytes += bytes
	switch e.State {
	case LedgerOpen:
		w.l.Open++
	case LedgerWaiting:
		w.l.Waiting++
	case LedgerUploading:
		w.l.Uploading++
	case LedgerFailing:
		w.l.Failing++
	case LedgerHeld:
		w.l.Held++
	}
	if w.l.Oldest.IsZero() || e.Since.Before(w.l.Oldest) {
		w.l.Oldest = e.Since
	}
	w.add(ledgerRow{LedgerEntry: e, dir: in.Parent, name: in.Name})
	return nil
}

// ledgerState is the state of a dirty inode that has a name.
func (f *FS) ledgerState(d *meta.Dirty, q *publish.ItemState, queued bool) LedgerState {
	switch {
	case d.Held:
		return LedgerHeld
	case d.Seq == 0 && f.written(d.Ino):
		return LedgerOpen
	case d.Seq == 0:
		return LedgerWaiting // for the completer
	case queued:
		return queueState(q)
	case d.Tries > 0:
		return LedgerFailing
	}
	return LedgerWaiting
}

func queueState(q *publish.ItemState) LedgerState {
	switch {
	case q.Tries > 0:
		return LedgerFailing
	case q.State == publish.StateRunning:
		return LedgerUploading
	}
	return LedgerWaiting
}

// written tells whether somebody can write to a file: it is open for that, or mapped.
func (f *FS) written(ino meta.Ino) bool {
	return f.open.writers(ino) > 0 || f.mapped(ino)
}

// mapped tells whether the completer found that somebody can write to a file though it is closed.
func (f *FS) mapped(ino meta.Ino) bool {
	p := &f.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	_, mapped := p.again[ino]
	return mapped
}

func (w *ledgerWalk) tomb(t *meta.Tomb) {
	if t.Done != 0 {
		return
	}
	q, queued := w.queue[w.f.tombID(t.Key)]
	e := LedgerEntry{Kind: "delete", State: LedgerWaiting, Tries: t.Tries, Error: t.Error, delete: true, order: t.Seq}
	if queued {
		e.State, e.Tries, e.Error, e.Next = queueState(&q), q.Tries, q.Error, q.Next
	}
	if w.wanted != nil && !w.wanted(&e) {
		return
	}
	w.l.Deletes++
	if e.State == LedgerFailing {
		w.l.DeletesFailing++
	}
	w.add(ledgerRow{LedgerEntry: e, name: t.Key})
}

func (w *ledgerWalk) add(r ledgerRow) {
	if len(w.rows[r.State]) < w.max {
		w.rows[r.State] = append(w.rows[r.State], r)
	}
}

// finish chooses the entries and looks up their paths.
func (w *ledgerWalk) finish() {
	for _, s := range ledgerOrder {
		rows := w.rows[s]
		slices.SortFunc(rows, func(a, b ledgerRow) int {
			return cmp.Or(boolOrder(a.delete, b.delete), cmp.Compare(a.order, b.order))
		})
		for i := range rows {
			if len(w.l.Entries) >= w.max {
				return
			}
			e := rows[i].LedgerEntry
			if e.delete {
				e.Path = w.f.pathOfKey(rows[i].name)
			} else {
				e.Path = w.f.path(rows[i].dir, rows[i].name)
			}
			w.l.Entries = append(w.l.Entries, e)
		}
	}
}

// boolOrder puts false first.
func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// pathOfKey is where an object shows, or would.
func (f *FS) pathOfKey(key string) string {
	return "/" + strings.TrimPrefix(key, f.root.Prefix)
}
