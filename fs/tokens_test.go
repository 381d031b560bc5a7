package fs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leatfs/leatfs/fs/publish"
	"github.com/leatfs/leatfs/objstore"
)

// A file is published, changed and published again before anybody knows what became of it, many times:
// whichever of these contents is found under its key is known as its own, and so is what other families left there.
func TestTokensOfEarlierContents(t *testing.T) {
	object := func(token string) objstore.Object {
		return objstore.Object{Metadata: publish.Metadata(0, 0, 0, 0, 0, token)}
	}
	token, other := "", publish.NewToken()
	var all []string
	for range 100 {
		token = tokens(nextToken(former(token), other), former(token))
		all = append(all, newest(token))
		if token = outdated(token); newest(token) != "" {
			t.Fatalf("the newest of %q, of which nothing was published, is %q", token, newest(token))
		}
	}
	for i, a := range all {
		if !ours(object(a), token) {
			t.Fatalf("content %d with token %s is not known by %q", i, a, token)
		}
		if i > 0 && a == all[i-1] {
			t.Fatalf("two contents with token %s", a)
		}
	}
	if !ours(object(other), token) {
		t.Errorf("what was there before, with token %s, is not known by %q", other, token)
	}
	if o := object(publish.NewToken()); ours(o, token) || ours(objstore.Object{}, token) || ours(o, "") {
		t.Errorf("somebody else's is taken for our own by %q", token)
	}
	if got := outdated(outdated(token)); got != token {
		t.Errorf("outdated twice: %q, want %q", got, token)
	}
	if got := outdated(""); got != "" {
		t.Errorf("outdated of nothing: %q", got)
	}
	a, b := publish.NewToken(), publish.NewToken()
	if got, want := tokens(b+" "+a, publish.NextToken(a)+" x y x"), b+" "+a+" x y"; got != want {
		t.Errorf("joined: %q, want %q", got, want)
	}
	for i := range 100 {
		token = outdated(fmt.Sprintf("u%d %s", i, former(token)))
	}
	if all := strings.Fields(token); len(all) != maxTokens || all[0] != "u99" {
		t.Errorf("after 100 more: %q, want the newest %d", all, maxTokens)
	}
}

// TestManyContentsInDoubt: an answer is lost and then the origin is away for long, while a file is changed
// again and again, or made anew under the same name. What it had before is no conflict then.
func TestManyContentsInDoubt(t *testing.T) {
	for _, c := range []struct {
		name string
		do   []string
		last string
	}{
		{"changed", []string{"append d/a x"}, "0" + strings.Repeat("x", maxTokens+5)},
		{"made anew", []string{"rm d/a", "put d/a x"}, "x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, o := writing(t, true)
			p.steps(t, "mkdir d", "put d/z 1", "drain")
			o.fates(func(objstore.Op) fate { o.away = true; return lost })
			o.shut()
			p.steps(t, "put d/a 0")
			o.waitHeld(t, "PUT d/a")
			o.open()
			token := p.waitTried(t, "d/a", "")
			for range maxTokens + 5 {
				p.steps(t, c.do...)
				token = p.waitTried(t, "d/a", token)
			}
			if got := o.took(); !slices.Contains(got, "PUT d/a") {
				t.Fatalf("nothing was carried out whose answer was lost: %q", got)
			}
			o.fates(nil)
			o.leave(false)
			p.wantBucket(t, map[string]string{"d/": "", "d/z": "1", "d/a": c.last})
		})
	}
}

// waitTried waits until a file could not be published with another token than before, and returns that.
func (p *program) waitTried(t *testing.T, file, before string) string {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Microsecond) {
		left := p.hasten(t)
		e, err := p.walk(file)
		if err != nil {
			t.Fatal(err)
		}
		if d, err := p.db.Dirty(e.Node.Ino()); err == nil && d.Tries > 0 && newest(d.Token) != "" && newest(d.Token) != before {
			return newest(d.Token)
		}
		if time.Now().After(end) {
			t.Fatalf("%s is not tried: %q", file, left)
		}
	}
}
