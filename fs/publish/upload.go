package publish

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
)

// Options of a Publisher; zero means the default.
type Options struct {
	// PartSize is the size of a part in bytes, rounded up to whole blocks; more where the store's
	// MaxParts would not do else. Default 16 MiB.
	PartSize int64
	// Multipart is the largest content in bytes that goes by one PUT. Default 16 MiB.
	Multipart int64
	// Parallel is how many parts are under way at once, of all jobs and streams together.
	// They take turns: each gets as much as any other. Default 16.
	Parallel int
	// MaxCopy is the largest object in bytes that one COPY copies; larger ones are copied by parts.
	// Default 5 GiB, S3's limit.
	MaxCopy int64
	// CopyPart is the size in bytes of the parts of a copy inside the store. Default 512 MiB.
	CopyPart int64
	// Scratch is the directory of nameless files that hold ranges of an object on their way back
	// into the store, where it cannot copy parts. Default os.TempDir.
	Scratch string
	// Reuse has the store copy the parts that are as in Job.Reuse, and gives Outcome.Parts: what the next
	// version of the file can be compared with. It takes a SHA-256 of all that is sent in parts.
	Reuse bool
	// Log gets what was unusual. Default none.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	for v, def := range map[*int64]int64{&o.PartSize: 16 << 20, &o.Multipart: 16 << 20, &o.MaxCopy: 5 << 30, &o.CopyPart: 512 << 20} {
		if *v == 0 {
			*v = def
		}
	}
	o.PartSize, o.CopyPart = wholeBlocks(o.PartSize), wholeBlocks(o.CopyPart)
	if o.Parallel == 0 {
		o.Parallel = 16
	}
	if o.Scratch == "" {
		o.Scratch = os.TempDir()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func wholeBlocks(n int64) int64 {
	return (n + cache.BlockSize - 1) / cache.BlockSize * cache.BlockSize
}

// Publisher publishes into one store. All methods may be called in parallel.
type Publisher struct {
	store objstore.Store
	caps  objstore.Caps
	opt   Options
	slots slots
	bufs  sync.Pool // *[]byte of readSize
	// noCopy: the store has said that it does not copy with a condition on the target.
	noCopy atomic.Bool

	ctx  context.Context // done by Close
	stop context.CancelFunc
	mu   sync.Mutex // guards closed, and wg.Add against Close
	wg   sync.WaitGroup
	gone bool // closed
}

// New returns a Publisher into store, which should be one that retries.
func New(store objstore.Store, opt Options) *Publisher {
	p := &Publisher{store: store, caps: store.Caps(), opt: opt.withDefaults()}
	p.slots.free = p.opt.Parallel
	p.bufs.New = func() any { b := make([]byte, readSize); return &b }
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// Close cancels what is under way and waits for it. Uploads that were begun stay in the store,
// to be resumed.
func (p *Publisher) Close() {
	p.mu.Lock()
	p.gone = true
	p.mu.Unlock()
	p.stop()
	p.wg.Wait()
}

// enter counts a call or a goroutine that Close is to wait for; leave must be called at its end.
// The context it returns is done by Close too.
func (p *Publisher) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return nil, nil, &objstore.Error{Op: "PUBLISH", Key: p.store.String(), Kind: objstore.Canceled, Hint: "the publisher is closed"}
	}
	p.wg.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(p.ctx, cancel)
	return ctx, func() { stop(); cancel(); p.wg.Done() }, nil
}

// committing returns the context of a request that commits, an error when ctx is over already. Once it
// is sent, such a request is waited for, also when ctx ends: the store may carry out later what was
// broken off here, when nobody looks for it any more. Only Close ends it.
func (p *Publisher) committing(ctx context.Context) (_ context.Context, done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	c, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(p.ctx, cancel)
	return c, func() { stop(); cancel() }, nil
}

// Range is bytes [Off, Off+Len).
type Range struct{ Off, Len int64 }

// Overlay is the object that a file lies over in part: what the file does not hold is as in the
// object at the same offset, and zero beyond the object's end.
type Overlay struct {
	Key, ETag, VersionID string
	Size                 int64
	// Local tells the ranges that the file holds, in any order. It is called again whenever the file
	// is read again.
	Local func() ([]Range, error)
}

// Source is an object to be copied.
type Source struct {
	Key, ETag, VersionID string
	Size                 int64
}

// Upload is a multipart upload under way: what is to be recorded to resume or abort it.
// The zero Upload is none.
type Upload struct {
	Key, ID  string
	PartSize int64
	// Token and the other metadata of an object are bound when its upload begins, not when it ends.
	Token string
}

// Job is content to be put under a key. Exactly one of File, Data and Copy is the content; with
// none of them it is empty.
type Job struct {
	Key  string
	File *os.File // read by ReadAt only
	Data []byte   // for what has no file: a symbolic link, a marker
	// Size of File in bytes, as it was when the job was made. A file that has another size now is
	// published with that one.
	Size    int64
	Overlay *Overlay // File holds a part of the content only
	Reuse   []Reuse  // what File may have parts of, the most likely first; not with an Overlay
	// Copy: the object gets the metadata of the source with Metadata over it.
	Copy *Source

	// What may be under the key before: nothing, or this ETag; anything where neither is set.
	IfNoneMatch bool
	IfMatch     string

	// Metadata is the user metadata, keys in lower case; the token is added.
	Metadata    map[string]string
	ContentType string
	// Token is unique for this publication, and the same in all its tries, also when the file was
	// written to in between: a try that seems to have failed may have put the earlier content there,
	// and the next must know that for its own. A new one is due after an Outcome or a Conflict.
	Token string
	// Upload is what an earlier try began. One under another key is ignored; it is the caller's to
	// abort.
	Upload Upload
	// Began, if set, is called before the first part is sent, to record the upload durably; it
	// replaces what it was called with before. Its error ends the job and the upload.
	Began func(Upload) error
	// Order, if set, is called once right before the first commit: it waits for what must be published first.
	Order func(context.Context) error
}

// Requests counts what a publication asked of the store, retries below not counted.
type Requests struct {
	Puts, Creates, Parts, PartCopies, Lists, Completes, Aborts, Copies, Heads, Gets int
	Sent, Fetched                                                                   int64 // bytes in Puts and Parts, and by Gets
}

// Outcome is what was published.
type Outcome struct {
	// Object as far as the store told; ModTime is zero where it did not. Its Metadata are those that the
	// upload began with, nil where that was an earlier try's.
	Object objstore.Object
	// Sum is the CRC64NVME of the whole; meaningless where Summed is false: a copy of something
	// whose checksum the store does not tell.
	Sum    uint64
	Summed bool
	// Blocks is the CRC64NVME of each cache.BlockSize; nil for a copy and with an Overlay.
	Blocks []uint64
	// PartSize of a multipart upload, 0 for another.
	PartSize int64
	// Upload is the ID of that; "" for another, and where an earlier try was found to have completed it.
	Upload string
	// Parts tells what the object holds in each part of PartSize bytes; nil where that is not known of all of
	// them, and without Options.Reuse.
	Parts []PartSum
	// Reused is how many bytes the store copied from Job.Reuse; ReuseFailed are the keys of those from which it
	// would not copy, or not rightly. It need not be asked again.
	Reused      int64
	ReuseFailed []string
	// Stamp is what the file's times and size were when it was read: while it still has this
	// Stamp, it is what was published.
	Stamp Stamp
	// Checksum is what the store vouches for; it may be none.
	Checksum objstore.Checksum
	Requests Requests
}
