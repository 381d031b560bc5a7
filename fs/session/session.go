// Package session remembers, outside the process that serves a mount, what the kernel believes
// of it: the handshake, the handles that are open, the files it was given to read by itself,
// and the requests under way. All of it lies in anonymous shared memory (a memfd) that the
// keeper of the mount holds: a process that is killed leaves it as it was after its last
// store, and the next one goes on from there. There is no file to be truncated, to be full or
// to be of another boot; the memory ends with the last process of the mount.
//
// What is written is in the order that makes every prefix of it true: a record is filled in
// first and becomes valid by the store of its first word, which is atomic.
//
// Memory: the layout is sparse, so that only what was ever in use at the same time takes
// memory: 32 bytes for an open handle, 32 for a file given to the kernel.
package session

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Info is what a mount is, for the next process to make sure that it is the same.
type Info struct {
	Source, Mountpoint string
	// Dev is the device number of the mount as in /proc/self/mountinfo ("0:59"), which tells it from
	// another one at the same place; empty when it is not known.
	Dev string `json:",omitempty"`
	// InitIn is the INIT that the kernel sent, InitOut what it was answered.
	InitIn, InitOut []byte
	// Origin is what the first process learned of the origin, for the next one not to ask.
	Origin json.RawMessage `json:",omitempty"`
}

// The layout. A change of it is a new format.
const (
	magic  = 0x6c656174_73657331 // "leatses1"
	format = 3

	headerSize  = 64 << 10
	infoAt      = 4096
	infoMax     = headerSize - infoAt
	maxRequests = 4096
	maxHandles  = 1 << 21
	maxBackings = 1 << 20
	inboxSize   = 2 << 20
	contentSize = 4096
	maxLarge    = 16
	largeSize   = 1<<20 + 4096

	requestsAt = headerSize
	handlesAt  = requestsAt + maxRequests*requestSize
	backingsAt = handlesAt + maxHandles*handleSize
	inboxAt    = backingsAt + maxBackings*backingSize
	contentAt  = inboxAt + inboxSize
	largeAt    = contentAt + maxRequests*contentSize
	totalSize  = largeAt + maxLarge*largeSize
)

// header is the first page.
type header struct {
	magic        uint64
	format       uint32
	infoLen      uint32
	id           uint64
	epoch        uint32 // processes that have attached
	requestsHigh uint32 // records in use lie below
	handlesHigh  uint32
	backingsHigh uint32
	lastBacking  int32  // the backing id given out last, of those that were recorded
	untold       uint32 // not 0: the kernel is yet to be told that bytes it may have are wrong
	_            uint32
	largestInode uint64
	largestFile  uint64
}

// Session is the memory, mapped. Methods may be called in parallel unless they say otherwise.
type Session struct {
	file  *os.File
	mem   []byte
	head  *header
	epoch uint32
	began time.Time // when this process opened it

	requests requests
	large    large
	handles  handles
	backings backings
}

// ErrFormat: the memory was written by a program that this one does not understand.
var ErrFormat = errors.New("the session of the mount is of another format")

// Create makes the session of a new mount.
func Create() (*Session, error) {
	fd, err := unix.MemfdCreate("leatfs-session", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("session memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "session")
	if err := f.Truncate(totalSize); err != nil {
		return nil, errors.Join(fmt.Errorf("session memory: %w", err), f.Close())
	}
	// Nobody can make it shorter under those who have it mapped.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(fmt.Errorf("session memory: %w", err), f.Close())
	}
	s, err := open(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	s.head.id = binary.NativeEndian.Uint64(id[:])
	s.head.format = format
	s.head.epoch, s.epoch = 1, 1
	atomic.StoreUint64(&s.head.magic, magic)
	return s, nil
}

// Attach takes over the session of a process that is gone. It owns f, also when it fails.
func Attach(f *os.File) (*Session, error) {
	s, err := attach(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s.epoch = atomic.AddUint32(&s.head.epoch, 1)
	return s, nil
}

// Check tells whether Attach would understand the session in f; it changes nothing.
func Check(f *os.File) error {
	s, err := attach(f)
	if err != nil {
		return err
	}
	return unix.Munmap(s.mem)
}

// Read returns the Info of the session in f; it changes nothing.
func Read(f *os.File) (i Info, err error) {
	s, err := attach(f)
	if err != nil {
		return i, err
	}
	i, err = s.Info()
	return i, errors.Join(err, unix.Munmap(s.mem))
}

func attach(f *os.File) (*Session, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("session memory: %w", err)
	}
	if st.Size() < headerSize {
		return nil, fmt.Errorf("%w: it is %d bytes long", ErrFormat, st.Size())
	}
	var b [16]byte
	if _, err := f.ReadAt(b[:], 0); err != nil {
		return nil, fmt.Errorf("session memory: %w", err)
	}
	if m, v := binary.NativeEndian.Uint64(b[:]), binary.NativeEndian.Uint32(b[8:]); m != magic || v != format {
		return nil, fmt.Errorf("%w: format %d, this program knows %d", ErrFormat, v, format)
	}
	if st.Size() != totalSize {
		return nil, fmt.Errorf("%w: it is %d bytes long, not %d", ErrFormat, st.Size(), totalSize)
	}
	return open(f)
}

func open(f *os.File) (*Session, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, totalSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map session memory: %w", err)
	}
	s := &Session{file: f, mem: mem, head: (*header)(unsafe.Pointer(&mem[0])), began: time.Now()}
	s.requests.open(s)
	s.large.open(s)
	s.handles.open(s)
	s.backings.open(s)
	return s, nil
}

// Close unmaps the memory. Nothing of it may be used any more; others that have the file keep
// it.
func (s *Session) Close() error {
	return errors.Join(unix.Munmap(s.mem), s.file.Close())
}

// File is the memory, to be handed to the keeper.
func (s *Session) File() *os.File { return s.file }

// ID is a random number that this mount has and no other.
func (s *Session) ID() uint64 { return s.head.id }

// Epoch counts the processes that have served the mount, this one included: 1 for the first.
func (s *Session) Epoch() uint32 { return s.epoch }

// SetInfo records what the mount is. It is called once, before the first request.
func (s *Session) SetInfo(i Info) error {
	b, err := json.Marshal(i)
	if err != nil {
		return err
	}
	if len(b) > infoMax {
		return fmt.Errorf("session: %d bytes describe the mount, at most %d can be kept", len(b), infoMax)
	}
	copy(s.mem[infoAt:], b)
	atomic.StoreUint32(&s.head.infoLen, uint32(len(b)))
	return nil
}

// Info returns what SetInfo recorded.
func (s *Session) Info() (i Info, err error) {
	n := atomic.LoadUint32(&s.head.infoLen)
	if n == 0 || n > infoMax {
		return i, fmt.Errorf("%w: nothing says what is mounted", ErrFormat)
	}
	if err := json.Unmarshal(s.mem[infoAt:infoAt+n], &i); err != nil {
		return i, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return i, nil
}

// now is this process's clock, in nanoseconds. It stands still while the machine is suspended.
func (s *Session) now() int64 { return int64(time.Since(s.began)) }

// Saw records that the kernel was shown an inode number.
func (s *Session) Saw(ino uint64) { raise(&s.head.largestInode, ino) }

// SetUntold records whether the kernel is yet to be told that bytes it may have are wrong.
func (s *Session) SetUntold(on bool) {
	n := uint32(0)
	if on {
		n = 1
	}
	atomic.StoreUint32(&s.head.untold, n)
}

// Untold returns what SetUntold recorded last.
func (s *Session) Untold() bool { return atomic.LoadUint32(&s.head.untold) != 0 }

// Largest returns the largest inode number, and name of a cache file, that the mount has ever
// used: whatever becomes of the index, they must not come to mean something else.
func (s *Session) Largest() (ino, file uint64) {
	return atomic.LoadUint64(&s.head.largestInode), atomic.LoadUint64(&s.head.largestFile)
}

func raise(p *uint64, n uint64) {
	for {
		old := atomic.LoadUint64(p)
		if n <= old || atomic.CompareAndSwapUint64(p, old, n) {
			return
		}
	}
}
