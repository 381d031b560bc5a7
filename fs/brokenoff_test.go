package fs

import "testing"

// TestDeletionBrokenOff: a deletion is under way and not wanted any more. It does not hit the same content that is put there
// afterwards, though the origin carries out later what nobody waits for.
func TestDeletionBrokenOff(t *testing.T) {
	for _, c := range []struct {
		name     string
		before   []string // the request of the last of them is under way
		request  string
		meantime []string
		after    []string
		want     map[string]string
	}{
		{"a file", []string{"put a.t 1", "drain", "rm a.t"}, "DELETE a.t", []string{"put a.t 1", "rm a.t"}, []string{"put a.t 1"},
			map[string]string{"a.t": "1"}},
		{"a second name", []string{"put a.t 1", "ln a.t b.t", "drain", "rm b.t"}, "DELETE b.t", []string{"ln a.t b.t"}, nil,
			map[string]string{"a.t": "1", "b.t": "1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, o := underWay(t, true, c.before, c.request)
			p.steps(t, c.meantime...)
			p.settle(t) // should it be broken off, it is given the time for that
			o.open()
			p.steps(t, c.after...)
			p.drain(t)
			o.land()
			p.wantBucket(t, c.want)
			p.wantShown(t, c.want)
		})
	}
}
