package publish

// heapOf is a binary heap whose members know where they are in it, so that any of them can be taken
// out. O says how they compare and where a member keeps its place (from 1; 0: not in the heap). A member is in at most
// one heap per place. Not safe for parallel use. The zero value is empty.
type heapOf[T any, O heapOps[T]] struct{ a []T }

type heapOps[T any] interface {
	less(a, b T) bool
	pos(T) *int32
}

func (h *heapOf[T, O]) len() int { return len(h.a) }

// top returns the least one, the zero T when there is none.
func (h *heapOf[T, O]) top() (t T) {
	if len(h.a) > 0 {
		t = h.a[0]
	}
	return t
}

func (h *heapOf[T, O]) push(t T) {
	h.a = append(h.a, t)
	h.up(len(h.a) - 1)
}

// remove takes t out, which must be in this heap.
func (h *heapOf[T, O]) remove(t T) {
	var o O
	i, last := int(*o.pos(t))-1, len(h.a)-1
	moved := h.a[last]
	var zero T
	h.a[last] = zero
	h.a = h.a[:last]
	*o.pos(t) = 0
	if i != last {
		h.a[i] = moved
		*o.pos(moved) = int32(i) + 1
		h.fix(moved)
	}
	if c := cap(h.a); c > 64 && last < c/4 {
		h.a = append(make([]T, 0, c/2), h.a...)
	}
}

// fix puts t, which is in this heap, in its place after its rank has changed.
func (h *heapOf[T, O]) fix(t T) {
	var o O
	if i := int(*o.pos(t)) - 1; !h.down(i) {
		h.up(i)
	}
}

func (h *heapOf[T, O]) up(i int) {
	var o O
	t := h.a[i]
	for i > 0 {
		p := (i - 1) / 2
		if !o.less(t, h.a[p]) {
			break
		}
		h.a[i] = h.a[p]
		*o.pos(h.a[i]) = int32(i) + 1
		i = p
	}
	h.a[i] = t
	*o.pos(t) = int32(i) + 1
}

func (h *heapOf[T, O]) down(i int) (moved bool) {
	var o O
	t := h.a[i]
	for {
		c := 2*i + 1
		if c >= len(h.a) {
			break
		}
		if c+1 < len(h.a) && o.less(h.a[c+1], h.a[c]) {
			c++
		}
		if !o.less(h.a[c], t) {
			break
		}
		h.a[i] = h.a[c]
		*o.pos(h.a[i]) = int32(i) + 1
		i, moved = c, true
	}
	h.a[i] = t
	*o.pos(t) = int32(i) + 1
	return moved
}
