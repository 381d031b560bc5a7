// Package objstore is the origin: the object store whose objects leatfs shows as files.
//
// Store is the contract. Package s3 and package file implement it; the wrappers
// (retry, limit, hedge, stall, metrics) implement it over another Store, so that each
// is small and they combine freely. One behaviour suite, storetest, runs on all of them.
//
// Every error a Store returns is, or wraps, an *Error, whose Kind says what happened.
// Nobody decides by the text of an error.
package objstore

import (
	"context"
	"io"
	"time"
)

// Class groups requests by what stores bill and throttle them as.
type Class uint8

// The classes. ClassPut holds uploads of every sort (PUT, the multipart calls).
const (
	ClassGet Class = iota
	ClassHead
	ClassList
	ClassPut
	ClassCopy
	ClassDelete
	NumClasses int = iota
)

func (c Class) String() string {
	return [...]string{"GET", "HEAD", "LIST", "PUT", "COPY", "DELETE"}[c]
}

// Caps is what a store can do. It is constant for the life of a Store.
// A capability that is false makes the corresponding request field an
// error of kind Unsupported, never something silently ignored.
type Caps struct {
	// ListOrdered: List answers keys in byte order and StartAfter works, so a
	// key range can be split and listed in parallel.
	ListOrdered bool
	// PutIfNoneMatch and PutIfMatch: Put and CompleteMultipart honour the
	// conditions. CopyIfMatch: Copy honours SourceIfMatch.
	PutIfNoneMatch, PutIfMatch, CopyIfMatch bool
	// DeleteIfMatch: Delete honours IfMatch.
	DeleteIfMatch bool
	// Multipart: the multipart calls work. PartCopy: CopyPart works.
	Multipart, PartCopy bool
	// Checksums: the store computes or keeps full-object checksums.
	Checksums bool
	// Versions: objects carry a VersionID, and Get accepts it.
	Versions bool
	// MinPartSize, MaxPartSize are in bytes, MaxParts a count; for multipart.
	MinPartSize, MaxPartSize int64
	MaxParts                 int
	// MaxListKeys is the largest page that List returns.
	MaxListKeys int
}

// ChecksumAlgorithm names a full-object checksum.
type ChecksumAlgorithm uint8

// The algorithms that combine: the checksum of a whole follows from those of its parts.
const (
	ChecksumNone ChecksumAlgorithm = iota
	CRC64NVME
	CRC32C
	CRC32
)

func (a ChecksumAlgorithm) String() string {
	return [...]string{"none", "CRC64NVME", "CRC32C", "CRC32"}[a]
}

// Checksum is the checksum of all bytes of an object. Value holds a 32-bit checksum in
// its low half. The zero Checksum means that the store has none, or has one of a type
// that says nothing of the whole (COMPOSITE), or was not asked.
type Checksum struct {
	Algorithm ChecksumAlgorithm
	Value     uint64
}

// Object describes one version of one object.
type Object struct {
	Key     string
	Size    int64     // bytes
	ETag    string    // without quotes; opaque; "" when the store has none
	ModTime time.Time // as the store says, usually whole seconds
	// VersionID is "" where the bucket keeps no versions or the request does not tell (List).
	VersionID string
	// StorageClass is the store's own word, "" for its standard class.
	StorageClass string
	// Archived: a GET would answer InvalidObjectState until the object is restored.
	Archived bool
	// Checksum is known after Head and a whole-object Get; List never knows it.
	Checksum Checksum
	// ETagIsMD5: the store vouches that ETag is the MD5 of the content (one part, no
	// SSE-KMS, no SSE-C). Known after Head and Get.
	ETagIsMD5 bool
	// Metadata is the user metadata, keys in lower case; after Head and Get only.
	Metadata map[string]string
	// ContentType is set after Head and Get only.
	ContentType string
}

// ListOptions asks for one page of keys.
type ListOptions struct {
	Prefix string
	// Delimiter is "/" or "": with "/", keys that hold it after Prefix are grouped into Prefixes.
	Delimiter string
	// StartAfter: only keys greater than it (byte order). Needs Caps.ListOrdered, "" otherwise.
	// With a delimiter, a common prefix P is greater iff P itself is greater than StartAfter
	// and StartAfter does not begin with P.
	StartAfter string
	// Token continues a listing; it comes from ListPage.Next and wins over StartAfter.
	Token string
	// MaxKeys bounds keys and prefixes together; 0 means Caps.MaxListKeys.
	MaxKeys int
}

// ListPage is one page. Objects and Prefixes are each in the store's order (byte order
// where Caps.ListOrdered). Prefixes end in the delimiter.
type ListPage struct {
	Objects  []Object
	Prefixes []string
	// Next is "" at the end of the listing.
	Next string
}

// GetOptions names what to read.
type GetOptions struct {
	// Offset and Length are in bytes. Length < 0 means to the end. A zero Offset with a
	// negative Length is a whole-object GET, the only kind whose answer may hold a Checksum.
	// An Offset at or beyond the end is an error of kind InvalidRange.
	Offset, Length int64
	// IfMatch is an ETag; when the object has another one the error is of kind
	// PreconditionFailed. VersionID names a version. Either may be "".
	IfMatch, VersionID string
}

// HeadOptions as in GetOptions.
type HeadOptions struct {
	VersionID string
}

// Reader is the body of a Get, with the description of the object it came from.
// Read returns io.EOF only when all bytes asked for (to the object's end at most) were
// delivered; a body that ends early is io.ErrUnexpectedEOF wrapped in an *Error of kind
// Unavailable. Close must be called, may be called early and more than once; it is the
// caller's to call even after an error. Not for parallel use.
type Reader struct {
	Object Object
	// Offset and Length are what the body holds, clipped to the object's size.
	Offset, Length int64
	Body           io.ReadCloser
}

// Source is data to upload. ReadAt may be called in parallel and more than once: a
// retry reads again.
type Source interface {
	io.ReaderAt
	Size() int64
}

// PutOptions goes with Put, CreateMultipart and CompleteMultipart.
type PutOptions struct {
	// IfNoneMatch true: only if the key does not exist. IfMatch: only if the key has this
	// ETag. A lost race is an error of kind PreconditionFailed.
	IfNoneMatch bool
	IfMatch     string
	// Checksum, when set, is the checksum of all data: the store must refuse data that differs
	// (kind Corrupt).
	Checksum    Checksum
	Metadata    map[string]string
	ContentType string
}

// Part is an uploaded part. Number is 1 to Caps.MaxParts.
type Part struct {
	Number   int
	ETag     string
	Size     int64
	Checksum Checksum
}

// CopyOptions goes with Copy. The metadata of the source is kept unless Metadata is not nil.
type CopyOptions struct {
	SourceIfMatch   string
	SourceVersionID string
	IfNoneMatch     bool
	Metadata        map[string]string
}

// DeleteOptions goes with Delete.
type DeleteOptions struct {
	IfMatch   string // needs Caps.DeleteIfMatch
	VersionID string
}

// Store is one bucket, or one directory, of objects.
//
// All methods may be called in parallel. All return promptly when ctx is done, with an
// error of kind Canceled. Except where a wrapper says so, no method retries.
type Store interface {
	// String is the origin's name for people and for identities: "s3://bucket" (with "?endpoint=…"
	// where it is not AWS), "file:///path". It holds no secret and is constant for the store.
	String() string
	Caps() Caps

	// List returns one page. A prefix under which nothing is, is an empty page, not an error.
	List(ctx context.Context, opt ListOptions) (ListPage, error)
	// Head describes an object; kind NotFound when there is none.
	Head(ctx context.Context, key string, opt HeadOptions) (Object, error)
	// Get opens an object. An archived object is an error of kind Archived.
	Get(ctx context.Context, key string, opt GetOptions) (*Reader, error)

	// Put stores an object whole or not at all.
	Put(ctx context.Context, key string, src Source, opt PutOptions) (Object, error)
	// CreateMultipart begins an upload that becomes visible at CompleteMultipart only.
	CreateMultipart(ctx context.Context, key string, opt PutOptions) (uploadID string, err error)
	PutPart(ctx context.Context, key, uploadID string, number int, src Source, sum Checksum) (Part, error)
	// CopyPart makes a part of bytes [off, off+n) of another object of the store.
	CopyPart(ctx context.Context, key, uploadID string, number int, srcKey string, off, n int64, opt CopyOptions) (Part, error)
	// ListParts tells what an unfinished upload holds; kind NotFound when there is no such upload.
	ListParts(ctx context.Context, key, uploadID string) ([]Part, error)
	CompleteMultipart(ctx context.Context, key, uploadID string, parts []Part, opt PutOptions) (Object, error)
	// AbortMultipart drops an upload; no error when there is none.
	AbortMultipart(ctx context.Context, key, uploadID string) error

	// Copy copies an object (up to 5 GiB on S3) inside the store.
	Copy(ctx context.Context, srcKey, dstKey string, opt CopyOptions) (Object, error)
	// Delete removes an object. No error when there is none and no IfMatch was given.
	Delete(ctx context.Context, key string, opt DeleteOptions) error

	// Close frees what the store holds. Requests under way may fail.
	Close() error
}
