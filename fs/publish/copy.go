package publish

import (
	"context"
	"maps"

	"github.com/leatfs/leatfs/objstore"
)

// copy publishes what is in the store already: by one COPY where that keeps the job's condition; else
// by a multipart upload of copied parts, whose completion does; else, where the store does neither,
// by a COPY after a HEAD, and small content by way of this machine.
func (s *session) copy(ctx context.Context) (Outcome, error) {
	j := &s.job
	src, err := s.head(ctx, j.Copy.Key, j.Copy.VersionID)
	if err != nil && !objstore.Is(err, objstore.NotFound) {
		return Outcome{}, err
	}
	if err != nil || src.ETag != j.Copy.ETag {
		gone := &SourceChanged{Key: j.Copy.Key, ETag: j.Copy.ETag}
		if err == nil {
			gone.Have = src
		}
		// An earlier try may have copied it, and what came after have changed it.
		if err := s.order(ctx); err != nil {
			return Outcome{}, err
		} else if o, err := s.there(ctx); err != nil {
			return Outcome{}, err
		} else if s.mine(o) {
			return copied(o), nil
		}
		return Outcome{}, gone
	}
	j.Copy = &Source{j.Copy.Key, j.Copy.ETag, j.Copy.VersionID, src.Size}
	if s.p.caps.Checksums {
		s.known = src.Checksum
	}
	s.meta = maps.Clone(src.Metadata)
	if s.meta == nil {
		s.meta = map[string]string{}
	}
	delete(s.meta, tokenKey)
	maps.Copy(s.meta, j.Metadata)
	if j.ContentType == "" {
		j.ContentType = src.ContentType
	}
	for {
		how := s.how(src.Size)
		if how == byParts {
			return s.rounds(ctx)
		}
		if err := s.order(ctx); err != nil {
			return Outcome{}, err
		}
		o, err := s.copyOnce(ctx, how)
		if err == nil {
			return copied(o), nil
		}
		if objstore.Is(err, objstore.Unsupported) && j.IfNoneMatch && how == atOnce {
			s.p.noCopy.Store(true) // it is not asked again
			continue
		}
		again, o, err := s.settleCopy(ctx, src, err)
		if err != nil {
			return Outcome{}, err
		}
		if !again {
			return copied(o), nil
		}
		if s.restarts++; s.restarts > maxRestarts {
			return Outcome{}, &objstore.Error{Op: "COPY", Key: j.Key, Kind: objstore.PreconditionFailed, Hint: "the store says so though the condition holds"}
		}
	}
}

func copied(o objstore.Object) Outcome {
	out := Outcome{Object: o, Checksum: o.Checksum}
	if o.Checksum.Algorithm == objstore.CRC64NVME {
		out.Sum, out.Summed = o.Checksum.Value, true
	}
	return out
}

// way is how something is copied.
type way uint8

const (
	atOnce    way = iota // COPY, with the job's condition or without any
	afterHead            // COPY, after looking at the target
	byParts              // as content that lies over the source
)

// how chooses the way to copy size bytes.
func (s *session) how(size int64) way {
	j, c := &s.job, &s.p.caps
	onto := j.Key == j.Copy.Key && j.IfMatch == j.Copy.ETag && c.CopyIfMatch // the source's condition is the target's
	switch {
	case s.up.ID != "" || j.Upload.ID != "" && j.Upload.Key == j.Key:
		return byParts
	case size > s.p.opt.MaxCopy && c.Multipart:
		return byParts
	case j.IfMatch == "" && !(j.IfNoneMatch && s.p.noCopy.Load()) || onto:
		return atOnce
	case s.keeps() && (c.Multipart && s.copiesParts() || size <= s.p.opt.Multipart):
		return byParts
	}
	return afterHead
}

// copyOnce makes the request.
func (s *session) copyOnce(ctx context.Context, how way) (objstore.Object, error) {
	j := &s.job
	opt := objstore.CopyOptions{SourceVersionID: s.version(j.Copy.VersionID), Metadata: s.metadata()}
	if s.p.caps.CopyIfMatch {
		opt.SourceIfMatch = j.Copy.ETag
	}
	if how == afterHead {
		o, err := s.there(ctx)
		switch {
		case err != nil:
			return objstore.Object{}, err
		case s.mine(o) && o.Size == j.Copy.Size:
			return o, nil
		case !s.mine(o) && !s.holds(o):
			return objstore.Object{}, &Conflict{Key: j.Key, Have: o}
		}
	} else {
		opt.IfNoneMatch = j.IfNoneMatch
	}
	ctx, done, err := s.p.committing(ctx)
	if err != nil {
		return objstore.Object{}, err
	}
	defer done()
	s.count(func(q *Requests) { q.Copies++ })
	return s.p.store.Copy(ctx, j.Copy.Key, j.Key, opt)
}

// settleCopy is settle for a COPY, whose content is one and the same in all tries.
func (s *session) settleCopy(ctx context.Context, src objstore.Object, err error) (again bool, o objstore.Object, _ error) {
	if _, ok := err.(*Conflict); ok || ctx.Err() != nil {
		return false, objstore.Object{}, err
	}
	kind := objstore.KindOf(err)
	switch kind {
	case objstore.PreconditionFailed, objstore.NotFound, objstore.Timeout, objstore.Network, objstore.Unavailable, objstore.Unknown:
	default:
		return false, objstore.Object{}, err
	}
	o, herr := s.there(ctx)
	if herr != nil {
		return false, objstore.Object{}, herr
	}
	if s.mine(o) && o.Size == src.Size {
		return false, o, nil
	}
	j := &s.job
	if kind == objstore.PreconditionFailed || kind == objstore.NotFound {
		if serr := s.sourceError(ctx, j.Copy.Key, j.Copy.ETag, j.Copy.VersionID, err); serr != err {
			return false, objstore.Object{}, serr
		}
	}
	if !s.holds(o) {
		return false, objstore.Object{}, &Conflict{Key: j.Key, Have: o}
	}
	if kind == objstore.PreconditionFailed {
		return true, objstore.Object{}, nil
	}
	return false, objstore.Object{}, err
}
