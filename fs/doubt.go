package fs

import (
	"fmt"
	"strings"
	"time"

	"github.com/leatfs/leatfs/fs/meta"
)

// A process that is killed may leave requests under way: the origin has them, and carries them out a little
// later, when the process after it has looked already. So for a while after such a start
//
//   - what may still land under a key that is to be empty counts as there: its deletion waits;
//   - what is put under a key does not make the tokens of earlier publications forgotten;
//   - nothing else is put where a publication or a deletion may be under way: that it is conditional on an ETag does not help
//     where a content comes back.

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
func (f *FS) mayBury(t *meta.Tomb) error { return f.mayPut(t.Key, t, "") }

// mayPut is errLater while something of an earlier process may be under way that would hit what is put under a key now: t is
// the tomb of the key, if it has one. token is that of what is to be put there, and of what else the file may have there: the
// same publication, once more, is no harm.
func (f *FS) mayPut(key string, t *meta.Tomb, token string) error {
	if !f.inDoubt() {
		return nil
	}
	if f.deletedBefore(t) {
		return fmt.Errorf("%w: a process that was killed may still have %q deleted", errLater, key)
	}
	for _, other := range strings.Fields(tokens(former(token), t.Token)) {
		if other != newest(token) {
			return fmt.Errorf("%w: what a process that was killed was about to put under %q may still come", errLater, key)
		}
	}
	return nil
}

// deletedBefore tells whether a deletion by an earlier process may be under way under the key of a tomb.
func (f *FS) deletedBefore(t *meta.Tomb) bool {
	if t.Seq == 0 || t.Done != 0 || !f.inDoubt() {
		return false
	}
	_, again := f.deletions.Load(t.Key)
	return again || t.Seq < f.firstSeq
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
