package cache

import (
	"context"
	"errors"
	"fmt"

	"github.com/minio/crc64nvme"

	"github.com/leatfs/leatfs/cache/buf"
	"github.com/leatfs/leatfs/objstore"
)

// MaxRead is the most that one Read returns, in bytes, whatever it is asked for; a pool of
// less than 16 MiB makes it smaller (see Cache.MaxRead).
const MaxRead = 4 << 20

const maxReadBlocks = MaxRead/BlockSize + 1

// Data is the answer to a Read: Vecs in order make up the bytes. They are the cache's own
// buffers: not to be written to, and gone after Release.
type Data struct {
	Vecs [][]byte

	c      *Cache
	claim  int64
	bufs   []*buf.Buf
	vecArr [9][]byte // for a read of 1 MiB that is not aligned
	bufArr [9]*buf.Buf
}

// Len is the number of bytes.
func (d *Data) Len() (n int) {
	for _, v := range d.Vecs {
		n += len(v)
	}
	return n
}

// AppendTo appends the bytes to dst.
func (d *Data) AppendTo(dst []byte) []byte {
	for _, v := range d.Vecs {
		dst = append(dst, v...)
	}
	return dst
}

// Release gives the buffers back. It must be called once, soon: a reader that keeps Data
// stops others.
func (d *Data) Release() {
	for _, b := range d.bufs {
		b.Release()
	}
	d.bufs, d.Vecs = nil, nil
	if d.claim > 0 {
		d.c.claims.Release(d.claim)
		d.claim = 0
	}
}

// Read returns the bytes [off, off+n), fewer at the end of the object or beyond MaxRead, and
// waits for those that are not here. ctx ends the waiting, never a download.
//
// Errors: ctx's; ErrStale when bytes are absent and the origin no longer has this version;
// that of the origin (an *objstore.Error), after which another Read tries again; kind Corrupt
// when the origin's data does not match its own checksum. The origin's error is of a download
// that began after this Read did: who joins an older one, and sees it fail, makes another. So a
// Read takes at most twice as long as the store takes to give up.
func (o *Object) Read(ctx context.Context, off, n int64) (*Data, error) {
	n = min(n, o.c.maxRead-off%BlockSize)
	lo, hi := o.blockRange(off, n)
	if lo == hi {
		return &Data{}, nil
	}
	k := int64(hi - lo)
	if err := o.c.claims.Acquire(ctx, k); err != nil {
		return nil, err
	}
	d := &Data{c: o.c, claim: k}
	d.Vecs, d.bufs = d.vecArr[:0], d.bufArr[:0]
	var r reading
	r.o, r.lo, r.hi, r.off, r.end = o, lo, hi, off, min(off+n, o.ident.Size)
	err := r.run(ctx, d)
	if err != nil {
		d.Release()
		return nil, err
	}
	return d, nil
}

// reading is one Read in progress.
type reading struct {
	o        *Object
	lo, hi   uint32
	off, end int64
	held     [maxReadBlocks]*block // blocks of which wanted was raised
	missed   bool                  // some bytes had to come from the origin
	since    uint64                // number of the object's last fetch when the Read began
}

// diskTries is how often blocks that turn out bad or gone on disk are fetched anew within one Read.
const diskTries = 8

func (r *reading) run(ctx context.Context, d *Data) error {
	o := r.o
	for try := range diskTries {
		o.mu.Lock()
		if try == 0 {
			r.since = o.begun
		}
		err := r.await(ctx)
		if err != nil {
			r.unhold()
			o.mu.Unlock()
			o.c.pool.Nudge()
			return err
		}
		onDisk, err := r.pin(d)
		o.mu.Unlock()
		o.c.pool.Nudge()
		if err == nil && len(onDisk) > 0 {
			err = r.readDisk(ctx, d, onDisk)
		}
		switch {
		case err == nil:
			if r.missed {
				o.c.n.misses.Add(1)
			} else {
				o.c.n.hits.Add(1)
			}
			return nil
		case !errors.Is(err, errChanged):
			return err
		}
		for _, b := range d.bufs { // look again, holding nothing
			b.Release()
		}
		d.Vecs, d.bufs = d.Vecs[:0], d.bufs[:0]
	}
	return fmt.Errorf("%s: blocks read from disk were wrong %d times in a row", o.name(), diskTries)
}

// await returns when every block of the range is in memory and held, or on disk; o.mu is
// held, and released while waiting.
func (r *reading) await(ctx context.Context) error {
	o := r.o
	for {
		if o.corrupt != nil {
			return o.corrupt
		}
		if o.damaged {
			if err := o.waitChange(ctx); err != nil {
				return err
			}
			continue
		}
		flying := 0
		absent := uint32(0)
		for n := r.lo; n < r.hi; n++ {
			b := o.blocks[n]
			if b == nil {
				r.letGo(n)
				if !o.present(n) {
					if o.state.Complete() { // its extents are lost
						o.c.log.Warn("the index has lost blocks of a complete object; it is fetched again", "key", o.ident.Key)
						o.discard()
					}
					absent++
				}
				continue
			}
			r.hold(n, b)
			if b.fetch != nil {
				b.fetch.raise()
				flying++
			}
		}
		if absent > 0 {
			if o.gone != nil {
				return o.gone
			}
			r.missed = true
			if _, err := o.start(r.lo, r.hi, objstore.Demand, false, o.c.maxGet); err != nil {
				return err
			}
			continue
		}
		if flying == 0 {
			return nil
		}
		r.missed = true
		w := &waiter{lo: r.lo, hi: r.hi, since: r.since, left: flying, ch: make(chan struct{})}
		o.waiters = append(o.waiters, w)
		o.mu.Unlock()
		err := wait(ctx, w.ch)
		o.mu.Lock()
		if !w.done {
			o.unwait(w)
		}
		if err != nil {
			return err
		}
		if w.err != nil {
			return w.err
		}
	}
}

// hold keeps a block from being dropped until unhold or pin.
func (r *reading) hold(n uint32, b *block) {
	if r.held[n-r.lo] == b {
		return
	}
	r.letGo(n)
	b.wanted++
	r.held[n-r.lo] = b
}

// letGo ends the hold on a block that is no longer in the table: all of the object was
// discarded meanwhile, and its buffer is gone.
func (r *reading) letGo(n uint32) {
	if old := r.held[n-r.lo]; old != nil {
		old.wanted--
		r.held[n-r.lo] = nil
	}
}

func (r *reading) unhold() {
	for i, b := range r.held[:r.hi-r.lo] {
		if b != nil {
			b.wanted--
			r.held[i] = nil
			if r.o.blocks[b.n] == b {
				r.o.settle(b)
			}
		}
	}
}

// slice returns which part of block n is asked for.
func (r *reading) slice(n uint32) (from, to int) {
	base := int64(n) * BlockSize
	return int(max(r.off-base, 0)), int(min(r.end-base, BlockSize))
}

// diskBlock is a block to be read from disk.
type diskBlock struct {
	n   uint32
	crc uint64
	vec int // index in Data.Vecs
}

// pin takes the blocks that are in memory into d and lists those to be read from disk;
// o.mu is held. All blocks of the range are one or the other.
func (r *reading) pin(d *Data) (onDisk []diskBlock, err error) {
	o := r.o
	for n := r.lo; n < r.hi; n++ {
		i := n - r.lo
		b := r.held[i]
		r.held[i] = nil
		from, to := r.slice(n)
		if b != nil {
			b.wanted--
		}
		if b == nil || b.buf == nil {
			e := o.extent(n / ExtentBlocks)
			if !has(&e.Present, n%ExtentBlocks) {
				err = errChanged // by a punch or discard between two looks
				continue
			}
			onDisk = append(onDisk, diskBlock{n: n, crc: e.CRC[n%ExtentBlocks], vec: len(d.Vecs)})
			d.Vecs = append(d.Vecs, nil)
			o.markSeen(n)
			continue
		}
		b.buf.Retain()
		d.bufs = append(d.bufs, b.buf)
		d.Vecs = append(d.Vecs, b.buf.Bytes()[from:to])
		o.c.n.memoryBytes.Add(uint64(to - from))
		b.touched = true
		if to == o.blockLen(n) {
			b.read = true
		}
		if b.ahead {
			b.ahead = false
			o.c.n.aheadUsed.Add(uint64(o.blockLen(n)))
		}
		if b.stored {
			o.markSeen(n)
		}
		if o.blocks[n] == b {
			o.settle(b)
		}
	}
	return onDisk, err
}

// readDisk fills the blocks of d that are on disk, and checks them. errChanged: one was not
// what it should be, and is no longer thought resident.
func (r *reading) readDisk(ctx context.Context, d *Data, list []diskBlock) error {
	o := r.o
	o.mu.Lock()
	f, err := o.openForRead()
	o.mu.Unlock()
	if err != nil {
		return r.badDisk(nil, list, err)
	}
	defer f.release()
	first := len(d.bufs)
	if d.bufs, err = o.c.acquireDemand(ctx, len(list), d.bufs); err != nil {
		return err
	}
	bufs := d.bufs[first:]
	var vecArr [9][]byte
	for i := 0; i < len(list); {
		j := i + 1
		for j < len(list) && list[j].n == list[j-1].n+1 {
			j++
		}
		vecs := vecArr[:0]
		for _, b := range bufs[i:j] {
			vecs = append(vecs, b.Bytes())
		}
		if err := f.read(vecs, int64(list[i].n)*BlockSize, !o.small()); err != nil {
			return r.badDisk(f, list[i:j], err)
		}
		i = j
	}
	for i, x := range list {
		data := bufs[i].Bytes()[:o.blockLen(x.n)]
		if crc64nvme.Checksum(data) != x.crc {
			return r.badDisk(f, list[i:i+1], nil)
		}
		from, to := r.slice(x.n)
		d.Vecs[x.vec] = data[from:to]
		o.c.n.diskBytes.Add(uint64(to - from))
		if to-from < len(data) {
			r.retain(f, x, bufs[i])
		}
	}
	return nil
}

// retain leaves a block that was read in part in memory, for the next small read.
func (r *reading) retain(f *objFile, x diskBlock, b *buf.Buf) {
	o := r.o
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file != f || o.retired || o.blocks[x.n] != nil || !o.present(x.n) {
		return
	}
	b.Retain()
	kept := &block{o: o, n: x.n, buf: b, crc: x.crc, stored: true, touched: true}
	o.blocks[x.n] = kept
	o.settle(kept)
}

// badDisk deals with blocks that could not be read from f or are not what was written.
// It returns errChanged when it is worth looking again.
func (r *reading) badDisk(f *objFile, list []diskBlock, cause error) error {
	o := r.o
	if errors.Is(cause, errChanged) {
		return cause
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if f == nil {
		// Out of descriptors, or the disk is gone: not a reason to give up what it may hold.
		o.c.n.diskReadErrors.Add(1)
		return fmt.Errorf("%s: its file cannot be opened: %w", o.name(), cause)
	}
	if o.file != f {
		return errChanged
	}
	bad := false
	for _, x := range list {
		if !o.present(x.n) || o.extent(x.n / ExtentBlocks).CRC[x.n%ExtentBlocks] != x.crc {
			continue // punched or replaced while we read
		}
		bad = true
		if cause == nil {
			o.c.n.crcMismatches.Add(1)
			o.c.log.Error("a block on disk is not what was written; it is fetched again",
				"key", o.ident.Key, "block", x.n, "path", f.d.filePath(f.id))
		} else {
			o.c.n.diskReadErrors.Add(1)
			o.c.log.Error("a block cannot be read from disk; it is fetched again", "key", o.ident.Key, "block", x.n, "err", cause)
		}
		if !o.state.Complete() {
			o.clearPresent(x.n)
		}
	}
	if bad && o.state.Complete() {
		// The file may be in the hands of the kernel: it is left as it is, and replaced.
		o.discard()
	}
	return errChanged
}
