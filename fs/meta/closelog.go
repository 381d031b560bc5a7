package meta

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// CloseLog keeps which files were closed and are not noted as complete yet, so that the next process knows it when the one
// that was told is killed. A record costs a few microseconds, and is never forced to the disk: a killed process does
// not take it along, and after a power cut it means nothing (Reset).
//
// There are two logs, so that none grows without end: what is closed is noted in one, while those of the other are made
// complete. A record has a number and an inode, little endian; the numbers grow, and where they do not a log ends. An
// inode 0 is of a record that was taken back.
//
// All methods may be called in parallel.
type CloseLog struct {
	mu     sync.Mutex
	logs   [2]closeFile // by mu
	now    int          // which is written to; by mu
	turned bool         // the other is to be forgotten; by mu
	seq    uint64       // of the last record; by mu
}

type closeFile struct {
	f   *os.File      // nil: there is none
	end int64         // of the last record
	at  map[Ino]int64 // the records, but those taken back
}

const (
	closeRecord = 16
	closePrefix = "closes-"
	maxCloseLog = 1 << 20 // a log is cut when it was longer
	// closeRoom is how much of the disk a log keeps for itself, in bytes: so many files can be closed on a full one before they
	// are noted as complete.
	closeRoom = 64 << 10
)

func openCloses(dir string) (*CloseLog, error) {
	l := &CloseLog{}
	last := [2]uint64{}
	for i := range l.logs {
		c := &l.logs[i]
		var err error
		c.f, err = os.OpenFile(filepath.Join(dir, closePrefix+strconv.Itoa(i)), os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			continue // there is none yet, and on a full disk there will not be
		}
		if err == nil {
			last[i], err = c.read()
		}
		if err != nil {
			return nil, errors.Join(err, l.close())
		}
		c.reserve()
	}
	l.seq = max(last[0], last[1])
	if last[1] > last[0] {
		l.now = 1
	}
	return l, nil
}

// reserve gives a log its room, unless there is none.
func (c *closeFile) reserve() {
	_ = unix.Fallocate(int(c.f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, closeRoom)
}

// read reads a log and returns the number of its last record.
func (c *closeFile) read() (last uint64, err error) {
	c.at = make(map[Ino]int64)
	b, err := io.ReadAll(io.NewSectionReader(c.f, 0, 1<<62))
	if err != nil {
		return 0, err
	}
	for ; int(c.end)+closeRecord <= len(b); c.end += closeRecord {
		seq := binary.LittleEndian.Uint64(b[c.end:])
		if seq <= last {
			break
		}
		last = seq
		if ino := Ino(binary.LittleEndian.Uint64(b[c.end+8:])); ino != 0 {
			c.at[ino] = c.end
		}
	}
	// What follows was forgotten: it must not go on from what is noted next.
	return last, c.f.Truncate(c.end)
}

// number of the record of an inode. By mu.
func (c *closeFile) number(at int64) (uint64, error) {
	var b [8]byte
	_, err := c.f.ReadAt(b[:], at)
	return binary.LittleEndian.Uint64(b[:]), err
}

// Closed notes that a file was closed, if last says that nobody can write to it; what says otherwise later calls Opened after that.
// An error is of a full disk, or a broken one: it is not noted then.
func (l *CloseLog) Closed(ino Ino, last func() bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.logs[l.now].at[ino]; ok || !last() {
		return nil
	}
	return l.note(ino)
}

// Again notes once more what is noted, for it not to be forgotten by the next Done. Errors are those of Closed.
func (l *CloseLog) Again(ino Ino) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, now := l.logs[l.now].at[ino]
	if _, ok := l.logs[1-l.now].at[ino]; now || !ok {
		return nil
	}
	return l.note(ino)
}

// note writes a record. By mu.
func (l *CloseLog) note(ino Ino) error {
	c := &l.logs[l.now]
	if c.f == nil {
		return fmt.Errorf("that a file was closed cannot be noted: %w", unix.ENOSPC)
	}
	var b [closeRecord]byte
	binary.LittleEndian.PutUint64(b[:], l.seq+1)
	binary.LittleEndian.PutUint64(b[8:], uint64(ino))
	// It is within a block, so that all of it is there or nothing.
	if _, err := c.f.WriteAt(b[:], c.end); err != nil {
		return fmt.Errorf("that a file was closed cannot be noted: %w", err)
	}
	l.seq++
	c.at[ino] = c.end
	c.end += closeRecord
	return nil
}

// Opened takes back that a file was closed. It needs no space.
func (l *CloseLog) Opened(ino Ino) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.logs {
		c := &l.logs[i]
		at, ok := c.at[ino]
		if !ok {
			continue
		}
		if _, err := c.f.WriteAt(make([]byte, 8), at+8); err != nil {
			return fmt.Errorf("that a file is open again cannot be noted: %w", err)
		}
		delete(c.at, ino)
	}
	return nil
}

// Turn says that all that was noted is taken care of now, but for what is noted again: Done may forget it then. What comes
// is noted in the other log, unless that is in use still, because there was no Done since the Turn before.
func (l *CloseLog) Turn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turned = true
	if l.logs[1-l.now].end == 0 {
		l.now = 1 - l.now
	}
}

// Done forgets what was noted before the last Turn, or some of it: it is noted otherwise. Without a Turn it does nothing.
func (l *CloseLog) Done() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.turned {
		return nil
	}
	l.turned = false
	return l.logs[1-l.now].reset()
}

// Reset forgets all.
func (l *CloseLog) Reset() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.logs[0].reset(), l.logs[1].reset())
}

func (c *closeFile) reset() (err error) {
	if c.end > maxCloseLog {
		err = c.f.Truncate(0)
		c.reserve()
	} else if c.end > 0 {
		_, err = c.f.WriteAt(make([]byte, closeRecord), 0)
	}
	if err != nil {
		return fmt.Errorf("what was noted of closed files cannot be forgotten: %w", err)
	}
	c.end, c.at = 0, make(map[Ino]int64)
	return nil
}

// Left returns what is noted, in the order in which it was closed.
func (l *CloseLog) Left() ([]Ino, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := make(map[Ino]uint64)
	for i := range l.logs {
		c := &l.logs[i]
		for ino, at := range c.at {
			seq, err := c.number(at)
			if err != nil {
				return nil, fmt.Errorf("what was noted of closed files: %w", err)
			}
			if was, ok := first[ino]; !ok || seq < was {
				first[ino] = seq
			}
		}
	}
	all := make([]Ino, 0, len(first))
	for ino := range first {
		all = append(all, ino)
	}
	slices.SortFunc(all, func(a, b Ino) int { return cmp.Compare(first[a], first[b]) })
	return all, nil
}

func (l *CloseLog) close() (err error) {
	for i := range l.logs {
		if f := l.logs[i].f; f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}
