package fault

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Action is what a rule does to a request. The functions of this package make them.
type Action interface {
	String() string
	do(x *exchange)
}

// action is an Action made of a name and a function.
type action struct {
	name string
	f    func(x *exchange)
}

func (a action) String() string { return a.name }
func (a action) do(x *exchange) { a.f(x) }

// Error answers with an S3 error without asking the server. retryAfter 0 sends no header.
func Error(status int, code, message string, retryAfter time.Duration) Action {
	return action{code, func(x *exchange) {
		h := x.w.Header()
		h.Set("X-Amz-Request-Id", "FAULT"+strconv.Itoa(status))
		if retryAfter > 0 {
			h.Set("Retry-After", strconv.Itoa(int((retryAfter+time.Second-1)/time.Second)))
		}
		var body []byte
		if x.r.Method != http.MethodHead { // S3 has no body there, and so no code
			body = errorBody(code, message, x.e)
			h.Set("Content-Type", "application/xml")
		}
		h.Set("Content-Length", strconv.Itoa(len(body)))
		x.p.leave(x.e)
		x.answer(status)
		x.write(body)
	}}
}

func errorBody(code, message string, e *Request) []byte {
	b, err := xml.Marshal(struct {
		XMLName   xml.Name `xml:"Error"`
		Code      string
		Message   string
		Key       string `xml:",omitempty"`
		RequestID string `xml:"RequestId"`
		HostID    string `xml:"HostId"`
	}{Code: code, Message: message, Key: e.Key, RequestID: "FAULT", HostID: "fault"})
	if err != nil {
		panic(err) // strings always marshal
	}
	return append([]byte(xml.Header), b...)
}

// SlowDown is S3's throttle: 503, and Retry-After where it is not 0.
func SlowDown(retryAfter time.Duration) Action {
	return Error(http.StatusServiceUnavailable, "SlowDown", "Please reduce your request rate.", retryAfter)
}

// TooManyRequests is the throttle of other stores: 429.
func TooManyRequests(retryAfter time.Duration) Action {
	return Error(http.StatusTooManyRequests, "TooManyRequests", "Too many requests.", retryAfter)
}

// InternalError is S3's 500.
func InternalError() Action {
	return Error(http.StatusInternalServerError, "InternalError", "We encountered an internal error. Please try again.", 0)
}

// ServiceUnavailable is S3's 503 that is no throttle.
func ServiceUnavailable() Action {
	return Error(http.StatusServiceUnavailable, "ServiceUnavailable", "Service is unable to handle request.", 0)
}

// ExpiredToken: the session token has expired.
func ExpiredToken() Action {
	return Error(http.StatusBadRequest, "ExpiredToken", "The provided token has expired.", 0)
}

// ClockSkew is RequestTimeTooSkewed.
func ClockSkew() Action {
	return Error(http.StatusForbidden, "RequestTimeTooSkewed", "The difference between the request time and the server's time is too large.", 0)
}

// AccessDenied is the 403.
func AccessDenied() Action {
	return Error(http.StatusForbidden, "AccessDenied", "Access Denied.", 0)
}

// Archived is the answer to a GET of an object in an archive class.
func Archived() Action {
	return Error(http.StatusForbidden, "InvalidObjectState", "The operation is not valid for the object's storage class.", 0)
}

// Reset resets the connection without an answer; the server is not asked.
func Reset() Action {
	return action{"reset", func(x *exchange) { x.reset() }}
}

// Lose carries the request out and then resets the connection without an answer.
func Lose() Action {
	return action{"lose", func(x *exchange) {
		if resp := x.ask(true); resp != nil {
			x.discard(resp)
			x.reset()
		}
	}}
}

// ResetAfter resets the connection after n bytes of the body.
func ResetAfter(n int64) Action {
	return action{fmt.Sprintf("reset after %d", n), func(x *exchange) {
		if x.begin(nil) && x.copy(n) {
			x.reset()
		}
	}}
}

// Truncate sends the right Content-Length but ends the connection in good order after n
// bytes of the body.
func Truncate(n int64) Action {
	return action{fmt.Sprintf("truncate after %d", n), func(x *exchange) {
		if x.begin(nil) && x.copy(n) {
			x.hangUp()
		}
	}}
}

// Corrupt inverts one bit of the body's byte at offset; a negative offset counts from the
// end. A body that has no such byte passes whole.
func Corrupt(offset int64) Action {
	return action{fmt.Sprintf("corrupt at %d", offset), func(x *exchange) {
		if !x.begin(nil) {
			return
		}
		at := offset
		if at < 0 {
			at += x.resp.ContentLength
		}
		x.alter = func(off int64, b []byte) {
			if i := at - off; i >= 0 && i < int64(len(b)) {
				b[i] ^= 0x10
			}
		}
		x.copy(-1)
	}}
}

// Stall sends n bytes of the body, then nothing for d, then the rest; d 0 is for ever.
// n < 0 stalls before the headers.
func Stall(n int64, d time.Duration) Action {
	return action{fmt.Sprintf("stall after %d", n), func(x *exchange) {
		if n < 0 {
			if x.sleep(d) {
				x.pass()
			}
			return
		}
		if x.begin(nil) && x.copy(n) && x.sleep(d) {
			x.copy(-1)
		}
	}}
}

// Delay lets the answer begin d later.
func Delay(d time.Duration) Action {
	a := Stall(-1, d).(action)
	a.name = "delay " + d.String()
	return a
}

// Drip sends the body in pieces of n bytes, one each d.
func Drip(n int64, d time.Duration) Action {
	return action{fmt.Sprintf("drip %d each %v", n, d), func(x *exchange) {
		if !x.begin(nil) {
			return
		}
		for x.copy(n) && !x.ended && x.sleep(d) {
		}
	}}
}

// Header sets a header of the answer; an empty value removes it.
func Header(name, value string) Action {
	return action{"header " + name, func(x *exchange) {
		ok := x.begin(func(h http.Header) {
			if value == "" {
				h.Del(name)
			} else {
				h.Set(name, value)
			}
		})
		if ok {
			x.copy(-1)
		}
	}}
}

// ETag answers with a wrong ETag; it is put between quotes.
func ETag(etag string) Action {
	a := Header("ETag", strconv.Quote(etag)).(action)
	a.name = "etag"
	return a
}

// Func answers with h in place of the server.
func Func(name string, h http.HandlerFunc) Action {
	return action{name, func(x *exchange) { h(recorder{x.w, x}, x.r) }}
}

// Pass does nothing, so that no rule after it fires: for counting, and for exceptions.
func Pass() Action {
	return action{"pass", func(x *exchange) { x.pass() }}
}
