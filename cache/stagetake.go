package cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// How a complete object's file becomes a staging file, and the reverse (see AdoptStage). On the
// way the file has both names, below objects and below staging, and both labels. What it is at
// such a moment the index decides, when the next process starts: if it has a record of the ID with
// just the identity in the label, it is an object file, else a staging file (see mendStages). So there is one moment at which it changes, the transaction of the
// index, and no power cut undoes it to the harm of what was written since: a staging file that
// was given out has no label of an object any more.

// takeWait is how long TakeStage waits for those who hold an object only for a moment.
const takeWait = 250 * time.Millisecond

// TakeStage makes the file of a complete object a staging file: the same file with the same ID,
// so that what the kernel has open goes on with it. The label is on the disk and the index has
// forgotten the record when it returns. lent is how many loans of the object the caller itself
// has; its reference and they must be the only ones, else ErrInUse: others would see bytes
// change under them. ErrIncomplete when the object is not complete, is empty, or is in doubt after
// a power loss (Fetch it first).
//
// The object is afterwards as if nothing of it were here: reading it fetches anew, into another
// file. Loans are still to be given back and the reference to be released. A pin does not go
// along. After an error the object is as it was, or, when the index cannot be written, forgotten;
// its file is never a staging file then.
func (c *Cache) TakeStage(o *Object, lent int, l StageLabel) (ID, error) {
	attr, err := l.encode()
	if err != nil {
		return 0, err
	}
	d, id, err := c.claimFile(o, lent)
	if err != nil {
		return 0, err
	}
	defer c.moved(id)
	file, staged := d.filePath(id), d.stagePath(id)
	fail := func(err error) (ID, error) {
		return 0, fmt.Errorf("%s: its file cannot be made one to write to: %w", o.name(), explain(err))
	}
	if err := unix.Lsetxattr(file, stageXattr, attr, 0); errors.Is(err, unix.ENOENT) {
		o.mu.Lock()
		if o.id == id {
			c.n.lostFiles.Add(1)
			o.discard()
		}
		o.mu.Unlock()
		return fail(fmt.Errorf("%s is missing: %w", file, ErrIncomplete))
	} else if err != nil {
		return fail(&os.PathError{Op: "setxattr", Path: file, Err: err})
	}
	c.stageStep("take: labelled")
	if err := linkStage(file, staged); err != nil {
		return fail(errors.Join(err, dropXattr(file, stageXattr)))
	}
	c.stageStep("take: linked")
	if err := c.unrecord(o, d, id, lent); err != nil {
		if rerr := os.Remove(staged); rerr != nil {
			err = errors.Join(err, rerr)
		}
		return fail(err)
	}
	c.stageStep("take: forgotten")
	// From here on it is a staging file, whatever fails.
	d.stage.files.Add(1)
	c.wakeStage()
	err = os.Remove(file)
	c.stageStep("take: unlinked")
	if err == nil {
		err = dropXattr(staged, xattrName)
	}
	c.stageStep("take: unlabelled")
	if err == nil {
		err = syncPath(staged)
	}
	if err == nil {
		err = syncDir(d.staging)
	}
	if err == nil {
		err = syncDir(filepath.Dir(file))
	}
	if err != nil {
		// It must not be taken for an object again, nor be published: it is as the bucket has it.
		return fail(errors.Join(err, c.RemoveStage(id)))
	}
	return id, nil
}

// linkStage gives an object file its name among the staging files, which it may have kept from the
// time when it was one.
func linkStage(file, staged string) error {
	err := os.Link(file, staged)
	if errors.Is(err, os.ErrExist) {
		if same, serr := sameFile(file, staged); serr == nil && same {
			return nil
		}
	}
	return err
}

// syncPath forces the file at path to the disk.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// claimFile finds out whether the file of o may be taken, waits a little for those who hold o only
// for a moment, and notes that the file is on its way.
func (c *Cache) claimFile(o *Object, lent int) (*dir, ID, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for deadline := time.Now().Add(takeWait); ; {
		o.say()
		o.awaitFile()
		if err := o.lendable(); err != nil {
			return nil, 0, err
		}
		err := o.shared(lent)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			return nil, 0, err
		}
		o.mu.Unlock()
		time.Sleep(time.Millisecond)
		o.mu.Lock()
	}
	if !c.move(o.id) {
		return nil, 0, fmt.Errorf("%s: its file is being made another's: %w", o.name(), ErrInUse)
	}
	return o.dir, o.id, nil
}

// shared tells who else has o, if the caller has one reference and lent loans; o.mu is held.
func (o *Object) shared(lent int) error {
	switch {
	case o.refs-o.passive > 1:
		return fmt.Errorf("%s: %d others use it: %w", o.name(), o.refs-o.passive-1, ErrInUse)
	case o.lent > lent:
		return fmt.Errorf("%s: %d others read its file: %w", o.name(), o.lent-lent, ErrInUse)
	case o.fetches > 0 || o.ending:
		return fmt.Errorf("%s: it is being fetched: %w", o.name(), ErrInUse)
	}
	return nil
}

// look says that n references more are of users that TakeStage need not care for.
func (o *Object) look(n int) {
	o.mu.Lock()
	o.passive += n
	o.mu.Unlock()
}

// unrecord has the index forget file id of o, which stays on the disk, and makes o one of which
// nothing is here. If the index cannot be written, the file is removed as soon as it can.
func (c *Cache) unrecord(o *Object, d *dir, id ID, lent int) error {
	const (
		pending = iota
		done
		givenUp
	)
	o.mu.Lock()
	o.awaitFile()
	if o.id != id || o.lendable() != nil {
		o.mu.Unlock()
		return fmt.Errorf("found damaged just now: %w", ErrIncomplete)
	}
	if err := o.shared(lent); err != nil {
		o.mu.Unlock()
		return err
	}
	var state atomic.Int32
	ran := make(chan struct{})
	bytes := o.usage.Bytes + fileOverhead
	d.used.Add(-bytes)
	o.detach()
	// No reader can have the object load the record again before it is gone: o is in the table.
	c.ledger.remove(id, func() {
		defer close(ran)
		if state.CompareAndSwap(pending, done) {
			return
		}
		if err := os.Remove(d.filePath(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
			c.log.Error("an object file cannot be removed", "err", err)
		}
	})
	o.mu.Unlock()
	err := c.ledger.sync(c.ctx)
	if c.ledger.deleted(id) && state.CompareAndSwap(pending, givenUp) {
		return fmt.Errorf("the index cannot be written: %w", err)
	}
	<-ran
	return nil
}

// move notes that file id is about to become a staging file or an object file; false if somebody
// is at it already. moved ends that.
func (c *Cache) move(id ID) bool {
	_, busy := c.moving.LoadOrStore(id, struct{}{})
	return !busy
}

func (c *Cache) moved(id ID) { c.moving.Delete(id) }

// isMoving tells whether file id has two names just now.
func (c *Cache) isMoving(id ID) bool {
	_, ok := c.moving.Load(id)
	return ok
}

// stageStep is where tests kill the process.
func (c *Cache) stageStep(name string) {
	if c.atStep != nil {
		c.atStep(name)
	}
}
