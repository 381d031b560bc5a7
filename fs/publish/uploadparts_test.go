package publish

import (
	"slices"
	"testing"
)

// What is not there yet goes first, in order; it is on its way while the rest is compared.
func TestMissingFirst(t *testing.T) {
	s := &session{parts: map[int]sent{1: {}, 2: {}, 4: {}}}
	if got, want := s.missingFirst(5), []int{3, 5, 1, 2, 4}; !slices.Equal(got, want) {
		t.Errorf("the order of parts is %v, want %v", got, want)
	}
	if got := (&session{parts: map[int]sent{}}).missingFirst(3); !slices.Equal(got, []int{1, 2, 3}) {
		t.Errorf("with none there the order is %v", got)
	}
}
