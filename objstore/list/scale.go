package list

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A scale is what one page of names taught: it maps names to places on a line on which
// names are thought to be evenly spread, and places back to names. It is a guess. Nothing
// but the number of requests depends on its being right.
//
// There are two sorts. On a numeric scale all names are base + number + suffix, the number
// with leading zeros, and a name's place is its number. On an alphabetic scale a name is a
// fraction, each character a digit in the alphabet seen at its position.
type scale struct {
	density float64 // names per unit
	exact   bool    // numeric, and no gaps: density tells exactly how many names there are

	// Numeric.
	width  int // digits; 0 on an alphabetic scale
	base   string
	suffix string

	// Alphabetic. stem is what all names since the beginning of the listing begin with;
	// letters[i] is the alphabet at rune i, nil below floor: there the stem is fixed.
	// root is how much of the stem a place is relative to: floor ≤ root ≤ len(stem).
	stem    []rune
	letters [][]rune
	floor   int
	root    int
}

const (
	// depth is how many characters behind the stem make up a place, and widest how many of
	// the stem's: 36^9 places are few enough for a float64.
	depth  = 5
	widest = 4
	// sampled is how many names of a page are looked at.
	sampled = 64
)

// sample is what is kept of a page to learn from: count names in order, of which names are
// the first, the last and some between. origin is the first name of the listing; the range has yielded
// total names since began.
type sample struct {
	origin string
	names  []string
	count  int
	began  string
	total  int
}

func (s sample) first() string { return s.names[0] }
func (s sample) last() string  { return s.names[len(s.names)-1] }

// learnNumeric finds the one number that runs through a page, if that is what varies.
func learnNumeric(s sample) (scale, bool) {
	if len(s.names) < 2 {
		return scale{}, false
	}
	first, last := s.first(), s.last()
	at := common(first, last)
	start := at
	for start > 0 && digit(last[start-1]) {
		start--
	}
	end := start
	for end < len(last) && digit(last[end]) {
		end++
	}
	width := end - start
	if at >= end || width > 15 { // 15 digits are exact in a float64
		return scale{}, false
	}
	sc := scale{width: width, base: last[:start], suffix: strings.Clone(last[end:])}
	for _, n := range s.names {
		if _, ok := sc.number(n); !ok {
			return scale{}, false
		}
	}
	a, _ := sc.number(first)
	b, _ := sc.number(last)
	if b <= a {
		return scale{}, false
	}
	sc.base = strings.Clone(sc.base)
	sc.density = float64(s.count-1) / (b - a)
	sc.exact = math.Mod(b-a, float64(s.count-1)) == 0
	if math.Mod(float64(s.count), b-a+1) == 0 { // so many names to each number
		sc.density, sc.exact = float64(s.count)/(b-a+1), true
	}
	return sc, utf8.ValidString(last)
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// number reads the number of a name, which must be of the scale's form but for the suffix.
func (sc *scale) number(name string) (float64, bool) {
	rest, ok := strings.CutPrefix(name, sc.base)
	if !ok || len(rest) < sc.width || len(rest) > sc.width && digit(rest[sc.width]) {
		return 0, false
	}
	n, err := strconv.ParseUint(rest[:sc.width], 10, 64)
	return float64(n), err == nil
}

// common is the length of the longest common prefix, in bytes.
func common(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// learnAlphabetic takes the alphabets from a page.
func learnAlphabetic(s sample) (scale, bool) {
	if len(s.names) < 2 || !utf8.ValidString(s.first()) || !utf8.ValidString(s.last()) || !utf8.ValidString(s.origin) {
		return scale{}, false
	}
	origin, last := []rune(s.origin), []rune(s.last())
	n := 0
	for n < len(origin) && n < len(last) && origin[n] == last[n] {
		n++
	}
	sc := scale{stem: last[:n:n], letters: make([][]rune, n+depth)}
	names := make([][]rune, 0, len(s.names)+1)
	names = append(names, origin[:min(n+1, len(origin))]) // for the rune in which it differs
	for _, name := range s.names {
		names = append(names, []rune(bare(name)))
	}
	for i := n; i < n+depth; i++ {
		var seen []rune
		for _, name := range names {
			if i < len(name) && !slices.Contains(seen, name[i]) {
				seen = append(seen, name[i])
			}
		}
		sc.letters[i] = alphabet(seen)
	}
	// A position that shows few of its letters shares the alphabet of the next one where it
	// can: the first page of hexadecimal names begins with 0 throughout.
	for i := n + depth - 2; i >= n; i-- {
		if subset(sc.letters[i], sc.letters[i+1]) && alphanumeric(sc.letters[i+1]) {
			sc.letters[i] = sc.letters[i+1]
		}
	}
	if len(sc.letters[n]) == 0 {
		return scale{}, false
	}
	sc.floor = n
	for sc.floor > max(0, n-widest) && slices.Contains(sc.letters[sc.floor], sc.stem[sc.floor-1]) {
		sc.floor--
		sc.letters[sc.floor] = sc.letters[sc.floor+1]
	}
	for root := n; root >= sc.floor; root-- {
		if sc.widen(root, s) {
			return sc, true
		}
	}
	return scale{}, false
}

// widen makes places relative to the first root runes of the stem.
func (sc *scale) widen(root int, s sample) bool {
	sc.root = root
	spread, count := sc.place(s.last())-sc.place(s.first()), s.count
	if spread <= 0 { // too close together to be told apart on this scale
		spread, count = sc.place(s.last())-sc.place(s.began), s.total
	}
	if spread <= 0 {
		return false
	}
	sc.density = float64(count-1) / spread
	return true
}

// bare is a name without what looks like its extension, which is no part of what varies.
func bare(name string) string {
	if i := strings.LastIndexByte(name, '.'); i > 0 && len(name)-i <= 6 {
		return name[:i]
	}
	return name
}

func alphanumeric(letters []rune) bool {
	for _, r := range letters {
		if !('0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z') {
			return false
		}
	}
	return true
}

func subset(a, b []rune) bool {
	for _, r := range a {
		if !slices.Contains(b, r) {
			return false
		}
	}
	return true
}

// alphabet completes the runes seen at a position to those that may be expected there:
// 3 and b are hexadecimal digits, 3 and k are digits and letters.
func alphabet(seen []rune) []rune {
	var digits, lower, upper, hex bool
	hex = true
	var out []rune
	for _, r := range seen {
		switch {
		case '0' <= r && r <= '9':
			digits = true
		case 'a' <= r && r <= 'z':
			lower, hex = true, hex && r <= 'f'
		case 'A' <= r && r <= 'Z':
			upper, hex = true, hex && r <= 'F'
		default:
			out = append(out, r)
		}
	}
	hex = hex && digits
	add := func(from, to rune) {
		for r := from; r <= to; r++ {
			out = append(out, r)
		}
	}
	last := func(full, hexa rune) rune {
		if hex {
			return hexa
		}
		return full
	}
	if digits {
		add('0', '9')
	}
	if lower {
		add('a', last('z', 'f'))
	}
	if upper {
		add('A', last('Z', 'F'))
	}
	slices.Sort(out)
	return out
}

// top is the place behind all names on the scale.
func (sc *scale) top() float64 {
	if sc.width > 0 {
		return math.Pow10(sc.width)
	}
	return 1
}

// place is where a name stands; names off the scale stand at its ends. But for
// rounding it never falls as names grow.
func (sc *scale) place(name string) float64 {
	if sc.width > 0 {
		rest, ok := strings.CutPrefix(name, sc.base)
		switch {
		case !ok && name < sc.base:
			return 0
		case !ok:
			return sc.top()
		}
		x := 0.0
		for i := range sc.width {
			x *= 10
			if i < len(rest) && digit(rest[i]) {
				x += float64(rest[i] - '0')
			} else if i < len(rest) && rest[i] > '9' {
				return min(sc.top(), (x+10)*math.Pow10(sc.width-i-1))
			} else {
				return x * math.Pow10(sc.width-i-1)
			}
		}
		return x
	}
	root := string(sc.stem[:sc.root])
	rest, ok := strings.CutPrefix(name, root)
	switch {
	case !ok && name < root:
		return 0
	case !ok:
		return 1
	}
	x, unit, i := 0.0, 1.0, sc.root
	for at, r := range rest {
		if i >= len(sc.letters) || len(sc.letters[i]) == 0 {
			break
		}
		k, found := slices.BinarySearch(sc.letters[i], r)
		if r == utf8.RuneError { // perhaps a byte that is no character, which sorts elsewhere
			found = false
			k = sort.Search(len(sc.letters[i]), func(j int) bool { return string(sc.letters[i][j]) > rest[at:] })
		}
		unit /= float64(len(sc.letters[i]))
		x += float64(k) * unit
		if !found {
			break
		}
		i++
	}
	return min(x, 1)
}

// name is the inverse of place, to within gap.
func (sc *scale) name(x, gap float64) string {
	if sc.width > 0 {
		return fmt.Sprintf("%s%0*d%s", sc.base, sc.width, int64(x), sc.suffix)
	}
	var b strings.Builder
	b.WriteString(string(sc.stem[:sc.root]))
	unit := 1.0
	for i := sc.root; i < len(sc.letters) && len(sc.letters[i]) > 0 && unit > gap/8; i++ {
		unit /= float64(len(sc.letters[i]))
		k := max(0, min(int(x/unit), len(sc.letters[i])-1))
		x -= float64(k) * unit
		b.WriteRune(sc.letters[i][k])
	}
	return b.String()
}
