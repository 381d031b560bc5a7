package publish

import (
	"path"
	"strings"
)

// Programs write a file under a name that shows that it is not finished, and rename it when it
// is. A publication that waits for the rename is one request in place of three.

// suffixes are what unfinished files end in; what stands before is the name that they will get.
func suffixes() []string {
	return []string{".tmp", ".temp", ".part", ".partial", ".incomplete", ".inprogress", ".in-progress", ".download",
		".crdownload", ".filepart", ".aria2c", ".unfinished", ".writing", ".orbax-checkpoint-tmp", ".swp", ".swx"}
}

// Temporary tells whether name, the last element of a path, looks like one that is about to change.
func Temporary(name string) bool {
	if _, ok := FinalName(name); ok {
		return true
	}
	l := strings.ToLower(name)
	for _, s := range suffixes() {
		if l == s || strings.HasSuffix(l, s) {
			return true
		}
	}
	for _, pat := range []string{"tmp*", "*.tmp-*", "*.tmp.*", "*.tmp[0-9]*", "*.orbax-checkpoint-tmp-*", "_temporary", "*~", ".~*", ".nfs*"} {
		if ok, _ := path.Match(pat, l); ok {
			return true
		}
	}
	return false
}

// FinalName tells which name an unfinished file will get, where its name shows it.
func FinalName(name string) (string, bool) {
	l := strings.ToLower(name)
	for _, s := range suffixes() {
		if strings.HasSuffix(l, s) && s != ".swp" && s != ".swx" {
			return whole(name[:len(name)-len(s)])
		}
	}
	if n, ok := rsync(name); ok {
		return n, true
	}
	if i := strings.LastIndex(l, ".orbax-checkpoint-tmp-"); i >= 0 && digits(l[i+len(".orbax-checkpoint-tmp-"):]) {
		return whole(name[:i])
	}
	for _, mark := range []string{".tmp.", ".tmp-", ".tmp"} { // with a number of the process behind
		if i := strings.LastIndex(l, mark); i >= 0 && digits(l[i+len(mark):]) {
			return whole(name[:i])
		}
	}
	return "", false
}

// whole is a name that can stand for itself.
func whole(name string) (string, bool) { return name, strings.Trim(name, ".") != "" }

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// rsync writes NAME as ".NAME.XXXXXX", six of mkstemp's characters, without --inplace and
// --partial. A name like ".config.backup" is none: of six random characters of 62, some are
// almost never lower case letters only.
func rsync(name string) (string, bool) {
	const n = 7 // with the point
	if len(name) < n+2 || name[0] != '.' || name[len(name)-n] != '.' {
		return "", false
	}
	random, upper := name[len(name)-n+1:], false
	for i := range len(random) {
		switch c := random[i]; {
		case 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
			upper = true
		case 'a' <= c && c <= 'z':
		default:
			return "", false
		}
	}
	if !upper {
		return "", false
	}
	return whole(name[1 : len(name)-n])
}
