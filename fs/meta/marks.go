package meta

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
)

// marks gives out inode numbers and cache IDs. It reserves them in ranges, and writes the
// end of a range durably, to a file of its own, before it gives out the first of it: none is
// given out twice, whatever becomes of the process, the machine or the database. What a dead
// process had reserved and not used is lost; there are enough.
//
// The file is two slots, written by turns, so that a write torn by a power cut leaves the
// other. A slot: magic, version, sequence number, end of the inode numbers, end of the IDs,
// CRC32C of all that.
type marks struct {
	noSync bool

	mu        sync.Mutex
	f         *os.File
	seq       uint64
	ino, id   counter
	onReserve func(ino, id uint64) // called with mu held after a range was reserved; may be nil
}

// counter hands out [next, end).
type counter struct {
	next, end uint64
	max       uint64 // the largest number there is
	step      uint64
	last      time.Time // of the last reservation
}

const (
	marksMagic   = 0x6c65617466730a00 // "leatfs\n\0"
	marksVersion = 1
	slotSize     = 8 + 4 + 8 + 8 + 8 + 4
	slotStride   = 4096 // each slot in a block of its own

	firstIno = 16

	// minStep is how many numbers a reservation holds; maxStep where they are used up so
	// quickly (a listing of millions) that a sync per minStep would be felt.
	minStep = 4096
	maxStep = 1 << 18

	// lostMarks is put on top of the largest number found in the index when the marks
	// file itself is lost: more than can have been given out and removed since.
	lostMarks = 1 << 24
)

var errNoMarks = errors.New("no valid slot")

// openMarks opens or creates the file. found is false when it held nothing usable; the
// counters then start at the beginning, see raise.
func openMarks(path string, noSync bool) (m *marks, found bool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, err
	}
	m = &marks{f: f, noSync: noSync,
		ino: counter{next: firstIno, end: firstIno, max: uint64(MaxIno), step: minStep},
		id:  counter{next: 1, end: 1, max: 1<<63 - 1, step: minStep}}
	buf := make([]byte, slotStride+slotSize)
	n, err := f.ReadAt(buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		f.Close()
		return nil, false, err
	}
	for _, at := range []int{0, slotStride} {
		if at+slotSize > n {
			continue
		}
		seq, ino, id, err := decodeSlot(buf[at : at+slotSize])
		if errors.Is(err, ErrNewer) {
			f.Close()
			return nil, false, err
		}
		if err != nil || (found && seq < m.seq) {
			continue
		}
		found = true
		m.seq = seq
		m.ino.next, m.ino.end = max(ino, firstIno), max(ino, firstIno)
		m.id.next, m.id.end = max(id, 1), max(id, 1)
	}
	return m, found, nil
}

func encodeSlot(seq, ino, id uint64) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, slotSize), marksMagic)
	b = binary.BigEndian.AppendUint32(b, marksVersion)
	b = binary.BigEndian.AppendUint64(b, seq)
	b = binary.BigEndian.AppendUint64(b, ino)
	b = binary.BigEndian.AppendUint64(b, id)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

func decodeSlot(b []byte) (seq, ino, id uint64, err error) {
	sum := crc32.Checksum(b[:slotSize-4], crc32.MakeTable(crc32.Castagnoli))
	if binary.BigEndian.Uint64(b) != marksMagic || binary.BigEndian.Uint32(b[slotSize-4:]) != sum {
		return 0, 0, 0, errNoMarks
	}
	if v := binary.BigEndian.Uint32(b[8:]); v > marksVersion {
		return 0, 0, 0, fmt.Errorf("%w (marks version %d, this program knows %d)", ErrNewer, v, marksVersion)
	}
	return binary.BigEndian.Uint64(b[12:]), binary.BigEndian.Uint64(b[20:]), binary.BigEndian.Uint64(b[28:]), nil
}

// write makes ino and id the marks on disk. Caller holds mu.
func (m *marks) write(ino, id uint64) error {
	seq := m.seq + 1
	if _, err := m.f.WriteAt(encodeSlot(seq, ino, id), int64(seq%2)*slotStride); err != nil {
		return err
	}
	if !m.noSync {
		if err := unix.Fdatasync(int(m.f.Fd())); err != nil {
			return err
		}
	}
	m.seq = seq
	return nil
}

func (m *marks) newIno() (Ino, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.take(&m.ino)
	return Ino(n), err
}

func (m *marks) newID() (cache.ID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.take(&m.id)
	return cache.ID(n), err
}

// take returns the next number of c, which is m.ino or m.id. Caller holds mu.
func (m *marks) take(c *counter) (uint64, error) {
	if c.next >= c.end {
		if c.next >= c.max {
			return 0, errors.New("meta: out of numbers; make a new index")
		}
		now := time.Now()
		if now.Sub(c.last) < 2*time.Second {
			c.step = min(c.step*2, maxStep)
		} else {
			c.step = minStep
		}
		old := c.end
		c.end = min(c.next+c.step, c.max)
		if err := m.write(m.ino.end, m.id.end); err != nil {
			c.end = old
			return 0, fmt.Errorf("meta: reserving numbers: %w", err)
		}
		c.last = now
		if m.onReserve != nil {
			m.onReserve(m.ino.end, m.id.end)
		}
	}
	n := c.next
	c.next++
	return n, nil
}

// raise makes all numbers given out from now on at least ino and id.
func (m *marks) raise(ino, id uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ino > m.ino.max || id > m.id.max {
		return fmt.Errorf("%w: mark beyond the largest number", ErrInvalid)
	}
	if ino <= m.ino.next && id <= m.id.next {
		return nil
	}
	for c, n := range map[*counter]uint64{&m.ino: ino, &m.id: id} {
		c.next = max(c.next, n)
		c.end = max(c.end, c.next)
	}
	return m.write(m.ino.end, m.id.end)
}

// create fills both slots of a new file; later writes then need no space.
func (m *marks) create(ino, id uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ino.next, m.ino.end = ino, ino
	m.id.next, m.id.end = id, id
	if err := m.write(ino, id); err != nil {
		return err
	}
	return m.write(ino, id)
}

// close gives back what was reserved and not used.
func (m *marks) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.write(m.ino.next, m.id.next)
	return errors.Join(err, m.f.Close())
}

func encodeMarks(ino, id uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint([]byte{codecVersion}, ino), id)
}

func decodeMarks(v []byte) (ino, id uint64, err error) {
	d := decoder{b: v}
	d.version()
	ino, id = d.uint(), d.uint()
	return ino, id, d.done()
}
