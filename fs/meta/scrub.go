package meta

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4/table"
)

// scrubber reads every table once after the index was opened and compares its checksums.
// Badger takes a block whose checksum is wrong for an empty one and says nothing, so what is
// in it seems not to exist: harmless to what files hold, since who does not find asks the
// origin, but it should not go on for ever.
type scrubber struct {
	done chan struct{}
	wg   sync.WaitGroup
}

// scrubShare is the inverse of the share of one CPU, or of the disk, that a scrub takes.
const scrubShare = 10

func (s *scrubber) start(db *DB) {
	s.done = make(chan struct{})
	var ids []uint64
	for _, t := range db.b.Tables() {
		ids = append(ids, t.ID)
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		for _, id := range ids {
			start := time.Now()
			if err := scrubTable(table.NewFilename(id, db.path)); err != nil {
				_ = db.damaged(fmt.Errorf("table %d: %w", id, err))
				return
			}
			select {
			case <-s.done:
				return
			case <-time.After(scrubShare * time.Since(start)):
			}
		}
	}()
}

// scrubTable verifies a table that may be deleted at any moment.
func scrubTable(path string) error {
	_, err := verifyTable(path, true)
	if err == nil || errors.Is(err, fs.ErrNotExist) || passing(err) {
		return nil
	}
	// Badger truncates a table before it removes it.
	if fi, serr := os.Stat(path); errors.Is(serr, fs.ErrNotExist) || serr == nil && fi.Size() == 0 {
		return nil
	}
	return err
}

func (s *scrubber) stop() {
	close(s.done)
	s.wg.Wait()
}
