package objstore

import "context"

// Priority orders requests that wait for the same thing: a connection, a buffer.
type Priority uint8

// Demand is a reader that waits; it always goes first. Prefetch is a guess, Background
// is maintenance.
const (
	Demand Priority = iota
	Prefetch
	Background
)

type priorityKey struct{}

// WithPriority marks the requests made under ctx.
func WithPriority(ctx context.Context, p Priority) context.Context {
	return context.WithValue(ctx, priorityKey{}, p)
}

// PriorityOf tells the mark, Demand where there is none.
func PriorityOf(ctx context.Context) Priority {
	p, _ := ctx.Value(priorityKey{}).(Priority)
	return p
}

type raisedKey struct{}

// WithRaised adds a channel that is closed when the request becomes Demand: a reader waits
// for what was a guess.
func WithRaised(ctx context.Context, raised <-chan struct{}) context.Context {
	return context.WithValue(ctx, raisedKey{}, raised)
}

// Raised returns the channel of WithRaised; nil, which blocks for ever, where there is none.
// Who keeps requests waiting by priority moves one up when it is closed.
func Raised(ctx context.Context) <-chan struct{} {
	ch, _ := ctx.Value(raisedKey{}).(<-chan struct{})
	return ch
}
