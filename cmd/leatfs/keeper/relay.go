package keeper

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// relay writes to the device what workers want the kernel to be told. Telling it that bytes or
// names are no longer valid waits, and not even SIGKILL ends that, for the requests under way on
// them. A worker that did it itself could be killed and not die: the request would wait for the
// next worker, the next worker for its end, and it for the request. The keeper's loop does not
// wait for the relay, so there is a next worker.
type relay struct {
	fd    int
	queue chan []byte   // closed by the loop, the only sender
	done  chan struct{} // closed by run at its end
	full  bool          // the loop's: it was logged
}

const (
	// relayMax is how many messages, of some hundred bytes at most, wait. The kernel learns of
	// what is dropped beyond them when its own timeout is over.
	relayMax = 4096
	// relayEnd is how long the end waits for the last: with the mount gone nothing waits.
	relayEnd = time.Second
)

// newRelay starts a relay to a descriptor that stays the caller's.
func newRelay(device int) (*relay, error) {
	fd, err := unix.FcntlInt(uintptr(device), unix.F_DUPFD_CLOEXEC, firstBinaryFD)
	if err != nil {
		return nil, fmt.Errorf("hold the device: %w", err)
	}
	r := &relay{fd: fd, queue: make(chan []byte, relayMax), done: make(chan struct{})}
	go r.run()
	return r, nil
}

func (r *relay) run() {
	defer close(r.done)
	defer func() { _ = unix.Close(r.fd) }()
	for b := range r.queue {
		for {
			// What the kernel does not know (any more) needs no telling, and a dead connection
			// nothing at all.
			if _, err := unix.Write(r.fd, b); err != unix.EINTR {
				break
			}
		}
	}
}

// put queues a message; false when there are too many.
func (r *relay) put(b []byte) bool {
	select {
	case r.queue <- b:
		return true
	default:
		return false
	}
}

// close ends the relay. One that waits for the kernel is left behind.
func (r *relay) close() {
	if r == nil {
		return
	}
	close(r.queue)
	t := time.NewTimer(relayEnd)
	defer t.Stop()
	select {
	case <-r.done:
	case <-t.C:
	}
}

// relayed takes a message for the kernel.
func (k *keeper) relayed(w *worker, b []byte) {
	device := k.held.fd(nameDevice)
	if len(b) == 0 || device < 0 {
		return
	}
	if k.relay == nil {
		var err error
		if k.relay, err = newRelay(device); err != nil {
			k.log.Error("the kernel is not told what has changed", "worker", w.pid(), "error", err)
			return
		}
	}
	if !k.relay.put(b) && !k.relay.full {
		k.relay.full = true
		k.log.Warn("the kernel is told too slowly what has changed; it learns of the rest when its own timeouts are over", "worker", w.pid())
	}
}
