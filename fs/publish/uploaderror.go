package publish

import (
	"errors"
	"fmt"

	"github.com/leatfs/leatfs/objstore"
)

// ErrChanged is that a file kept changing while it was read.
var ErrChanged = errors.New("the file keeps changing while it is published")

// errGone is that the multipart upload is not there any more.
var errGone = errors.New("the multipart upload is gone")

// Conflict is that something else is under the key than may be there, and not by us.
type Conflict struct {
	Key string
	// Have is what is there; its Key is "" when nothing is.
	Have objstore.Object
	// Equal, if not nil, is the outcome if the caller is content with what is there: it has the bytes
	// that were to be published. It may be his own, put there by a process whose token was lost.
	Equal *Outcome
}

func (e *Conflict) Error() string {
	if e.Have.Key == "" {
		return fmt.Sprintf("publish %q: the object that was to be replaced or deleted is gone", e.Key)
	}
	return fmt.Sprintf("publish %q: somebody else has written it (now ETag %q, %d bytes)", e.Key, e.Have.ETag, e.Have.Size)
}

// SourceChanged is that the object to copy, or that an Overlay lies over, is not the one that was
// meant any more.
type SourceChanged struct {
	Key, ETag string          // what was meant
	Have      objstore.Object // what is there; its Key is "" when nothing is
}

func (e *SourceChanged) Error() string {
	if e.Have.Key == "" {
		return fmt.Sprintf("publish: the object to copy, %q with ETag %q, is gone", e.Key, e.ETag)
	}
	return fmt.Sprintf("publish: the object to copy, %q with ETag %q, was replaced (now ETag %q)", e.Key, e.ETag, e.Have.ETag)
}

// corrupt is the error of content that the store has or got otherwise than it is here.
func corrupt(key string, size int64, sum uint64, cause error) error {
	return &objstore.Error{Op: "PUBLISH", Key: key, Kind: objstore.Corrupt, Err: cause,
		Hint: fmt.Sprintf("what arrives is not what was sent (%d bytes with CRC64NVME %016x): check the network, the memory and the store", size, sum)}
}
