package record

import (
	"fmt"
	"math/rand/v2"
)

// How says what of the writes that no flush had followed is on the disk after a cut.
type How string

// The ways in which a disk may lose what it had not flushed.
const (
	// None: none of it.
	None How = "none"
	// All of it, as after the end of a process.
	All How = "all"
	// Prefix: it was written in order, up to somewhere.
	Prefix How = "prefix"
	// Subset: each write is there or not.
	Subset How = "subset"
	// Torn: each write is there, or is not, or some of its units are.
	Torn How = "torn"
)

// Cut is a cut of the power after the first At events. Seed decides by chance what How leaves
// open; the same Cut of the same log is the same disk.
type Cut struct {
	At   int
	How  How
	Seed uint64
}

func (c Cut) String() string { return fmt.Sprintf("cut after %d, %s, seed %d", c.At, c.How, c.Seed) }

// Pending is a write, or a zeroing, that no flush had followed at a cut.
type Pending struct {
	Event int // its index in the log
	N, Of int // it is the Nth, from 0, of Of
	Units int // its length
}

// Choose tells whether a unit of a pending write, from 0, is on the disk. It is asked about each unit of
// each write in order. What is written later is the later content where both are there.
type Choose func(p Pending, unit int) bool

// Choose is what the cut says of the writes pending at it.
func (c Cut) Choose() (Choose, error) {
	dice := func(p Pending) *rand.Rand { return rand.New(rand.NewPCG(c.Seed, uint64(p.Event))) }
	// Now few, now most of the writes are there.
	part := []float64{0.1, 0.5, 0.9}[c.Seed%3]
	switch c.How {
	case None:
		return func(Pending, int) bool { return false }, nil
	case All:
		return func(Pending, int) bool { return true }, nil
	case Prefix:
		at := rand.New(rand.NewPCG(c.Seed, 0)).Float64()
		return func(p Pending, _ int) bool { return p.N < int(at*float64(p.Of+1)) }, nil
	case Subset:
		return func(p Pending, _ int) bool { return dice(p).Float64() < part }, nil
	case Torn:
		return func(p Pending, unit int) bool {
			d := dice(p)
			switch x := d.Float64(); {
			case x < part/2:
				return true
			case x < 0.5:
				return false
			case x < 0.75: // up to somewhere
				return unit < d.IntN(p.Units+1)
			default: // here and there
				return rand.New(rand.NewPCG(d.Uint64(), uint64(unit))).IntN(2) == 0
			}
		}, nil
	}
	return nil, fmt.Errorf("a cut does not know how: %q", c.How)
}
