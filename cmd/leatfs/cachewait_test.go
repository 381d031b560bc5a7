package main

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

// TestWaitFree: a directory that is in use is waited for, as long as told and not for other errors.
func TestWaitFree(t *testing.T) {
	used, other := cacheInUseError{errors.New("used"), 7}, errors.New("another")
	for _, tc := range []struct {
		name     string
		patience time.Duration
		answers  []error // the last for ever
		want     error
	}{
		{"free", 0, []error{nil}, nil},
		{"soon", time.Minute, []error{used, used, used, nil}, nil},
		{"another error", time.Minute, []error{used, other}, other},
		{"never", 50 * time.Millisecond, []error{used}, used},
	} {
		n := 0
		_, err := waitFree(context.Background(), tc.patience, func() (cacheDir, error) {
			err := tc.answers[min(n, len(tc.answers)-1)]
			n++
			return cacheDir{}, err
		})
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
		if n < len(tc.answers) {
			t.Errorf("%s: looked %d times", tc.name, n)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := waitFree(ctx, time.Hour, func() (cacheDir, error) { return cacheDir{}, used }); !errors.Is(err, used) {
		t.Errorf("given up: %v", err)
	}
	if servesMount(context.Background(), os.Getpid()) {
		t.Error("this process serves a mount")
	}
}
