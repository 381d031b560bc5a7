// Package publish turns a staging file into an object of the store, whole or not at all.
//
// A Job says what is to be under a key, and what may be there before. Publish makes it so
// with as few requests as there can be: one PUT of a small file, a multipart upload of a
// large one, a copy inside the store of what is there already. A Stream uploads the parts of
// a file while it still grows.
//
// What lands is what was in the file. Every file is read once for the CRC64NVME of its
// blocks; from them follow those of its parts and of the whole, which go with the data, so
// that the store refuses data that changed after it was read here. A part that was sent
// earlier and reads otherwise by now is sent again. A file whose size or times changed
// meanwhile is read again, a few times (ErrChanged).
//
// What was there is never silently replaced. The commit (the PUT, the completion, the copy)
// is conditional where the store has conditions, and comes after a HEAD where it has not. Each
// publication carries a token of its own in its metadata: when the answer of a commit was
// lost, or says that somebody else was there first, a HEAD tells whether that was us. The token
// stays the same over all tries of a publication, also in another process.
//
// The requests are made on a Store that retries (objstore/retry). An error of Publish is worth
// another Publish of the same Job when it is temporary by its kind.
package publish
