package posix

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// refused reads refused.txt: for each test of pjdfstest that a mount fails on purpose, the
// sentence of docs/SEMANTICS.md that says so.
func refused() (map[string]string, error) {
	b, err := os.ReadFile("refused.txt")
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for i, line := range strings.Split(string(b), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, sentence, _ := strings.Cut(line, " ")
		sentence = strings.Join(strings.Fields(sentence), " ")
		if sentence == "" {
			return nil, fmt.Errorf("refused.txt:%d: %s has no reason: write the sentence of docs/SEMANTICS.md behind it", i+1, name)
		}
		if _, ok := out[name]; ok {
			return nil, fmt.Errorf("refused.txt:%d: %s is there twice", i+1, name)
		}
		out[name] = sentence
	}
	return out, nil
}

// TestRefusedIsDocumented: whatever POSIX asks for and a mount refuses stands in
// docs/SEMANTICS.md, in the words that refused.txt quotes.
func TestRefusedIsDocumented(t *testing.T) {
	list, err := refused()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("../../docs/SEMANTICS.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := strings.Join(strings.Fields(string(b)), " ")
	for name, sentence := range list {
		if !strings.Contains(doc, sentence) {
			t.Errorf("refused.txt: %s is refused because of %q, which docs/SEMANTICS.md does not say", name, sentence)
		}
	}
}
