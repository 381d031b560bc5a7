package session

import (
	"sync/atomic"
	"unsafe"
)

// requestSize is the size of a record in bytes.
const requestSize = 64

// requestRecord is a request that is being carried out.
type requestRecord struct {
	unique  uint64 // 0: free
	node    uint64
	opcode  uint32
	deaths  uint32 // processes that died of something while they carried it out
	running uint32 // it is being carried out; not while it waits for its turn
	length  uint32 // bytes of its content that are kept, 0 when they are not
	since   int64  // when it was begun to be carried out, by the clock of the process that does
	large   uint32 // 1 + the number of the place where its content is, 0 when that is the record's own
	_       [20]byte
}

type requests struct {
	slots
	all     *[maxRequests]requestRecord
	content *[maxRequests][contentSize]byte
}

func (r *requests) open(s *Session) {
	r.all = (*[maxRequests]requestRecord)(unsafe.Pointer(&s.mem[requestsAt]))
	r.content = (*[maxRequests][contentSize]byte)(unsafe.Pointer(&s.mem[contentAt]))
	r.scan(&s.head.requestsHigh, maxRequests, func(i uint32) bool { return r.all[i].unique != 0 })
}

// Request is a record of a request under way; the zero Request is none.
type Request struct {
	s   *Session
	rec *requestRecord
}

// MaxContent is the longest content of a request that is kept, in bytes: a WRITE of 1 MiB.
const MaxContent = largeSize

// Begin records a request before it is carried out. With its bytes in content, up to MaxContent,
// it can be carried out by the next process without being sent again. ErrFull beyond 4096
// requests under way, or 16 of more than 4096 bytes.
func (s *Session) Begin(unique, node uint64, opcode uint32, content []byte) (Request, error) {
	i, err := s.requests.take()
	if err != nil {
		return Request{}, err
	}
	r := &s.requests.all[i]
	r.node, r.opcode, r.deaths, r.running = node, opcode, 0, 1
	atomic.StoreInt64(&r.since, s.now())
	r.length, r.large = 0, 0
	switch {
	case len(content) <= contentSize:
		r.length = uint32(copy(s.requests.content[i][:], content))
	case len(content) <= largeSize:
		place, ok := s.large.take()
		if !ok {
			s.requests.give(i)
			return Request{}, ErrFull
		}
		r.length, r.large = uint32(copy(s.large.all[place][:], content)), place+1
	}
	atomic.StoreUint64(&r.unique, unique)
	return Request{s, r}, nil
}

// Large returns the content of a request of more than 4096 bytes where it is kept, nil of others.
// It is valid until End.
func (r Request) Large() []byte {
	if r.rec == nil || r.rec.large == 0 || r.rec.large > maxLarge {
		return nil
	}
	return r.s.large.all[r.rec.large-1][:min(r.rec.length, largeSize)]
}

// End forgets a request that was answered.
func (s *Session) End(r Request) {
	if r.rec == nil {
		return
	}
	place := r.rec.large
	atomic.StoreUint64(&r.rec.unique, 0)
	s.requests.give(s.requests.number(r.rec))
	if place > 0 && place <= maxLarge {
		s.large.give(place - 1)
	}
}

func (r *requests) number(rec *requestRecord) uint32 {
	return uint32((uintptr(unsafe.Pointer(rec)) - uintptr(unsafe.Pointer(r.all))) / requestSize)
}

// Run says that a request is carried out from here on. Unfinished says that it is not.
func (r Request) Run() {
	if r.rec != nil {
		atomic.StoreInt64(&r.rec.since, r.s.now())
		atomic.StoreUint32(&r.rec.running, 1)
	}
}

// Deaths is how many processes died while they carried the request out.
func (r Request) Deaths() int {
	if r.rec == nil {
		return 0
	}
	return int(r.rec.deaths)
}

// Unfinished is what a process that is gone had begun.
type Unfinished struct {
	Request
	Unique, Node uint64
	Opcode       uint32
	Content      []byte // nil when it was not kept
}

// Unfinished returns the requests that the last process did not answer. With blame, it died
// of itself, and each that it was carrying out counts one death more. It is called once,
// before the first Begin.
func (s *Session) Unfinished(blame bool) (out []Unfinished) {
	for i := range atomic.LoadUint32(&s.head.requestsHigh) {
		r := &s.requests.all[i]
		if r.unique == 0 {
			continue
		}
		if blame && r.running != 0 {
			r.deaths++
		}
		r.running = 0
		u := Unfinished{Request: Request{s, r}, Unique: r.unique, Node: r.node, Opcode: r.opcode}
		if u.Large() != nil {
			u.Content = append([]byte(nil), u.Large()...)
		} else if n := r.length; n > 0 && n <= contentSize {
			u.Content = append([]byte(nil), s.requests.content[i][:n]...)
		}
		out = append(out, u)
	}
	return out
}

// Oldest returns for how many nanoseconds the oldest request under way has been carried out, 0
// when there is none, and which it is.
func (s *Session) Oldest() (age int64, node uint64, opcode uint32) {
	now := s.now()
	for i := range atomic.LoadUint32(&s.head.requestsHigh) {
		r := &s.requests.all[i]
		if atomic.LoadUint64(&r.unique) == 0 || atomic.LoadUint32(&r.running) == 0 {
			continue
		}
		if a := now - atomic.LoadInt64(&r.since); a > age {
			age, node, opcode = a, r.node, r.opcode
		}
	}
	return age, node, opcode
}

// Inbox is memory to read requests into, where they are found again when the reader is killed
// before it has recorded them. It holds one request.
func (s *Session) Inbox() []byte { return s.mem[inboxAt : inboxAt+inboxSize : inboxAt+inboxSize] }
