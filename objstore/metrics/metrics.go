// Package metrics counts what is asked of an origin and tells whether it is well.
//
// It belongs next to the origin, inside the wrappers that repeat requests, so that what it
// counts is what the store sees and bills.
package metrics

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// numKinds is the number of error kinds.
const numKinds = int(objstore.Canceled) + 1

// bounds are the upper bounds of the latency histogram, in seconds. The last bucket, without
// bound, is not among them. From a local store's 1 ms to the minute at which all give up.
var bounds = [...]float64{.001, .0025, .005, .01, .02, .03, .05, .075, .1, .15, .25, .5, 1, 2.5, 5, 10, 30, 60}

// Bounds returns the upper bounds of the latency histogram, in seconds.
func Bounds() []float64 { return append([]float64(nil), bounds[:]...) }

// Store counts the requests on the Store it wraps. All methods may be called in parallel.
type Store struct {
	objstore.Store
	inner   objstore.Store
	classes [objstore.NumClasses]counters
	health  health
}

// counters are those of one class.
type counters struct {
	inFlight atomic.Int64
	ok       atomic.Uint64
	errors   [numKinds]atomic.Uint64
	in, out  atomic.Uint64 // bytes
	broken   atomic.Uint64 // GET bodies that ended with an error
	nanos    atomic.Uint64 // total latency
	buckets  [len(bounds) + 1]atomic.Uint64
}

// New wraps inner.
func New(inner objstore.Store) *Store {
	s := &Store{inner: inner}
	s.Store = objstore.Around(inner, s.request)
	return s
}

func (s *Store) request(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
	start := s.begin(op.Class)
	err := call(ctx)
	s.end(op.Class, start, blame(ctx, err))
	s.classes[op.Class].inFlight.Add(-1)
	if err == nil {
		s.classes[op.Class].out.Add(uint64(op.Upload))
	}
	return err
}

// Get counts a request as in flight until its body is closed, and its bytes as they come.
func (s *Store) Get(ctx context.Context, key string, opt objstore.GetOptions) (*objstore.Reader, error) {
	c := &s.classes[objstore.ClassGet]
	start := s.begin(objstore.ClassGet)
	r, err := s.inner.Get(ctx, key, opt)
	s.end(objstore.ClassGet, start, blame(ctx, err))
	if err != nil {
		c.inFlight.Add(-1)
		return nil, err
	}
	out := *r
	out.Body = &body{ReadCloser: r.Body, s: s, ctx: ctx}
	return &out, nil
}

func (s *Store) begin(class objstore.Class) time.Time {
	s.classes[class].inFlight.Add(1)
	return time.Now()
}

// end counts an answer; for a GET that is the first byte.
func (s *Store) end(class objstore.Class, start time.Time, err error) {
	c := &s.classes[class]
	if err != nil {
		c.errors[objstore.KindOf(err)].Add(1)
	} else {
		c.ok.Add(1)
	}
	s.health.result(err)
	if objstore.Is(err, objstore.Canceled) {
		return // says nothing of the store's latency
	}
	d := time.Since(start)
	c.nanos.Add(uint64(d))
	c.buckets[bucket(d)].Add(1)
}

// Progress is a number that grows whenever the store has answered a request, be it that there
// is no such object, or has sent bytes of a body.
func (s *Store) Progress() (n uint64) {
	for i := range s.classes {
		c := &s.classes[i]
		n += c.ok.Load() + c.in.Load()
		for k := range c.errors {
			if kind := objstore.Kind(k); kind != objstore.Canceled && !failure(kind) {
				n += c.errors[k].Load()
			}
		}
	}
	return n
}

func bucket(d time.Duration) int {
	for i, b := range bounds {
		if d.Seconds() <= b {
			return i
		}
	}
	return len(bounds)
}

// blame tells a request that its caller gave up, which says nothing of the store, from one
// that package stall ended because the store was silent: the context's cause is that error.
func blame(ctx context.Context, err error) error {
	if !objstore.Is(err, objstore.Canceled) {
		return err
	}
	var cause *objstore.Error
	if errors.As(context.Cause(ctx), &cause) && cause.Kind == objstore.Timeout {
		return cause
	}
	return err
}

type body struct {
	io.ReadCloser
	s      *Store
	ctx    context.Context // of the GET
	failed bool
	once   sync.Once
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	c := &b.s.classes[objstore.ClassGet]
	c.in.Add(uint64(n))
	if err != nil && err != io.EOF && !b.failed {
		b.failed = true
		if why := blame(b.ctx, err); !objstore.Is(why, objstore.Canceled) {
			c.broken.Add(1)
			b.s.health.result(why)
		}
	}
	return n, err
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.once.Do(func() { b.s.classes[objstore.ClassGet].inFlight.Add(-1) })
	return err
}

// Class is what was counted of one class since the start.
type Class struct {
	InFlight int64
	OK       uint64
	Errors   map[objstore.Kind]uint64 // only kinds that happened
	BytesIn  uint64                   // from the store
	BytesOut uint64                   // to the store, in requests that succeeded
	Broken   uint64                   // GET bodies that ended with an error
	// Seconds is the sum of the latencies (GET: to the first byte) of all answers, good or
	// bad; Buckets counts them by Bounds(), the last entry those above all bounds.
	Seconds float64
	Buckets []uint64
}

// Requests is the number of requests that were answered or failed.
func (c Class) Requests() uint64 {
	n := c.OK
	for _, e := range c.Errors {
		n += e
	}
	return n
}

// Snapshot is what was counted. The numbers are each right, not all of one instant.
type Snapshot struct {
	Classes [objstore.NumClasses]Class
	Health  Health
}

// Snapshot reads the counters.
func (s *Store) Snapshot() Snapshot {
	var out Snapshot
	for i := range s.classes {
		c := &s.classes[i]
		o := Class{InFlight: c.inFlight.Load(), OK: c.ok.Load(), Errors: map[objstore.Kind]uint64{},
			BytesIn: c.in.Load(), BytesOut: c.out.Load(), Broken: c.broken.Load(),
			Seconds: time.Duration(c.nanos.Load()).Seconds(), Buckets: make([]uint64, len(c.buckets))}
		for k := range c.errors {
			if n := c.errors[k].Load(); n > 0 {
				o.Errors[objstore.Kind(k)] = n
			}
		}
		for j := range c.buckets {
			o.Buckets[j] = c.buckets[j].Load()
		}
		out.Classes[i] = o
	}
	out.Health = s.health.snapshot()
	return out
}
