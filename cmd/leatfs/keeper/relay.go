package keeper

import (
	endian "encoding/binary"
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
	lost  lost          // the loop's: what was dropped since the queue was empty
}

const (
	// relayMax is how many messages, of some hundred bytes at most, wait. Beyond relayNames those
	// on names are dropped: the kernel asks for a name again when its own timeout is over, but not
	// for the bytes of a file that is open.
	relayMax   = 8192
	relayNames = relayMax / 2
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

// lost counts messages that were dropped.
type lost struct{ names, contents int }

// put queues a message; false when there are too many.
func (r *relay) put(b []byte) bool {
	name := onName(b)
	if !name || len(r.queue) < relayNames {
		select {
		case r.queue <- b:
			return true
		default:
		}
	}
	if name {
		r.lost.names++
	} else {
		r.lost.contents++
	}
	return false
}

// caughtUp returns what was dropped, once nothing waits any more.
func (r *relay) caughtUp() lost {
	if r == nil || len(r.queue) > 0 {
		return lost{}
	}
	n := r.lost
	r.lost = lost{}
	return n
}

// onName says that a message is one on a name. It is the only thing that the keeper knows of the
// kernel's protocol (struct fuse_out_header): dropping any other would be worse.
func onName(b []byte) bool {
	const invalEntry, deleted = 3, 6
	if len(b) < 16 {
		return false
	}
	code := endian.NativeEndian.Uint32(b[4:])
	return code == invalEntry || code == deleted
}

// close ends the relay; false when one that waits for the kernel had to be left behind.
func (r *relay) close() bool {
	if r == nil {
		return true
	}
	close(r.queue)
	return r.ended()
}

// ended waits for the end of a relay that was closed; false when it does not come.
func (r *relay) ended() bool {
	t := time.NewTimer(relayEnd)
	defer t.Stop()
	select {
	case <-r.done:
		return true
	case <-t.C:
		return false
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
	before := k.relay.lost
	if !k.relay.put(b) && before == (lost{}) {
		k.log.Warn("the kernel is told too slowly what has changed; it learns of the rest when its own timeouts are over", "worker", w.pid())
	}
}

// sayCaughtUp logs what the kernel was not told.
func (k *keeper) sayCaughtUp() {
	if n := k.relay.caughtUp(); n != (lost{}) {
		k.log.Warn("the kernel was told too slowly what has changed; that is over", "names dropped", n.names, "contents dropped", n.contents)
	}
}
