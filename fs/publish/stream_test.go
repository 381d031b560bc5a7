package publish

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// until waits for n requests of a name.
func (w *world) until(name string, n int) {
	w.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		got := 0
		for _, op := range w.ops {
			if op == name {
				got++
			}
		}
		w.mu.Unlock()
		if got >= n {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("%d requests %s, want %d", got, name, n)
		}
	}
}

// TestStream: parts go while the file grows, but for its last; at the end only the rest goes.
func TestStream(t *testing.T) {
	w := newWorld(t, Options{Parallel: 2})
	data := random(60, 6*part+77)
	f := file(t, nil)
	var ups []Upload
	j := Job{Key: "k", File: f, IfNoneMatch: true, Token: NewToken(), Began: func(u Upload) error { ups = append(ups, u); return nil }}
	st := w.p.Stream(t.Context(), j)
	for off := 0; off < len(data); off += part / 2 {
		end := min(off+part/2, len(data))
		writeAt(t, f, data[off:end], int64(off))
		st.Grown(int64(end))
	}
	w.until("PUT PART", 5)
	time.Sleep(20 * time.Millisecond)
	if got := w.tally(); got != "CREATE MULTIPART, 5 PUT PART" {
		t.Errorf("in the background: %s", got)
	}
	out, err := st.Finish(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.tally(); got != "2 PUT PART, COMPLETE MULTIPART" {
		t.Errorf("at the end: %s", got)
	}
	w.has("k", data)
	sums(t, out, data)
	if len(ups) != 1 || out.PartSize != part || out.Requests.Parts != 7 {
		t.Errorf("%+v, %+v", ups, out)
	}
}

// TestStreamRewrites: what was written to after it was sent is sent again.
func TestStreamRewrites(t *testing.T) {
	w := newWorld(t, Options{})
	data := random(61, 5*part)
	f := file(t, data)
	j := Job{Key: "k", File: f, Token: NewToken()}
	st := w.p.Stream(t.Context(), j)
	st.Grown(5 * part)
	w.until("PUT PART", 4)
	copy(data, "header")
	copy(data[3*part-2:], "over a border")
	writeAt(t, f, data, 0)
	w.took()
	out, err := st.Finish(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.tally(); got != "4 PUT PART, COMPLETE MULTIPART" {
		t.Errorf("at the end: %s", got)
	}
	w.has("k", data)
	sums(t, out, data)
}

// TestStreamSmall: a file that stays small is one PUT, and a stream that nothing came of costs nothing.
func TestStreamSmall(t *testing.T) {
	w := newWorld(t, Options{})
	f := file(t, []byte("small"))
	j := Job{Key: "k", File: f, Token: "t"}
	st := w.p.Stream(t.Context(), j)
	st.Grown(5)
	out, err := st.Finish(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	w.wantTook("PUT")
	sums(t, out, []byte("small"))
	st = w.p.Stream(t.Context(), j)
	if err := st.Abort(); err != nil {
		t.Error(err)
	}
	w.wantTook("")
}

// TestStreamShrinks: a file cut to little, or to nothing, after parts of it were sent.
func TestStreamShrinks(t *testing.T) {
	for _, size := range []int{0, 9, part + 9} {
		w := newWorld(t, Options{})
		data := random(62, 4*part)
		f := file(t, data)
		j := Job{Key: "k", File: f, Token: NewToken()}
		st := w.p.Stream(t.Context(), j)
		st.Grown(4 * part)
		w.until("PUT PART", 3)
		if err := f.Truncate(int64(size)); err != nil {
			t.Fatal(err)
		}
		out, err := st.Finish(t.Context(), j)
		if err != nil {
			t.Fatal(err)
		}
		w.has("k", data[:size])
		sums(t, out, data[:size])
	}
}

// TestStreamRenamed: an upload is bound to its key; under another name all is sent anew, and
// nothing is left of the first.
func TestStreamRenamed(t *testing.T) {
	w := newWorld(t, Options{})
	data := random(63, 4*part)
	f := file(t, data)
	var first Upload
	j := Job{Key: "k.tmp", File: f, Token: NewToken(), Began: func(u Upload) error { first = u; return nil }}
	st := w.p.Stream(t.Context(), j)
	st.Grown(4 * part)
	w.until("PUT PART", 3)
	j.Key, j.Began = "k", nil
	out, err := st.Finish(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	w.has("k", data)
	sums(t, out, data)
	if _, err := w.mem.ListParts(t.Context(), first.Key, first.ID); !objstore.Is(err, objstore.NotFound) {
		t.Errorf("the first upload is left: %v", err)
	}
}

// TestStreamAbort: nothing is left, also of an upload that was to be resumed.
func TestStreamAbort(t *testing.T) {
	for _, resumed := range []bool{false, true} {
		w := newWorld(t, Options{})
		f := file(t, random(64, 4*part))
		var up Upload
		j := Job{Key: "k", File: f, Token: NewToken(), Began: func(u Upload) error { up = u; return nil }}
		if resumed {
			id, err := w.mem.CreateMultipart(t.Context(), "k", objstore.PutOptions{})
			if err != nil {
				t.Fatal(err)
			}
			up = Upload{Key: "k", ID: id, PartSize: part}
			j.Upload = up
		}
		st := w.p.Stream(t.Context(), j)
		if !resumed {
			st.Grown(4 * part)
			w.until("PUT PART", 1)
		}
		if err := st.Abort(); err != nil {
			t.Error(err)
		}
		if _, err := w.mem.ListParts(t.Context(), "k", up.ID); !objstore.Is(err, objstore.NotFound) {
			t.Errorf("resumed %v: the upload is left: %v", resumed, err)
		}
	}
}

// TestStreamResumes: a stream of the next process goes on where the last one ended.
func TestStreamResumes(t *testing.T) {
	w := newWorld(t, Options{})
	data := random(65, 6*part)
	f := file(t, data)
	j := Job{Key: "k", File: f, Token: NewToken()}
	j.Began = func(u Upload) error { j.Upload = u; return nil }
	ctx, kill := context.WithCancel(t.Context())
	st := w.p.Stream(ctx, j)
	st.Grown(4 * part)
	w.until("PUT PART", 3)
	kill()
	if up := st.Upload(); up != j.Upload || up.ID == "" {
		t.Errorf("got %+v, recorded %+v", up, j.Upload)
	}
	w.took()
	st = w.p.Stream(t.Context(), j)
	st.Grown(6 * part)
	w.until("PUT PART", 2)
	out, err := st.Finish(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.tally(); got != "1 LIST PARTS, 3 PUT PART, COMPLETE MULTIPART" {
		t.Errorf("requests: %s", got)
	}
	w.has("k", data)
	sums(t, out, data)
}

// TestStreamFails: what goes wrong in the background is made good by Finish.
func TestStreamFails(t *testing.T) {
	for _, name := range []string{"CREATE MULTIPART", "PUT PART"} {
		for _, f := range []fate{fail, deny, spoil, gone} {
			t.Run(fmt.Sprint(name, f), func(t *testing.T) {
				w := newWorld(t, Options{})
				data := random(66, 5*part)
				j := Job{Key: "k", File: file(t, data), Token: NewToken()}
				w.does(name, nth(1, f))
				st := w.p.Stream(t.Context(), j)
				st.Grown(5 * part)
				w.until(name, 1)
				out, err := st.Finish(t.Context(), j)
				if err != nil {
					t.Fatal(err)
				}
				w.has("k", data)
				sums(t, out, data)
			})
		}
	}
}

// TestStreamFinishStops: a Finish whose caller does not wait any more returns, and leaves nothing running.
func TestStreamFinishStops(t *testing.T) {
	w := newWorld(t, Options{})
	j := Job{Key: "k", File: file(t, random(67, 5*part)), Token: NewToken()}
	release := make(chan struct{})
	w.p.store = objstore.Around(w.mem, func(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
		if op.Name == "PUT PART" {
			select {
			case <-ctx.Done():
				return &objstore.Error{Op: op.Name, Kind: objstore.Canceled, Err: ctx.Err()}
			case <-release:
			}
		}
		return w.request(ctx, op, call)
	})
	st := w.p.Stream(t.Context(), j)
	st.Grown(5 * part)
	w.until("CREATE MULTIPART", 1)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := st.Finish(ctx, j); err == nil || !(objstore.Is(err, objstore.Canceled) || objstore.Is(err, objstore.Timeout)) {
		t.Errorf("got %v", err)
	}
	close(release)
	w.noGoroutines()
}
