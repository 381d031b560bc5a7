package fs

import (
	"fmt"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
)

// A process that is killed may leave requests under way: the origin has them, and carries them out a little
// later, when the process after it has looked already. So for a while after such a start
//
//   - what may still land under a key that is to be empty counts as there: its deletion waits;
//   - what is put under a key does not make the tokens of earlier publications forgotten;
//   - nothing is put where an unconditional deletion may be under way.

// defaultDoubt is how long after the death of a process its requests may be carried out: many times what
// a store takes for the largest that are not repeated, a PUT of 16 MiB or a completion.
const defaultDoubt = 5 * time.Second

// beginDoubt is called at the start, before anything is published.
func (f *FS) beginDoubt(left bool) {
	f.firstSeq = f.db.NextSeq()
	if left {
		f.doubtUntil = time.Now().Add(f.opt.Doubt)
	}
}

// inDoubt tells whether requests of an earlier process may still be carried out.
func (f *FS) inDoubt() bool { return time.Now().Before(f.doubtUntil) }

// mayBury is errLater while something of ours may still land under the key of a tomb, or be deleted there.
func (f *FS) mayBury(t *meta.Tomb) error {
	if err := f.mayPut(t); err != nil {
		return err
	}
	if t.Token != "" && f.inDoubt() {
		return fmt.Errorf("%w: what a process that was killed was about to put under %q may still come", errLater, t.Key)
	}
	return nil
}

// mayPut is errLater while a deletion by an earlier process may be under way that would hit what is put
// under the key of a tomb now.
func (f *FS) mayPut(t *meta.Tomb) error {
	if t.Done == 0 && t.Seq < f.firstSeq && !f.store.Caps().DeleteIfMatch && f.inDoubt() {
		return fmt.Errorf("%w: a process that was killed may still have %q deleted", errLater, t.Key)
	}
	return nil
}

// fill takes the tomb of a key away under which something was put, or nothing is; token is of what else of
// ours may come there.
func (f *FS) fill(tx *meta.Tx, key, token string) error {
	t, err := tx.Tomb(key)
	if err := absent(err); err != nil {
		return err
	}
	if token = tokens(token, t.Token); token == "" || !f.inDoubt() {
		return absent(tx.ClearTomb(key))
	}
	return tx.SetTomb(&meta.Tomb{Key: key, Seq: f.db.NextSeq(), Done: longAgo, Token: token})
}

// longAgo is the end of a tomb that hides nothing.
const longAgo = 1
