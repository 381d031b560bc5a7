package fs

import (
	"testing"
	"time"
)

// TestLinkOfSymlink: each name of a symbolic link that has several has its object, however they
// change.
func TestLinkOfSymlink(t *testing.T) {
	for _, between := range []string{"wait", "drain", "takeover"} {
		p, _ := writing(t, true)
		if err := p.symlink(t, "target", "a"); err != nil {
			t.Fatal(err)
		}
		for _, s := range []struct {
			do   string
			want map[string]string
		}{
			{"ln a b", map[string]string{"a": "target", "b": "target"}},
			{"mv a c", map[string]string{"b": "target", "c": "target"}},
			{"rm c", map[string]string{"b": "target"}},
			{"ln b d", map[string]string{"b": "target", "d": "target"}},
			{"rm d", map[string]string{"b": "target"}},
			{"rm b", map[string]string{}},
		} {
			p.steps(t, between, s.do)
			p.wantBucket(t, s.want)
		}
	}
}

// TestLinkReplacedByFile: a symbolic link made here that somebody else replaces with a file is a file when the TTL is
// over, also where the name is asked for alone.
func TestLinkReplacedByFile(t *testing.T) {
	a, _ := writing(t, true)
	if err := a.symlink(t, "target", "x"); err != nil {
		t.Fatal(err)
	}
	a.drain(t)
	a.store.Set("x", []byte("somebody else's"))
	a.clock.Add(int64(time.Hour))
	if got, err := a.get(t, "x"); err != nil || string(got) != "somebody else's" {
		t.Errorf("%q, %v", got, err)
	}
}
