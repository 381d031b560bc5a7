package retry

import (
	"errors"
	"sync"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// budget is a bucket of retries. Requests fill it, time fills it, retries empty it; below
// zero they queue for what time brings.
type budget struct {
	share, floor, burst float64

	mu     sync.Mutex
	tokens float64
	at     time.Time
}

func newBudget(o Options) budget {
	return budget{share: o.BudgetShare, floor: o.BudgetFloor, burst: o.BudgetBurst, tokens: o.BudgetBurst}
}

// fill adds what time brought, and n, under the lock.
func (b *budget) fill(n float64) {
	now := time.Now()
	if !b.at.IsZero() {
		n += now.Sub(b.at).Seconds() * b.floor
	}
	b.at = now
	b.tokens = min(b.burst, b.tokens+n)
}

func (b *budget) earn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(b.share)
}

// spend takes a retry and tells how long to wait for it.
func (b *budget) spend() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(0)
	b.tokens--
	if b.tokens >= 0 {
		return 0
	}
	return time.Duration(-b.tokens / b.floor * float64(time.Second))
}

// refund gives back a retry that was not made.
func (b *budget) refund() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(1)
}

func (b *budget) left() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(0)
	return b.tokens
}

// retryAfter is what the store asked for, 0 if nothing.
func retryAfter(err error) time.Duration {
	var e *objstore.Error
	if errors.As(err, &e) {
		return e.RetryAfter
	}
	return 0
}
