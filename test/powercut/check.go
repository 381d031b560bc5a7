package powercut

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/test/powercut/record"
)

// After is the disk after a cut, mounted.
type After struct {
	Cut record.Cut
	Dir string
	// Acked is what had been promised before the cut, in order.
	Acked []string

	drop func() error
	opt  Options
}

// Cuts chooses n cuts of what has happened since the disk was mounted, by seed: half of them right before or after a
// flush or a promise, where most is at stake, the others anywhere; with all ways to lose what was not flushed in turn.
func (d *Disk) Cuts(n int, seed uint64) []record.Cut {
	d.t.Helper()
	events := d.Events()
	var edges []int
	for i, e := range events {
		if e.Kind == record.Flush || e.Kind == record.Mark {
			edges = append(edges, i, i+1)
		}
	}
	hows := []record.How{record.None, record.Subset, record.Prefix, record.Torn, record.Subset, record.None, record.Torn, record.All}
	r := rand.New(rand.NewPCG(seed, 1))
	cuts := make([]record.Cut, n)
	for i := range cuts {
		at := r.IntN(len(events) + 1)
		if len(edges) > 0 && r.IntN(2) == 0 {
			at = edges[r.IntN(len(edges))]
		}
		cuts[i] = record.Cut{At: d.start + at, How: hows[i%len(hows)], Seed: r.Uint64()}
	}
	slices.SortFunc(cuts, func(a, b record.Cut) int { return a.At - b.At })
	return cuts
}

// AtAcks are the worst cuts of all: one right after each promise whose text begins with prefix, in which nothing is
// kept that was not flushed.
func (d *Disk) AtAcks(prefix string) (cuts []record.Cut) {
	d.t.Helper()
	for i, e := range d.Events() {
		if e.Kind == record.Mark && strings.HasPrefix(e.Text, prefix) {
			cuts = append(cuts, record.Cut{At: d.start + i + 1, How: record.None})
		}
	}
	return cuts
}

// At mounts the disk as it is after a cut; the caller closes it.
func (d *Disk) At(c record.Cut) (*After, error) {
	events, err := d.disk.Events(0)
	if err != nil {
		return nil, err
	}
	return d.at(c, events)
}

func (d *Disk) at(c record.Cut, events []record.Event) (_ *After, err error) {
	a := &After{Cut: c, opt: d.opt}
	for _, e := range events[:min(max(c.At, 0), len(events))] {
		if e.Kind == record.Mark {
			a.Acked = append(a.Acked, e.Text)
		}
	}
	loop, drop, err := d.disk.AttachCut(c)
	if err != nil {
		return nil, err
	}
	a.drop = drop
	defer loop.Close()
	if a.Dir, err = os.MkdirTemp(d.base, "after-"); err != nil {
		return nil, errors.Join(err, drop())
	}
	if err := mount(loop.Path(), a.Dir, d.opt); err != nil {
		return nil, errors.Join(err, os.Remove(a.Dir), drop())
	}
	return a, nil
}

// Close unmounts it.
func (a *After) Close() error {
	err := unmount(a.Dir)
	if err != nil {
		err = errors.Join(err, unix.Unmount(a.Dir, unix.MNT_DETACH))
	}
	return errors.Join(err, os.Remove(a.Dir), a.drop())
}

// Loss is a cut after which something was not as promised.
type Loss struct {
	Cut record.Cut
	Err error
}

// Losses mounts the disk after each of the cuts and returns those where check finds fault.
func (d *Disk) Losses(cuts []record.Cut, check func(a *After) error) (out []Loss) {
	d.t.Helper()
	events, err := d.disk.Events(0)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, c := range cuts {
		a, err := d.at(c, events)
		if err != nil {
			d.t.Fatalf("%v: %v", c, err)
		}
		if err := check(a); err != nil {
			out = append(out, Loss{Cut: c, Err: err})
		}
		if err := a.Close(); err != nil {
			d.t.Fatalf("%v: %v", c, err)
		}
	}
	return out
}

// Check fails the test for each of the cuts after which check finds fault.
func (d *Disk) Check(cuts []record.Cut, check func(a *After) error) {
	d.t.Helper()
	for _, l := range d.Losses(cuts, check) {
		d.t.Errorf("%v: %v", l.Cut, l.Err)
	}
}

// Number is how many cuts a test makes: short with -short, else long, or what the
// environment's LEATFS_CUTS says.
func Number(t testing.TB, short, long int) int {
	t.Helper()
	if s := os.Getenv("LEATFS_CUTS"); s != "" {
		var n int
		if _, err := fmt.Sscan(s, &n); err != nil || n <= 0 {
			t.Fatalf("LEATFS_CUTS=%q is not a number of cuts", s)
		}
		return n
	}
	if testing.Short() {
		return short
	}
	return long
}
