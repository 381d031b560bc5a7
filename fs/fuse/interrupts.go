package fuse

import "sync"

// interrupts are the channels of the requests that wait, by number without resentBit. go-fuse has
// such a table too; but it does not know of requests that wait for their turn, or are carried out
// under another number than the kernel's, and answers EAGAIN to what it does not find: then the
// kernel sends the interrupt again, at once and before anything else, for ever.
type interrupts struct {
	mu  sync.Mutex
	all map[uint64]chan struct{} // by mu; nil when it was interrupted
}

// add enters a request; remove takes it out.
func (i *interrupts) add(unique uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.all[unique&^resentBit] = make(chan struct{})
}

func (i *interrupts) remove(unique uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.all, unique&^resentBit)
}

// of returns the channel that is closed when a request is interrupted; nil when it was not added.
func (i *interrupts) of(unique uint64) <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.all[unique&^resentBit]
}

// interrupt closes a request's channel. Of a request that is not there it was answered.
func (i *interrupts) interrupt(unique uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	ch := i.all[unique&^resentBit]
	if ch == nil {
		return
	}
	select {
	case <-ch: // before
	default:
		close(ch)
	}
}
