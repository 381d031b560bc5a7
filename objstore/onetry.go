package objstore

import "context"

type oneTryKey struct{}

// WithOneTry returns a context under which no wrapper sends a request a second time. It is for a request
// that was right a moment ago, and may do harm later: a deletion without a condition, of an object that was
// just looked at.
func WithOneTry(ctx context.Context) context.Context {
	return context.WithValue(ctx, oneTryKey{}, true)
}

// OneTry tells whether ctx is one of WithOneTry.
func OneTry(ctx context.Context) bool {
	one, _ := ctx.Value(oneTryKey{}).(bool)
	return one
}
