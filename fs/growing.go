package fs

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/publish"
)

// A large file is uploaded while it is still being written. The kernel writes it by itself, so its
// size is looked at; what was rewritten after it was sent is found at the end by its checksum, and sent again.
// The upload is bound to a key: that which the name will get, as far as the name tells.

const (
	// growPoll is how often the sizes of files that are open for writing are looked at.
	growPoll = 100 * time.Millisecond
	// growMin is the size in bytes from which on a file is uploaded while it grows: what is written
	// in less time than it takes to begin is not worth it.
	growMin = 64 << 20
	// growMax is how many files are uploaded while they grow, the longest open first.
	growMax = 64
)

// growth is a file that is uploaded while it grows.
type growth struct {
	stream *publish.Stream
	file   *os.File
	stage  cache.ID // file is this one; its inode may have another by now
	job    publish.Job
}

// watchGrowth looks at the files that are open for writing.
func (f *FS) watchGrowth() {
	defer f.wg.Done()
	f.every(growPoll, func() {
		for _, ino := range f.open.written() {
			f.grown(ino)
		}
	})
}

// grown tells the stream of a file how large it is, and begins one when it is large enough.
func (f *FS) grown(ino meta.Ino) {
	in, err := f.db.Inode(ino)
	if err != nil || in.Stage == 0 || in.Flags&(meta.Removed|meta.Overlay) != 0 {
		return // the holes of an overlay are not zeros
	}
	st, err := f.cache.StatStage(in.Stage)
	if err != nil || st.Size < growMin {
		return
	}
	p := &f.publisher
	p.mu.Lock()
	g, many := p.growing[ino], len(p.growing) >= growMax
	p.mu.Unlock()
	if g != nil && g.stage != in.Stage {
		// It was begun just when that one was published.
		f.stopGrowth(ino)
		return
	}
	if g == nil {
		if many || time.Since(time.Unix(0, st.Mtim.Nano())) > time.Minute {
			return // or nobody writes
		}
		if g = f.growth(&in); g == nil {
			return
		}
		p.mu.Lock()
		over := p.growing == nil
		if !over {
			p.growing[ino] = g
		}
		p.mu.Unlock()
		if over {
			f.closeGrowth(g)
			return
		}
	}
	g.stream.Grown(st.Size)
}

// growth begins the stream of a file; nil when it cannot be.
func (f *FS) growth(in *meta.Inode) *growth {
	dir, err := f.db.Inode(in.Parent)
	if err != nil || f.temporaryAbove(&dir) {
		return nil
	}
	name := in.Name
	if publish.Temporary(name) {
		final, ok := publish.FinalName(name)
		if !ok {
			return nil
		}
		name = final
	}
	d, err := f.db.Dirty(in.Ino)
	if err != nil || d.Held || d.Seq != 0 {
		return nil
	}
	file, err := f.cache.OpenStage(in.Stage, os.O_RDONLY)
	if err != nil {
		return nil
	}
	a := f.attr(in)
	// The times are not known yet, and could not be changed later.
	job := publish.Job{Key: dir.Prefix + name, File: file, Token: publish.NewToken(), Upload: publish.Upload(d.Upload),
		Metadata: publish.Metadata(syscall.S_IFREG|a.Mode, a.UID, a.GID, 0, 0, ""),
		Reuse:    f.reuse.find(dir.Prefix+name, growMin),
		Began:    func(u publish.Upload) error { return f.uploadBegan(in.Ino, 0, u) }}
	if d.Upload.ID != "" && d.Upload.Key != job.Key {
		job.Upload = publish.Upload{}
	}
	return &growth{stream: f.publisher.pub.Stream(f.ctx, job), file: file, stage: in.Stage, job: job}
}

// takeGrowth takes a file's stream out of the table: the caller ends it.
func (f *FS) takeGrowth(ino meta.Ino) *growth {
	p := &f.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.growing[ino]
	delete(p.growing, ino)
	return g
}

// stopGrowth ends a stream whose file nobody wants any more. What it began stands in the index, and
// is aborted from there.
func (f *FS) stopGrowth(ino meta.Ino) {
	g := f.takeGrowth(ino)
	if g == nil {
		return
	}
	f.wg.Add(1)
	go func() {
		defer f.wg.Done()
		defer closeFile(g.file)
		if err := g.stream.Abort(); err != nil && f.ctx.Err() == nil {
			f.log.Debug("an upload could not be aborted at once", "key", g.job.Key, "err", err)
		}
	}()
}

// finishGrowth publishes by the stream of the staging file of an inode, if it has one; done tells that it has.
func (f *FS) finishGrowth(ctx context.Context, in *meta.Inode, job *publish.Job) (out publish.Outcome, done bool, err error) {
	g := f.takeGrowth(in.Ino)
	if g == nil {
		return out, false, nil
	}
	defer closeFile(g.file)
	if g.job.Key != job.Key || g.stage != in.Stage {
		// It was not the name it got, or not the file.
		if err := g.stream.Abort(); err != nil {
			f.log.Debug("an upload could not be aborted at once", "key", g.job.Key, "err", err)
		}
		return out, false, nil
	}
	own := *job
	own.File = g.file
	out, err = g.stream.Finish(ctx, own)
	return out, true, err
}

// closeGrowths ends all streams at the end of the mount; their uploads are resumed by the next.
func (f *FS) closeGrowths() {
	p := &f.publisher
	p.mu.Lock()
	all := p.growing
	p.growing = nil // none is begun any more
	p.mu.Unlock()
	for _, g := range all {
		f.closeGrowth(g)
	}
}

func (f *FS) closeGrowth(g *growth) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	// With a context that is over it only waits for what it has started to end.
	if _, err := g.stream.Finish(ctx, g.job); err != nil && !errors.Is(err, context.Canceled) {
		f.log.Debug("a file that was uploaded while it grew", "key", g.job.Key, "err", err)
	}
	closeFile(g.file)
}

// abortUploads aborts the uploads that the index says nobody needs any more.
func (f *FS) abortUploads(ctx context.Context) {
	all, err := f.db.Aborts()
	if err != nil {
		return
	}
	for _, u := range all {
		if ctx.Err() != nil {
			return
		}
		if err := f.publisher.pub.Abort(ctx, publish.Upload(u)); err != nil {
			f.log.Warn("an upload that nobody needs cannot be aborted yet; tried again in a minute", "key", u.Key, "upload", u.ID, "err", err)
			continue
		}
		if err := f.db.ClearAbort(u.Key, u.ID); err != nil {
			f.log.Debug("an upload that was aborted stays noted", "key", u.Key, "err", err)
		}
	}
}

// abortLoop does so every minute.
func (f *FS) abortLoop() {
	defer f.wg.Done()
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-t.C:
		}
		f.abortUploads(f.ctx)
		t.Reset(time.Minute)
	}
}
