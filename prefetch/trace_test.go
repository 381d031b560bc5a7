package prefetch

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestTraces runs the traces of testdata. A trace begins with
//
//	open size=1G [max=64M] [streams=1]
//
// and goes on with
//
//	read
//	OFF N [pid=P] [at=MS] [x=COUNT] [step=BYTES]
//
// where x repeats the read COUNT times, each N (or step) further. The answer has one line for each
// read: which stream it belongs to, that stream's window and what was asked for. Reads in
// a row that ask for nothing and belong to one stream share a line.
func TestTraces(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var tr *trace
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "open":
				tr = newTrace(t, d)
				return ""
			case "read":
				return tr.reads(t, d.Input)
			case "waste":
				tr.h.account(0, parse(t, d.CmdArgs[0].Key))
				return ""
			}
			t.Fatalf("unknown command %q", d.Cmd)
			return ""
		})
	})
}

type trace struct {
	h     History
	size  int64
	lim   Limits
	now   time.Duration
	names map[*Stream]int
}

func newTrace(t *testing.T, d *datadriven.TestData) *trace {
	tr := &trace{size: 1 << 30, lim: Limits{Max: 64 << 20, Streams: 1}, names: map[*Stream]int{}}
	for _, a := range d.CmdArgs {
		v := parse(t, a.Vals[0])
		switch a.Key {
		case "size":
			tr.size = v
		case "max":
			tr.lim.Max = v
		case "streams":
			tr.lim.Streams = int(v)
		}
	}
	return tr
}

func (tr *trace) reads(t *testing.T, input string) string {
	var out strings.Builder
	for line := range strings.Lines(input) {
		f := strings.Fields(line)
		off, n, pid, count := parse(t, f[0]), parse(t, f[1]), uint32(1), 1
		step := n
		for _, a := range f[2:] {
			k, v, _ := strings.Cut(a, "=")
			switch k {
			case "pid":
				pid = uint32(parse(t, v))
			case "at":
				tr.now = time.Duration(parse(t, v)) * time.Millisecond
			case "x":
				count = int(parse(t, v))
			case "step":
				step = parse(t, v)
			}
		}
		var quiet int
		var last string
		flush := func() {
			if quiet > 0 {
				fmt.Fprintf(&out, "%s", last)
				if quiet > 1 {
					fmt.Fprintf(&out, " (%d reads)", quiet)
				}
				out.WriteByte('\n')
			}
			quiet = 0
		}
		for range count {
			s, _ := tr.h.Place(pid, off, n)
			tr.lim.Ramp = tr.h.ramp()
			asks := s.Observe(off, n, tr.size, tr.now, tr.lim)
			if tr.names[s] == 0 {
				tr.names[s] = len(tr.names) + 1
			}
			state := fmt.Sprintf("stream %d", tr.names[s])
			if s.sequential() && s.seen*sparse >= s.span {
				state += " window " + human(s.window)
			}
			if len(asks) > 0 {
				flush()
				fmt.Fprintf(&out, "%s+%s %s asks", human(off), human(n), state)
				for _, r := range asks {
					fmt.Fprintf(&out, " %s+%s", human(r.Off), human(r.Len))
				}
				out.WriteByte('\n')
			} else {
				if !strings.HasSuffix(last, state) {
					flush()
				}
				quiet++
				last = fmt.Sprintf("%s+%s %s", human(off), human(n), state)
			}
			off += step
		}
		flush()
	}
	return out.String()
}

func parse(t *testing.T, s string) int64 {
	t.Helper()
	var sum int64
	for part := range strings.SplitSeq(s, "+") {
		shift := 0
		for i, u := range []string{"K", "M", "G"} {
			if p, ok := strings.CutSuffix(part, u); ok {
				part, shift = p, 10*(i+1)
			}
		}
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += n << shift
	}
	return sum
}

func human(n int64) string {
	switch {
	case n == 0:
		return "0"
	case n%(1<<30) == 0:
		return fmt.Sprintf("%dG", n>>30)
	case n%(1<<20) == 0:
		return fmt.Sprintf("%dM", n>>20)
	case n%(1<<10) == 0:
		return fmt.Sprintf("%dK", n>>10)
	}
	return strconv.FormatInt(n, 10)
}
