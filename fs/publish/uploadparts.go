package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
)

// partSize is the size of the parts of content of the given size.
func (s *session) partSize(size int64) int64 {
	c, ps := &s.p.caps, s.p.opt.PartSize
	if s.job.Copy != nil && s.copiesParts() {
		ps = s.p.opt.CopyPart
	}
	for i := range s.job.Reuse {
		if r := &s.job.Reuse[i]; s.hashes() && s.fits(r.PartSize, size) {
			ps = r.PartSize
			break
		}
	}
	ps = max(ps, wholeBlocks(c.MinPartSize))
	if c.MaxParts > 0 {
		ps = max(ps, wholeBlocks((size+int64(c.MaxParts)-1)/int64(c.MaxParts)))
	}
	return ps
}

// fits tells whether content of the given size can be sent in parts of partSize.
func (s *session) fits(partSize, size int64) bool {
	c := &s.p.caps
	return partSize > 0 && partSize%cache.BlockSize == 0 && partSize >= c.MinPartSize &&
		(c.MaxParts == 0 || size <= partSize*int64(c.MaxParts))
}

// copiesParts tells whether the store makes parts of ranges of its objects.
func (s *session) copiesParts() bool {
	return s.p.caps.PartCopy && s.p.caps.CopyIfMatch && !s.distrust
}

// begin sees to it that there is an upload that takes content of the given size: the one there is,
// the one of an earlier try, or a new one.
func (s *session) begin(ctx context.Context, size int64) error {
	if s.up.ID == "" && s.job.Upload.ID != "" && s.job.Upload.Key == s.job.Key {
		s.up, s.job.Upload = s.job.Upload, Upload{}
		if s.fits(s.up.PartSize, size) {
			if err := s.resume(ctx); err != nil {
				return err
			}
		}
	}
	if s.up.ID != "" && !s.fits(s.up.PartSize, size) {
		s.p.opt.Log.Info("a file has outgrown its upload, which begins anew", "key", s.job.Key, "size", size, "part", s.up.PartSize)
		s.drop(ctx)
	}
	if s.up.ID != "" {
		return nil
	}
	s.count(func(q *Requests) { q.Creates++ })
	opt := objstore.PutOptions{Metadata: s.metadata(), ContentType: s.job.ContentType}
	if s.p.caps.Checksums {
		opt.Checksum.Algorithm = objstore.CRC64NVME
	}
	late, cancel := linger(ctx)
	defer cancel()
	id, err := s.p.store.CreateMultipart(late, s.job.Key, opt)
	if err != nil {
		return err
	}
	s.up = Upload{Key: s.job.Key, ID: id, PartSize: s.partSize(size), Token: s.job.Token}
	s.bound = objstore.Object{Metadata: opt.Metadata, ContentType: opt.ContentType}
	if s.job.Began != nil {
		if err := s.job.Began(s.up); err != nil {
			s.drop(late) // nobody else knows of it
			return err
		}
	}
	return ctx.Err()
}

// lingers is how long a request may still take whose answer nobody must lose.
const lingers = 2 * time.Second

// linger returns a context that is done a while after ctx: an upload whose id is lost stays in the
// bucket, and nobody can abort it.
func linger(ctx context.Context) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(lingers)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-late.Done():
		}
	})
	return late, func() { stop(); cancel() }
}

// resume finds out what an earlier try has sent. Parts whose checksum the store does not tell are
// sent again.
func (s *session) resume(ctx context.Context) error {
	s.count(func(q *Requests) { q.Lists++ })
	parts, err := s.p.store.ListParts(ctx, s.up.Key, s.up.ID)
	if objstore.Is(err, objstore.NotFound) {
		return errGone
	}
	if err != nil {
		return err
	}
	for _, p := range parts {
		if p.Checksum.Algorithm == objstore.CRC64NVME {
			s.parts[p.Number] = sent{Part: p, sum: p.Checksum.Value, summed: true}
		}
	}
	return nil
}

// metadata is the object's, with the token.
func (s *session) metadata() map[string]string {
	m := s.job.Metadata
	if s.meta != nil {
		m = s.meta
	}
	return withToken(m, s.job.Token)
}

// sendParts sends all parts that the store does not have yet.
func (s *session) sendParts(ctx context.Context, c *content) (*digest, error) {
	if s.suspect {
		s.suspect = false
		if d, err := s.lostCommit(ctx, c); d != nil || err != nil {
			return d, err
		}
	}
	if err := s.begin(ctx, c.size); err != nil {
		return nil, err
	}
	w := s.workers(ctx)
	d := &digest{}
	var err error
	n := partCount(c.size, s.up.PartSize)
	each := make([]digest, n)
	for _, i := range s.missingFirst(n) {
		if err = s.sendPart(w, c, i, &each[i-1]); err != nil {
			break
		}
	}
	if werr := w.wait(err); werr != nil {
		return nil, werr
	}
	for i := range each {
		d.blocks = append(d.blocks, each[i].blocks...)
	}
	var join cache.Join
	d.summed = true
	d.sums, d.reused = s.partSums(n)
	for i := 1; i <= n; i++ {
		p := s.parts[i]
		d.parts = append(d.parts, p.Part)
		join.Add(p.sum, p.Size)
		d.summed = d.summed && p.summed
	}
	d.sum = join.Sum()
	switch {
	case s.known.Algorithm == objstore.CRC64NVME:
		d.sum, d.summed = s.known.Value, true
	case !d.summed:
		d.sum = 0
	}
	return d, nil
}

// missingFirst are the numbers of n parts, with those first that the store does not have: the others are read
// again, and compared, while these are on their way.
func (s *session) missingFirst(n int) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out, have []int
	for i := 1; i <= n; i++ {
		if _, ok := s.parts[i]; ok {
			have = append(have, i)
		} else {
			out = append(out, i)
		}
	}
	return append(out, have...)
}

// partCount is how many parts content has: at least one, which may be empty.
func partCount(size, partSize int64) int { return int(max(1, (size+partSize-1)/partSize)) }

// sendPart has part number sent, in the background, if the store has it not as it is.
func (s *session) sendPart(w *workers, c *content, number int, d *digest) error {
	off := int64(number-1) * s.up.PartSize
	n := min(s.up.PartSize, c.size-off)
	pieces := c.pieces(off, n)
	s.mu.Lock()
	have, ok := s.parts[number]
	s.mu.Unlock()
	ok = ok && have.Size == n
	switch {
	case n > 0 && only(pieces, inObject) && s.copiesParts():
		if ok && have.copied {
			return nil
		}
		return w.start(func(ctx context.Context) error {
			o := c.over
			p, err := s.copyPart(ctx, number, Source{o.Key, o.ETag, o.VersionID, o.Size}, off, n)
			if err == nil {
				s.have(number, p)
			}
			return err
		})
	case slices.ContainsFunc(pieces, func(p piece) bool { return p.place == inObject }):
		return w.start(func(ctx context.Context) error {
			v, err := s.view(ctx, c, off, n)
			if err != nil {
				return err
			}
			defer v.close()
			sum, _, err := s.p.sumBlocks(ctx, v, 0, n, nil)
			if err != nil {
				return s.readError(err)
			}
			return s.sendPlain(ctx, number, v, sum)
		})
	}
	v := &view{c: c, off: off, n: n, pieces: pieces}
	if s.hashes() && !(ok && have.hashed) {
		return w.start(func(ctx context.Context) error { return s.sendHashed(ctx, number, v, d) })
	}
	sum, blocks, err := s.p.sumBlocks(w.ctx, v, 0, n, d.blocks)
	if err != nil {
		return s.readError(err)
	}
	d.blocks = blocks
	if ok && have.summed && have.sum == sum {
		return nil
	}
	if s.hashes() {
		return w.start(func(ctx context.Context) error { return s.sendHashed(ctx, number, v, d) })
	}
	return w.start(func(ctx context.Context) error { return s.sendPlain(ctx, number, v, sum) })
}

// sendPlain sends a part and notes that the store has it.
func (s *session) sendPlain(ctx context.Context, number int, v *view, sum uint64) error {
	p, err := s.putPart(ctx, number, v, sum)
	if err == nil {
		s.have(number, p)
	}
	return err
}

// putPart sends a part whose CRC64NVME is sum.
func (s *session) putPart(ctx context.Context, number int, v *view, sum uint64) (sent, error) {
	s.count(func(q *Requests) { q.Parts++; q.Sent += v.n })
	var check objstore.Checksum
	if s.p.caps.Checksums {
		check = crc64(sum)
	}
	part, err := s.p.store.PutPart(ctx, s.up.Key, s.up.ID, number, v, check)
	if objstore.Is(err, objstore.NotFound) {
		return sent{}, errGone
	}
	if err != nil {
		return sent{}, s.torn(ctx, err, v, sum)
	}
	return sent{Part: part, sum: sum, summed: true}, nil
}

// torn makes ErrChanged of an error of kind Corrupt when the data reads otherwise by now: it was
// written to by way of a mapping, which need not move the file's times.
func (s *session) torn(ctx context.Context, err error, v *view, sum uint64) error {
	if !objstore.Is(err, objstore.Corrupt) {
		return err
	}
	now, _, rerr := s.p.sumBlocks(ctx, v, 0, v.n, nil)
	if rerr != nil || now == sum {
		return err
	}
	return fmt.Errorf("publish %q: %w", s.job.Key, ErrChanged)
}

func (s *session) have(number int, p sent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parts[number] = p
}

// copyPart makes a part of bytes [off, off+n) of src.
func (s *session) copyPart(ctx context.Context, number int, src Source, off, n int64) (sent, error) {
	s.count(func(q *Requests) { q.PartCopies++ })
	part, err := s.p.store.CopyPart(ctx, s.up.Key, s.up.ID, number, src.Key, off, n,
		objstore.CopyOptions{SourceIfMatch: src.ETag, SourceVersionID: s.version(src.VersionID)})
	if err != nil {
		serr := s.sourceError(ctx, src.Key, src.ETag, src.VersionID, err)
		if serr == err && objstore.Is(err, objstore.NotFound) { // not the source, then
			return sent{}, errGone
		}
		return sent{}, serr
	}
	p := sent{Part: part, copied: true}
	if part.Checksum.Algorithm == objstore.CRC64NVME {
		p.sum, p.summed = part.Checksum.Value, true
	}
	return p, nil
}

// workers sends parts in the background, each in a slot.
type workers struct {
	s      *session
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	err    error // the first; mu guards it
	torn   error // those of parts that arrived as something else; they stop nobody; mu guards it
}

// workers returns a group; wait must be called.
func (s *session) workers(ctx context.Context) *workers {
	w := &workers{s: s}
	w.ctx, w.cancel = context.WithCancel(ctx)
	return w
}

// start waits for a slot and runs send in it. It fails when another one has.
func (w *workers) start(send func(context.Context) error) error {
	if err := w.s.lane.acquire(w.ctx); err != nil {
		return &objstore.Error{Op: "PUT PART", Key: w.s.job.Key, Kind: objstore.Canceled, Err: err}
	}
	w.wg.Go(func() {
		defer w.s.lane.release()
		err := send(w.ctx)
		if err == nil {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if objstore.Is(err, objstore.Corrupt) || errors.Is(err, ErrChanged) {
			w.torn = errors.Join(w.torn, err)
			return
		}
		if w.err == nil {
			w.err = err
			w.cancel()
		}
	})
	return nil
}

// wait waits for all that was started; with an error of who started them the rest is cancelled. It
// returns what went wrong first.
func (w *workers) wait(err error) error {
	if err != nil {
		w.mu.Lock()
		if w.err == nil {
			w.err = err
		}
		w.mu.Unlock()
		w.cancel()
	}
	w.wg.Wait()
	w.cancel()
	if w.err != nil {
		return w.err
	}
	return w.torn
}
