package fs

import (
	"fmt"
	"strings"
	"testing"
)

// A file is published, changed and published again before anybody knows what became of it, many times:
// whichever of these contents is found under its key is known as its own.
func TestTokensOfEarlierContents(t *testing.T) {
	token := ""
	for i := range 5 {
		token = strings.TrimSuffix(fmt.Sprintf("t%d %s", i, former(token)), " ")
		if newest(token) != fmt.Sprintf("t%d", i) {
			t.Fatalf("newest of %q, want t%d", token, i)
		}
		if token = outdated(token); newest(token) != "" {
			t.Fatalf("the newest of %q, of which nothing was published, is %q", token, newest(token))
		}
	}
	if got := tokens(token, "t9 t3"); got != "t4 t3 t2 t1 t0 t9" {
		t.Errorf("all of %q and \"t9 t3\": %q", token, got)
	}
	if got := outdated(outdated(token)); got != token {
		t.Errorf("outdated twice: %q, want %q", got, token)
	}
	if got := outdated(""); got != "" {
		t.Errorf("outdated of nothing: %q", got)
	}
	for i := range 100 {
		token = outdated(fmt.Sprintf("u%d %s", i, former(token)))
	}
	if all := strings.Fields(token); len(all) != maxTokens || all[0] != "u99" {
		t.Errorf("after 100 more: %q, want the newest %d", all, maxTokens)
	}
}
