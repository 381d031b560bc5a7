package keeper

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// logout is where the keeper logs to. A pipe that nobody reads, or a disk that hangs, must not stop
// the keeper: a goroutine writes, and what it is too slow for is dropped and counted.
type logout struct {
	file  *os.File
	queue chan logItem  // closed by close; the loop is the only sender
	done  chan struct{} // closed by run at its end
	lost  int           // the loop's: lines that were dropped and not told of
}

// logItem is a line, or a file to write to from then on.
type logItem struct {
	line []byte
	fd   int // in place of the file's; the item's own. 0 for a line
}

const (
	logQueue = 256 // lines that wait
	// logEnd is how long the end waits for the last lines.
	logEnd = time.Second
)

// newLogout starts to write to a file, which stays the caller's.
func newLogout(file *os.File) *logout {
	l := &logout{file: file, queue: make(chan logItem, logQueue), done: make(chan struct{})}
	go l.run()
	return l
}

func (l *logout) run() {
	defer close(l.done)
	for x := range l.queue {
		if x.fd == 0 {
			_, _ = l.file.Write(x.line) // there is nobody to tell
			continue
		}
		// To close what it replaces may wait, too.
		if err := unix.Dup3(x.fd, int(l.file.Fd()), 0); err != nil {
			_, _ = l.file.WriteString("leatfs: the keeper's log stays where it was: " + err.Error() + "\n")
		}
		_ = unix.Close(x.fd)
	}
}

// Write implements io.Writer, for the loop alone. It never waits, and never fails.
func (l *logout) Write(line []byte) (int, error) {
	if !l.put(logItem{line: append([]byte(nil), line...)}) {
		l.lost++
	}
	return len(line), nil
}

// move writes to what is fd from here on, and takes it over; false when too much waits.
func (l *logout) move(fd int) bool {
	if l.put(logItem{fd: fd}) {
		return true
	}
	_ = unix.Close(fd)
	return false
}

func (l *logout) put(x logItem) bool {
	select {
	case l.queue <- x:
		return true
	default:
		return false
	}
}

// dropped is how many lines were lost since it last said so; 0 also while another would be.
func (l *logout) dropped() int {
	if len(l.queue) > logQueue/2 {
		return 0
	}
	n := l.lost
	l.lost = 0
	return n
}

// close ends the writing. A writer that waits is left behind.
func (l *logout) close() {
	close(l.queue)
	t := time.NewTimer(logEnd)
	defer t.Stop()
	select {
	case <-l.done:
	case <-t.C:
	}
}
