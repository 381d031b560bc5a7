package cache

import (
	"context"
	"errors"
	"fmt"

	"github.com/minio/crc64nvme"

	"github.com/leatfs/leatfs/cache/buf"
	"github.com/leatfs/leatfs/objstore"
)

// mismatchTries is how often an object whose bytes do not match its ETag is fetched whole
// before that is an error. (The same bytes twice are believed.)
const mismatchTries = 3

// finish starts completing the object if all of it is on disk; o.mu is held.
func (o *Object) finish() {
	if o.blockN == 0 || o.resident != o.blockN || o.loose > 0 || o.state.Complete() || o.ending || o.heading ||
		o.id == 0 || o.corrupt != nil {
		return
	}
	o.ending = true
	o.busy++
	if !o.c.work.goFunc(func() {
		err := o.complete()
		o.mu.Lock()
		o.ending = false
		o.busy--
		o.endErr = err
		o.notify()
		idle := o.idle()
		o.mu.Unlock()
		if err != nil && !errors.Is(err, errChanged) {
			o.c.log.Warn("an object is whole but could not be verified", "key", o.ident.Key, "err", err)
		}
		if idle {
			o.c.retire(o)
		}
	}) {
		o.ending = false
		o.busy--
	}
}

// complete compares what was stored with the checksum that the origin holds, and makes the
// object complete if they agree or there is none. No block is punched meanwhile (see ending).
func (o *Object) complete() error {
	o.mu.Lock()
	known := o.sumKnown
	o.mu.Unlock()
	if !known {
		x, err := o.c.headOf(o)
		o.mu.Lock()
		if err == nil {
			o.learn(x.Checksum)
		} else if errors.Is(err, ErrStale) {
			o.gone = err
		}
		o.mu.Unlock()
		if err != nil {
			return err
		}
	}

	o.mu.Lock()
	gen, want, md5 := o.gen, o.checksum, o.etagMD5
	sum, ok := o.combined()
	if !ok {
		o.recount()
		o.mu.Unlock()
		return errChanged
	}
	f, err := o.openForRead()
	o.mu.Unlock()
	if err != nil {
		return err
	}
	defer f.release()
	if err := o.checkAll(f, gen); err != nil {
		return err
	}

	state, equal := Unverifiable, true
	switch {
	case want.Algorithm == objstore.CRC64NVME:
		state, equal = Proven, sum == want.Value
	case is32(want.Algorithm):
		got, err := o.combined32(f, want.Algorithm)
		if err != nil {
			return err
		}
		state, equal = Proven, got == want.Value
	case md5.known && md5.sum == sum:
		state, equal = Proven, md5.equal
	}
	if !equal {
		believed, err := o.mismatched(gen, sum, want)
		if !believed {
			return err
		}
		state = Unverifiable
	}
	return o.conclude(f, gen, state, sum)
}

// conclude makes the object complete: first by the label of its file, then for all who ask. So
// every file that may have been lent says of itself that it is complete, whatever the index
// missed when the process was killed (see load).
func (o *Object) conclude(f *objFile, gen uint64, state State, sum uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gen != gen || o.resident != o.blockN {
		return errChanged
	}
	l := label{Identity: o.as, State: state, Sum: sum, Checksum: o.checksum}
	l.Identity.VersionID = o.version
	o.mu.Unlock()
	err := o.c.label(f, l)
	o.mu.Lock()
	if o.gen != gen || o.resident != o.blockN {
		return errChanged
	}
	if err != nil {
		o.c.log.Warn("an object file cannot be labelled; it is read through the daemon", "key", o.ident.Key, "err", err)
	}
	o.unsaid = err
	o.completed(state, sum)
	return nil
}

// checkAll reads every block of a file that was begun before the machine went down: what the
// index says of it may be older or newer than what the disk has. Bad blocks become absent.
func (o *Object) checkAll(f *objFile, gen uint64) error {
	o.mu.Lock()
	due := o.recheck
	o.mu.Unlock()
	if !due {
		return nil
	}
	bad := 0
	for n := uint32(0); n < o.blockN; n++ {
		o.mu.Lock()
		crc := o.extent(n / ExtentBlocks).CRC[n%ExtentBlocks]
		o.mu.Unlock()
		err := o.readBlock(f, n, crc, nil)
		if err == nil {
			continue
		}
		if !errors.Is(err, errBlock) {
			return err
		}
		o.mu.Lock()
		if o.gen == gen {
			o.clearPresent(n)
			bad++
		}
		o.mu.Unlock()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gen != gen {
		return errChanged
	}
	if bad > 0 {
		o.c.n.crcMismatches.Add(uint64(bad))
		o.c.log.Warn("blocks were lost when the machine went down; they are fetched again", "key", o.ident.Key, "blocks", bad)
		return errChanged // and all is read once more when they are here
	}
	o.recheck = false
	return nil
}

// completed sets the object's final state; o.mu is held.
func (o *Object) completed(state State, sum uint64) {
	o.state, o.sum, o.suspect = state, sum, false
	o.epoch = o.c.epoch.Load()
	o.c.epochUsed.Store(true)
	o.recordDirty = true
	o.c.ledger.mark(o)
	if state == Proven {
		o.c.n.proven.Add(1)
	} else {
		o.c.n.unverifiable.Add(1)
	}
	o.notify()
}

// combined returns the CRC64NVME of the whole from those of the blocks; false if a block is
// not resident after all. o.mu is held.
func (o *Object) combined() (uint64, bool) {
	c := newCombiner(objstore.CRC64NVME)
	for k := uint32(0); k*ExtentBlocks < o.blockN; k++ {
		e, n := o.extent(k), o.extentLen(k)
		if count(&e.Present) != n {
			return 0, false
		}
		for i := range n {
			c.add(e.CRC[i], int64(o.blockLen(k*ExtentBlocks+i)))
		}
	}
	return c.sum, true
}

// combined32 returns a 32-bit checksum of the whole. Blocks of which it was not computed when
// they came are read from the file, and checked by their CRC64NVME.
func (o *Object) combined32(f *objFile, alg objstore.ChecksumAlgorithm) (uint64, error) {
	c := newCombiner(alg)
	for n := uint32(0); n < o.blockN; n++ {
		o.mu.Lock()
		e, i := o.extent(n/ExtentBlocks), n%ExtentBlocks
		ok := o.sumAlg == alg && e.sum32 != nil && has(&e.has32, i)
		var s uint64
		if ok {
			s = uint64(e.sum32[i])
		}
		crc := e.CRC[i]
		o.mu.Unlock()
		if !ok {
			err := o.readBlock(f, n, crc, func(data []byte) { s = sumOf(alg, data) })
			if err != nil {
				return 0, err
			}
		}
		c.add(s, int64(o.blockLen(n)))
	}
	return c.sum, nil
}

// errBlock: a block on disk is not what was written.
var errBlock = errors.New("a block on disk does not match its checksum")

// readBlock reads block n of f for background work and passes it on, if its CRC is crc.
func (o *Object) readBlock(f *objFile, n uint32, crc uint64, fn func([]byte)) error {
	b, err := o.c.pool.Acquire(o.c.ctx, objstore.Background)
	if err != nil {
		return err
	}
	defer b.Release()
	return o.checkBlock(f, b, n, crc, fn)
}

func (o *Object) checkBlock(f *objFile, b *buf.Buf, n uint32, crc uint64, fn func([]byte)) error {
	if err := f.read([][]byte{b.Bytes()}, int64(n)*BlockSize, !o.small()); err != nil {
		return err
	}
	data := b.Bytes()[:o.blockLen(n)]
	if crc64nvme.Checksum(data) != crc {
		return fmt.Errorf("%s: block %d: %w", f.d.filePath(f.id), n, errBlock)
	}
	if fn != nil {
		fn(data)
	}
	return nil
}

// SetDamaged names who is told that bytes of a version which may have been given to readers
// were wrong, so that nobody keeps them. fn is called without locks, before the bytes are
// discarded: if the process is killed, the next one finds them and tells again. Readers of the
// object wait until it returns, so it must not wait for one.
func (c *Cache) SetDamaged(fn func(Identity)) { c.damagedFn.Store(&fn) }

// mismatched deals with an object whose bytes are not what the origin's checksum says. It
// answers true when they are to be believed all the same.
func (o *Object) mismatched(gen, sum uint64, want objstore.Checksum) (believed bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gen != gen {
		return false, errChanged
	}
	what := "ETag"
	if want.Algorithm != objstore.ChecksumNone {
		what = want.Algorithm.String()
	}
	o.mismatch++
	again := o.mismatch > 1 && o.lastSum == sum
	o.lastSum = sum
	if want.Algorithm == objstore.ChecksumNone && again {
		o.c.n.sumMismatches.Add(1)
		o.c.log.Warn("the same bytes came twice and do not match the ETag, which then is no MD5; they are believed", "key", o.ident.Key)
		return true, nil
	}
	o.c.log.Error("what was fetched does not match the origin's checksum; all of it is discarded and fetched again",
		"key", o.ident.Key, "checksum", what, "times", o.mismatch)
	o.damaged = true
	idents := o.identities()
	o.mu.Unlock()
	if fn := o.c.damagedFn.Load(); fn != nil {
		for _, i := range idents {
			(*fn)(i)
		}
	}
	o.c.n.sumMismatches.Add(1)
	o.mu.Lock()
	if o.gen != gen { // discarded meanwhile, for another reason
		return false, errChanged
	}
	o.discard()
	if want.Algorithm != objstore.ChecksumNone && o.mismatch > 1 || o.mismatch >= mismatchTries {
		o.corrupt = &objstore.Error{Op: "GET", Key: o.ident.Key, Kind: objstore.Corrupt,
			Err:  fmt.Errorf("object %q: the origin's data does not match its %s", o.ident.Key, what),
			Hint: "compare the object with its source and upload it again"}
		return false, o.corrupt
	}
	return false, errChanged
}

// verify reads the whole of a complete object that is in doubt after a power loss and checks
// every block. A bad one makes the object be fetched anew.
func (o *Object) verify(ctx context.Context, p objstore.Priority, pace func(int64) error) error {
	o.mu.Lock()
	gen := o.gen
	f, err := o.openForRead()
	o.mu.Unlock()
	if err != nil {
		return err
	}
	defer f.release()
	for n := uint32(0); n < o.blockN; n++ {
		o.mu.Lock()
		e, i := o.extent(n/ExtentBlocks), n%ExtentBlocks
		ok, crc := o.gen == gen && has(&e.Present, i), e.CRC[i]
		o.mu.Unlock()
		if !ok {
			err = errChanged
		} else {
			var b *buf.Buf
			if b, err = o.c.pool.Acquire(ctx, p); err != nil {
				return err
			}
			err = o.checkBlock(f, b, n, crc, nil)
			b.Release()
		}
		if err != nil {
			o.mu.Lock()
			if o.gen == gen {
				o.c.n.crcMismatches.Add(1)
				o.c.log.Error("an object file is not what was written; it is fetched again", "key", o.ident.Key, "err", err)
				o.discard()
			}
			o.mu.Unlock()
			return err
		}
		if pace != nil {
			if err := pace(int64(o.blockLen(n))); err != nil {
				return err
			}
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gen != gen {
		return errChanged
	}
	if o.suspect {
		o.suspect = false
		o.epoch = 0 // on the disk, whatever happens
		o.recordDirty = true
		o.c.ledger.mark(o)
		o.notify()
	}
	return nil
}
