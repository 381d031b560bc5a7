// Package limit holds the number of requests in flight at what the origin bears.
//
// Stores throttle by key prefix, so there is a limit per group of keys (by default the
// first component of the key) besides that of the whole store. Each limit grows while it
// is what holds requests back, and falls when the store throttles: as TCP's window does.
//
// Requests that move data and those that do not (HEAD, LIST, DELETE) have slots of their
// own, so that an ls does not queue behind downloads. Waiting requests go by their
// objstore.Priority, first come first served within one, and a share of the slots is out
// of reach of all but Demand.
package limit

import (
	"context"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// Options are the bounds; zero means the default.
type Options struct {
	// Max is the most data requests in flight, Start their first limit. Defaults 128, 32.
	Max, Start int
	// MetaMax and MetaStart are the same for requests without data. Defaults 64, 32.
	MetaMax, MetaStart int
	// Reserve is the share of the slots (at least one slot, where there are two) that only
	// Demand may take. Default 0.25.
	Reserve float64
	// Group names the group of keys that the store throttles together. Default: all up to
	// the first "/". At most 64 groups are told apart; the rest share one.
	Group func(key string) string
}

func (o Options) withDefaults() Options {
	for v, def := range map[*int]int{&o.Max: 128, &o.Start: 32, &o.MetaMax: 64, &o.MetaStart: 32} {
		if *v == 0 {
			*v = def
		}
	}
	o.Start, o.MetaStart = min(o.Start, o.Max), min(o.MetaStart, o.MetaMax)
	if o.Reserve == 0 {
		o.Reserve = 0.25
	}
	if o.Group == nil {
		o.Group = func(key string) string {
			g, _, _ := strings.Cut(key, "/")
			return g
		}
	}
	return o
}

// Store limits the requests on the Store it wraps. A Get holds its slot until its body was
// read to the end, failed or was closed. Waiting ends with the context.
type Store struct {
	objstore.Store
	inner objstore.Store
	group func(string) string
	data  *pool
	meta  *pool
}

// New wraps inner.
func New(inner objstore.Store, opt Options) *Store {
	opt = opt.withDefaults()
	s := &Store{inner: inner, group: opt.Group,
		data: newPool(opt.Max, opt.Start, opt.Reserve), meta: newPool(opt.MetaMax, opt.MetaStart, opt.Reserve)}
	s.Store = objstore.Around(inner, s.request)
	return s
}

func (s *Store) pool(c objstore.Class) *pool {
	switch c {
	case objstore.ClassHead, objstore.ClassList, objstore.ClassDelete:
		return s.meta
	}
	return s.data
}

func (s *Store) acquire(ctx context.Context, op objstore.Op) (*slot, error) {
	sl, err := s.pool(op.Class).acquire(ctx, s.group(op.Key))
	if err != nil {
		return nil, &objstore.Error{Op: op.Name, Key: op.Key, Kind: objstore.Canceled, Err: err}
	}
	return sl, nil
}

func (s *Store) request(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
	sl, err := s.acquire(ctx, op)
	if err != nil {
		return err
	}
	err = call(ctx)
	sl.release(err)
	return err
}

// Get holds its slot as long as its body.
func (s *Store) Get(ctx context.Context, key string, opt objstore.GetOptions) (*objstore.Reader, error) {
	sl, err := s.acquire(ctx, objstore.Op{Class: objstore.ClassGet, Name: "GET", Key: key})
	if err != nil {
		return nil, err
	}
	r, err := s.inner.Get(ctx, key, opt)
	if err != nil {
		sl.release(err)
		return nil, err
	}
	out := *r
	out.Body = &body{ReadCloser: r.Body, slot: sl}
	return &out, nil
}

type body struct {
	io.ReadCloser
	slot *slot
	once sync.Once
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.once.Do(func() { b.slot.release(nil) })
	} else if err != nil {
		b.once.Do(func() { b.slot.release(err) })
	}
	return n, err
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.once.Do(func() { b.slot.release(nil) })
	return err
}

// Snapshot is the state of the slots.
type Snapshot struct {
	Data, Meta Slots
}

// Slots is the state of one sort of slots.
type Slots struct {
	Limit, InFlight int
	Waiting         [3]int // by objstore.Priority
	Throttled       uint64 // answers that said so, since the start
	Groups          []GroupSlots
}

// GroupSlots is the state of one group.
type GroupSlots struct {
	Name            string
	Limit, InFlight int
	Throttled       uint64
	// LastThrottled is zero where it never was.
	LastThrottled time.Time
}

// Snapshot reads the state.
func (s *Store) Snapshot() Snapshot {
	return Snapshot{Data: s.data.snapshot(), Meta: s.meta.snapshot()}
}
