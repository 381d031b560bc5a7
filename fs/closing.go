package fs

import (
	"time"

	"github.com/leatfs/leatfs/cache"
)

// The kernel tells of a last close before it has closed its own file below: the thread that closes
// does that on its way back. So a file that is still open for writing is looked at again at once,
// closeFirst later and then after twice as long each time, up to closeLast. Only after that somebody has
// it mapped. Those that were closed later wait meanwhile: they must not be noted as complete before it.
const (
	closeFirst = 50 * time.Microsecond
	closeLast  = 10 * time.Millisecond
)

// stillWritten tells whether anybody can write to a staging file that was closed.
func (f *FS) stillWritten(id cache.ID) (bool, error) {
	for wait := closeFirst; ; wait *= 2 {
		writers, _, err := f.cache.StageBusy(id)
		if err != nil || !writers || wait > closeLast {
			return writers, err
		}
		time.Sleep(wait)
	}
}
