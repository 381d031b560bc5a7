package meta

// Page is what one or more LIST requests found of a directory: everything that the origin
// has in one range of it.
//
// Ranges are over sort keys, which are what S3 sorts by, relative to the directory's Prefix:
// an object sorts as its name, a directory as its name + "/". So "a.txt" comes before the
// directory "a" though "a" < "a.txt", and an object and a directory of one name may stand in
// different pages.
type Page struct {
	// From and To bound the range: sort keys greater than From up to and including To.
	// From "" is the beginning, To "" is the end.
	From, To string
	// Prefix is what was listed. A directory that has another one by now is left alone: ErrMoved. "" is not compared.
	Prefix string
	// Objects and Dirs are names without "/", NUL and the directory's prefix, 1 to MaxName
	// bytes. Each name once in each. Any order will do; that of the listing is quickest.
	// Names outside the range are merged too, they only prove nothing about others.
	Objects []ListedObject
	Dirs    []string
	// Began is when the listing was begun, in nanoseconds since 1970. Inodes that were
	// checked after it are not altered.
	Began int64
	// Partial: the range may hold more names than the page, so none is removed.
	Partial bool
	// OnChange, when not nil, is called for each change after it is in the index, and
	// MergeResult's lists stay empty, so that memory is bounded however much is removed. It
	// is called from Merge's goroutine with no lock held; it may use the index.
	OnChange func(Change)
}

// MaxName is the longest name the index holds, in bytes.
const MaxName = 1024

// ListedObject is an object of a Page.
type ListedObject struct {
	Name     string
	Size     int64
	ETag     string
	MTime    int64 // nanoseconds since 1970
	Archived bool
}

// Change is one name that Merge altered. Old.Ino is 0 when the name is new, New.Ino is 0
// when it is gone. Both are set and differ in Ino when the name became another kind of
// thing; Old then has the flag Removed.
type Change struct {
	Old, New Inode
}

// MergeResult counts what Merge did with the names of a page.
type MergeResult struct {
	Added, Altered, Gone int
	// Unchanged names needed no write. Kept ones were not compared: they are Local or were
	// checked after the listing began.
	Unchanged, Kept int
	// Hidden names were not added: a Tomb hides them.
	Hidden int
	// Unshadowed: a directory went away that hid an object of its name, and the page does
	// not say whether that object is still there. List the directory again.
	Unshadowed bool
	// Changed and Removed list what happened to names that were there before, when
	// Page.OnChange is nil. Names only added are not listed.
	Changed []Change
	Removed []Inode
}
