package s3

import (
	"strings"

	"github.com/leatfs/leatfs/objstore"
)

// server is the software behind an endpoint, as its Server header tells.
type server uint8

const (
	serverOther server = iota
	serverAWS
	serverAWSDirectory // a directory bucket (S3 Express One Zone)
	serverMinIO
	serverVersitygw
)

// detectServer reads the Server header of an answer. header may be "".
func detectServer(bucket, endpoint, header string) server {
	h := strings.ToLower(header)
	switch {
	case strings.Contains(h, "minio"):
		return serverMinIO
	case strings.Contains(h, "versity"):
		return serverVersitygw
	case isAWS(endpoint) && strings.HasSuffix(bucket, "--x-s3"):
		return serverAWSDirectory
	case isAWS(endpoint):
		return serverAWS
	}
	return serverOther
}

// capsOf is what a server can do. What is not known to fail is claimed: a store that
// refuses a condition says so with an error of its own.
func capsOf(s server) objstore.Caps {
	c := objstore.Caps{
		ListOrdered:    true,
		PutIfNoneMatch: true, PutIfMatch: true, CopyIfMatch: true, DeleteIfMatch: true,
		Multipart: true, PartCopy: true,
		Checksums:   true,
		MinPartSize: 5 << 20, MaxPartSize: 5 << 30, MaxParts: 10000,
		MaxListKeys: 1000,
	}
	switch s {
	case serverMinIO:
		c.DeleteIfMatch = false // it deletes whatever the ETag
		c.PartCopy = false      // not in an upload with a full-object checksum, as all of ours are
	case serverVersitygw:
		// It gives a part that is a range of an object the checksum of the whole object, and
		// so a wrong one to what is made of such parts (1.8.0).
		c.PartCopy = false
	case serverOther:
		c.DeleteIfMatch = false // younger than the other conditions; ignored by most
	case serverAWSDirectory:
		c.ListOrdered = false
	}
	return c
}

// copiesIfNoneMatch tells whether CopyObject honours If-None-Match on its target.
func copiesIfNoneMatch(s server) bool {
	switch s {
	case serverAWS:
		return true
	}
	return false
}
