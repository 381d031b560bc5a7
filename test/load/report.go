package load

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"
)

// Report is what a process saw.
type Report struct {
	Kind   string
	Ops    int64
	Bytes  int64 // read and compared
	Errors int64 // operations that failed
	Wrong  int64 // operations that returned wrong bytes or names
	First  []string
	// Counts of operations by how long they took: bucket n is from 2^(n/4) to 2^((n+1)/4)
	// microseconds.
	Counts [buckets]int64
	Slow   []Op // those of 2 ms and more, the first slowMax
}

const (
	buckets = 128
	slowMax = 200_000
	firstN  = 10
)

// Op is an operation that took a while.
type Op struct {
	Name  string
	Start int64 // UnixNano
	Took  time.Duration
}

// note records an operation.
func (r *Report) note(name string, start time.Time, bytes int, err error) {
	took := time.Since(start)
	r.Ops++
	r.Counts[bucket(took)]++
	if took >= 2*time.Millisecond && len(r.Slow) < slowMax {
		r.Slow = append(r.Slow, Op{Name: name, Start: start.UnixNano(), Took: took})
	}
	var wrong *WrongBytes
	var names *WrongNames
	switch {
	case err == nil:
		r.Bytes += int64(bytes)
		return
	case errors.As(err, &wrong), errors.As(err, &names):
		r.Wrong++
	default:
		r.Errors++
	}
	if len(r.First) < firstN {
		r.First = append(r.First, fmt.Sprintf("%s %s %s after %v: %v", start.Format("15:04:05.000"), r.Kind, name, took.Round(time.Microsecond), err))
	}
}

// bucket is the number of the bucket of a duration.
func bucket(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 1))
	n := bits.Len64(us) - 1
	quarter := 0 // of the way to the next power of two
	if n >= 2 {
		quarter = int(us>>(n-2)) & 3
	}
	return min(4*n+quarter, buckets-1)
}

// upper is the largest duration of a bucket.
func upper(n int) time.Duration {
	base := time.Duration(1) << (n / 4)
	return (base + base*time.Duration(n%4+1)/4) * time.Microsecond
}

// Sum is all reports together.
type Sum struct {
	Report
	Processes int
}

// Add sums reports up.
func Add(rs []*Report) (s Sum) {
	for _, r := range rs {
		s.Processes++
		s.Ops += r.Ops
		s.Bytes += r.Bytes
		s.Errors += r.Errors
		s.Wrong += r.Wrong
		s.First = append(s.First, r.First...)
		s.Slow = append(s.Slow, r.Slow...)
		for i, n := range r.Counts {
			s.Counts[i] += n
		}
	}
	return s
}

// Quantile is how long the given part of all operations took at most.
func (r *Report) Quantile(q float64) time.Duration {
	total := int64(0)
	for _, n := range r.Counts {
		total += n
	}
	seen := int64(0)
	for i, n := range r.Counts {
		if seen += n; seen > 0 && float64(seen) >= q*float64(total) {
			return upper(i)
		}
	}
	return 0
}

// Longest is the operation that took longest.
func (r *Report) Longest() (op Op) {
	for _, o := range r.Slow {
		if o.Took > op.Took {
			op = o
		}
	}
	return op
}

// Worst returns the n operations that took longest, the longest first.
func (r *Report) Worst(n int) []Op {
	ops := slices.SortedFunc(slices.Values(r.Slow), func(a, b Op) int { return cmp.Compare(b.Took, a.Took) })
	return ops[:min(n, len(ops))]
}

// Stalls returns, for each of the kills, how long the longest operation took that was under way
// between the kill and the first answer after it; 0 when there was none. They are sorted.
func (r *Report) Stalls(kills []Kill) (out []time.Duration) {
	for _, k := range kills {
		worst := time.Duration(0)
		from, to := k.At.UnixNano(), k.At.Add(k.Answer).UnixNano()
		for _, o := range r.Slow {
			if !strings.HasPrefix(o.Name, "child ") && o.Start < to && o.Start+int64(o.Took) > from {
				worst = max(worst, o.Took)
			}
		}
		out = append(out, worst)
	}
	slices.Sort(out)
	return out
}

// Rank returns the element of a sorted slice that the given part is not above, 0 of none.
func Rank(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// Sorted sorts durations.
func Sorted(ds []time.Duration) []time.Duration {
	slices.Sort(ds)
	return ds
}
