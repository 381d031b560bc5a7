package fs

import (
	"slices"
	"strings"

	"github.com/leatfs/leatfs/fs/publish"
	"github.com/leatfs/leatfs/objstore"
)

// Every object that is published carries a token, by which a publication whose answer was lost is known
// again. Whatever follows under the same key before it is known what became of that is published with a token
// of the same family: so it takes one token to know them all, however many contents or files there were.
//
// The token of a Dirty is that of its publication, "" before that began, and behind it those of other
// families that may be under the key, newest first.

func newest(token string) string { t, _, _ := strings.Cut(token, " "); return t }
func former(token string) string { _, t, _ := strings.Cut(token, " "); return t }

// outdated is the token of a file whose content has changed since it was published with token.
func outdated(token string) string {
	if all := tokens(token, ""); all != "" {
		return " " + all
	}
	return ""
}

// besides is the token of a file of which others, too, may be under the key.
func besides(token, others string) string {
	all := tokens(token, others)
	if all != "" && newest(token) == "" {
		all = " " + all
	}
	return all
}

// maxTokens bounds what tokens remembers: families, of which a key has more than one only where files with
// objects of their own were given its name.
const maxTokens = 64

// tokens joins the tokens of what else of ours may be under a key, the newest first, and one of each family.
func tokens(newer, older string) string {
	var all []string
	for _, t := range slices.Concat(strings.Fields(newer), strings.Fields(older)) {
		if !slices.ContainsFunc(all, func(o string) bool { return publish.SameFamily(o, t) }) {
			all = append(all, t)
		}
	}
	return strings.Join(all[:min(len(all), maxTokens)], " ")
}

// nextToken is a token for what is to be published now under a key: of the family of what else of ours may
// be there, by the file itself or by files before it.
func nextToken(file, key string) string {
	return publish.NextToken(newest(tokens(file, key)))
}

// ours tells whether an object was published by one of some tokens, or another of their families.
func ours(o objstore.Object, tokens string) bool {
	t := publish.TokenOf(o)
	return t != "" && slices.ContainsFunc(strings.Fields(tokens), func(own string) bool { return publish.SameFamily(own, t) })
}
