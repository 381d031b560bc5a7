package fs

import (
	"encoding/binary"
	"errors"

	"github.com/leatfs/leatfs/cache"
)

// varConflicts is where the index keeps how many conflicts there were on a mount: the mount's number, and how many.
const varConflicts = "fs/conflicts"

// conflictsBefore is how many conflicts the processes that served this mount before have met.
func (f *FS) conflictsBefore() int64 {
	b, err := f.db.Var(varConflicts)
	if err != nil || len(b) != 16 || binary.LittleEndian.Uint64(b) != f.open.session.ID() {
		if err != nil && !errors.Is(err, cache.ErrNoRecord) {
			f.log.Warn("how many conflicts there were is not known", "err", err)
		}
		return 0
	}
	return int64(binary.LittleEndian.Uint64(b[8:]))
}

func (f *FS) countConflict() {
	p := &f.publisher
	p.mu.Lock()
	p.conflict++
	n := p.conflict
	p.mu.Unlock()
	b := binary.LittleEndian.AppendUint64(nil, f.open.session.ID())
	b = binary.LittleEndian.AppendUint64(b, uint64(n))
	if err := f.db.Apply(cache.Batch{Vars: map[string][]byte{varConflicts: b}}); err != nil {
		f.log.Debug("the number of conflicts is not remembered", "err", err)
	}
}
