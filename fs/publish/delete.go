package publish

import (
	"context"

	"github.com/leatfs/leatfs/objstore"
)

// Version tells which object is meant: the one with this ETag, or one that was published with
// this Token. With both empty, whatever is there.
type Version struct{ ETag, Token string }

func (v Version) any() bool { return v == Version{} }

func (v Version) is(o objstore.Object) bool {
	return v.ETag != "" && o.ETag == v.ETag || v.Token != "" && TokenOf(o) == v.Token
}

// Delete removes the object under key if it is the version meant. gone tells that nothing is under the
// key, whoever removed it. Something else there is a *Conflict, and stays. In a bucket that keeps
// versions, the object stays as one of them.
//
// A store without conditions is asked what is there, and then sent the deletion, once: what comes in between
// those two requests is lost. Where that one fails, so does Delete, and the caller tries again.
func (p *Publisher) Delete(ctx context.Context, key string, v Version) (gone bool, err error) {
	ctx, leave, err := p.enter(ctx)
	if err != nil {
		return false, err
	}
	defer leave()
	s := p.session(Job{Key: key})
	if v.any() {
		err := p.delete(ctx, key, objstore.DeleteOptions{})
		return err == nil, err
	}
	etag := v.ETag
	if etag == "" || !p.caps.DeleteIfMatch {
		o, err := s.there(ctx)
		switch {
		case err != nil:
			return false, err
		case o.Key == "":
			return true, nil
		case !v.is(o):
			return false, &Conflict{Key: key, Have: o}
		}
		etag = o.ETag
	}
	for range maxRestarts {
		if p.caps.DeleteIfMatch {
			err = p.delete(ctx, key, objstore.DeleteOptions{IfMatch: etag})
		} else {
			// Sent again a minute later it could hit what somebody else has put there meanwhile.
			err = p.delete(objstore.WithOneTry(ctx), key, objstore.DeleteOptions{})
		}
		if err == nil {
			return true, nil
		}
		kind := objstore.KindOf(err)
		switch kind {
		case objstore.PreconditionFailed, objstore.NotFound, objstore.Timeout, objstore.Network, objstore.Unavailable, objstore.Unknown:
		default:
			return false, err
		}
		o, herr := s.there(ctx)
		switch {
		case herr != nil:
			return false, err
		case o.Key == "":
			return true, nil
		case !v.is(o):
			return false, &Conflict{Key: key, Have: o}
		case kind != objstore.PreconditionFailed && o.ETag == etag:
			return false, err
		}
		etag = o.ETag // ours, by its token or after all
	}
	return false, err
}

// delete makes the request, and waits for it as for one that commits: broken off, it could be carried out when the same content is
// there again.
func (p *Publisher) delete(ctx context.Context, key string, opt objstore.DeleteOptions) error {
	ctx, done, err := p.committing(ctx)
	if err != nil {
		return err
	}
	defer done()
	return p.store.Delete(ctx, key, opt)
}

// markerType is the content type of directory markers, as s3fs and others write it.
const markerType = "application/x-directory"

// Marker puts the empty object "dir/" that stands for a directory where there is none. One that is
// there already, by whomever, does: it is returned, and its metadata stay. To replace one,
// publish a Job without content.
func (p *Publisher) Marker(ctx context.Context, key string, metadata map[string]string, token string) (Outcome, error) {
	out, err := p.Publish(ctx, Job{Key: key, IfNoneMatch: true, Metadata: metadata, ContentType: markerType, Token: token})
	if c, ok := err.(*Conflict); ok && c.Have.Key != "" && c.Have.Size == 0 {
		return Outcome{Object: c.Have, Summed: true, Checksum: c.Have.Checksum, Requests: out.Requests}, nil
	}
	return out, err
}
