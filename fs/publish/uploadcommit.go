package publish

import (
	"context"
	"errors"
	"fmt"

	"github.com/leatfs/leatfs/objstore"
)

// commit makes what was sent the object under the key.
func (s *session) commit(ctx context.Context, c *content, d *digest) (objstore.Object, error) {
	if s.already(d) {
		return d.found, nil
	}
	for {
		o, err := s.commitOnce(ctx, c, d)
		if err == nil {
			return o, nil
		}
		again, o, err := s.settle(ctx, err, c.size, d)
		if err != nil || !again {
			return o, err
		}
		if s.restarts++; s.restarts > maxRestarts {
			return objstore.Object{}, fmt.Errorf("publish %q: the store says that its condition fails though it holds (If-None-Match %v, If-Match %q)",
				s.job.Key, s.job.IfNoneMatch, s.job.IfMatch)
		}
	}
}

// commitOnce makes the request that commits.
func (s *session) commitOnce(ctx context.Context, c *content, d *digest) (objstore.Object, error) {
	opt := objstore.PutOptions{IfNoneMatch: s.job.IfNoneMatch, IfMatch: s.job.IfMatch}
	if !s.keeps() {
		if o, done, err := s.check(ctx, c.size, d); done || err != nil {
			return o, err
		}
		opt.IfNoneMatch, opt.IfMatch = false, ""
	}
	if s.p.caps.Checksums && d.summed {
		opt.Checksum = crc64(d.sum)
	}
	var o objstore.Object
	ctx, done, err := s.p.committing(ctx)
	if err != nil {
		return o, err
	}
	defer done()
	if d.src != nil {
		opt.Metadata, opt.ContentType = s.metadata(), s.job.ContentType
		s.count(func(q *Requests) { q.Puts++; q.Sent += c.size })
		o, err = s.p.store.Put(ctx, s.job.Key, d.src, opt)
		if err != nil {
			err = s.torn(ctx, err, d.src, d.sum)
		}
	} else {
		s.count(func(q *Requests) { q.Completes++ })
		o, err = s.p.store.CompleteMultipart(ctx, s.up.Key, s.up.ID, d.parts, opt)
		if objstore.Is(err, objstore.BadRequest) && opt.Checksum.Algorithm != objstore.ChecksumNone {
			err = &objstore.Error{Op: "PUBLISH", Key: s.job.Key, Kind: objstore.Corrupt, Err: err} // what some servers call a wrong checksum
		}
	}
	if err != nil {
		return objstore.Object{}, err
	}
	if d.src == nil && o.Metadata == nil { // the answer does not tell
		o.Metadata, o.ContentType = s.bound.Metadata, s.bound.ContentType
	}
	if bad := d.differs(o, c.size); bad != nil {
		s.rebase(o) // it is there, and is to be replaced
		return objstore.Object{}, bad
	}
	return o, nil
}

// keeps tells whether the store keeps the job's condition on a PUT.
func (s *session) keeps() bool {
	return (!s.job.IfNoneMatch || s.p.caps.PutIfNoneMatch) && (s.job.IfMatch == "" || s.p.caps.PutIfMatch)
}

// differs says how an object that is there is not what was sent, nil when nothing speaks for that.
func (d *digest) differs(o objstore.Object, size int64) error {
	sum := o.Checksum.Algorithm == objstore.CRC64NVME && d.summed && o.Checksum.Value != d.sum
	if o.Size == size && !sum {
		return nil
	}
	return corrupt(o.Key, size, d.sum, fmt.Errorf("the store has %d bytes with checksum %v %016x", o.Size, o.Checksum.Algorithm, o.Checksum.Value))
}

// equals tells whether an object has, for certain, the content that was to be put there.
func (d *digest) equals(o objstore.Object, size int64) bool {
	return o.Key != "" && o.Size == size && d.summed && o.Checksum.Algorithm == objstore.CRC64NVME && o.Checksum.Value == d.sum
}

// same tells whether an object of our own is what was just sent: only then is it certain that
// no earlier try put another content there.
func (s *session) same(o objstore.Object, size int64, d *digest) bool {
	switch {
	case d.differs(o, size) != nil:
		return false
	case o.Checksum.Algorithm == objstore.CRC64NVME && d.summed:
		return true
	case d.src != nil:
		etag, err := contentETag(d.src)
		return err == nil && etag == o.ETag
	default:
		return partsETag(d.parts) == o.ETag
	}
}

// mine tells whether this publication put an object there.
func (s *session) mine(o objstore.Object) bool {
	t := TokenOf(o)
	return t != "" && (t == s.job.Token || t == s.token)
}

// holds tells whether the job's condition does with o there; a zero o is nothing.
func (s *session) holds(o objstore.Object) bool {
	if s.job.IfNoneMatch {
		return o.Key == ""
	}
	return s.job.IfMatch == "" || o.Key != "" && o.ETag == s.job.IfMatch
}

// rebase lets the next commit replace what an earlier one of ours put there.
func (s *session) rebase(o objstore.Object) { s.job.IfNoneMatch, s.job.IfMatch = false, o.ETag }

// there is what is under the key; a zero Object is nothing.
func (s *session) there(ctx context.Context) (objstore.Object, error) {
	o, err := s.head(ctx, s.job.Key, "")
	if objstore.Is(err, objstore.NotFound) {
		return objstore.Object{}, nil
	}
	if err == nil && o.Key == "" {
		o.Key = s.job.Key
	}
	return o, err
}

// check does for a store without conditions what they would: it looks first. done: an earlier try
// has committed this already.
func (s *session) check(ctx context.Context, size int64, d *digest) (o objstore.Object, done bool, err error) {
	o, err = s.there(ctx)
	switch {
	case err != nil:
		return objstore.Object{}, false, err
	case s.mine(o) && s.same(o, size, d):
		return o, true, nil
	case s.mine(o) || s.holds(o):
		return objstore.Object{}, false, nil
	}
	return objstore.Object{}, false, &Conflict{Key: s.job.Key, Have: o}
}

// settle finds out what became of a commit that failed: nothing, and err says why; or it was
// carried out, and the object is returned; or it is worth another try.
func (s *session) settle(ctx context.Context, err error, size int64, d *digest) (again bool, o objstore.Object, _ error) {
	kind := objstore.KindOf(err)
	if _, ok := errors.AsType[*Conflict](err); ok || errors.Is(err, ErrChanged) {
		return false, objstore.Object{}, err
	}
	switch kind {
	case objstore.PreconditionFailed, objstore.NotFound, objstore.Timeout, objstore.Network, objstore.Unavailable, objstore.Unknown:
	default:
		return false, objstore.Object{}, err
	}
	if ctx.Err() != nil {
		return false, objstore.Object{}, err
	}
	o, herr := s.there(ctx)
	if herr != nil {
		return false, objstore.Object{}, errors.Join(err, herr)
	}
	if s.mine(o) {
		if s.same(o, size, d) {
			return false, o, nil
		}
		s.rebase(o)
	} else if !s.holds(o) {
		return false, objstore.Object{}, &Conflict{Key: s.job.Key, Have: o}
	}
	switch kind {
	case objstore.PreconditionFailed: // it holds, now
		return true, objstore.Object{}, nil
	case objstore.NotFound:
		if d.src == nil {
			return false, objstore.Object{}, errGone
		}
	}
	return false, objstore.Object{}, err
}

// lostCommit looks whether an upload is gone because an earlier try has completed it.
func (s *session) lostCommit(ctx context.Context, c *content) (*digest, error) {
	o, err := s.there(ctx)
	if err != nil || !s.mine(o) {
		return nil, err
	}
	if c.over == nil && o.Size == c.size && o.Checksum.Algorithm == objstore.CRC64NVME {
		v := &view{c: c, n: c.size, pieces: c.pieces(0, c.size)}
		sum, blocks, err := s.p.sumBlocks(ctx, v, 0, c.size, nil)
		if err != nil {
			return nil, s.readError(err)
		}
		if sum == o.Checksum.Value {
			return &digest{sum: sum, summed: true, blocks: blocks, found: o}, nil
		}
	}
	s.rebase(o)
	return nil, nil
}

// already tells whether lostCommit found the object.
func (s *session) already(d *digest) bool { return d.found.Key != "" }
