package session

import (
	"bytes"
	"errors"
	"testing"
)

// TestLarge: the content of requests larger than a record is found by the next process, whatever
// was recorded before in the same places, and what does not fit waits.
func TestLarge(t *testing.T) {
	s := create(t)
	defer s.Close()
	content := func(unique uint64, n int) []byte { return bytes.Repeat([]byte{byte(unique)}, n) }
	sizes := []int{contentSize + 1, largeSize, contentSize, 100<<10 + 7, 1}
	for round := range uint64(3) {
		want := make(map[uint64][]byte)
		places := 0
		for i := uint64(0); places < maxLarge; i++ {
			unique := 1000*round + 2*i + 2
			c := content(unique, sizes[int(i)%len(sizes)])
			r, err := s.Begin(unique, i, 16, c)
			if err != nil {
				t.Fatal(err)
			}
			want[unique] = c
			if len(c) > contentSize {
				places++
				if !bytes.Equal(r.Large(), c) {
					t.Errorf("request %d of %d bytes has other content", unique, len(c))
				}
			} else if r.Large() != nil {
				t.Errorf("request %d of %d bytes takes a large place", unique, len(c))
			}
		}
		if _, err := s.Begin(999999, 1, 16, content(1, contentSize+1)); !errors.Is(err, ErrFull) {
			t.Errorf("one more than fits: %v", err)
		}
		if _, err := s.Begin(999998, 1, 16, content(1, largeSize+1)); err != nil {
			t.Errorf("one that is too large to be kept: %v", err)
		}
		n := next(t, s)
		us := n.Unfinished(false)
		if len(us) != len(want)+1 {
			t.Fatalf("%d unfinished requests, want %d", len(us), len(want)+1)
		}
		for _, u := range us {
			if !bytes.Equal(u.Content, want[u.Unique]) {
				t.Errorf("request %d: %d bytes, want %d", u.Unique, len(u.Content), len(want[u.Unique]))
			}
		}
		// The places of those that are unfinished are not given away by the next process either.
		if _, err := n.Begin(999997, 1, 16, content(1, contentSize+1)); !errors.Is(err, ErrFull) {
			t.Errorf("one more than fits, for the next process: %v", err)
		}
		for _, u := range us {
			n.End(u.Request)
		}
		if r, err := n.Begin(999996, 1, 16, content(1, contentSize+1)); err != nil {
			t.Errorf("after all ended: %v", err)
		} else {
			n.End(r)
		}
		s2 := next(t, n)
		if got := len(s2.Unfinished(false)); got != 0 {
			t.Errorf("%d requests are found after their end", got)
		}
		s = s2
	}
}
