package list

import "math"

// guess is how a range might be split.
type guess struct {
	scale  scale
	sample sample
	ok     bool
}

// learn makes a guess of a page. numeric tells whether numbers may be extrapolated.
func learn(s sample, numeric bool) guess {
	if numeric {
		if sc, ok := learnNumeric(s); ok {
			return guess{sc, s, true}
		}
	}
	sc, ok := learnAlphabetic(s)
	return guess{sc, s, ok}
}

// span is how far one page reaches on the scale. Where names have gaps it is taken a bit
// shorter, since a range a little longer than a page costs a second request.
func (g *guess) span(page int) float64 {
	n := float64(page) / g.scale.density
	if !g.scale.exact {
		n *= 0.9
	}
	return n
}

// endless tells that the numbers may go on as far as their digits reach; how far nobody
// can guess.
func (g *guess) endless(to string) bool {
	return g.scale.width > 0 && g.scale.place2(to) >= g.scale.top()
}

// place2 is the place of the end of a range; "" is behind all names.
func (sc *scale) place2(to string) float64 {
	if to == "" {
		return sc.top()
	}
	return sc.place(to)
}

// pages estimates how many pages the range (after, to] holds. want is how many would be
// welcome: an alphabetic scale is widened until it promises so many, but no further, for
// the wider the guess the more it is one.
func (g *guess) pages(after, to string, page, want int) float64 {
	if !g.ok {
		return 0
	}
	n := g.left(after, to, page)
	for g.scale.width == 0 && n < float64(want+1) && g.scale.root > g.scale.floor {
		narrow := g.scale
		if !g.scale.widen(g.scale.root-1, g.sample) {
			g.scale = narrow
			break
		}
		n = g.left(after, to, page)
	}
	return n
}

func (g *guess) left(after, to string, page int) float64 {
	return max(0, g.scale.place2(to)-g.scale.place(after)) / g.span(page)
}

// cuts proposes at most want names that cut the range (after, to] so that each part is
// worth a request; a request for the names directly behind after is already under way.
// They are in increasing order and lie inside the range. to "" is the end of the listing.
//
// Numbers without a known end are cut one page after the other, from where the request
// under way will end: if the guess is right each request brings one full page.
func (g guess) cuts(after, to string, page, want int) []string {
	n := g.pages(after, to, page, want)
	if n < 1.5 || want < 1 {
		return nil
	}
	lo, hi, span := g.scale.place(after), g.scale.place2(to), g.span(page)
	var out []string
	add := func(x, gap float64) {
		if x >= hi {
			return
		}
		name := g.scale.name(x, gap)
		prev := after
		if len(out) > 0 {
			prev = out[len(out)-1]
		}
		if name > prev && (to == "" || name < to) {
			out = append(out, name)
		}
	}
	if g.scale.width > 0 {
		step := span
		if !g.endless(to) {
			step *= math.Ceil(n / float64(want+1))
		}
		step = max(1, math.Floor(step))
		for j := 1; j <= want; j++ {
			add(lo+float64(j)*step, step)
		}
		return out
	}
	lo += span // under way
	want = min(want, int(n-0.5))
	gap := (hi - lo) / float64(want+1)
	for j := range want {
		add(lo+float64(j+1)*gap, gap)
	}
	return out
}
