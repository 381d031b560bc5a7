package cache

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"sync/atomic"

	"github.com/minio/crc64nvme"

	"github.com/leatfs/leatfs/cache/buf"
	"github.com/leatfs/leatfs/objstore"
)

// runBlocks is how many blocks in a row go to a writer together: 1 MiB. A write of that size
// costs a third of the CPU per byte that one of 128 KiB does, and twice the speed.
const (
	runBlocks = 8
	runBytes  = runBlocks * BlockSize
)

// ErrStale: the bytes are not here, and the origin no longer has this version of the object.
var ErrStale = errors.New("the origin no longer has this version of the object")

// staleError is ErrStale with the answer that told so.
type staleError struct {
	key   string
	cause error
}

func (e *staleError) Error() string {
	return fmt.Sprintf("object %q: %v: %v", e.key, ErrStale, e.cause)
}
func (e *staleError) Is(target error) bool { return target == ErrStale }
func (e *staleError) Unwrap() error        { return e.cause }

// fetch is one GET of blocks [lo, hi) of an object, none of which was here when it began.
// Its goroutine runs to the end whoever still waits.
type fetch struct {
	o      *Object
	lo, hi uint32
	whole  bool          // the entire object, by a GET without a range
	ahead  bool          // begun by Prefetch, for nobody as yet
	number uint64        // of the object's fetches, in the order in which they began
	src    Identity      // as which the origin is asked for it; only its goroutine uses it
	done   chan struct{} // closed at the end; err is final then
	err    error

	answered bool               // the origin has sent the header; o.mu guards it
	ctx      context.Context    // of the GET
	stop     context.CancelFunc // ends it

	prio   atomic.Uint32                      // objstore.Priority; only ever becomes more urgent
	raised chan struct{}                      // closed when it became Demand; nil if it always was
	cancel atomic.Pointer[context.CancelFunc] // ends the waiting for a buffer at the old priority
}

// raise makes a fetch that was a guess urgent: a reader waits for it now.
func (f *fetch) raise() {
	if f.prio.Swap(uint32(objstore.Demand)) == uint32(objstore.Demand) {
		return
	}
	if f.raised != nil {
		close(f.raised)
	}
	if c := f.cancel.Load(); c != nil {
		(*c)()
	}
}

// start begins fetches for the blocks of [lo, hi) that are absent, at most max blocks each, and
// returns them. o.mu is held. ahead marks the blocks as brought by prefetch.
func (o *Object) start(lo, hi uint32, p objstore.Priority, ahead bool, max uint32) (started []*fetch, err error) {
	for n := lo; n < hi; n++ {
		if o.blocks[n] != nil || o.present(n) {
			continue
		}
		end := n + 1
		for end < hi && end-n < max && o.blocks[end] == nil && !o.present(end) {
			end++
		}
		f := &fetch{o: o, lo: n, hi: end, whole: n == 0 && end == o.blockN, ahead: ahead, number: o.begun + 1, done: make(chan struct{})}
		f.prio.Store(uint32(p))
		ctx := objstore.WithPriority(o.c.ctx, p)
		if p != objstore.Demand {
			f.raised = make(chan struct{})
			ctx = objstore.WithRaised(ctx, f.raised)
		}
		f.ctx, f.stop = context.WithCancel(ctx)
		if !o.c.work.goFunc(f.run) {
			f.stop()
			return started, ErrClosed
		}
		o.begun++
		for i := n; i < end; i++ {
			o.blocks[i] = &block{o: o, n: i, fetch: f, ahead: ahead}
		}
		o.loose += int(end - n)
		o.fetches++
		o.c.flying.Add(int64(end - n))
		if ahead {
			o.c.n.aheadBytes.Add(uint64(o.span(n, end)))
		}
		started = append(started, f)
		n = end - 1
	}
	if !o.sumKnown && !o.heading && o.resident+uint32(o.loose) >= o.blockN && !o.wholeOnly(started) {
		o.head()
	}
	return started, nil
}

// wholeOnly tells whether the object comes by one whole GET, which brings the checksum.
func (o *Object) wholeOnly(fs []*fetch) bool { return len(fs) == 1 && fs[0].whole }

// span is the number of bytes in blocks [lo, hi).
func (o *Object) span(lo, hi uint32) int64 {
	return min(int64(hi)*BlockSize, o.ident.Size) - int64(lo)*BlockSize
}

// run is the fetch's goroutine.
func (f *fetch) run() {
	o := f.o
	err := f.stream()
	for missing(err) && o.elsewhere(f.src) { // moved while it was asked for
		err = f.stream()
	}
	f.stop()
	if err == nil {
		o.c.n.fetches.Add(1)
	} else {
		o.c.n.fetchErrors.Add(1)
		if missing(err) && !errors.Is(err, ErrStale) {
			err = &staleError{f.src.Key, err}
		}
	}
	o.mu.Lock()
	if errors.Is(err, ErrStale) {
		o.gone = err
	}
	f.err = err
	for n := f.lo; n < f.hi; n++ { // what did not come
		if b := o.blocks[n]; b != nil && b.fetch == f {
			b.fetch = nil
			delete(o.blocks, n)
			o.loose--
			o.c.flying.Add(-1)
			o.arrived(f, n, err)
		}
	}
	if objstore.KindOf(err).Temporary() {
		o.stopGuesses()
	}
	o.fetches--
	close(f.done)
	o.notify()
	idle := o.idle()
	o.mu.Unlock()
	if idle {
		o.c.retire(o)
	}
	o.c.pool.Nudge()
}

// stopGuesses ends the prefetches of an origin that has just failed: those that nobody has come to
// wait for, and that have no answer yet. Else they would stand in the way of readers when it is
// well again, for the sake of others that have long had their error. o.mu is held.
func (o *Object) stopGuesses() {
	for _, b := range o.blocks {
		if f := b.fetch; f != nil && f.ahead && !f.answered && f.prio.Load() != uint32(objstore.Demand) {
			f.stop()
		}
	}
}

// get asks the origin, and makes sure that what it answers is this version.
func (f *fetch) get(ctx context.Context) (*objstore.Reader, error) {
	o := f.o
	off, n := int64(f.lo)*BlockSize, o.span(f.lo, f.hi)
	f.src = o.Identity()
	opt := objstore.GetOptions{Offset: off, Length: n, IfMatch: f.src.ETag, VersionID: f.src.VersionID}
	if f.whole {
		opt.Length = -1
	}
	r, err := o.store.Get(ctx, f.src.Key, opt)
	if err != nil {
		return nil, err
	}
	if err := same(&f.src, r.Object); err != nil || r.Offset != off || r.Length != n {
		r.Body.Close()
		if err == nil {
			err = fmt.Errorf("object %q: asked for %d bytes at %d, the origin sends %d at %d", f.src.Key, n, off, r.Length, r.Offset)
		}
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	f.answered = true
	if o.version == "" && o.src.Key == f.src.Key {
		o.version = r.Object.VersionID
	}
	if f.whole && !o.sumKnown {
		o.learn(r.Object.Checksum)
	}
	return r, nil
}

// same returns a staleError if x is not the version i.
func same(i *Identity, x objstore.Object) error {
	if x.Size != i.Size || x.ETag != "" && i.ETag != "" && x.ETag != i.ETag {
		return &staleError{i.Key, fmt.Errorf("it has %d bytes and ETag %q, not %d and %q", x.Size, x.ETag, i.Size, i.ETag)}
	}
	return nil
}

// missing tells whether the origin said that it has not, or no longer, the version that was asked for.
func missing(err error) bool {
	return objstore.Is(err, objstore.PreconditionFailed) || objstore.Is(err, objstore.NotFound) || errors.Is(err, ErrStale)
}

// learn notes what checksum the origin holds; o.mu is held.
func (o *Object) learn(s objstore.Checksum) {
	o.checksum, o.sumKnown = s, true
	if o.sumAlg != s.Algorithm { // the guess was wrong: what was computed is of no use
		o.sumAlg = s.Algorithm
		for _, e := range o.extents {
			clear(e.has32[:])
		}
		for _, b := range o.blocks {
			b.has32 = false
		}
	}
	o.c.hints.Store(o.ident.Origin, s.Algorithm)
	if o.id != 0 {
		o.recordDirty = true
		o.c.ledger.mark(o)
	}
}

func (f *fetch) stream() error {
	o, ctx := f.o, f.ctx
	r, err := f.get(ctx)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	o.mu.Lock()
	alg, known, gen := o.sumAlg, o.sumKnown, o.gen
	o.mu.Unlock()
	var digest hash.Hash
	if f.whole && known && alg == objstore.ChecksumNone && r.Object.ETagIsMD5 && r.Object.ETag == f.src.ETag {
		digest = md5.New()
	}
	whole := newCombiner(objstore.CRC64NVME)
	var pending []*block
	flush := func() {
		if len(pending) > 0 {
			o.keep(pending)
			pending = nil
		}
	}
	defer flush()
	for n := f.lo; n < f.hi; n++ {
		b := o.c.pool.TryAcquire(objstore.Priority(f.prio.Load()))
		if b == nil {
			flush() // hold nothing back while waiting
			if b, err = f.acquire(ctx); err != nil {
				return err
			}
		}
		data := b.Bytes()[:o.blockLen(n)]
		if _, err := io.ReadFull(r.Body, data); err != nil {
			b.Release()
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = &objstore.Error{Op: "GET", Key: o.ident.Key, Kind: objstore.Unavailable, Err: io.ErrUnexpectedEOF}
			}
			return err
		}
		crc := crc64nvme.Checksum(data)
		if digest != nil {
			digest.Write(data)
			whole.add(crc, int64(len(data)))
		}
		blk := o.arrive(f, n, b, crc, alg, data)
		if pending == nil {
			pending = make([]*block, 0, min(uint32(o.c.runMax), f.hi-n))
		}
		if pending = append(pending, blk); len(pending) == o.c.runMax {
			if n+1 == f.hi && digest != nil {
				break // known first, stored after: completing looks at it
			}
			flush()
		}
	}
	if digest != nil {
		o.mu.Lock()
		if o.gen == gen {
			o.etagMD5 = md5State{known: true, equal: strings.EqualFold(hex.EncodeToString(digest.Sum(nil)), f.src.ETag), sum: whole.sum}
		}
		o.mu.Unlock()
	}
	flush()
	// Reading on to the end lets a connection be used again. All bytes are here: a late error
	// is of no concern, more bytes than promised are.
	var one [1]byte
	if k, _ := r.Body.Read(one[:]); k > 0 {
		return &objstore.Error{Op: "GET", Key: o.ident.Key, Kind: objstore.Corrupt, Err: errors.New("the body is longer than the answer said")}
	}
	return nil
}

// acquire waits for a buffer at the fetch's priority, which may rise meanwhile.
func (f *fetch) acquire(ctx context.Context) (*buf.Buf, error) {
	for {
		wctx, cancel := context.WithCancel(ctx)
		f.cancel.Store(&cancel)
		p := f.prio.Load()
		b, err := f.o.c.pool.Acquire(wctx, objstore.Priority(p))
		f.cancel.Store(nil)
		cancel()
		if err == nil || ctx.Err() != nil || p == uint32(objstore.Demand) {
			return b, err
		}
	}
}

// arrive puts a block that came into the table, where readers find it.
func (o *Object) arrive(f *fetch, n uint32, data *buf.Buf, crc uint64, alg objstore.ChecksumAlgorithm, bytes []byte) *block {
	var sum32 uint32
	if is32(alg) {
		sum32 = uint32(sumOf(alg, bytes))
	}
	o.c.n.originBytes.Add(uint64(len(bytes)))
	o.c.clock.Add(uint64(len(bytes)))
	o.c.flying.Add(-1)
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.blocks[n] // the fetch's own until it arrives: nobody drops a flying block
	b.fetch = nil
	b.buf, b.crc, b.sum32, b.has32 = data, crc, sum32, is32(alg) && alg == o.sumAlg
	b.queued = true
	o.arrived(f, n, nil)
	return b
}

// arrived tells those who wait that block n of f is no longer flying; o.mu is held.
func (o *Object) arrived(f *fetch, n uint32, err error) {
	for i := 0; i < len(o.waiters); i++ {
		w := o.waiters[i]
		if n < w.lo || n >= w.hi {
			continue
		}
		w.left--
		if err != nil && w.err == nil && f.number > w.since {
			w.err = err
		}
		if w.left <= 0 || err != nil {
			o.unwait(w)
			close(w.ch)
			i--
		}
	}
}

// unwait takes a waiter out of the list; o.mu is held.
func (o *Object) unwait(w *waiter) {
	for i, x := range o.waiters {
		if x == w {
			last := len(o.waiters) - 1
			o.waiters[i] = o.waiters[last]
			o.waiters[last] = nil
			o.waiters = o.waiters[:last]
			w.done = true
			return
		}
	}
}

// head asks for the object's checksum in the background; o.mu is held. It is started with
// the last GET of an object, so that it costs no time, and is not made for objects that are
// only read in part.
func (o *Object) head() {
	o.heading = true
	o.busy++
	if !o.c.work.goFunc(func() {
		x, err := o.c.headOf(o)
		o.mu.Lock()
		o.heading = false
		o.busy--
		o.headErr = err
		if err == nil && !o.sumKnown {
			o.learn(x.Checksum)
		}
		if errors.Is(err, ErrStale) {
			o.gone = err
		}
		o.finish()
		o.notify()
		idle := o.idle()
		o.mu.Unlock()
		if idle {
			o.c.retire(o)
		}
	}) {
		o.heading = false
		o.busy--
	}
}

func (c *Cache) headOf(o *Object) (objstore.Object, error) {
	for {
		src := o.Identity()
		x, err := o.store.Head(objstore.WithPriority(c.ctx, objstore.Prefetch), src.Key, objstore.HeadOptions{VersionID: src.VersionID})
		if objstore.Is(err, objstore.NotFound) {
			err = &staleError{src.Key, err}
		} else if err == nil {
			err = same(&src, x)
		}
		if err == nil || !errors.Is(err, ErrStale) || !o.elsewhere(src) {
			return x, err
		}
	}
}
