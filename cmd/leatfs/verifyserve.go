package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"

	"github.com/leatfs/leatfs/fs"
	"github.com/leatfs/leatfs/objstore"
)

// What "leatfs verify" asks of a mount: what is known here of files, what the origin says of an object,
// and the object's bytes past the cache. Comparing is the command's own work.

// verifyMessage is one line of the answer to /verify/files. An answer that does not end with Done was
// broken off.
type verifyMessage struct {
	Copy  *fs.Copy `json:"copy,omitempty"`
	Done  bool     `json:"done,omitempty"`
	Error string   `json:"error,omitempty"`
}

// verifyObject answers /verify/object.
type verifyObject struct {
	Found     bool                       `json:"found"`
	Size      int64                      `json:"size"`
	ETag      string                     `json:"etag,omitempty"`
	ETagIsMD5 bool                       `json:"etag_is_md5,omitempty"`
	Algorithm objstore.ChecksumAlgorithm `json:"checksum_algorithm,omitempty"`
	Checksum  string                     `json:"checksum,omitempty"` // hexadecimal
	Error     string                     `json:"error,omitempty"`    // it could not be asked
}

func (d *daemon) verifyHandlers() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"GET /verify/files": d.handleVerifyFiles, "GET /verify/object": d.handleVerifyObject, "GET /verify/content": d.handleVerifyContent,
	}
}

// handlers are what can be asked of a mount beside its status.
func (d *daemon) handlers() map[string]http.HandlerFunc {
	all := d.ledgerHandlers()
	maps.Copy(all, d.verifyHandlers())
	return all
}

func (d *daemon) handleVerifyFiles(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := json.NewEncoder(w)
	m := verifyMessage{Done: true}
	err := d.fs.Copies(r.Context(), r.URL.Query().Get("path"), func(c *fs.Copy) error { return out.Encode(verifyMessage{Copy: c}) })
	if r.Context().Err() != nil {
		return // who asked is gone, or this process is about to be
	}
	if err != nil {
		m = verifyMessage{Error: err.Error()}
	}
	_ = out.Encode(m) // who asks may be gone
}

func (d *daemon) handleVerifyObject(w http.ResponseWriter, r *http.Request) {
	key := r.URL.Query().Get("key")
	if !d.fs.Under(key) {
		http.Error(w, fmt.Sprintf("key %q is not of this mount", key), http.StatusBadRequest)
		return
	}
	var a verifyObject
	obj, err := d.store.Head(objstore.WithPriority(r.Context(), objstore.Background), key, objstore.HeadOptions{})
	switch {
	case err == nil:
		a = verifyObject{Found: true, Size: obj.Size, ETag: obj.ETag, ETagIsMD5: obj.ETagIsMD5,
			Algorithm: obj.Checksum.Algorithm, Checksum: strconv.FormatUint(obj.Checksum.Value, 16)}
	case !objstore.Is(err, objstore.NotFound):
		a.Error = err.Error()
	}
	answerJSON(w, a, nil)
}

// handleVerifyContent sends the bytes of one version. What fails on the way breaks the answer off.
func (d *daemon) handleVerifyContent(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	key := q.Get("key")
	if !d.fs.Under(key) {
		http.Error(w, fmt.Sprintf("key %q is not of this mount", key), http.StatusBadRequest)
		return
	}
	ctx := objstore.WithPriority(r.Context(), objstore.Background)
	body, err := d.store.Get(ctx, key, objstore.GetOptions{Length: -1, IfMatch: q.Get("etag")})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = body.Body.Close() }() // only read
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(body.Length, 10))
	if _, err := io.CopyBuffer(struct{ io.Writer }{w}, body.Body, make([]byte, 256<<10)); err != nil && r.Context().Err() == nil {
		d.log.Warn("an object could not be read to its end for \"leatfs verify\"", "key", key, "err", err)
	}
}
