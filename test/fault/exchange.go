package fault

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// exchange is one request and its answer. It belongs to the goroutine that serves it.
type exchange struct {
	p *Proxy
	w http.ResponseWriter
	r *http.Request
	e *Request // guarded by p.mu

	resp  *http.Response // the server's, after begin
	sent  int64          // bytes of its body
	ended bool           // its body is at the end
	alter func(off int64, b []byte)
}

// pass lets the exchange go on as if nobody were between.
func (x *exchange) pass() {
	if x.begin(nil) {
		x.copy(-1)
	}
}

// ask sends the request to the server. alone: it is carried out even if the client leaves.
// nil when the server did not answer; the client has been told then.
func (x *exchange) ask(alone bool) *http.Response {
	ctx := x.r.Context()
	if alone {
		ctx = context.WithoutCancel(ctx)
	}
	out := x.r.Clone(ctx)
	out.URL = x.p.url(x.r.URL)
	out.RequestURI = ""
	out.Header.Del("Expect") // answered by our own server; not part of what is signed
	if x.r.ContentLength == 0 {
		out.Body = http.NoBody
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header.Set("User-Agent", "") // or the transport would add its own
	}
	resp, err := x.p.tr.RoundTrip(out)
	if err != nil {
		if x.r.Context().Err() == nil {
			x.reset() // what a client would see of a server that is gone
		}
		return nil
	}
	return resp
}

// begin asks the server and sends the headers of its answer, edited. False when there is no
// answer, or it could not be sent.
func (x *exchange) begin(edit func(http.Header)) bool {
	resp := x.ask(false)
	if resp == nil {
		return false
	}
	x.resp = resp
	h := x.w.Header()
	for k, v := range resp.Header {
		h[k] = v
	}
	if _, ok := h["Date"]; !ok {
		h["Date"] = nil // the proxy has none of its own
	}
	if edit != nil {
		edit(h)
	}
	x.answer(resp.StatusCode)
	return true
}

// answer sends the status.
func (x *exchange) answer(status int) {
	x.p.mu.Lock()
	x.e.Status = status
	x.p.mu.Unlock()
	x.w.WriteHeader(status)
}

// write sends part of a body, and tells whether that worked.
func (x *exchange) write(b []byte) bool {
	x.count(len(b)) // before, so that a client that has them finds them counted
	n, err := x.w.Write(b)
	if n < len(b) {
		x.count(n - len(b))
	}
	return err == nil || errors.Is(err, http.ErrBodyNotAllowed)
}

func (x *exchange) count(n int) {
	x.p.mu.Lock()
	defer x.p.mu.Unlock()
	x.e.Bytes += int64(n)
}

// copy sends up to n more bytes of the body, all that is left for n < 0, and flushes
// them. False when the client or the server is gone.
func (x *exchange) copy(n int64) bool {
	buf := make([]byte, 64<<10)
	limited := n >= 0
	for n != 0 && !x.ended {
		want := int64(len(buf))
		if n > 0 {
			want = min(want, n)
		}
		m, err := x.resp.Body.Read(buf[:want])
		if m > 0 {
			if x.alter != nil {
				x.alter(x.sent, buf[:m])
			}
			if x.sent+int64(m) == x.resp.ContentLength {
				x.p.leave(x.e)
			}
			if !x.write(buf[:m]) {
				x.resp.Body.Close()
				return false
			}
			x.sent += int64(m)
			if n > 0 {
				n -= int64(m)
			}
		}
		switch {
		case err == io.EOF:
			x.ended = true
			x.resp.Body.Close()
		case err != nil:
			x.resp.Body.Close()
			x.reset()
			return false
		}
	}
	// The end of a handler flushes; a hijack does not.
	if limited && http.NewResponseController(x.w).Flush() != nil {
		return false
	}
	return true
}

func (x *exchange) discard(resp *http.Response) {
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
}

// sleep waits for d, for ever for 0; false when the client left or the proxy closes.
func (x *exchange) sleep(d time.Duration) bool {
	var end <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		end = t.C
	}
	select {
	case <-end:
		return true
	case <-x.r.Context().Done():
	case <-x.p.done:
	}
	return false
}

// reset ends the client's connection with RST; what was flushed was sent before.
func (x *exchange) reset() {
	if c := x.hijack(); c != nil {
		reset(c)
	}
}

// hangUp ends the client's connection in good order.
func (x *exchange) hangUp() {
	if c := x.hijack(); c != nil {
		c.Close()
	}
}

func (x *exchange) hijack() net.Conn {
	if x.resp != nil {
		x.resp.Body.Close()
	}
	x.p.leave(x.e)
	c, _, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		return nil
	}
	return c
}

func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	c.Close()
}

// recorder is a ResponseWriter that keeps the log.
type recorder struct {
	http.ResponseWriter
	x *exchange
}

func (r recorder) WriteHeader(status int) { r.x.answer(status) }

func (r recorder) Write(b []byte) (int, error) {
	r.x.p.mu.Lock()
	if r.x.e.Status == 0 {
		r.x.e.Status = http.StatusOK
	}
	r.x.p.mu.Unlock()
	r.x.count(len(b))
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
