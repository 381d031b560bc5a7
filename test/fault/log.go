package fault

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// Request is one entry of the log. Requests are in the order of their arrival.
type Request struct {
	Time   time.Time
	Method string
	Class  objstore.Class
	Bucket string // the first component of the path
	Key    string // the rest, unescaped; of a LIST, the prefix
	Query  url.Values
	Header http.Header // as the client sent it
	Range  string      // the Range header

	// Known when the answer has begun; Status is 0 when there was none.
	Status int
	Bytes  int64  // of the answer's body that were sent
	Rule   string // name of the rule that fired, ""
	Done   bool   // the answer is over
	Took   time.Duration
}

func (r Request) String() string {
	s := fmt.Sprintf("%s %s /%s/%s", r.Class, r.Method, r.Bucket, r.Key)
	if r.Range != "" {
		s += " " + r.Range
	}
	s += fmt.Sprintf(" -> %d, %d bytes", r.Status, r.Bytes)
	if r.Rule != "" {
		s += " (" + r.Rule + ")"
	}
	return s
}

func newRequest(r *http.Request) *Request {
	e := &Request{Time: time.Now(), Method: r.Method, Query: r.URL.Query(), Header: r.Header.Clone(),
		Range: r.Header.Get("Range")}
	e.Bucket, e.Key, _ = strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	e.Class = classOf(r, e)
	if e.Class == objstore.ClassList && e.Key == "" {
		e.Key = e.Query.Get("prefix")
	}
	return e
}

// classOf sorts a request as stores bill it.
func classOf(r *http.Request, e *Request) objstore.Class {
	switch r.Method {
	case http.MethodHead:
		return objstore.ClassHead
	case http.MethodDelete:
		return objstore.ClassDelete
	case http.MethodGet:
		if e.Key == "" || e.Query.Has("uploadId") || e.Query.Has("uploads") {
			return objstore.ClassList
		}
		return objstore.ClassGet
	case http.MethodPost:
		if e.Query.Has("delete") {
			return objstore.ClassDelete
		}
	case http.MethodPut:
		if r.Header.Get("X-Amz-Copy-Source") != "" {
			return objstore.ClassCopy
		}
	}
	return objstore.ClassPut
}

// Requests returns a copy of the log: what arrived since Start or Forget.
func (p *Proxy) Requests() []Request { return p.Select(nil) }

// Select returns the requests that match; nil matches all.
func (p *Proxy) Select(m Match) []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Request
	for _, e := range p.log {
		if m == nil || m(*e) {
			out = append(out, *e)
		}
	}
	return out
}

// Count is the number of requests in the log that match; nil matches all.
func (p *Proxy) Count(m Match) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, e := range p.log {
		if m == nil || m(*e) {
			n++
		}
	}
	return n
}

// Tally counts the requests that match by key: with Class(ClassList), how often each
// directory was listed. Pages of one listing (with a continuation token or start-after) count
// as one.
func (p *Proxy) Tally(m Match) map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[string]int)
	for _, e := range p.log {
		if m != nil && !m(*e) || e.Query.Has("continuation-token") || e.Query.Has("start-after") {
			continue
		}
		out[e.Key]++
	}
	return out
}

// Peak is the largest number of requests under way at once since Start or Forget: of a class by
// its name, or of all with "".
func (p *Proxy) Peak(class string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peak[class]
}

// Forget empties the log and sets the peaks back.
func (p *Proxy) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log, p.first = nil, 0
	for c := range p.peak {
		p.peak[c] = p.now[c]
	}
}

// Dropped is how many requests have left the log because it was full.
func (p *Proxy) Dropped() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.first
}
