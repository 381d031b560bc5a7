package publish

import "strings"

// The order in which publications may be seen in the bucket.
//
// An application that writes data and then says "it is complete" (`.metadata`, `latest`, a manifest,
// or any name at all) must not be seen to say so before the data is there. Nothing tells which file
// is the one that says it, so the order of completion is kept: an item waits for all puts that were
// complete before it, in its directory or anywhere below. Only siblings that look alike (shards, images)
// go side by side: of two alike, neither says that the other is complete.
//
// A delete (a tomb) is not urgent: it is hidden from this node already, and nobody is harmed by an
// object that goes later. An object that goes too early may be the last copy. So:
//
//   - a delete waits, in its directory and below, for every put that was complete before it, alike or
//     not. rename = put the new name, then delete the old: at every moment one of the two is there.
//     Where the two are in different directories, or the put is a copy that still reads the old object,
//     the delete (and a put that overwrites the old key) names the put in Item.After.
//   - a delete also waits for the earlier puts of all other directories: "save step 200, then rmtree
//     step 100" must not leave the bucket with neither, however deep the files are. But a put that goes on
//     failing (patience times in a row) no longer holds what is deleted elsewhere; its own directory
//     and those above it still wait.
//   - a put does not wait for deletes, with two exceptions. A delete of the same key (one item of a
//     key at a time, in order of completion). And the delete of a commit marker: it says "what is here is
//     no longer complete", so whatever was done later in its directory or below, put or delete, waits for
//     it. "rmtree the old checkpoint, write the new one under the same names" is then seen as:
//     marker gone, shards replaced, marker back; never as the old marker above the new shards. This
//     needs the tomb of a marker to stay in the queue when the name is written again; the tomb of
//     any other name may be folded into the put that overwrites it. A marker that is replaced
//     by rename or rewritten in place is an ordinary put.
//
// Every wait is for something with a lower Seq, so there are no circles.

// patience is after how many failures in a row a put no longer holds the deletes of other directories.
const patience = 5

// Place is what the order depends on: where an item is and when it was completed.
type Place struct {
	Key    string
	Seq    uint64
	Delete bool
	// Failing: it has failed so often that deletes elsewhere no longer wait for it.
	Failing bool
}

// MustPrecede tells whether a must have left the queue before b is committed. It is the definition; the queue
// answers the same from ordered structures. Item.After is not part of it.
func MustPrecede(a, b Place) bool {
	if a.Seq >= b.Seq {
		return false
	}
	if a.Key == b.Key {
		return true
	}
	da, ca := placeOf(a.Key)
	db, cb := placeOf(b.Key)
	if a.Delete {
		return ca == marker && strings.HasPrefix(db, da)
	}
	if b.Delete {
		return !a.Failing || strings.HasPrefix(da, db)
	}
	if da == db {
		return ca != cb || ca == marker
	}
	return strings.HasPrefix(da, db)
}

// Alike tells whether two names of one directory are of one kind, so that neither waits for the other.
func Alike(a, b string) bool {
	c := classOf(a)
	return c != marker && c == classOf(b)
}

// placeOf returns the directory that key belongs to ("" or ending in "/") and the class of its name.
// A directory marker "d/e/" belongs to "d/". What is in the log directory of a table belongs to the table:
// it says what of the table's data counts.
func placeOf(key string) (dir, class string) {
	dir, name := split(key)
	if up, last := split(dir); dir != "" && logDirs[last] {
		return up, marker
	}
	return dir, classOf(name)
}

// split cuts key after the slash before its last element; the name of a directory marker keeps its slash.
func split(key string) (dir, name string) {
	i := strings.LastIndexByte(strings.TrimSuffix(key, "/"), '/') + 1
	return key[:i], key[i:]
}

// logDirs hold the commits of a table: Delta Lake, Hudi, Iceberg.
var logDirs = map[string]bool{"_delta_log/": true, ".hoodie/": true, "metadata/": true}

// marker is the class of the names that are alike with nothing, not even with each other.
const marker = "\x00"

// Names that say by custom that something is complete, in lower case: whole, by how they begin and by how they end.
var (
	markerNames = map[string]bool{
		"metadata": true, "metadata.json": true, "_metadata": true, "_common_metadata": true, "_checkpoint_metadata": true,
		"zarr.json": true, ".zmetadata": true, "checkpoint": true, "_last_checkpoint": true, "version-hint.text": true,
		"success": true, "commit": true, "complete": true, "done": true, "ready": true, "index.json": true,
		"state.json": true, "trainer_state.json": true, "dataset_info.json": true, "dataset_dict.json": true,
	}
	markerStarts = []string{"latest", "last_checkpoint", "manifest", "commit_success"}
	markerEnds   = []string{
		".metadata", ".metadata.json", ".manifest", ".index", ".index.json", "_success", "_success.txt", ".success",
		".commit", ".committed", ".complete", ".done", ".ready",
	}
)

// IsMarker tells whether name (without directory) is by custom what is written last. Directories are not.
func IsMarker(name string) bool {
	if strings.HasSuffix(name, "/") {
		return false
	}
	name = strings.ToLower(name)
	for _, s := range markerStarts {
		if strings.HasPrefix(name, s) {
			return true
		}
	}
	for _, s := range markerEnds {
		if strings.HasSuffix(name, s) {
			return true
		}
	}
	return markerNames[name]
}

// classOf returns what the names that look like this one have in common: the extension, or where there
// is none (or it is a number, a hash) the name without its numbers. A partition, so that a directory of many names
// can be kept by class. Directories are no class with files.
func classOf(name string) string {
	if IsMarker(name) {
		return marker
	}
	if strings.HasSuffix(name, "/") {
		return collapse(name)
	}
	if i := strings.LastIndexByte(name, '.'); i > 0 && i < len(name)-1 {
		ext := strings.ToLower(name[i:])
		if collapse(ext) != ".#" {
			return ext
		}
	}
	// A name without dots cannot be taken for an extension, and one that has some is
	// told apart by this.
	return "/" + collapse(name)
}

// collapse replaces uuids, words of at least six hex digits (with a figure among them: "facade" is a
// word) and runs of figures by "#".
func collapse(name string) string { return collapseTo(name, func(string) {}) }

// collapseTo is collapse; it tells found what it replaced, in order.
func collapseTo(name string, found func(string)) string {
	b := make([]byte, 0, len(name))
	for i := 0; i < len(name); {
		if i == 0 || !alnum(name[i-1]) {
			n := uuidLen(name[i:])
			if n == 0 {
				n = hashLen(name[i:])
			}
			if n > 0 {
				found(name[i : i+n])
				b, i = append(b, '#'), i+n
				continue
			}
		}
		if !figure(name[i]) {
			b = append(b, name[i])
			i++
			continue
		}
		from := i
		for i < len(name) && figure(name[i]) {
			i++
		}
		found(name[from:i])
		b = append(b, '#')
	}
	return string(b)
}

// uuidLen returns 36 when s begins with a uuid.
func uuidLen(s string) int {
	const shape = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
	if len(s) < len(shape) || len(s) > len(shape) && alnum(s[len(shape)]) {
		return 0
	}
	for i := range len(shape) {
		if shape[i] == '-' != (s[i] == '-') || shape[i] == 'x' && !hexDigit(s[i]) {
			return 0
		}
	}
	return len(shape)
}

// hashLen returns how long the word of hex digits at the start of s is, 0 if it is no hash.
func hashLen(s string) int {
	n, figures := 0, false
	for n < len(s) && hexDigit(s[n]) {
		figures = figures || figure(s[n])
		n++
	}
	if n < 6 || !figures || n < len(s) && alnum(s[n]) {
		return 0
	}
	return n
}

func figure(c byte) bool   { return '0' <= c && c <= '9' }
func hexDigit(c byte) bool { return figure(c) || 'a' <= c|0x20 && c|0x20 <= 'f' }
func alnum(c byte) bool    { return figure(c) || 'a' <= c|0x20 && c|0x20 <= 'z' }
