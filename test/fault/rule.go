package fault

import (
	"math/rand/v2"
	"strings"

	"github.com/leatfs/leatfs/objstore"
)

// Rule says to which requests what is done. All conditions that are set must hold.
type Rule struct {
	Name string // for the log; default the action's own name

	// Which requests.
	Method string // "GET"; "" is any
	Class  string // "GET", "HEAD", "LIST", "PUT", "COPY" or "DELETE", as objstore.Class; "" is any
	Key    string // substring of the key; "" is any
	Match  Match  // nil is any

	// When, of those.
	After       int     // lets the first After pass
	Every       int     // of the others, fires at the first and then at every Every-th; 0 is 1
	Count       int     // fires at most so often; 0 is without end
	Probability float64 // fires with this probability; 0 is always

	Do Action

	p           *Proxy
	seen, fired int // guarded by p.mu
}

// fires decides for a request, and counts. p.mu is held.
func (r *Rule) fires(e Request, rng *rand.Rand) bool {
	switch {
	case r.Method != "" && r.Method != e.Method,
		r.Class != "" && r.Class != e.Class.String(),
		r.Key != "" && !strings.Contains(e.Key, r.Key),
		r.Match != nil && !r.Match(e):
		return false
	}
	n := r.seen - r.After
	r.seen++
	switch {
	case n < 0,
		r.Every > 1 && n%r.Every != 0,
		r.Count > 0 && r.fired >= r.Count,
		r.Probability > 0 && rng.Float64() >= r.Probability:
		return false
	}
	r.fired++
	return true
}

// Seen is how many requests the rule applied to, fired or not.
func (r *Rule) Seen() int {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	return r.seen
}

// Fired is how often it did harm.
func (r *Rule) Fired() int {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	return r.fired
}

// Remove takes the rule out; its counts stay readable.
func (r *Rule) Remove() {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	for i, x := range r.p.rules {
		if x == r {
			r.p.rules = append(r.p.rules[:i:i], r.p.rules[i+1:]...)
			return
		}
	}
}

// Add puts a rule behind those there are. The returned Rule counts; changing its fields
// has no defined effect.
func (p *Proxy) Add(r Rule) *Rule {
	if r.Do == nil {
		panic("fault: a rule without an action")
	}
	if r.Name == "" {
		r.Name = r.Do.String()
	}
	r.p, r.seen, r.fired = p, 0, 0
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, &r)
	return &r
}

// Clear removes all rules.
func (p *Proxy) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = nil
}

// Match tells whether a request is meant. It must not call the Proxy.
type Match func(Request) bool

// Class matches requests of class c.
func Class(c objstore.Class) Match { return func(r Request) bool { return r.Class == c } }

// Key matches requests for exactly this key.
func Key(key string) Match { return func(r Request) bool { return r.Key == key } }

// All matches what all of m match.
func All(m ...Match) Match {
	return func(r Request) bool {
		for _, f := range m {
			if !f(r) {
				return false
			}
		}
		return true
	}
}
