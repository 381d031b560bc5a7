package objstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Kind is what went wrong, in the words callers decide by.
type Kind uint8

// The kinds. Throttled, Unavailable, Timeout and Network may pass by themselves (Temporary);
// the others answer the same at every try.
const (
	Unknown            Kind = iota
	NotFound                // no such object, version or upload
	NoBucket                // no such bucket or directory
	AccessDenied            // the credentials do not allow it
	BadCredentials          // missing, malformed or unknown credentials, bad signature
	Expired                 // the token has expired; refreshed credentials may work
	ClockSkew               // this machine's clock is too far off
	PreconditionFailed      // IfMatch, IfNoneMatch: somebody else was there first
	InvalidRange            // offset at or beyond the end
	Archived                // in an archive class, must be restored first
	Throttled               // 503 SlowDown, 429
	Unavailable             // 5xx, a body that ended early
	Timeout                 // no answer, or no progress, in time
	Network                 // could not connect, connection reset
	Corrupt                 // a checksum does not match
	Unsupported             // the store cannot do it
	WrongRegion             // the bucket lives elsewhere
	BadRequest              // 4xx not named above
	Canceled                // ctx was done
)

var kindNames = [...]string{"unknown error", "not found", "no such bucket", "access denied",
	"bad credentials", "credentials expired", "clock skew", "precondition failed", "invalid range",
	"archived", "throttled", "unavailable", "timeout", "network error", "corrupt data", "unsupported",
	"wrong region", "bad request", "canceled"}

func (k Kind) String() string { return kindNames[k] }

// Temporary tells whether the same request may succeed later by itself.
func (k Kind) Temporary() bool {
	switch k {
	case Throttled, Unavailable, Timeout, Network, Expired:
		return true
	}
	return false
}

// Error is the one error type of this package.
type Error struct {
	Op         string // "GET", "HEAD", … for people
	Key        string // the key, or the bucket where it is about that
	Kind       Kind
	Status     int           // HTTP status, 0 if none
	Code       string        // the store's own error code, if any
	RequestID  string        // for the store's support, if any
	RetryAfter time.Duration // what the store asked to wait, 0 if it did not
	Hint       string        // what to do about it, one clause, may be ""
	Err        error         // the cause, may be nil
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %q: %s", e.Op, e.Key, e.Kind)
	var detail []string
	if e.Code != "" {
		detail = append(detail, e.Code)
	}
	if e.Status != 0 {
		detail = append(detail, fmt.Sprintf("status %d", e.Status))
	}
	if e.RequestID != "" {
		detail = append(detail, "request "+e.RequestID)
	}
	if len(detail) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(detail, ", "))
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.Hint != "" {
		fmt.Fprintf(&b, "; %s", e.Hint)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf tells the kind of err: that of the *Error in its chain, Canceled or Timeout for
// a context's error, Unknown for anything else, also nil.
func KindOf(err error) Kind {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, context.Canceled):
		return Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	}
	return Unknown
}

// Is tells whether err is of kind k.
func Is(err error, k Kind) bool { return err != nil && KindOf(err) == k }
