package publish

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/leatfs/leatfs/objstore"
)

// The bounds of what one Publish does over again.
const (
	maxRounds   = 3 // reads of a file that changes
	maxRefused  = 2 // commits of one content that arrived as another
	maxRestarts = 3 // uploads that vanished, conditions that failed and then held
)

// Publish makes job's content the object under its key. It returns when the store has taken it,
// or with one of:
//
//   - a *Conflict: something else is there than may be; the upload, if any, was aborted
//   - a *SourceChanged: the object to copy or to lie over is not there any more
//   - ErrChanged, wrapped
//   - the store's error; the upload stays, and is resumed by a Job that names it
func (p *Publisher) Publish(ctx context.Context, job Job) (Outcome, error) {
	ctx, leave, err := p.enter(ctx)
	if err != nil {
		return Outcome{}, err
	}
	defer leave()
	return p.session(job).publish(ctx)
}

// session is one publication, of Publish or of a Stream. One goroutine at a time works on it;
// the workers that it starts use only what mu guards and what is constant while they run.
type session struct {
	p    *Publisher
	job  Job
	lane *lane

	up       Upload            // ID is "" while there is none
	meta     map[string]string // of the object; nil: job's
	bound    objstore.Object   // Metadata and ContentType that up was begun with, if known
	suspect  bool              // an upload was gone: an earlier try may have completed it
	known    objstore.Checksum // of the source of a copy
	token    string            // of the upload of an earlier try, if it was another
	distrust bool              // what was made of copied parts was not what it should be
	ordered  bool              // job.Order has been called
	restarts int

	mu    sync.Mutex // a leaf lock
	parts map[int]sent
	req   Requests
	// spoilt are keys of job.Reuse from which nothing can be copied.
	spoilt map[string]bool
}

// sent is a part that the store has.
type sent struct {
	objstore.Part
	sum    uint64
	summed bool // sum is known
	copied bool // from the object that the content lies over
	// hash is the SHA-256 of what had this sum when it was compared, if hashed.
	hash   [sha256.Size]byte
	hashed bool
	reused bool // copied from an object of job.Reuse
}

func (p *Publisher) session(job Job) *session {
	return &session{p: p, job: job, lane: p.slots.lane(), token: job.Upload.Token, parts: map[int]sent{}, spoilt: map[string]bool{}}
}

func (s *session) count(f func(*Requests)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.req)
}

func (s *session) head(ctx context.Context, key, version string) (objstore.Object, error) {
	s.count(func(q *Requests) { q.Heads++ })
	return s.p.store.Head(ctx, key, objstore.HeadOptions{VersionID: s.version(version)})
}

func (s *session) publish(ctx context.Context) (Outcome, error) {
	var out Outcome
	var err error
	s.restarts = 0
	if s.job.Copy != nil {
		out, err = s.copy(ctx)
	} else {
		out, err = s.rounds(ctx)
	}
	out.Requests, out.ReuseFailed = s.req, slices.Sorted(maps.Keys(s.spoilt))
	return out, err
}

// digest is what a round learned of its content.
type digest struct {
	sum    uint64
	summed bool
	blocks []uint64
	src    *view           // of a single PUT
	parts  []objstore.Part // of an upload
	sums   []PartSum       // of parts; nil where some are not known
	reused int64           // bytes of them that were copied from job.Reuse
	found  objstore.Object // what an earlier try has committed
}

// rounds reads, sends and commits until what was committed is what was read.
func (s *session) rounds(ctx context.Context) (Outcome, error) {
	var last error
	refused := 0
	for round := 0; round < maxRounds; {
		c, err := s.look()
		if err != nil {
			return Outcome{}, err
		}
		d, err := s.send(ctx, c)
		if err == nil && !c.changed() {
			err = s.order(ctx)
			if err != nil {
				return Outcome{}, err
			}
		}
		changed := c.changed()
		var o objstore.Object
		if err == nil && !changed {
			o, err = s.commit(ctx, c, d)
			if changed = err == nil && d.src != nil && !s.p.caps.Checksums && c.changed(); changed {
				s.rebase(o) // the store could not tell whether it got what was read
			}
		}
		if d != nil && d.src != nil {
			d.src.close()
		}
		switch {
		case ctx.Err() != nil && err != nil:
			return Outcome{}, err
		case err == errGone:
			if s.restarts++; s.restarts > maxRestarts {
				return Outcome{}, fmt.Errorf("publish %q: %w again and again: does the bucket abort uploads early?", s.job.Key, err)
			}
			s.up, s.bound, s.suspect = Upload{}, objstore.Object{}, true
			clear(s.parts)
		case changed || errors.Is(err, ErrChanged) || err != nil && c.changed():
			last = fmt.Errorf("publish %q: %w", s.job.Key, ErrChanged)
			round++
		case err == nil:
			return s.outcome(c, d, o), nil
		case objstore.Is(err, objstore.Corrupt):
			if refused++; refused >= maxRefused {
				if d != nil && d.summed {
					err = corrupt(s.job.Key, c.size, d.sum, err)
				}
				return Outcome{}, err
			}
			s.p.opt.Log.Warn("what was published arrived as something else; it is sent again", "key", s.job.Key, "err", err)
			if d != nil && d.src == nil { // at the completion: no part can be trusted
				s.drop(ctx)
				s.distrust = true
			}
		default:
			if other, ok := err.(*Conflict); ok {
				s.drop(ctx)
				if d != nil && d.equals(other.Have, c.size) {
					out := s.outcome(c, d, other.Have)
					other.Equal = &out
				}
			}
			return Outcome{}, err
		}
	}
	return Outcome{}, last
}

// single tells whether content goes by one PUT.
func (s *session) single(c *content) bool {
	limit := s.p.opt.Multipart
	if s.job.Copy != nil && s.copiesParts() {
		limit = min(limit, 1<<20) // more is better copied by the store
	}
	return s.up.ID == "" && (c.size <= limit || !s.p.caps.Multipart)
}

// send brings content to where only the commit is left. After an error the digest may be nil.
func (s *session) send(ctx context.Context, c *content) (*digest, error) {
	if s.single(c) {
		v, err := s.view(ctx, c, 0, c.size)
		if err != nil {
			return nil, err
		}
		sum, blocks, err := s.p.sumBlocks(ctx, v, 0, c.size, nil)
		if err != nil {
			v.close()
			return nil, s.readError(err)
		}
		return &digest{sum: sum, summed: true, blocks: blocks, src: v}, nil
	}
	return s.sendParts(ctx, c)
}

func (s *session) readError(err error) error {
	return fmt.Errorf("publish %q: read the content: %w", s.job.Key, err)
}

// order waits for what must be published first, once.
func (s *session) order(ctx context.Context) error {
	if s.ordered || s.job.Order == nil {
		return nil
	}
	err := s.job.Order(ctx)
	s.ordered = err == nil
	return err
}

// drop aborts the upload, if there is one; that it could not is logged only: the caller has it on
// record.
func (s *session) drop(ctx context.Context) {
	if s.up.ID == "" {
		return
	}
	s.count(func(q *Requests) { q.Aborts++ })
	if err := s.p.store.AbortMultipart(ctx, s.up.Key, s.up.ID); err != nil {
		s.p.opt.Log.Warn("a multipart upload could not be aborted", "key", s.up.Key, "upload", s.up.ID, "err", err)
	}
	s.up, s.bound = Upload{}, objstore.Object{}
	clear(s.parts)
}

func (s *session) outcome(c *content, d *digest, o objstore.Object) Outcome {
	out := Outcome{Object: o, Sum: d.sum, Summed: d.summed, Stamp: c.stamp, Checksum: o.Checksum}
	if c.over == nil {
		out.Blocks = d.blocks
	}
	if d.src == nil && s.up.ID != "" {
		out.PartSize, out.Upload, out.Parts, out.Reused = s.up.PartSize, s.up.ID, d.sums, d.reused
	}
	return out
}

// Abort drops a multipart upload that Began told of. No error when it is gone already.
func (p *Publisher) Abort(ctx context.Context, up Upload) error {
	if up.ID == "" {
		return nil
	}
	ctx, leave, err := p.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return p.store.AbortMultipart(ctx, up.Key, up.ID)
}
