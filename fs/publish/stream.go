package publish

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/leatfs/leatfs/objstore"
)

// Stream is the publication of a file that still grows: its parts are sent in the background.
// Either Finish or Abort must be called; both wait for what is under way. Grown may be called in
// parallel with all of them.
type Stream struct {
	p    *Publisher
	size atomic.Int64
	wake chan struct{} // holds at most one
	stop context.CancelFunc

	quit chan struct{} // closed by Finish: nothing new is begun
	once sync.Once
	done chan struct{} // closed when the goroutine is over; s is the caller's from then on
	s    *session
}

// Stream begins with job, whose file is still being written. No request is made before the file
// has the size for it. The stream ends with ctx too; Finish or Abort must still be called.
func (p *Publisher) Stream(ctx context.Context, job Job) *Stream {
	st := &Stream{p: p, wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}), s: p.session(job)}
	ctx, leave, err := p.enter(ctx)
	if err != nil {
		st.stop = func() {}
		close(st.done)
		return st
	}
	ctx, st.stop = context.WithCancel(ctx)
	go func() { // over when Finish, Abort, ctx or Close say so; they wait for it
		defer leave()
		defer close(st.done)
		st.run(ctx)
	}()
	return st
}

// Grown tells that the file has size bytes. It never waits: what lies wholly below size less one
// part is sent in the background.
func (st *Stream) Grown(size int64) {
	for {
		old := st.size.Load()
		if size <= old {
			return
		}
		if st.size.CompareAndSwap(old, size) {
			break
		}
	}
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// run sends parts as the file grows. What fails here is Finish's to do; it stops at the first
// failure but that of a part that was changed while it was sent.
func (st *Stream) run(ctx context.Context) {
	s := st.s
	if s.job.File == nil || s.job.Overlay != nil || !s.p.caps.Multipart {
		return
	}
	w := s.workers(ctx)
	err := st.follow(ctx, w)
	if err = w.wait(err); err == errGone {
		s.up, s.bound, s.suspect = Upload{}, objstore.Object{}, true
		clear(s.parts)
	}
	if err != nil && !objstore.Is(err, objstore.Canceled) && !objstore.Is(err, objstore.Corrupt) {
		s.p.opt.Log.Info("sending a file while it grows has stopped", "key", s.job.Key, "err", err)
	}
}

// follow starts parts until it is told to stop.
func (st *Stream) follow(ctx context.Context, w *workers) error {
	s := st.s
	for number := 1; ; {
		select {
		case <-st.quit:
			return nil
		default:
		}
		ps := s.up.PartSize
		if s.up.ID == "" {
			ps = s.partSize(0)
		}
		size := st.size.Load()
		if size < int64(number+1)*ps || size <= s.p.opt.Multipart || !s.fits(ps, int64(number+1)*ps) {
			select {
			case <-st.wake:
			case <-st.quit:
				return nil
			case <-w.ctx.Done():
				return w.ctx.Err()
			}
			continue
		}
		if s.up.ID == "" {
			if err := s.begin(ctx, size); err != nil {
				return err
			}
			continue // with the size of its parts
		}
		c := &content{file: s.job.File, f: s.job.File, size: int64(number) * ps}
		if err := s.sendPart(w, c, number, &digest{}); err != nil {
			return err
		}
		number++
	}
}

// halt waits until the background is over. With ctx done, that is at once.
func (st *Stream) halt(ctx context.Context) {
	st.once.Do(func() { close(st.quit) })
	defer st.stop()
	select {
	case <-st.done:
		return
	case <-ctx.Done():
	}
	st.stop()
	<-st.done
}

// Finish publishes the file, which has grown to its end, as job says; job takes the place of
// the one the stream began with. When its key is the same, only what is missing or has changed
// is sent; else the upload is aborted and all is sent. The metadata of an upload is what it
// began with. After an error Finish may be called again, or a Job published that names Upload.
func (st *Stream) Finish(ctx context.Context, job Job) (Outcome, error) {
	st.halt(ctx)
	ctx, leave, err := st.p.enter(ctx)
	if err != nil {
		return Outcome{}, err
	}
	defer leave()
	s := st.s
	if job.Key != s.job.Key || job.Overlay != nil || job.Copy != nil || job.File == nil {
		if err := st.drop(ctx); err != nil {
			return Outcome{}, err
		}
		return st.p.session(job).publish(ctx)
	}
	if job.Upload.ID == "" {
		job.Upload = s.job.Upload // if it was not resumed yet
	}
	if s.up.Token != "" {
		s.token = s.up.Token
	}
	s.job = job
	return s.publish(ctx)
}

// Abort ends the stream and aborts its upload.
func (st *Stream) Abort() error {
	st.stop()
	st.halt(context.Background())
	ctx, leave, err := st.p.enter(context.Background())
	if err != nil {
		return err
	}
	defer leave()
	return st.drop(ctx)
}

// Upload is what the stream has begun in the store, for a caller that leaves it there. To be
// called after Finish has failed.
func (st *Stream) Upload() Upload {
	<-st.done
	return st.s.up
}

// drop aborts the upload, also one of an earlier try that was not resumed.
func (st *Stream) drop(ctx context.Context) error {
	s := st.s
	var err error
	for _, up := range []Upload{s.up, s.job.Upload} {
		if up.ID == "" || up.Key != s.job.Key {
			continue
		}
		s.count(func(q *Requests) { q.Aborts++ })
		err = errors.Join(err, s.p.store.AbortMultipart(ctx, up.Key, up.ID))
	}
	if err == nil {
		s.up, s.job.Upload = Upload{}, Upload{}
		clear(s.parts)
	}
	return err
}
