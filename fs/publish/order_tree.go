package publish

import "math"

// tree keeps the entries of a queue by directory and class, and tells in O(depth × log n) which may be committed
// next. It answers what MustPrecede defines. Each directory knows the least Seq of the puts in it and below; each class
// its own least. Of the candidates of a class only the first needs to be looked at: what it waits for, the others wait
// for too. A change wakes the directories whose answer it may alter, and they are looked at when their turn comes. Guarded by
// Queue.mu.
type tree struct {
	dirs  map[string]*dir
	hold  heapOf[*entry, byHold] // puts that deletes elsewhere wait for
	held  heapOf[*dir, byDelete] // dirs whose first delete waits for hold only
	ring  ring                   // dirs that may have something for next
	ahead ring                   // dirs that have something to start ahead
	// stuck is by ID of the delete of a marker: the dirs where all wait for it.
	stuck map[uint64][]*dir
}

// none is the least Seq of nothing.
const none = math.MaxUint64

// dir is a directory that has entries, or one below that has.
type dir struct {
	name    string
	parent  *dir
	kids    heapOf[*dir, byMin] // those that have puts in them or below
	min     uint64              // least Seq of the puts here and below
	refs    int                 // entries and dirs in it
	classes map[string]*class   // those of byPut by name; nil until they are many

	byPut       heapOf[*class, byFirstPut]       // classes; each has puts
	byCandidate heapOf[*class, byFirstCandidate] // classes that have candidates
	deletes     heapOf[*entry, byCandidate]      // candidates
	withdrawn   heapOf[*entry, byClass]          // deletes of markers
	early       heapOf[*entry, byAhead]          // candidates that may be started ahead
	stuckOn     uint64                           // its entry in tree.stuck

	inKids, inHeld   int32
	inRing, inAheads bool
}

// class is the puts of a directory that look alike, or all its markers.
type class struct {
	name       string
	puts       heapOf[*entry, byClass]
	candidates heapOf[*entry, byCandidate]

	inPut, inCandidate int32
}

func newTree() tree {
	return tree{dirs: make(map[string]*dir), stuck: make(map[uint64][]*dir)}
}

// insert enters e into the order.
func (t *tree) insert(e *entry) {
	at, name := placeOf(e.Key)
	d := t.dir(at)
	d.refs++
	e.dir = d
	if e.Delete {
		if name == marker {
			d.withdrawn.push(e)
		}
		return
	}
	c := d.class(name)
	e.class = c
	c.puts.push(e)
	d.putsChanged(c)
	if !e.place().Failing {
		t.hold.push(e)
	}
	t.changed(d)
}

// remove takes e, which is no candidate, out of the order and wakes what may have waited for it.
func (t *tree) remove(e *entry) {
	d, c := e.dir, e.class
	e.dir, e.class = nil, nil
	if e.in[inHold] != 0 {
		t.release(e)
	}
	switch {
	case c != nil:
		c.puts.remove(e)
		d.putsChanged(c)
		if c.puts.len() == 0 {
			delete(d.classes, c.name)
		}
		t.changed(d)
	case e.in[inClass] != 0:
		d.withdrawn.remove(e)
		dirs := t.stuck[e.ID]
		delete(t.stuck, e.ID)
		for _, s := range dirs {
			if s.stuckOn == e.ID {
				s.stuckOn = 0
			}
			t.wake(s)
		}
	}
	t.unref(d)
}

// release lets the deletes elsewhere no longer wait for e.
func (t *tree) release(e *entry) {
	t.hold.remove(e)
	for d := t.held.top(); d != nil && !t.holds(d.deletes.top()); d = t.held.top() {
		t.held.remove(d)
		t.wake(d)
	}
}

func (t *tree) holds(e *entry) bool {
	h := t.hold.top()
	return h != nil && h.Seq < e.Seq
}

// offer says that e has nothing to wait for but its turn and a slot.
func (t *tree) offer(e *entry) {
	d := e.dir
	if e.Delete {
		t.unhold(d)
		d.deletes.push(e)
	} else {
		e.class.candidates.push(e)
		d.candidatesChanged(e.class)
	}
	if e.Ahead && e.run == nil && !e.Delete {
		d.early.push(e)
		if !d.inAheads {
			d.inAheads = true
			t.ahead.push(d)
		}
	}
	t.wake(d)
}

// withdraw takes back what offer said.
func (t *tree) withdraw(e *entry) {
	d := e.dir
	if e.in[inAhead] != 0 {
		d.early.remove(e)
	}
	if e.Delete {
		t.unhold(d)
		d.deletes.remove(e)
	} else {
		e.class.candidates.remove(e)
		d.candidatesChanged(e.class)
	}
	t.wake(d)
}

// unhold is called before the candidates among the deletes of d change. Who does so wakes d.
func (t *tree) unhold(d *dir) {
	if d.inHeld != 0 {
		t.held.remove(d)
	}
}

// next returns a candidate whose turn it is, nil if there is none. It remains a candidate.
func (t *tree) next() *entry {
	for d := t.ring.pop(); d != nil; d = t.ring.pop() {
		if e := t.pick(d); e != nil {
			t.ring.push(d)
			return e
		}
		d.inRing = false
	}
	return nil
}

// early returns a candidate that may be started ahead, whether it is its turn or not.
func (t *tree) early() *entry {
	for d := t.ahead.pop(); d != nil; d = t.ahead.pop() {
		if e := d.early.top(); e != nil {
			t.ahead.push(d)
			return e
		}
		d.inAheads = false
	}
	return nil
}

// pick returns the first candidate of d whose turn it is.
func (t *tree) pick(d *dir) *entry {
	var e *entry
	if c := d.byCandidate.top(); c != nil && c.candidates.top().Seq <= d.min {
		e = c.candidates.top()
	}
	// The class of the first put of d does not wait for that one.
	if c := d.byPut.top(); c != nil && c.candidates.len() > 0 {
		if f := c.candidates.top(); f.Seq <= d.limit(c) && (e == nil || f.before(e)) {
			e = f
		}
	}
	if f := d.deletes.top(); f != nil && f.Seq <= d.min && (e == nil || f.before(e)) {
		if !t.holds(f) {
			e = f
		} else if d.inHeld == 0 {
			t.held.push(d)
		}
	}
	if e == nil {
		return nil
	}
	if w := withdrawal(e); w != nil {
		if d.stuckOn != w.ID {
			d.stuckOn = w.ID
			t.stuck[w.ID] = append(t.stuck[w.ID], d)
		}
		return nil
	}
	return e
}

// blocked tells whether something in the order must be published before e.
func (t *tree) blocked(e *entry) bool {
	limit := e.dir.min
	if !e.Delete {
		limit = e.dir.limit(e.class)
	}
	return limit < e.Seq || e.Delete && t.holds(e) || withdrawal(e) != nil
}

// withdrawal returns an earlier delete of a marker in e's directory or above.
func withdrawal(e *entry) *entry {
	for d := e.dir; d != nil; d = d.parent {
		if w := d.withdrawn.top(); w != nil && w.Seq < e.Seq {
			return w
		}
	}
	return nil
}

// limit returns the least Seq of the puts that those of class c wait for.
func (d *dir) limit(c *class) uint64 {
	if c.name == marker || d.byPut.top() != c {
		return d.min
	}
	limit := uint64(none)
	if k := d.kids.top(); k != nil {
		limit = k.min
	}
	for i := 1; i < min(3, d.byPut.len()); i++ {
		limit = min(limit, d.byPut.a[i].puts.top().Seq)
	}
	return limit
}

// changed is called when the puts of d, or of one of its kids, have changed.
func (t *tree) changed(d *dir) {
	for ; d != nil; d = d.parent {
		t.wake(d)
		least := uint64(none)
		if c := d.byPut.top(); c != nil {
			least = c.puts.top().Seq
		}
		if k := d.kids.top(); k != nil {
			least = min(least, k.min)
		}
		if least == d.min {
			return
		}
		d.min = least
		if d.parent == nil {
			return
		}
		kids := &d.parent.kids
		switch {
		case d.inKids == 0:
			kids.push(d)
		case least == none:
			kids.remove(d)
		default:
			kids.fix(d)
		}
	}
}

// wake has d looked at, if it has candidates.
func (t *tree) wake(d *dir) {
	if !d.inRing && (d.byCandidate.len() > 0 || d.deletes.len() > 0) {
		d.inRing = true
		t.ring.push(d)
	}
}

func (d *dir) putsChanged(c *class) {
	switch {
	case c.inPut == 0:
		d.byPut.push(c)
	case c.puts.len() == 0:
		d.byPut.remove(c)
	default:
		d.byPut.fix(c)
	}
}

func (d *dir) candidatesChanged(c *class) {
	switch {
	case c.inCandidate == 0:
		d.byCandidate.push(c)
	case c.candidates.len() == 0:
		d.byCandidate.remove(c)
	default:
		d.byCandidate.fix(c)
	}
}

// fewClasses are found without a map, which takes more than all else of a small directory.
const fewClasses = 4

// class returns the class called name, a new one if there is none.
func (d *dir) class(name string) *class {
	if d.classes == nil {
		for _, c := range d.byPut.a {
			if c.name == name {
				return c
			}
		}
		if d.byPut.len() < fewClasses {
			return &class{name: name}
		}
		d.classes = make(map[string]*class)
		for _, c := range d.byPut.a {
			d.classes[c.name] = c
		}
	}
	c := d.classes[name]
	if c == nil {
		c = &class{name: name}
		d.classes[name] = c
	}
	return c
}

// dir returns the directory name, with those above it.
func (t *tree) dir(name string) *dir {
	d := t.dirs[name]
	if d == nil {
		d = &dir{name: name, min: none}
		if name != "" {
			up, _ := split(name)
			d.parent = t.dir(up)
			d.parent.refs++
		}
		t.dirs[name] = d
	}
	return d
}

// unref drops d, and those above it, when there is nothing in it any more.
func (t *tree) unref(d *dir) {
	for ; d != nil; d = d.parent {
		if d.refs--; d.refs > 0 {
			return
		}
		delete(t.dirs, d.name)
	}
}

type byMin struct{}

func (byMin) less(a, b *dir) bool { return a.min < b.min }
func (byMin) pos(d *dir) *int32   { return &d.inKids }

// byDelete sorts by the first candidate among the deletes, which all in the heap have.
type byDelete struct{}

func (byDelete) less(a, b *dir) bool { return a.deletes.top().before(b.deletes.top()) }
func (byDelete) pos(d *dir) *int32   { return &d.inHeld }

type byFirstPut struct{}

func (byFirstPut) less(a, b *class) bool { return a.puts.top().before(b.puts.top()) }
func (byFirstPut) pos(c *class) *int32   { return &c.inPut }

type byFirstCandidate struct{}

func (byFirstCandidate) less(a, b *class) bool {
	return a.candidates.top().before(b.candidates.top())
}
func (byFirstCandidate) pos(c *class) *int32 { return &c.inCandidate }

// ring is a queue of directories that take turns.
type ring struct {
	a    []*dir
	head int
}

func (r *ring) push(d *dir) { r.a = append(r.a, d) }

func (r *ring) pop() *dir {
	if r.head == len(r.a) {
		r.a, r.head = r.a[:0], 0
		return nil
	}
	d := r.a[r.head]
	r.a[r.head] = nil
	if r.head++; r.head > 32 && r.head > len(r.a)/2 {
		n := copy(r.a, r.a[r.head:])
		clear(r.a[n:])
		r.a, r.head = r.a[:n], 0
	}
	return d
}
