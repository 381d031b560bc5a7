package publish

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

func TestTemporary(t *testing.T) {
	datadriven.RunTest(t, "testdata/temporary", func(t *testing.T, d *datadriven.TestData) string {
		var b strings.Builder
		for _, name := range strings.Split(strings.TrimSpace(d.Input), "\n") {
			final, ok := FinalName(name)
			switch {
			case ok && !Temporary(name):
				fmt.Fprintf(&b, "%s -> %s, but not temporary\n", name, final)
			case ok:
				fmt.Fprintf(&b, "%s -> %s\n", name, final)
			case Temporary(name):
				fmt.Fprintf(&b, "%s: temporary\n", name)
			default:
				fmt.Fprintf(&b, "%s: lasting\n", name)
			}
		}
		return b.String()
	})
}
