package fs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/fs/publish"
)

// work is what there is to do for a dirty inode, as of one moment.
type work struct {
	in, dir meta.Inode
	dirty   meta.Dirty
	key     string
	base    string // ETag of what is to be under the key before; "": nothing
	tomb    string // tokens of what else of ours may be there
	// needs is an inode that is still to be copied from key, and comes later.
	needs meta.Ino
	// open: somebody could write to the staging file when reading it began.
	open bool
}

// look reads what there is to do; ok is false when there is nothing, or not now. seq is the place in the order that the
// queue knows: in another one the inode may come after what the queue has not been told of yet (overtaken).
func (f *FS) look(ino meta.Ino, seq uint64) (w work, ok bool, err error) {
	err = f.db.Do(func(tx *meta.Tx) error {
		w, ok = work{}, false
		var err error
		if w.dirty, err = tx.Dirty(ino); err != nil {
			return absent(err)
		}
		if w.in, err = tx.Inode(ino); err != nil {
			return absent(err)
		}
		if w.dirty.Seq == 0 || w.dirty.Held || w.in.Flags&meta.Removed != 0 {
			return nil
		}
		if w.dirty.Seq != seq {
			return errOvertaken
		}
		if w.dir, err = tx.Inode(w.in.Parent); err != nil {
			return err
		}
		w.key = naturalKey(&w.dir, &w.in)
		t, err := tx.Tomb(w.key)
		if err := absent(err); err != nil {
			return err
		}
		if err := f.mayPut(w.key, &t, w.dirty.Token); err != nil {
			return err
		}
		switch {
		case err == nil && t.Done == 0 && t.ETag != noObject:
			w.base = t.ETag
			if w.needs, err = f.needed(tx, &t, &w); err != nil {
				return err
			}
		case objectKey(&w.in, w.key) == w.key && w.in.Kind != meta.KindDir:
			w.base = w.in.Object.ETag
		}
		w.tomb = t.Token
		ok = true
		if newest(w.dirty.Token) != "" {
			return nil
		}
		token := nextToken(former(w.dirty.Token), w.tomb)
		if w.in.Flags&meta.Overlay != 0 {
			token = publish.NewToken() // each content is to be told from the others, see ownBase
		}
		if u := w.dirty.Upload; u.ID != "" && u.Key == w.key && u.Token != "" {
			token = u.Token // which its object will have
		}
		w.dirty.Token = tokens(token, former(w.dirty.Token))
		return tx.SetDirty(&w.dirty)
	})
	return w, ok, err
}

// needed returns the inode, other than that of w, that is still to be copied from the key of a tomb and comes later, 0 if
// there is none. errLater when it comes before.
func (f *FS) needed(tx *meta.Tx, t *meta.Tomb, w *work) (meta.Ino, error) {
	if t.Needed == 0 || t.Needed == w.in.Ino {
		return 0, nil
	}
	d, err := tx.Dirty(t.Needed)
	if err := absent(err); err != nil {
		return 0, err
	}
	open := d.Seq == 0 && !d.Held && f.written(d.Ino) // that may be so for ever: it is fetched
	if d.Ino != 0 && d.Seq < w.dirty.Seq && !open {
		return 0, fmt.Errorf("%w: what is under %q is still to be copied", errLater, t.Key)
	}
	return d.Ino, nil
}

// errOvertaken: the index has given an inode another place in the order than the queue knows.
var errOvertaken = fmt.Errorf("%w: it was changed or renamed", errLater)

// overtaken has what was changed by somebody who has told the queue of it, before or after somebody else, looked at
// again. Who renames tells it yet, of all that belongs together.
func (f *FS) overtaken(ino meta.Ino) error {
	if f.publisher.renaming.Load() == 0 {
		f.enqueue(ino)
	}
	return errOvertaken
}

// absent makes "not found" no error.
func absent(err error) error {
	if errors.Is(err, meta.ErrNotFound) {
		return nil
	}
	return err
}

// publishInode brings to the origin what an inode has that the origin has not. The queue calls it
// again when it fails.
func (f *FS) publishInode(ctx context.Context, ino meta.Ino, seq uint64, order func(context.Context) error) error {
	f.giveWay(ctx, ino)
	for range maxRebase {
		switch err := f.publishOnce(ctx, ino, seq, order); {
		case errors.Is(err, errOvertaken):
			return f.overtaken(ino)
		case !errors.Is(err, errRebased):
			return err
		}
	}
	return errRebased
}

// maxRebase is how often in a row a publication begins again because something of our own, or with
// last-wins something else, was under the key.
const maxRebase = 4

var errRebased = errors.New("what is under the key keeps changing")

func (f *FS) publishOnce(ctx context.Context, ino meta.Ino, seq uint64, order func(context.Context) error) error {
	w, ok, err := f.look(ino, seq)
	if err != nil || !ok {
		return err
	}
	if w.needs != 0 {
		return f.fetchSource(ctx, w.needs, w.key)
	}
	job := publish.Job{Key: w.key, Token: newest(w.dirty.Token), Order: order,
		IfNoneMatch: w.base == "", IfMatch: w.base,
		Upload: publish.Upload(w.dirty.Upload), Began: func(u publish.Upload) error { return f.uploadBegan(ino, w.dirty.Seq, u) }}
	var release func()
	defer func() {
		if release != nil {
			release() // it is noted what came of it
		}
	}()
	job.Order = func(ctx context.Context) error {
		if err := order(ctx); err != nil {
			return err
		}
		if release == nil {
			var err error
			if release, err = f.publisher.turns.take(ctx, w.key); err != nil {
				return err
			}
		}
		return f.keepReplaced(ctx, &w)
	}
	var out publish.Outcome
	switch {
	case w.in.Kind == meta.KindDir:
		if err := order(ctx); err != nil {
			return err
		}
		a := f.attr(&w.in)
		if w.in.Ino == f.root.Ino || !f.markers() {
			if err := f.clean(ino, w.dirty.Seq, meta.Local); err != nil {
				return err
			}
			f.enqueueTomb(w.key) // of one before it, which was left to what comes there: nothing does
			return nil
		}
		out, err = f.publisher.pub.Marker(ctx, w.key, publish.Metadata(syscall.S_IFDIR|a.Mode, a.UID, a.GID, a.MTime, a.CTime, ""), job.Token)
	case w.in.Kind == meta.KindSymlink && (w.in.Object.ETag == "" || objectKey(&w.in, w.key) != w.key): // it never changes
		a := f.attr(&w.in)
		job.Data, job.Size = []byte(w.in.Target), int64(len(w.in.Target))
		job.Metadata = publish.Metadata(syscall.S_IFLNK|0o777, a.UID, a.GID, a.MTime, a.CTime, "")
		out, err = f.publisher.pub.Publish(ctx, job)
	case w.in.Stage != 0:
		return f.publishStage(ctx, &w, &job)
	case objectKey(&w.in, w.key) != w.key:
		job.Copy = &publish.Source{Key: w.in.Object.Key, ETag: w.in.Object.ETag, VersionID: w.in.Object.VersionID, Size: w.in.Object.Size}
		out, err = f.publisher.pub.Publish(ctx, job)
	default:
		if err := f.publishNames(ctx, &w, order); err != nil {
			return err
		}
		return f.clean(ino, w.dirty.Seq, 0)
	}
	if err != nil {
		return f.refused(ctx, &w, err)
	}
	return f.landed(ctx, &w, out, nil)
}

// markers tells whether the origin can hold objects that stand for directories. A directory of files
// cannot; directories made here are in the index then, until something is in them.
func (f *FS) markers() bool { return !strings.HasPrefix(f.store.String(), "file:") }

// clean notes that there is nothing to do. Of its flags the inode keeps Local where keep says so.
func (f *FS) clean(ino meta.Ino, seq uint64, keep meta.Flags) error {
	return f.db.Do(func(tx *meta.Tx) error {
		d, err := tx.Dirty(ino)
		if err != nil || d.Seq != seq {
			return absent(err)
		}
		in, err := tx.Inode(ino)
		if err != nil {
			return err
		}
		if in.Links == 0 {
			in.Flags &^= meta.Local &^ keep
			in.Checked = f.now() // a listing that is under way may have begun before
			dir, err := tx.Inode(in.Parent)
			if err != nil {
				return err
			}
			if in.Object.Key == naturalKey(&dir, &in) {
				in.Object.Key = ""
			}
		}
		if err := tx.Update(&in); err != nil {
			return err
		}
		return tx.ClearDirty(ino, false)
	})
}

// uploadBegan records a multipart upload before its first part is sent.
func (f *FS) uploadBegan(ino meta.Ino, seq uint64, u publish.Upload) error {
	err := f.db.Do(func(tx *meta.Tx) error {
		d, err := tx.Dirty(ino)
		if errors.Is(err, meta.ErrNotFound) || err == nil && d.Seq != seq {
			return publish.ErrSuperseded
		}
		if err != nil {
			return err
		}
		if d.Upload.ID != "" && d.Upload.ID != u.ID {
			if err := tx.AddAbort(d.Upload.Key, d.Upload.ID); err != nil {
				return err
			}
		}
		d.Upload = meta.Upload(u)
		return tx.SetDirty(&d)
	})
	if err != nil {
		return err
	}
	return f.db.Sync() // after a power cut nobody else knows of it
}

// publishStage uploads a staging file.
func (f *FS) publishStage(ctx context.Context, w *work, job *publish.Job) error {
	file, err := f.cache.OpenStage(w.in.Stage, os.O_RDONLY)
	if err != nil {
		return &PathError{Op: "publish", Path: f.path(w.dir.Ino, w.in.Name), Err: err}
	}
	defer closeFile(file)
	a, err := f.attrNow(&w.in)
	if err != nil {
		return err
	}
	job.File, job.Size = file, a.Size
	if w.open, err = f.writable(ctx, &w.in, file); err != nil {
		return err
	}
	if w.in.Flags&meta.Overlay != 0 {
		if err := f.labelToken(&w.in); err != nil {
			f.log.Warn("the label of a file that is published cannot be written: should the index be lost now, the file would be held",
				"path", f.path(w.dir.Ino, w.in.Name), "err", err)
		}
		job.Overlay = f.overlay(w, file)
	} else {
		job.Reuse = f.reuse.find(w.key, a.Size)
	}
	job.Metadata = publish.Metadata(syscall.S_IFREG|a.Mode, a.UID, a.GID, a.MTime, a.CTime, "")
	out, done, err := f.finishGrowth(ctx, &w.in, job)
	if !done {
		out, err = f.publisher.pub.Publish(ctx, *job)
	}
	if err != nil {
		var c *publish.Conflict
		if !errors.As(err, &c) || c.Equal == nil {
			return f.refused(ctx, w, err)
		}
		out = *c.Equal // ours, from before a power cut
	}
	return f.landed(ctx, w, out, &a)
}

// landed notes what the origin has now. The staging file becomes the object's file in the cache, if it
// still is what was published; else it stays dirty.
func (f *FS) landed(ctx context.Context, w *work, out publish.Outcome, a *Attr) error {
	version := meta.Object{Size: out.Object.Size, ETag: out.Object.ETag, VersionID: out.Object.VersionID, MTime: out.Object.ModTime.UnixNano()}
	if out.Object.ModTime.IsZero() {
		version.MTime = f.now()
	}
	f.noteParts(w, &version, &out)
	var batch cache.Batch
	commit := func(bool) {}
	adopted := false
	node := f.nodeOf(&w.in)
	removed := func(ok bool) {
		if ok {
			f.removeStage(w.in.Stage)
		}
	}
	if w.in.Stage != 0 {
		// Who opens it for writing holds this, and waits for the end of this publication.
		end, err := f.open.begin(ctx, node)
		if err != nil {
			return err
		}
		defer end(nil)
		ok, err := f.unchanged(w, &out)
		if err != nil {
			return err
		}
		if ok {
			// The times may have been set between a and what was read.
			if *a, err = f.attrNow(&w.in); err != nil {
				return err
			}
		}
		if ok && (w.in.Flags&meta.Overlay != 0 || version.Size == 0) {
			adopted = true // what it does not hold is not here, or there is nothing: the file goes
			commit = removed
		} else if ok {
			ident := cache.Identity{Origin: f.store.String(), Key: w.key, ETag: version.ETag, VersionID: version.VersionID, Size: version.Size, Inode: uint64(w.in.Ino)}
			batch, commit, err = f.cache.AdoptStage(w.in.Stage, ident, out.Sum, out.Blocks, out.Checksum)
			switch {
			case err == nil:
			case (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)) && f.open.get(node) == nil:
				// The bucket has it, and this is how a disk that is full gets room again.
				f.log.Debug("a published file is not kept in the cache", "key", w.key, "err", err)
				batch, commit = cache.Batch{}, removed
			default:
				return &PathError{Op: "publish", Path: f.path(w.dir.Ino, w.in.Name), Err: err}
			}
			adopted = true
		}
	}
	copied := w.in.Stage == 0 && w.in.Kind == meta.KindFile && version.Size > 0
	if copied {
		end, err := f.open.begin(f.ctx, node) // what has landed is noted, also when it was given up meanwhile
		if err != nil {
			return err
		}
		defer end(nil)
		commit = f.moved(w, &version)
	}
	var fx effects
	var now meta.Inode
	left, more := false, false
	err := f.db.Do(func(tx *meta.Tx) error {
		fx.reset()
		left, more = false, false
		var err error
		if now, err = tx.Inode(w.in.Ino); err != nil {
			return err
		}
		dir, err := tx.Inode(now.Parent)
		if err != nil {
			return err
		}
		d, err := tx.Dirty(w.in.Ino)
		if err != nil && !errors.Is(err, meta.ErrNotFound) {
			return err
		}
		if now.Flags&meta.Removed != 0 || naturalKey(&dir, &now) != w.key || errors.Is(err, meta.ErrNotFound) || now.Stage != w.in.Stage {
			// It was removed or renamed meanwhile: what landed is to go again.
			left = true
			dropUpload(&d, w, &out)
			return f.strand(tx, w, &d, &now, version, &fx)
		}
		if err := f.fill(tx, w.key, d.Token); err != nil {
			return err
		}
		if w.in.Object.ETag != "" && objectKey(&w.in, w.key) != w.key {
			if err := f.unneed(tx, w.in.Object.Key, &fx); err != nil {
				return err
			}
		}
		if copied {
			moved := now
			moved.Object = version
			if err := f.movedPast(tx, w, &moved); err != nil {
				return err
			}
		}
		now.Flags |= meta.Ours
		now.Checked = f.now()
		if now.Kind == meta.KindDir {
			now.Flags |= meta.Marker
		}
		if now.Object = version; now.Links > 0 {
			now.Object.Key = w.key
		}
		if now.Stage != 0 && (!adopted || d.Seq != w.dirty.Seq) {
			// It is open again, and goes on from what has landed.
			adopted = false
			dropUpload(&d, w, &out)
			if err := tx.Update(&now); err != nil {
				return err
			}
			if d.Seq == w.dirty.Seq {
				d.Seq, d.Early = 0, false
			}
			return tx.SetDirty(&d)
		}
		if adopted {
			d.Early = false
			now.Stage = 0
			now.Flags &^= meta.Overlay
			now.MTime, now.ATime, now.CTime = a.MTime, a.ATime, a.CTime
			if err := tx.Apply(batch); err != nil {
				return err
			}
		}
		if now.Links == 0 {
			now.Flags &^= meta.Local
		}
		if err := tx.Update(&now); err != nil {
			return err
		}
		if more = now.Links > 0; more {
			dropUpload(&d, w, &out)
			return tx.SetDirty(&d)
		}
		return tx.ClearDirty(w.in.Ino, d.Upload.ID == out.Upload)
	})
	switch {
	case err != nil:
		commit(false)
		return err
	case left, !adopted && !copied:
		commit(false)
	case copied:
		commit(true)
	default:
		f.adopted(node, &now, commit)
		f.retimed.forget(w.in.Stage)
	}
	f.after(&fx)
	if !left && now.Kind == meta.KindDir {
		f.labelDir(&now) // the origin has it
	}
	if now.Flags&meta.Overlay != 0 && !adopted {
		f.rebased(&now)
	}
	if !left && w.in.Stage != 0 {
		f.publisher.hasLanded(w.in.Ino, w.dirty.Seq)
	}
	if !left && w.in.Stage != 0 && !adopted {
		f.relabel(&now) // what it is to replace is what has landed
		f.completeAgain(w)
	}
	if more {
		return errRebased // its further names are next
	}
	return nil
}

// dropUpload takes the upload out of a record that has landed, or that nobody needs as something else has. One that was
// begun since, of what is written now, stays: it goes on.
func dropUpload(d *meta.Dirty, w *work, out *publish.Outcome) {
	if d.Seq == w.dirty.Seq || d.Upload.ID == out.Upload || d.Upload == w.dirty.Upload {
		d.Upload = meta.Upload{}
	}
}

// writable tells whether anybody can write to a staging file, of which file is a descriptor for reading. Who opens
// it for that from now on is known by the inode's place in the order.
func (f *FS) writable(ctx context.Context, in *meta.Inode, file *os.File) (bool, error) {
	node := f.nodeOf(in)
	end, err := f.open.begin(ctx, node)
	if err != nil {
		return false, err
	}
	defer end(nil)
	if f.open.writers(in.Ino) > 0 {
		return true, nil
	}
	if o := f.open.peek(node); o != nil {
		o.closeStage()
	}
	writers, _, err := cache.FileBusy(file)
	return writers, err
}

// unchanged tells whether a staging file is what was published, and nobody can change it. What was open when it was
// read may have been written to since without another time or size: by a page that was dirty already, in the same tick of the clock, or
// with a time that was set.
func (f *FS) unchanged(w *work, out *publish.Outcome) (bool, error) {
	if w.open || f.open.writers(w.in.Ino) > 0 || out.Blocks == nil && w.in.Stage == 0 {
		return false, nil
	}
	if o := f.open.peek(f.nodeOf(&w.in)); o != nil {
		o.closeStage()
	}
	writers, _, err := f.cache.StageBusy(w.in.Stage)
	if err != nil || writers {
		return false, err
	}
	st, err := f.cache.StatStage(w.in.Stage)
	if err != nil {
		return false, err
	}
	return st.Size == out.Stamp.Size && st.Mtim.Nano() == f.retimed.since(w.in.Stage, out.Stamp.MTime), nil
}

// strand notes in a transaction that something landed under a key that the inode no longer has.
func (f *FS) strand(tx *meta.Tx, w *work, d *meta.Dirty, now *meta.Inode, version meta.Object, fx *effects) error {
	t := meta.Tomb{Key: w.key, ETag: version.ETag, VersionID: version.VersionID, Seq: f.db.NextSeq(), Prefix: w.in.Kind == meta.KindDir}
	if old, err := tx.Tomb(w.key); err == nil {
		t.Needed, t.Token = old.Needed, old.Token
	}
	if now.Flags&meta.Overlay != 0 && now.Stage == w.in.Stage && now.Object.ETag == w.in.Object.ETag && objectKey(&w.in, w.key) == w.key {
		// What it lies over was replaced by that.
		now.Object = version
		now.Object.Key = w.key
		if now.Flags&meta.Removed == 0 {
			t.Needed = now.Ino
		}
		if err := tx.Update(now); err != nil {
			return err
		}
	}
	if err := tx.SetTomb(&t); err != nil {
		return err
	}
	fx.tombs = append(fx.tombs, w.key)
	if d.Ino == 0 {
		return nil
	}
	if err := tx.SetDirty(d); err != nil {
		return err
	}
	fx.moved = append(fx.moved, *now)
	return nil
}

// unneed notes that the source of a copy is not needed any more.
func (f *FS) unneed(tx *meta.Tx, key string, fx *effects) error {
	t, err := tx.Tomb(key)
	if err != nil {
		return absent(err)
	}
	t.Needed = 0
	fx.tombs = append(fx.tombs, key)
	return tx.SetTomb(&t)
}
